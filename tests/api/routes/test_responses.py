"""The API over HTTP, on a real socket: requests in, JSON and events out."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import zstandard
from openai.types.responses import Tool
from openresponses_types.types import ResponseResource
from pydantic import TypeAdapter

from app.core.types.deltas import DONE
from app.errors import BackendError
from tests.support import laws
from tests.support.build import call, delta, finish, story, whole
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

HELLO = [delta(content="Hel"), delta(content="lo")]


def client(url: str, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False)


async def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; its framing is checked on the way."""
    body = (await response.aread()).decode()
    blocks = [block for block in body.split("\n\n") if block and not block.startswith(":")]
    assert blocks[-1] == "data: [DONE]"
    events = []
    for block in blocks[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


@pytest.fixture
async def served() -> AsyncIterator[tuple[httpx.AsyncClient, Scripted]]:
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, client(url) as http:
        yield http, backend


# The four calls.


async def test_conversation_in_json_and_in_events_is_answered(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, backend = served

    first = (await http.post("/v1/responses", json={"model": "m", "input": "One"})).json()
    ResponseResource.model_validate(first)
    assert first["output"][0]["content"][0]["text"] == "Hello"

    continued = {"model": "m", "input": "Two", "previous_response_id": first["id"]}
    second = (await http.post("/v1/responses", json=continued)).json()
    assert second["previous_response_id"] == first["id"]

    streamed = await http.post("/v1/responses", json={"model": "m", "input": "Three", "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    laws.check(await events_of(streamed))

    both = {"model": "m", "input": "Four", "stream": True, "previous_response_id": second["id"]}
    laws.check(await events_of(await http.post("/v1/responses", json=both)))

    assert [message["content"] for message in backend.received[-1]["messages"]] == [
        "One",
        "Hello",
        "Two",
        "Hello",
        "Four",
    ]


async def test_streamed_and_json_answers_are_the_same(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    body = {"model": "m", "input": "Hi", "store": False, "metadata": {"a": "b"}, "temperature": 0.5, "user": "me"}
    whole_ = (await http.post("/responses", json=body)).json()
    streamed = (await events_of(await http.post("/responses", json={**body, "stream": True})))[-1]["response"]

    def comparable(response: dict[str, Any]) -> dict[str, Any]:
        times_and_ids = {"id", "created_at", "completed_at"}
        items = [{**item, "id": None} for item in response["output"]]
        return {name: value for name, value in response.items() if name not in times_and_ids} | {"output": items}

    assert comparable(whole_) == comparable(streamed)
    assert whole_["store"] is False


# State.


@pytest.mark.parametrize("format_fields", [{}, {"strict": True, "description": "A person."}, {"strict": None}])
@pytest.mark.parametrize("agent", ["curl/8", "node", "OpenAI/Python 3.52.0"])
async def test_schema_of_text_format_is_echoed_to_every_client(
    served: tuple[httpx.AsyncClient, Scripted], agent: str, format_fields: dict[str, Any]
) -> None:
    http, _ = served
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    format = {"type": "json_schema", "name": "person", "schema": schema, **format_fields}
    body = {"model": "m", "input": "Who?", "text": {"format": format}}
    response = (await http.post("/v1/responses", json=body, headers={"User-Agent": agent})).json()
    echoed = response["text"]["format"]
    assert echoed["strict"] is bool(format_fields.get("strict"))
    assert echoed["description"] == format_fields.get("description")
    assert echoed["schema"] == schema
    echoed["schema"] = None  # the spec has no other
    ResponseResource.model_validate(response)


DRAWING = {
    "type": "image_generation",
    "background": "auto",
    "moderation": "auto",
    "n": 1,
    "output_compression": 100,
    "output_format": "png",
    "quality": "auto",
    "size": "auto",
}


async def test_tool_is_echoed_with_the_defaults_that_took_effect(
    served: tuple[httpx.AsyncClient, Scripted],
) -> None:
    http, _ = served
    tools: list[dict[str, Any]] = [
        {"type": "function", "name": "a"},
        {"type": "function", "name": "b", "parameters": {"type": "object"}, "strict": True, "description": "Look."},
        {"type": "web_search", "search_context_size": "low"},
        {"type": "web_search_preview", "user_location": {"type": "approximate", "country": "FR"}},
        {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3},
        {"type": "file_search", "vector_store_ids": ["vs_1"], "ranking_options": {"score_threshold": 0.5}},
        {"type": "image_generation", "size": "1024x1024"},
        {"type": "custom", "name": "c"},
        {"type": "tool_search"},
    ]
    ranking = {"ranker": "auto", "score_threshold": 0.0}
    nowhere = {"type": "approximate", "city": None, "country": None, "region": None, "timezone": None}
    stores = {"type": "file_search", "vector_store_ids": ["vs_1"], "filters": None}
    response = (await http.post("/v1/responses", json={"model": "m", "input": "Hi", "tools": tools})).json()
    assert response["tools"] == [
        {"type": "function", "name": "a", "description": None, "parameters": None, "strict": False},
        tools[1],
        {"type": "web_search", "search_context_size": "low", "user_location": nowhere, "filters": None},
        {"type": "web_search_preview", "search_context_size": "medium", "user_location": {**nowhere, "country": "FR"}},
        {**stores, "max_num_results": 3, "ranking_options": ranking},
        {**stores, "max_num_results": 20, "ranking_options": {**ranking, "score_threshold": 0.5}},
        {**DRAWING, "size": "1024x1024"},
        {"type": "custom", "name": "c", "format": {"type": "text"}},
        {"type": "tool_search", "description": None, "parameters": None},
    ]
    TypeAdapter(list[Tool]).validate_python(response["tools"])


async def test_forks_of_a_response_do_not_see_each_other(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, backend = served
    root = (await http.post("/v1/responses", json={"model": "m", "input": "root"})).json()["id"]
    for branch in ("left", "right"):
        await http.post("/v1/responses", json={"model": "m", "input": branch, "previous_response_id": root})
        assert [message["content"] for message in backend.received[-1]["messages"]] == ["root", "Hello", branch]


async def test_instructions_of_a_previous_response_do_not_carry_over(
    served: tuple[httpx.AsyncClient, Scripted],
) -> None:
    http, backend = served
    body = {"model": "m", "input": "a", "instructions": "Be brief."}
    id = (await http.post("/v1/responses", json=body)).json()["id"]
    await http.post("/v1/responses", json={"model": "m", "input": "b", "previous_response_id": id})
    assert backend.received[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [message["role"] for message in backend.received[1]["messages"]] == ["user", "assistant", "user"]


async def test_unknown_deleted_and_foreign_ids_are_all_not_found() -> None:
    async with antiphon(Scripted(HELLO), api_keys="A,B") as url, client(url) as http:
        made = await http.post(
            "/v1/responses", json={"model": "m", "input": "a"}, headers={"authorization": "Bearer A"}
        )
        http.headers["authorization"] = "Bearer B"
        foreign = made.json()["id"]
        deleted = (await http.post("/v1/responses", json={"model": "m", "input": "a"})).json()["id"]
        answer = await http.delete(f"/v1/responses/{deleted}")
        assert answer.json() == {"id": deleted, "object": "response", "deleted": True}
        for id in (foreign, deleted, "resp_x", "resp_" + "0" * 40, "é", "../x"):
            answer = await http.post("/v1/responses", json={"model": "m", "input": "b", "previous_response_id": id})
            assert answer.status_code == 400
            assert answer.json()["error"] == {
                "type": "invalid_request",
                "code": "previous_response_not_found",
                "message": f"Previous response with id '{id}' not found.",
                "param": "previous_response_id",
            }
        for id in (foreign, deleted, "resp_x"):
            for answer in (
                await http.get(f"/v1/responses/{id}"),
                await http.get(f"/v1/responses/{id}/input_items"),
                await http.delete(f"/v1/responses/{id}"),
                await http.post(f"/v1/responses/{id}/cancel"),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_deleted_response_cannot_be_continued_over(
    served: tuple[httpx.AsyncClient, Scripted],
) -> None:
    http, _ = served
    ids: list[str] = []
    for text in "abc":
        body = {"model": "m", "input": text, "previous_response_id": ids[-1] if ids else None}
        ids.append((await http.post("/v1/responses", json=body)).json()["id"])
    await http.delete(f"/v1/responses/{ids[1]}")
    answer = await http.post("/v1/responses", json={"model": "m", "input": "d", "previous_response_id": ids[2]})
    assert answer.json()["error"]["code"] == "previous_response_not_found"
    assert (await http.get(f"/v1/responses/{ids[2]}")).status_code == 200


async def test_response_with_store_false_is_not_found(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    id = (await http.post("/v1/responses", json={"model": "m", "input": "a", "store": False})).json()["id"]
    assert (await http.get(f"/v1/responses/{id}")).status_code == 404


async def test_response_is_stored_before_its_terminal_event() -> None:
    async with antiphon(Scripted(HELLO)) as url, client(url) as http:
        body = {"model": "m", "input": "a", "stream": True}
        async with http.stream("POST", "/v1/responses", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {") and (event := json.loads(line[6:]))["type"] == "response.completed":
                    stored = await http.get(f"/v1/responses/{event['response']['id']}")
                    assert stored.json() == event["response"]
                    return
    raise AssertionError("the stream has no end")


async def test_item_references_are_replaced_by_their_items(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, backend = served
    item = (await http.post("/v1/responses", json={"model": "m", "input": "a"})).json()["output"][0]["id"]
    reference = {"type": "item_reference", "id": item}
    body = {"model": "m", "input": [{"role": "user", "content": "a"}, reference, {"role": "user", "content": "b"}]}
    made = (await http.post("/v1/responses", json=body)).json()
    assert [message["content"] for message in backend.received[-1]["messages"]] == ["a", "Hello", "b"]

    again = {"model": "m", "input": "c", "previous_response_id": made["id"]}
    await http.post("/v1/responses", json=again)
    assert [message["content"] for message in backend.received[-1]["messages"]] == ["a", "Hello", "b", "Hello", "c"]

    body["input"][1] = {"id": "msg_" + "0" * 40}  # type: ignore[index]
    missing = await http.post("/v1/responses", json=body)
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "input[1].id")


async def test_input_items_are_listed_in_pages(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    id = (await http.post("/v1/responses", json={"model": "m", "input": items})).json()["id"]
    path = f"/v1/responses/{id}/input_items"

    def texts(page: dict[str, Any]) -> list[str]:
        return [item["content"][0]["text"] for item in page["data"]]

    newest = (await http.get(path)).json()
    assert texts(newest) == ["4", "3", "2", "1", "0"]
    assert {item["status"] for item in newest["data"]} == {"completed"}
    page = (await http.get(path, params={"order": "asc", "limit": 2})).json()
    assert (texts(page), page["has_more"], page["last_id"]) == (["0", "1"], True, page["data"][1]["id"])
    page = (await http.get(path, params={"order": "asc", "limit": 3, "after": page["last_id"]})).json()
    assert (texts(page), page["has_more"]) == (["2", "3", "4"], False)
    page = (await http.get(path, params={"order": "asc", "before": page["first_id"]})).json()
    assert texts(page) == ["0", "1"]
    for query in (
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "101"},
        {"limit": "9" * 5000},
        {"order": "up"},
        {"after": "msg_x"},
    ):
        answer = await http.get(path, params=query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(query)))


# Endings and errors.


async def test_refusal_is_an_http_error_with_retry_after() -> None:
    refusal = BackendError(
        "Slow down.", status=429, error_type="too_many_requests", code="rate_limit_exceeded", retry_after=7.2
    )
    for stream in (False, True):
        async with antiphon(Scripted([refusal])) as url, client(url) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "a", "stream": stream})
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "8"
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"


async def test_refusal_in_the_first_frame_is_an_http_error() -> None:
    script: list[Any] = [0.0, BackendError("Overloaded.", status=503)]
    for stream in (False, True):
        async with antiphon(Scripted(script)) as url, client(url) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "a", "stream": stream})
            assert answer.status_code == 503


async def test_stream_that_breaks_off_is_failed_with_the_output_so_far() -> None:
    script: list[Any] = [*HELLO, BackendError("The connection broke.")]
    async with antiphon(Scripted(script)) as url, client(url) as http:
        events = await events_of(await http.post("/v1/responses", json={"model": "m", "input": "a", "stream": True}))
        laws.check(events)
        assert story(events[-2:]) == "error failed"
        failed = events[-1]["response"]
        assert failed["output"][0]["content"][0]["text"] == "Hello"
        assert failed["error"]["message"] == "The connection broke."
        answer = await http.post("/v1/responses", json={"model": "m", "input": "a"})
        assert (answer.status_code, answer.json()["status"]) == (200, "failed")


async def test_backend_stream_without_anything_is_an_http_error_in_json() -> None:
    async with antiphon(Scripted([delta(role="assistant", content=""), BackendError("Broke.", status=502)])) as url:
        async with client(url) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "a"})
            assert (answer.status_code, answer.json()["error"]["message"]) == (502, "Broke.")


async def test_stream_opens_when_the_backends_headers_have_arrived() -> None:
    go = asyncio.Event()
    async with antiphon(Scripted([delta(content=""), go, *HELLO])) as url, client(url) as http:
        async with http.stream("POST", "/v1/responses", json={"model": "m", "input": "a", "stream": True}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "event: response.created"
            go.set()
            assert "event: response.completed" in [line async for line in lines]


async def test_stream_opens_after_open_after_without_the_backend() -> None:
    go = asyncio.Event()
    async with antiphon(Scripted([go, *HELLO]), open_after=0.05) as url, client(url) as http:
        async with http.stream("POST", "/v1/responses", json={"model": "m", "input": "a", "stream": True}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "event: response.created"
            go.set()
            assert "event: response.completed" in [line async for line in lines]


async def test_refusal_after_the_stream_has_opened_is_an_event() -> None:
    go = asyncio.Event()
    script: list[Any] = [go, BackendError("No.", status=400, code="context_length_exceeded")]
    async with antiphon(Scripted(script), open_after=0.01) as url, client(url) as http:
        async with http.stream("POST", "/v1/responses", json={"model": "m", "input": "a", "stream": True}) as response:
            go.set()
            await response.aread()
        events = await events_of(response)
        laws.check(events)
        assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_disconnects_closes_the_backends_stream(stream: bool) -> None:
    backend = Scripted([*HELLO, 60.0])
    async with antiphon(backend) as url, client(url) as http:
        body = {"model": "m", "input": "a", "stream": stream}
        asking = asyncio.ensure_future(http.post("/v1/responses", json=body))
        while not backend.opened:
            await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(60):
            while backend.opened:
                await asyncio.sleep(0.01)
        assert backend.left == 1


async def test_heartbeats_are_comments_or_keepalive_events_by_dialect() -> None:
    body = {"model": "m", "input": "a", "stream": True}
    for agent, beat in (("curl/8", ": keepalive"), ("OpenAI/Python 3", "event: keepalive")):
        async with (
            antiphon(Scripted([*HELLO, 0.3]), heartbeat=0.05) as url,
            client(url, **{"user-agent": agent}) as http,
        ):
            response = await http.post("/v1/responses", json=body)
            assert beat in response.text.splitlines()
            events = await events_of(response)
            laws.check(events)


INVALID: list[tuple[Any, str | None, str]] = [
    ({"input": "a"}, "model", "missing_required_parameter"),
    ({"model": "m"}, "input", "invalid_request"),
    ({"model": "m", "input": 7}, "input", "invalid_type"),
    ({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text",
     "missing_required_parameter"),
    ({"model": "m", "input": "a", "temperature": 3}, "temperature", "decimal_above_max_value"),
    ({"model": "m", "input": "a", "max_output_tokens": 1}, "max_output_tokens", "integer_below_min_value"),
    ({"model": "m", "input": "a", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
    ({"model": "m", "input": "a", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_request"),
    ({"model": "m", "input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema",
     "missing_required_parameter"),
    ({"model": "m", "input": "a", "metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
    ({"model": "m", "input": "a", "metadata": {"k": 1}}, "metadata.k", "invalid_type"),
    ({"model": "m", "input": "a", "metadata": {f"k{n}": "v" for n in range(17)}}, "metadata",
     "object_above_max_properties"),
    ({"model": "m", "input": "a", "include": "usage"}, "include", "invalid_type"),
    # Strings are neither numbers nor booleans, and booleans are not numbers.
    ({"model": "m", "input": "a", "max_tool_calls": "2"}, "max_tool_calls", "invalid_type"),
    ({"model": "m", "input": "a", "max_tool_calls": True}, "max_tool_calls", "invalid_type"),
    ({"model": "m", "input": "a", "max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value"),
    ({"model": "m", "input": "a", "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"model": "m", "input": "a", "temperature": "1"}, "temperature", "invalid_type"),
    ({"model": "m", "input": "a", "top_p": True}, "top_p", "invalid_type"),
    ({"model": "m", "input": "a", "top_p": -1}, "top_p", "decimal_below_min_value"),
    ({"model": "m", "input": "a", "store": "yes"}, "store", "invalid_type"),
    ({"model": "m", "input": "a", "stream": 1}, "stream", "invalid_type"),
    ({"model": "m", "input": "a", "tools": [{"type": "function", "name": "f", "strict": "no"}]}, "tools[0].strict",
     "invalid_type"),
    # A model cannot receive any part.
    ({"model": "m", "input": [{"role": "user", "content": [{"type": "x:y"}]}]}, "input[0].content", "invalid_value"),
    ({"model": "m", "input": [{"role": "system", "content": [{"type": "smell"}, {"type": "x:y"}]}]}, "input[0].content",
     "invalid_value"),
    ([], None, "invalid_json"),
    # Values other than strings, used as a key in a lookup of names or calls.
    ({"model": "m", "input": [{"type": ["message"], "role": "user"}]}, "input[0].type", "invalid_type"),
    ({"model": "m", "input": [{"role": "user", "content": [{"type": {}}]}]}, "input[0].content[0].type",
     "invalid_type"),
    ({"model": "m", "input": "a", "tools": [{"type": ["function"]}]}, "tools[0].type", "invalid_type"),
    ({"model": "m", "input": "a", "tool_choice": {"type": [], "name": "f"}}, "tool_choice.type", "invalid_type"),
    ({"model": "m", "input": "a", "text": {"format": {"type": {}}}}, "text.format.type", "invalid_value"),
    # An empty type, also next to a known type.
    ({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": ""}]}]},
     "input[0].content[1].type", "string_below_min_length"),
    ({"model": "m", "input": [{"role": "user", "content": "a"}, {"type": ""}]}, "input[1].type",
     "string_below_min_length"),
    ({"model": "m", "input": "a", "tools": [{"type": ""}]}, "tools[0].type", "string_below_min_length"),
    ({"model": "m", "input": "a", "tool_choice": {"type": ""}}, "tool_choice.type", "string_below_min_length"),
    ({"model": "m", "input": "a", "tool_choice": {"type": "allowed_tools", "tools": [{"type": ""}]}},
     "tool_choice.tools[0].type", "string_below_min_length"),
    ({"model": "m", "input": [{"type": "x:y", "call_id": ["c"]}]}, "input[0].call_id", "invalid_type"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "code"), INVALID)
async def test_invalid_field_is_named(
    body: Any, param: str | None, code: str, served: tuple[httpx.AsyncClient, Scripted]
) -> None:
    http, backend = served
    answer = await http.post("/v1/responses", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"], error["code"]) == (400, "invalid_request", param, code)
    assert error["message"]
    assert not backend.received


@pytest.mark.parametrize("id", [["odd"], {}, 7, None])
async def test_call_of_an_unknown_type_with_an_id_that_is_no_string_is_sent(
    id: Any, served: tuple[httpx.AsyncClient, Scripted]
) -> None:
    http, backend = served
    shell = {"type": "local_shell_call", "id": id, "call_id": "c", "action": {"type": "exec", "command": ["ls"]}}
    output = {"type": "local_shell_call_output", "id": id, "call_id": "c", "output": "a.txt"}
    answer = await http.post("/v1/responses", json={"model": "m", "input": [shell, output]})
    assert answer.status_code == 200
    assert "a.txt" in json.dumps(backend.received[0]["messages"])


def nested(levels: int) -> Any:
    """An object with this many levels."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("stream", [False, True])
async def test_request_that_is_nested_too_deeply_is_refused(
    stream: bool, served: tuple[httpx.AsyncClient, Scripted]
) -> None:
    http, backend = served
    body = {"model": "m", "input": "a", "stream": stream}
    tool = {"type": "function", "name": "f", "parameters": nested(97)}  # in a tool, in a list, in the body: 100
    answer = await http.post("/v1/responses", json=body | {"tools": [tool]})
    assert answer.status_code == 200

    for levels in (98, 300, 50_000):
        deep = '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)
        content = json.dumps(body | {"tools": [tool | {"parameters": "?"}]}).replace('"?"', deep)
        answer = await http.post("/v1/responses", content=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert len(backend.received) == 1


async def test_body_that_is_no_json_too_large_or_badly_encoded_is_refused() -> None:
    async with antiphon(Scripted(HELLO), max_body_bytes=1000) as url, client(url) as http:
        for content, headers, status in (
            (b"{", {}, 400),
            (b'{"model": "\xff"}', {}, 400),
            (b'"' + b"x" * 1001, {}, 413),
            (b"x", {"content-encoding": "gzip"}, 400),
            (b"x", {"content-encoding": "zstd"}, 400),
            (b"x", {"content-encoding": "br"}, 415),
            (gzip.compress(b" " * 100_000), {"content-encoding": "gzip"}, 413),
            (zstandard.compress(b" " * 100_000), {"content-encoding": "zstd"}, 413),
        ):
            answer = await http.post("/v1/responses", content=content, headers=headers)
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request"), content[:20]


async def test_body_that_is_compressed_is_read(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    body = json.dumps({"model": "m", "input": "a"}).encode()
    for encoding, compress in (("gzip", gzip.compress), ("zstd", zstandard.compress)):
        answer = await http.post("/v1/responses", content=compress(body), headers={"content-encoding": encoding})
        assert answer.json()["status"] == "completed"


async def test_framework_errors_have_the_shape_of_the_api(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    for answer, status in ((await http.get("/v1/nothing"), 404), (await http.put("/v1/responses"), 405)):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"type", "code", "message", "param"}


async def test_internal_error_has_no_details(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Scripted):
        def profile(self, model: str) -> Any:
            raise RuntimeError("secret")

    async with antiphon(Broken(HELLO)) as url, client(url) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "a"})
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert answer.json()["error"]["type"] == "server_error"
        assert answer.headers["x-request-id"]
        assert "secret" in caplog.text


# Who may ask.


async def test_key_that_is_missing_or_wrong_is_refused() -> None:
    async with antiphon(Scripted(HELLO), api_keys="one,two") as url, client(url) as http:
        body = {"model": "m", "input": "a"}
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer three"}, 401),
            ({"authorization": "Basic one"}, 401),
            ({"authorization": "Bearer one"}, 200),
            ({"authorization": "bearer two"}, 200),
        ):
            answer = await http.post("/v1/responses", json=body, headers=headers)
            assert answer.status_code == status
            if status == 401:
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert "three" not in answer.text
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/healthz")).status_code == 200


async def test_answer_has_its_request_id_and_time(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    answer = await http.get("/v1/models")
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["openai-processing-ms"].isdigit()
    answer = await http.get("/v1/models", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    answer = await http.get("/v1/models", headers={"x-request-id": "bad id;"})
    assert answer.headers["x-request-id"].startswith("req_")


async def test_streams_have_headers_against_buffering(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    answer = await http.post("/v1/responses", json={"model": "m", "input": "a", "stream": True})
    assert answer.headers["x-accel-buffering"] == "no"
    assert "no-" in answer.headers["cache-control"]


async def test_warnings_are_listed_in_a_header(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, backend = served
    body = {"model": "m", "input": "a", "tools": [{"type": "web_search"}]}
    answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 200
    assert "web_search" in answer.headers["x-antiphon-warning"]
    assert "tools" not in backend.received[0]


async def test_tools_without_a_valid_name_in_namespaces_are_left_out_with_a_warning(
    served: tuple[httpx.AsyncClient, Scripted],
) -> None:
    http, backend = served
    nameless: list[Any] = [{"type": "function", "name": name} for name in (1, True, None, ["f"], "a b")]
    for tools in (nameless, [{"type": "function"}], "f"):
        lab = {"type": "namespace", "name": "lab", "tools": tools}
        answer = await http.post("/v1/responses", json={"model": "m", "input": "a", "tools": [lab]})
        assert answer.status_code == 200
        assert ("lab" in answer.headers.get("x-antiphon-warning", "")) is (tools != "f")
        assert "tools" not in backend.received[-1]


async def test_origins_that_are_configured_are_allowed() -> None:
    async with antiphon(Scripted(HELLO), cors_origins="https://app.example") as url, client(url) as http:
        headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
        answer = await http.options("/v1/responses", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_docs_pages_are_served(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    assert (await http.get("/docs")).status_code == 200
    document = (await http.get("/openapi.json")).json()
    create = document["paths"]["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]
    body = create["schema"]["$ref"].removeprefix("#/components/schemas/")
    assert "previous_response_id" in document["components"]["schemas"][body]["properties"]
    assert create["examples"]

    # The cited items exist, and an answer without a reader is not announced.
    text = json.dumps(document)
    named = set(re.findall(r'"\$ref": "([^"]*)"', text))
    assert named == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert not any("422" in operation["responses"] for operation in operations)


async def test_health_is_200(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, _ = served
    for path in ("/healthz", "/health"):
        assert (await http.get(path)).json() == {"status": "ok"}
        assert (await http.head(path)).status_code == 200
    assert (await http.get("/readyz")).json() == {"status": "ok", "backend": "ok", "store": "ok"}


# The official client.


async def test_official_client_with_tools_holds_a_conversation() -> None:
    asks = [*whole(call(0, "call_1", "get_weather", '{"city": "Paris"}'), reason="tool_calls")]
    backend = Scripted(asks, [delta(content="Sunny.")])
    async with antiphon(backend) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as official:
            tools: Any = [
                {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}
            ]
            first = await official.responses.create(model="m", input="Weather in Paris?", tools=tools)
            (called,) = first.output
            assert called.type == "function_call"
            output: Any = {"type": "function_call_output", "call_id": called.call_id, "output": "sun"}
            async with official.responses.stream(
                model="m", input=[output], previous_response_id=first.id, tools=tools
            ) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_response()
            assert final.output_text == "Sunny."
            assert [message["role"] for message in backend.received[1]["messages"]] == ["user", "assistant", "tool"]
            assert (await official.responses.retrieve(final.id)).output_text == "Sunny."
            listed = [item async for item in official.responses.input_items.list(first.id)]
            assert [item.type for item in listed] == ["message"]
            await official.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                await official.responses.retrieve(first.id)
            assert [model.id async for model in official.models.list()] == ["scripted", "m"]


async def test_incomplete_response_says_why(served: tuple[httpx.AsyncClient, Scripted]) -> None:
    http, backend = served
    backend.scripts = [[*HELLO, finish("length"), DONE]]
    response = (await http.post("/v1/responses", json={"model": "m", "input": "a"})).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize("call_id", ["c1", "c2"])
async def test_output_in_a_chain_without_its_call_is_refused(call_id: str) -> None:
    backend = Scripted([call(0, "c1", "look", "{}"), finish("tool_calls")], HELLO)
    async with antiphon(backend) as url, client(url) as http:
        first = (await http.post("/v1/responses", json={"model": "m", "input": "Look."})).json()
        output = {"type": "function_call_output", "call_id": call_id, "output": "A cat."}
        items = [{"role": "user", "content": "So?"}, output]
        body = {"model": "m", "previous_response_id": first["id"], "input": items}
        answer = await http.post("/v1/responses", json=body)
    if call_id == "c1":
        assert (answer.status_code, len(backend.received)) == (200, 2)
        return
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], len(backend.received)) == (400, "input[1].call_id", 1)
    assert error["message"] == "No tool call found for function call output with call_id 'c2'."
