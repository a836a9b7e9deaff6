"""Coding agents' tools over HTTP: the answer, and the context of later turns."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.support.build import call, delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

PATCH: Any = {"type": "custom", "name": "patch", "description": "Edits files."}
LAB: Any = {
    "type": "namespace",
    "name": "lab",
    "description": "Lab.",
    "tools": [PATCH, {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}],
}


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)


def offered(chat_body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in chat_body["tools"]]


async def test_custom_call_is_streamed_and_answered_in_the_next_turn() -> None:
    backend = Scripted(
        [call(0, "c", "lab__patch", '{"input": "*** '), call(0, arguments='Be\\ngin"}')],
        [delta(content="Done.")],
    )
    async with antiphon(backend) as url, client(url) as openai:
        stream = await openai.responses.create(model="m", input="Edit.", tools=[LAB], stream=True)
        events = [event async for event in stream]
        deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        assert deltas == ["*** ", "Be\ngin"]
        first: Any = events[-1]
        (item,) = first.response.output
        assert (item.type, item.name, item.namespace, item.input) == ("custom_tool_call", "patch", "lab", "*** Be\ngin")

        output: Any = [{"type": "custom_tool_call_output", "call_id": "c", "output": "Patched."}]
        second = await openai.responses.create(model="m", input=output, previous_response_id=first.response.id)
        assert second.output_text == "Done."
    made, tool_message = backend.received[1]["messages"][1:]
    function = {"name": "lab__patch", "arguments": '{"input": "*** Be\\ngin"}'}
    assert made == {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    assert tool_message == {"role": "tool", "tool_call_id": "c", "content": "Patched."}


async def test_tools_in_an_item_are_known_in_later_turns_and_not_echoed() -> None:
    backend = Scripted([delta(content="Hi.")], [call(0, "c", "lab__add", "{}")])
    items: Any = [{"type": "additional_tools", "role": "developer", "tools": [LAB]}, {"role": "user", "content": "Hi"}]
    async with antiphon(backend) as url, client(url) as openai:
        first = await openai.responses.create(model="m", input=items)
        second = await openai.responses.create(model="m", input="Add.", previous_response_id=first.id)
    assert [offered(chat_body) for chat_body in backend.received] == [["lab__patch", "lab__add"]] * 2
    assert first.tools == second.tools == []
    (item,) = second.output
    assert item.type == "function_call" and (item.name, item.namespace) == ("add", "lab")


async def test_tool_search_and_what_it_finds_work() -> None:
    backend = Scripted([call(0, "s", "tool_search", '{"query": "add"}')], [call(0, "c", "lab__add", "{}")])
    search: Any = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": None}
    found: Any = [{"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [LAB]}]
    async with antiphon(backend) as url, client(url) as openai:
        first = await openai.responses.create(model="m", input="Add.", tools=[search])
        second = await openai.responses.create(model="m", input=found, tools=[search], previous_response_id=first.id)
    (searched,), (called,) = first.output, second.output
    assert searched.type == "tool_search_call"
    assert (searched.arguments, searched.execution, searched.call_id) == ({"query": "add"}, "client", "s")
    assert called.type == "function_call" and (called.name, called.namespace) == ("add", "lab")
    assert [offered(chat_body) for chat_body in backend.received] == [
        ["tool_search"],
        ["tool_search", "lab__patch", "lab__add"],
    ]


async def test_tools_that_are_not_run_here_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    backend = Scripted([delta(content="Hi.")])
    hosted = ["web_search", "image_generation", "code_interpreter", "file_search"]
    body = {"model": "m", "input": "Hi", "tools": [{"type": type} for type in hosted], "tool_choice": "auto"}
    with caplog.at_level(logging.WARNING, "app"):
        async with antiphon(backend) as url, httpx.AsyncClient(base_url=url) as http:
            answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 200
    assert not {"tools", "tool_choice"} & set(backend.received[0])
    logged = [
        record.__dict__["reason"] for record in caplog.records if record.message == "dropped unsupported request field"
    ]
    for type in hosted:
        assert f"'{type}'" in answer.headers["x-antiphon-warning"]
        assert any(f"'{type}'" in reason for reason in logged)


async def test_hosted_items_of_another_server_are_shown_to_the_model() -> None:
    backend = Scripted([delta(content="Hi.")])
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    added = {"type": "mcp_call", "id": "mcp_1", "server_label": "lab", "name": "add", "arguments": "{}", "output": "3"}
    bare: Any = [{"type": type, "id": f"x_{type}"} for type in ("file_search_call", "image_generation_call")]
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url) as http:
        body = {"model": "m", "input": [search, added, *bare, {"role": "user", "content": "Hi"}]}
        assert (await http.post("/v1/responses", json=body)).status_code == 200
    *shown, last = backend.received[0]["messages"]
    assert last == {"role": "user", "content": "Hi"}
    calls = [message["tool_calls"][0]["function"] for message in shown if message["role"] == "assistant"]
    assert [(call["name"], call["arguments"]) for call in calls] == [
        ("web_search", '{"query": "q"}'),
        ("lab__add", "{}"),
        ("file_search", '{"queries": []}'),
        ("image_generation", '{"prompt": ""}'),
    ]
    results = [message["content"] for message in shown if message["role"] == "tool"]
    assert results == ["(The results were not stored.)", "3", "(The results were not stored.)", "Image created."]


async def test_models_are_one_document_for_openai_and_codex() -> None:
    async with antiphon(Scripted([])) as url, client(url) as openai, httpx.AsyncClient(base_url=url) as http:
        document = (await http.get("/v1/models?client_version=0.169.0")).json()
        assert [model["slug"] for model in document["models"]] == ["scripted", "m"]
        assert [model.id async for model in openai.models.list()] == ["scripted", "m"]
