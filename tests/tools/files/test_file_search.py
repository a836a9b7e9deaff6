"""The tool `file_search` in responses: with OpenAI's own client, streamed and not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from app.tools.files.tool import MAX_STORES
from tests.responses.test_tool_loop import made
from tests.support import laws
from tests.support.build import delta, finish
from tests.support.file_databases import FileDatabase
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.files.conftest import openai_client

TEXTS = {
    "bread.txt": "Sourdough bread needs a starter of flour and water.",
    "choir.txt": "An antiphon is sung by two choirs in turn.",
}


def asks(*queries: str) -> list[Any]:
    return made(("file_search", {"queries": [*queries]}))


def says(*pieces: str) -> list[Any]:
    return [*(delta(content=piece) for piece in pieces), finish("stop")]


@dataclass
class SearchServer:
    client: AsyncOpenAI
    backend: Scripted
    store: str
    files: dict[str, str]  # ids by name

    def tool(self, **options: Any) -> Any:
        return {"type": "file_search", "vector_store_ids": [self.store], **options}

    async def respond(self, **options: Any) -> Any:
        tools = [self.tool()]
        return await self.client.responses.create(
            **{"model": "m", "input": "What of bread?", "tools": tools, **options}
        )

    async def events(self, **options: Any) -> list[dict[str, Any]]:
        stream = await self.respond(stream=True, **options)
        return [event.to_dict() async for event in stream]

    def shown(self, question: int = -1) -> str:
        """The model's view of a search."""
        return str(self.backend.received[question]["messages"][-1]["content"])


@asynccontextmanager
async def search_server(database: FileDatabase, backend: Scripted, **options: Any) -> AsyncIterator[SearchServer]:
    tools = {"file_search": database.settings}
    async with antiphon(backend, tools=tools, **options) as url, openai_client(url) as client:
        store = await client.vector_stores.create()
        ids = {}
        for name, text in TEXTS.items():
            file = await client.vector_stores.files.upload_and_poll(
                vector_store_id=store.id, file=(name, text.encode()), poll_interval_ms=20
            )
            ids[name] = file.id
        yield SearchServer(client, backend, store.id, ids)


@pytest_asyncio.fixture
async def server(database: FileDatabase) -> AsyncIterator[SearchServer]:
    async with search_server(database, Scripted()) as running_server:
        yield running_server


async def test_file_search_is_called_and_its_results_cited(server: SearchServer) -> None:
    server.backend.scripts = [asks("sourdough starter"), says("It needs ", "a starter", " 【1", "】", ". Enjoy!")]
    response = await server.respond()
    call, message = response.output
    assert (call.type, call.status, call.queries, call.results) == (
        "file_search_call",
        "completed",
        ["sourdough starter"],
        None,
    )
    part = message.content[0]
    assert part.text == "It needs a starter. Enjoy!"
    assert [one.to_dict() for one in part.annotations] == [
        {"type": "file_citation", "file_id": server.files["bread.txt"], "filename": "bread.txt", "index": 18}
    ]
    assert f"【1】 bread.txt\n{TEXTS['bread.txt']}" in server.shown()
    (declared,) = server.backend.received[0]["tools"]
    assert declared["function"]["name"] == "file_search"


async def test_file_search_events_come_in_openais_order(server: SearchServer) -> None:
    server.backend.scripts = [asks("sourdough"), says("A starter【1】.")]
    events = await server.events()
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    laws.check(events)
    (annotated,) = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    assert (annotated["annotation_index"], annotated["annotation"]["index"]) == (0, 9)
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert done["text"] == "A starter."
    final = events[-1]["response"]["output"]
    assert final[1]["content"][0]["annotations"] == [annotated["annotation"]]


async def test_file_search_stream_is_the_same_as_the_json_answer(server: SearchServer) -> None:
    server.backend.scripts = [asks("bread", "choirs"), says("Two【1】【2】", " things 【9】", ".")] * 2
    streamed = (await server.events())[-1]["response"]["output"]
    whole = [item.to_dict() for item in (await server.respond()).output]
    for items in (streamed, whole):
        for item in items:
            del item["id"]
    assert streamed == whole
    assert whole[1]["content"][0]["text"] == "Two things 【9】."
    assert {one["filename"] for one in whole[1]["content"][0]["annotations"]} == set(TEXTS)


async def test_file_search_answer_without_a_mark_has_no_citation(server: SearchServer) -> None:
    server.backend.scripts = [asks("bread"), says("It needs a starter.")]
    response = await server.respond()
    assert response.output[1].content[0].annotations == []


async def test_file_search_results_are_returned_if_included(server: SearchServer) -> None:
    server.backend.scripts = [asks("sourdough"), says("Yes.")]
    response = await server.respond(include=["file_search_call.results"])
    (result,) = response.output[0].results
    assert (result.file_id, result.filename, result.text) == (
        server.files["bread.txt"],
        "bread.txt",
        TEXTS["bread.txt"],
    )
    assert result.attributes == {}
    assert 0 < result.score <= 1
    stored = await server.client.responses.retrieve(response.id)
    assert stored.output[0].results == response.output[0].results  # type: ignore[union-attr]


async def test_file_search_results_may_be_cited_in_the_next_turn(server: SearchServer) -> None:
    server.backend.scripts = [
        asks("sourdough"),
        says("A starter【1】."),
        says("As I said【1】."),
        asks("choirs"),
        says("【51】."),
    ]
    first = await server.respond()
    second = await server.respond(input="Sure?", previous_response_id=first.id, tools=[])
    messages = server.backend.received[2]["messages"]
    assert any(TEXTS["bread.txt"] in str(message.get("content")) for message in messages)
    part = second.output[0].content[0]
    assert (part.text, [one.filename for one in part.annotations]) == ("As I said.", ["bread.txt"])
    # Later results have new marks.
    third = await server.respond(input="And choirs?", previous_response_id=second.id)
    assert "【51】 choir.txt" in server.shown()
    assert [one.filename for one in third.output[1].content[0].annotations] == ["choir.txt"]


async def test_file_search_that_finds_nothing_says_so(server: SearchServer) -> None:
    server.backend.scripts = [asks("quantum"), says("Nothing.")]
    response = await server.respond(include=["file_search_call.results"])
    assert (response.output[0].status, response.output[0].results) == ("completed", [])
    assert "No passages match" in server.shown()


@pytest.mark.parametrize(
    ("arguments", "queries"),
    [
        ({"query": "bread"}, ["bread"]),
        ({"queries": "bread"}, ["bread"]),
        ({"queries": ["bread", 1, "", "bread"]}, ["bread"]),
    ],
)
async def test_file_search_arguments_of_small_models_are_understood(
    server: SearchServer, arguments: Any, queries: list[str]
) -> None:
    server.backend.scripts = [made(("file_search", arguments)), says("Yes.")]
    response = await server.respond()
    assert (response.output[0].status, response.output[0].queries) == ("completed", queries)


async def test_file_search_call_without_a_query_fails_and_the_answer_goes_on(server: SearchServer) -> None:
    server.backend.scripts = [made(("file_search", {})), says("I cannot.")]
    response = await server.respond()
    assert (response.status, response.output[0].status, response.output[0].queries) == ("completed", "failed", [])
    assert "queries" in server.shown()


async def test_file_search_filters_number_and_threshold_apply(server: SearchServer) -> None:
    await server.client.vector_stores.files.update(
        server.files["choir.txt"], vector_store_id=server.store, attributes={"kind": "music"}
    )
    queries = ("bread", "choirs")
    for options, expected in (
        ({"filters": {"type": "eq", "key": "kind", "value": "music"}}, {"choir.txt"}),
        ({"max_num_results": 1}, None),
        ({"ranking_options": {"score_threshold": 1.0}}, set()),
    ):
        server.backend.scripts = [asks(*queries), says("Yes.")]
        response = await server.respond(tools=[server.tool(**options)], include=["file_search_call.results"])
        names = {result.filename for result in response.output[0].results}
        assert names == expected if expected is not None else len(names) == 1
    assert "choir.txt (kind: music)" in server.shown(1)


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"vector_store_ids": ["vs_none"]}, "tools[0].vector_store_ids[0]"),
    ({}, "tools[0].vector_store_ids"),
    ({"vector_store_ids": []}, "tools[0].vector_store_ids"),
    ({"vector_store_ids": ["x"] * (MAX_STORES + 1)}, "tools[0].vector_store_ids"),
    ({"vector_store_ids": ["x"], "max_num_results": 99}, "tools[0].max_num_results"),
    ({"vector_store_ids": ["x"], "filters": {"type": "eq", "key": "a"}}, "tools[0].filters.value"),
]


async def test_file_search_that_is_invalid_is_refused_before_the_model_is_asked(server: SearchServer) -> None:
    for tool, param in INVALID:
        for options in ({}, {"stream": True}):
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
                await server.respond(tools=[{"type": "file_search", **tool}], **options)
            assert str(refused.value.param).startswith(param), (tool, refused.value)
    assert server.backend.received == []


async def test_file_search_in_stores_of_another_owner_is_refused(database: FileDatabase) -> None:
    backend = Scripted([finish("stop")])
    async with search_server(database, backend, api_keys="ada,bob") as server:
        async with openai_client(str(server.client.base_url).removesuffix("/v1/"), "bob") as bob:
            refusals = []
            for store in (server.store, "vs_none"):
                tool: Any = {"type": "file_search", "vector_store_ids": [store]}
                with pytest.raises(openai.NotFoundError) as refused:
                    await bob.responses.create(model="m", input="x", tools=[tool])
                refusals.append(str(refused.value).replace(store, "ID"))
            assert refusals[0] == refusals[1]
    assert backend.received == []


async def test_file_search_can_be_forced_and_left_out(server: SearchServer) -> None:
    server.backend.scripts = [asks("bread"), says("Yes."), says("No.")]
    await server.respond(tool_choice={"type": "file_search"})
    assert server.backend.received[0]["tool_choice"] == {"type": "function", "function": {"name": "file_search"}}
    await server.respond(tool_choice="none")
    assert "tools" not in server.backend.received[-1] or server.backend.received[-1].get("tool_choice") == "none"


async def test_file_search_results_that_are_long_are_shown_as_far_as_there_is_room(database: FileDatabase) -> None:
    backend = Scripted()
    async with search_server(database, backend) as server:
        text = "bread " * 700
        for number in range(30):
            await server.client.vector_stores.files.upload_and_poll(
                vector_store_id=server.store, file=(f"{number}.txt", text.encode()), poll_interval_ms=20
            )
        backend.scripts = [asks("bread"), says("Yes【50】.")]
        response = await server.respond(tools=[server.tool(max_num_results=50)], include=["file_search_call.results"])
        assert len(response.output[0].results) > 20
        assert len(server.shown()) <= 60_000
        assert server.shown().rstrip().endswith("bread")
        # Unknown marks are not cited.
        assert response.output[1].content[0].text == "Yes【50】."
