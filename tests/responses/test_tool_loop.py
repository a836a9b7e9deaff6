"""Responses with hosted tools: the model is asked, its calls are run, and it is asked again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import openai
import pytest

from app.core.access import hash_of
from app.core.bounded_json import LARGE, MAX_VALUES
from app.core.redaction import Redactor
from app.errors import BackendError
from app.main import create_app
from app.responses.tool_loop.sessions import ToolSessions
from app.stores.memory import MemoryStore
from app.tools import RESULT_TRUNCATED, ToolLimits
from app.tools.mcp.session import outcome_of
from tests.core.stream.test_recovery import recovered
from tests.support import laws
from tests.support.build import call, delta, finish
from tests.support.hosted_lab import ScriptedTool
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings

LAB = {"type": "mcp", "server_label": "lab"}
MINE = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
TABLES = {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}


def made(*calls: tuple[str, Any], text: str = "", usage: tuple[int, int] = (10, 2)) -> list[Any]:
    """A model answer: optional text, then calls."""
    chunks: list[Any] = [delta(content=text)] if text else []
    for index, (name, arguments) in enumerate(calls):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        chunks.append(call(index, f"c{index}", name, written))
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return [*chunks, finish("tool_calls" if calls else "stop"), {"choices": [], "usage": counts}]


def hello(text: str = "Hello.") -> list[Any]:
    return made(text=text)


@pytest.fixture
def lab() -> ScriptedTool:
    return ScriptedTool.reset()


@contextlib.asynccontextmanager
async def client(
    backend: Scripted, store: Any = None, tools: dict[str, Any] | None = None, **values: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client for an application in this process."""
    app = create_app(settings(tools={**TABLES, **(tools or {})}, **values), backend=backend, store=store)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost/v1") as http:
        yield http


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Hi", "tools": [LAB], **more}


async def ask(backend: Scripted, **more: Any) -> dict[str, Any]:
    """Return the response, asked for as JSON; the same request as a stream has to say the same."""
    async with client(backend) as http:
        answer = await http.post("/responses", json=body(**more))
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = answer.json()
        return response


async def events_of(http: httpx.AsyncClient, **more: Any) -> list[dict[str, Any]]:
    answer = await http.post("/responses", json=body(stream=True, **more))
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def shape(chat_body: dict[str, Any]) -> list[Any]:
    """Roles in a question, with call counts."""
    return [(m["role"], len(m["tool_calls"])) if "tool_calls" in m else m["role"] for m in chat_body["messages"]]


def offered(chat_body: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in chat_body.get("tools", [])}


async def test_hosted_call_is_run_and_the_model_answers(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__add", {"a": 1, "b": 2}), text="Let me see."), hello("It is 3."))
    response = await ask(backend)
    assert (response["status"], types(response)) == ("completed", ["message", "mcp_call", "message"])
    assert response["output"][1] == {
        "type": "mcp_call",
        "id": response["output"][1]["id"],
        "server_label": "lab",
        "name": "add",
        "arguments": '{"a": 1, "b": 2}',
        "output": "3",
        "error": None,
        "approval_request_id": None,
        "status": "completed",
    }
    first, second = backend.received
    assert offered(first) >= {"lab__add", "lab__echo"}
    assert shape(second) == ["user", ("assistant", 1), "tool"]
    assert second["messages"][1]["content"] == "Let me see."
    assert second["messages"][2] == {"role": "tool", "tool_call_id": "c0", "content": "3"}
    assert lab.calls == [("add", {"a": 1, "b": 2})]
    assert lab.opened == 0


async def test_hosted_call_stream_has_each_event_once_and_in_order(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__add", {"a": 1, "b": 2})), hello())
    async with client(backend) as http:
        events = await events_of(http)
    laws.check(events)
    names = [event["type"].removeprefix("response.") for event in events]
    assert names == [
        *("created", "in_progress"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("mcp_call.completed", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]


async def test_tokens_of_a_round_count_before_the_next(lab: ScriptedTool) -> None:
    """They count for the caller's other responses while the tool runs, and for the loop itself afterwards."""
    backend = Scripted(made(("lab__echo", {"text": "a"}), usage=(90, 10)), hello())
    async with client(backend, limit_tokens_per_minute=50) as http:
        events = await events_of(http)
        refused = await http.post("/responses", json=body(tools=[]))
    laws.check(events)
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "rate_limit_exceeded")
    assert re.search(r"50 tokens per minute.* try again in \d+s", response["error"]["message"])
    assert types(response) == ["mcp_call"]
    assert response["usage"]["total_tokens"] == 100
    assert (refused.status_code, len(backend.received)) == (429, 1)


@pytest.mark.parametrize(
    ("budget", "spent"),
    [({"tokens_per_day": 150}, "200 of 150 tokens"), ({"money_per_month": 0.0015}, "0.002 of 0.0015")],
)
async def test_response_ends_with_the_round_that_uses_up_its_budget(
    lab: ScriptedTool, budget: dict[str, Any], spent: str
) -> None:
    rounds = [made(("lab__echo", {"text": str(n)}), usage=(90, 10)) for n in range(4)]
    backend = Scripted(*rounds, hello())
    keys = {"alice": {"hash": hash_of("alice"), "budget": budget}}
    async with client(backend, keys=keys, prices={"m": {"input": 10, "output": 10}}) as http:
        http.headers["Authorization"] = "Bearer alice"
        events = await events_of(http)
        refused = await http.post("/responses", json=body())
    laws.check(events)
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "insufficient_quota")
    assert spent in response["error"]["message"]
    assert types(response) == ["mcp_call", "mcp_call"]
    assert response["usage"]["total_tokens"] == 200
    assert (refused.status_code, refused.json()["error"]["code"], len(backend.received)) == (
        429,
        "insufficient_quota",
        2,
    )


async def test_tokens_of_a_response_are_charged_once(lab: ScriptedTool) -> None:
    rounds = [made(("lab__echo", {"text": str(n)}), usage=(20, 5)) for n in range(3)]
    async with client(Scripted(*rounds, hello()), limit_tokens_per_minute=100) as http:
        response = (await http.post("/responses", json=body())).json()
        answer = await http.post("/responses", json=body(tools=[]))
    assert (response["usage"]["total_tokens"], answer.status_code) == (87, 200)
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 100


async def test_usage_is_the_sum_of_all_rounds(lab: ScriptedTool) -> None:
    rounds = [made(("lab__echo", {"text": str(n)}), usage=(10 + n, 1)) for n in range(3)]
    response = await ask(Scripted(*rounds, made(text="Hi.", usage=(20, 5))))
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10 + 11 + 12 + 20, 8, 61)


async def test_hosted_calls_of_one_answer_run_side_by_side_and_are_one_message(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__wait", {"n": 1}), ("lab__wait", {"n": 2}), ("lab__wait", {"n": 3})), hello())
    async with client(backend, tools={"parallel": 2}) as http:
        asking = asyncio.create_task(http.post("/responses", json=body()))
        async with asyncio.timeout(60):
            await lab.started.wait()
        lab.gate.set()
        await asking
    assert lab.most_running == 2
    assert shape(backend.received[1]) == ["user", ("assistant", 3), "tool", "tool", "tool"]


async def test_hosted_calls_run_one_at_a_time_if_requested(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__echo", {"text": "a"}), ("lab__echo", {"text": "b"})), hello())
    response = await ask(backend, parallel_tool_calls=False)
    assert types(response) == ["mcp_call", "message"]
    assert lab.calls == [("echo", {"text": "a"})]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "mcp", "server_label": "lab"},
        {"type": "mcp", "server_label": "lab", "name": "echo"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "lab"}]},
    ],
)
async def test_tool_choice_that_is_forced_holds_for_the_first_round(lab: ScriptedTool, choice: Any) -> None:
    backend = Scripted(made(("lab__echo", {"text": "a"})), hello())
    response = await ask(backend, tool_choice=choice)
    assert types(response) == ["mcp_call", "message"]
    first, second = (chat_body.get("tool_choice") for chat_body in backend.received)
    assert first not in (None, "auto")
    assert second in (None, "auto")


async def test_hosted_calls_beyond_max_tool_calls_leave_no_trace(lab: ScriptedTool) -> None:
    backend = Scripted(made(*(("lab__echo", {"text": str(n)}) for n in range(3))), hello())
    response = await ask(backend, max_tool_calls=2, tools=[LAB, MINE])
    assert types(response) == ["mcp_call", "mcp_call", "message"]
    assert len(lab.calls) == 2
    assert offered(backend.received[1]) == {"mine"}, "the last question has no hosted functions"


async def test_model_that_calls_in_every_round_has_to_answer_in_the_end(lab: ScriptedTool) -> None:
    rounds = [made(("lab__echo", {"text": str(n)})) for n in range(3)]
    backend = Scripted(*rounds, made(("lab__echo", {"text": "more"}), text="Enough."))
    async with client(backend, tools={"max_rounds": 3}) as http:
        answer = await http.post("/responses", json=body())
    response = answer.json()
    assert types(response) == ["mcp_call", "mcp_call", "mcp_call", "message"]
    assert [bool(offered(chat_body)) for chat_body in backend.received] == [True, True, True, False]
    assert "rounds" in answer.headers["x-antiphon-warning"]


async def test_hosted_call_that_is_repeated_comes_to_an_end(lab: ScriptedTool) -> None:
    same = made(("lab__echo", {"text": "a", "x": 1}))
    backend = Scripted(same, same, made(("lab__echo", '{"x":1,"text":"a"}')), hello())
    response = await ask(backend)
    assert types(response) == ["mcp_call", "mcp_call", "mcp_call", "message"]
    assert len(backend.received) == 4
    assert not offered(backend.received[-1])


async def test_client_call_ends_the_response_after_hosted_calls(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__echo", {"text": "a"}), ("mine", {}), ("lab__echo", {"text": "b"})), hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body(tools=[LAB, MINE]))).json()
        assert (first["status"], types(first)) == ("completed", ["mcp_call", "function_call", "mcp_call"])
        assert len(lab.calls) == 2
        mine = next(item for item in first["output"] if item["type"] == "function_call")
        output = {"type": "function_call_output", "call_id": mine["call_id"], "output": "mine!"}
        more = {"previous_response_id": first["id"], "input": [output]}
        second = (await http.post("/responses", json=body(tools=[LAB, MINE], **more))).json()
    assert types(second) == ["message"]
    assert shape(backend.received[1]) == ["user", ("assistant", 3), "tool", "tool", "tool"]
    assert [m["content"] for m in backend.received[1]["messages"][2:]] == ["a", "mine!", "b"]


async def test_hosted_tool_that_fails_is_reported_and_the_answer_goes_on(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__fail", {}), ("lab__crash", {})), hello())
    response = await ask(backend)
    failed, crashed, _ = response["output"]
    assert (failed["status"], failed["output"]) == ("failed", None)
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "It did not work."}]}
    assert failed["error"] == error
    assert (crashed["status"], "secret" in json.dumps(response)) == ("failed", False)
    assert response["status"] == "completed"
    results = [m["content"] for m in backend.received[1]["messages"] if m["role"] == "tool"]
    assert results == ["It did not work.", "The tool failed."]


TOO_MANY_VALUES = '{"a": [' + "[]," * MAX_VALUES + "1]}"


@pytest.mark.parametrize("written", ["[1]", "{'a': 1}", '"text"', pytest.param(TOO_MANY_VALUES, id="values")])
async def test_arguments_that_are_no_object_do_not_reach_the_tool(lab: ScriptedTool, written: str) -> None:
    backend = Scripted(made(("lab__echo", written)), hello())
    response = await ask(backend)
    item = response["output"][0]
    assert (item["status"], lab.calls) == ("failed", [])
    assert isinstance(json.loads(item["arguments"]), dict)


async def test_arguments_that_are_large_reach_the_tool(lab: ScriptedTool) -> None:
    text = "line\n" * (LARGE // 4)
    response = await ask(Scripted(made(("lab__echo", {"text": text})), hello()))
    assert lab.calls == [("echo", {"text": text})]
    assert json.loads(response["output"][0]["arguments"]) == {"text": text}


async def test_arguments_left_out_are_an_empty_object(lab: ScriptedTool) -> None:
    response = await ask(Scripted(made(("lab__echo", "")), hello()))
    assert lab.calls == [("echo", {})]
    assert response["output"][0]["arguments"] == "{}"


async def test_result_that_is_too_long_is_cut(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__long", {})), hello())
    async with client(backend, tools={"max_result_chars": 1000}) as http:
        await http.post("/responses", json=body())
    content = backend.received[1]["messages"][-1]["content"]
    assert len(content) == 1000
    assert content.endswith(RESULT_TRUNCATED)


def test_truncated_error_of_an_mcp_tool_says_so_once() -> None:
    result = {"content": [{"type": "text", "text": "word " * 1000}], "isError": True}
    outcome = outcome_of(result, Redactor(), 1000)
    content = ToolSessions([], ToolLimits(max_result_chars=1000)).truncated(outcome.output)
    assert isinstance(content, str) and len(content) == 1000
    assert content.startswith("Error: word ") and content.count(RESULT_TRUNCATED.strip()) == 1


async def test_result_with_an_image_is_shown_now_and_in_the_next_turn(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__image", {})), hello(), hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        await http.post("/responses", json=body(previous_response_id=first["id"]))
    _, second, third = backend.received
    assert '"image_url"' in json.dumps(second["messages"])
    assert third["messages"][: len(second["messages"])] == second["messages"]


async def test_refusal_before_anything_was_run_is_an_http_error(lab: ScriptedTool) -> None:
    async with client(Scripted([BackendError("No.", status=503)])) as http:
        for stream in (False, True):
            answer = await http.post("/responses", json=body(stream=stream))
            assert (answer.status_code, answer.json()["error"]["message"]) == (503, "No.")
    assert lab.opened == 0


async def test_error_in_a_later_round_fails_the_response_with_the_output_so_far(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__echo", {"text": "a"})), [BackendError("Away.", status=503)])
    async with client(backend) as http:
        events = await events_of(http)
    laws.check(events)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (types(failed), failed["output"][0]["status"]) == (["mcp_call"], "completed")
    assert failed["usage"]["input_tokens"] > 0


async def test_max_output_tokens_counts_over_all_rounds(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__echo", {"text": "a"}), usage=(10, 30)), hello())
    await ask(backend, max_output_tokens=100)
    assert [chat_body["max_tokens"] for chat_body in backend.received] == [100, 70]
    backend = Scripted(made(("lab__echo", {"text": "a"}), usage=(10, 100)), hello())
    response = await ask(backend, max_output_tokens=100)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert len(backend.received) == 1


async def test_max_output_seconds_counts_over_all_rounds_and_stops_a_tool(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__wait", {})), hello())
    async with client(backend, max_output_seconds=0.5) as http:
        events = await events_of(http)
    laws.check(events)
    last = events[-1]["response"]
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_seconds"})
    assert last["output"][0]["status"] == "incomplete"
    assert (lab.stopped, lab.opened) == (["wait"], 0)


async def test_round_that_ends_at_max_output_seconds_is_in_the_usage(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__echo", {"text": "a"}), usage=(10, 30)), [delta(content="Hel"), 60.0])
    async with client(backend, max_output_seconds=1) as http:
        response = (await http.post("/responses", json=body())).json()
    assert (response["incomplete_details"], types(response)) == (
        {"reason": "max_output_seconds"},
        ["mcp_call", "message"],
    )
    assert (response["usage"]["input_tokens"] > 10, response["usage"]["output_tokens"] > 30) == (True, True)


async def test_hosted_tool_that_hangs_is_cancelled(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__wait", {})), hello())
    async with client(backend, tools={"max_call_seconds": 0.3}) as http:
        response = (await http.post("/responses", json=body())).json()
    assert (response["status"], response["output"][0]["status"]) == ("completed", "failed")
    assert lab.stopped == ["wait"]


async def test_answer_that_is_cut_off_runs_nothing(lab: ScriptedTool) -> None:
    cut = [call(0, "a", "lab__echo", '{"text": "a"}'), call(1, "b", "lab__echo", '{"te'), finish("length")]
    response = await ask(Scripted(cut, hello()))
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["incomplete", "incomplete"]
    assert lab.calls == []


async def test_client_that_disconnects_stops_the_tool(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__wait", {})), hello())
    async with serving(create_app(settings(tools=TABLES), backend=backend)) as url:
        async with httpx.AsyncClient(base_url=url) as http, asyncio.timeout(60):
            async with http.stream("POST", "/v1/responses", json=body(stream=True)) as answer:
                async for line in answer.aiter_lines():
                    if "mcp_call_arguments.done" in line:
                        break
                await lab.started.wait()
        async with asyncio.timeout(60):
            while lab.opened:
                await asyncio.sleep(0.01)
    assert (lab.stopped, len(backend.received)) == (["wait"], 1)


async def test_background_response_that_is_cancelled_stops_the_tool(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__wait", {})), hello())
    async with serving(create_app(settings(tools=TABLES), backend=backend)) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1") as http, asyncio.timeout(60):
            begun = (await http.post("/responses", json=body(background=True))).json()
            await lab.started.wait()
            cancelled = (await http.post(f"/responses/{begun['id']}/cancel")).json()
    assert (cancelled["status"], cancelled["output"][0]["status"]) == ("cancelled", "incomplete")
    assert (lab.stopped, lab.opened, len(backend.received)) == (["wait"], 0, 1)


async def test_stream_in_the_middle_of_a_call_can_be_resumed(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__wait", {})), hello())
    async with serving(create_app(settings(tools=TABLES), backend=backend)) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1") as http, asyncio.timeout(60):
            begun = (await http.post("/responses", json=body(background=True))).json()
            await lab.started.wait()
            lab.gate.set()
            path = f"/responses/{begun['id']}?stream=true&starting_after=3"
            text = (await http.get(path)).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert [event["sequence_number"] for event in events] == [*range(4, 4 + len(events))]
    assert events[-1]["type"] == "response.completed"
    assert types(events[-1]["response"]) == ["mcp_call", "message"]
    assert lab.calls == [("wait", {})]


async def test_next_turn_begins_as_the_last_question_did(lab: ScriptedTool) -> None:
    """Over an earlier response, a conversation, references and a replay the model is shown the same."""
    answers = [made(("lab__add", {"a": 1, "b": 2}), ("lab__echo", {"text": "x"})), hello()]
    backend = Scripted(*answers, *answers, *[hello()] * 9)
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        last = backend.received[1]["messages"]
        conversation = (await http.post("/conversations", json={})).json()["id"]
        kept = (await http.post("/responses", json=body(conversation=conversation))).json()
        assert types(kept) == types(first)
        question = {"type": "message", "role": "user", "content": "Hi"}
        again = {"type": "message", "role": "user", "content": "And?"}
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        for more in (
            {"previous_response_id": first["id"], "input": [again]},
            {"conversation": conversation, "input": [again]},
            {"input": [question, *references, again]},
        ):
            assert (await http.post("/responses", json=body(**more))).status_code == 200
            assert backend.received[-1]["messages"][: len(last)] == last, more
        replay = [question, *first["output"], again]
        assert (await http.post("/responses", json=body(input=replay, store=False))).status_code == 200
        outputs = [m["content"] for m in backend.received[-1]["messages"] if m["role"] == "tool"]
        assert outputs == ["3", "x"]


async def test_response_with_store_false_has_its_tools_over_a_websocket(lab: ScriptedTool) -> None:
    from websockets.asyncio.client import connect

    backend = Scripted(made(("lab__add", {"a": 1, "b": 2})), hello(), hello())
    async with serving(create_app(settings(tools=TABLES), backend=backend)) as url:
        async with connect(f"{url.replace('http', 'ws')}/v1/responses") as socket, asyncio.timeout(60):
            await socket.send(json.dumps({"type": "response.create", **body(store=False)}))
            events = []
            while not events or events[-1]["type"] != "response.completed":
                events.append(json.loads(await socket.recv()))
            laws.check(events)
            more = {"previous_response_id": events[-1]["response"]["id"], "input": "And?"}
            await socket.send(json.dumps({"type": "response.create", **body(store=False, **more)}))
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
    assert shape(backend.received[2])[:3] == ["user", ("assistant", 1), "tool"]


async def test_hosted_tool_receives_its_call(lab: ScriptedTool) -> None:
    tool = {**LAB, "server_url": "https://lab.example/secret/path", "authorization": "a-token"}
    backend = Scripted(hello())
    async with client(backend) as http:
        answer = await http.post("/responses", json=body(tools=[tool]))
    assert "a-token" not in answer.text
    assert "secret/path" not in answer.text
    (declaration,) = lab.declarations
    assert declaration.secrets["authorization"] == "a-token"
    assert declaration.secrets["server_url"] == "https://lab.example/secret/path"
    assert (declaration.param_path, declaration.response_id) == ("tools[0]", answer.json()["id"])
    assert [item["type"] for item in lab.known] == ["message"]


async def test_tool_list_that_is_slow_opens_the_stream_and_is_waited_for(lab: ScriptedTool) -> None:
    async def list_slowly(call: Any, report: Any) -> Any:
        item = report.add("mcp_list_tools", server_label="lab")
        lab.started.set()
        await lab.gate.wait()
        item.close(tools=[])

    lab.listing = list_slowly
    backend = Scripted(hello())
    async with serving(create_app(settings(tools=TABLES, open_after=0), backend=backend)) as url:
        async with httpx.AsyncClient(base_url=url) as http, asyncio.timeout(60):
            async with http.stream("POST", "/v1/responses", json=body(stream=True)) as answer:
                events = []
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        events.append(json.loads(line[6:]))
                        if events[-1]["type"] == "response.mcp_list_tools.in_progress":
                            assert not backend.received
                            lab.gate.set()
    laws.check(events)
    assert types(events[-1]["response"]) == ["mcp_list_tools", "message"]


async def test_hosted_tool_that_cannot_be_opened_is_left_out_with_a_warning(lab: ScriptedTool) -> None:
    async def break_(call: Any, report: Any) -> Any:
        raise ZeroDivisionError

    lab.listing = break_
    backend = Scripted(hello())
    async with client(backend) as http:
        answer = await http.post("/responses", json=body())
    assert answer.json()["status"] == "completed"
    assert "could not be opened" in answer.headers["x-antiphon-warning"]


async def test_framework_events_of_rounds_and_calls_are_sent_if_included(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__echo", {"text": "a"}), ("lab__fail", {})), hello())
    async with client(backend) as http:
        events = await events_of(http, include=["antiphon:events"])
    ours = [event for event in events if event["type"].startswith("antiphon:")]
    assert all(event["source"] == "framework" for event in ours)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    names = [event["type"].removeprefix("antiphon:") for event in ours]
    assert names.count("step_started") == names.count("step_completed") == 3
    assert names.count("tool_call_started") == names.count("tool_call_completed") == 2
    rounds = [event for event in ours if "tool_round" in event["type"]]
    assert [(event["round"], event["tool_count"]) for event in rounds] == [(0, 2), (0, 2)]
    kinds = [event["kind"] for event in ours if event["type"] == "antiphon:step_started"]
    assert kinds == ["model", "tools", "model"]
    errors = [event["error"] for event in ours if event["type"] == "antiphon:tool_call_completed"]
    assert sorted(map(str, errors)) == ["It did not work.", "None"]


async def test_official_client_accumulates_the_stream(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__add", {"a": 1, "b": 2}), text="Well."), hello())
    async with serving(create_app(settings(tools=TABLES), backend=backend)) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as official:
            async with official.responses.stream(model="m", input="Hi", tools=[LAB]) as stream:  # type: ignore[list-item]
                async for _ in stream:
                    pass
                response = await stream.get_final_response()
    assert [item.type for item in response.output] == ["message", "mcp_call", "message"]


async def test_tool_table_that_is_invalid_is_named_at_start() -> None:
    from app.settings import SettingsError

    with pytest.raises(SettingsError, match=r"tools\.lab: this table is wrong"):
        create_app(settings(tools={"lab": {**TABLES["lab"], "wrong": True}}), backend=Scripted([]))
    with pytest.raises(SettingsError, match=r"tools\.laboratory: must be one of code_interpreter, "):
        create_app(settings(tools={"laboratory": {}}), backend=Scripted([]))


async def test_hosted_call_of_a_dead_worker_is_never_run_again(lab: ScriptedTool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    backend = Scripted(made(("lab__wait", {})), hello())
    common = {"store_url": url, "background_lease": 2, "tools": TABLES}
    dead = create_app(settings(**common), backend=backend)
    other = create_app(settings(**common), backend=backend)
    async with serving(dead) as first, serving(other) as second, asyncio.timeout(60):
        async with httpx.AsyncClient(base_url=f"{first}/v1") as http:
            begun = (await http.post("/responses", json=body(background=True))).json()
            await lab.started.wait()
        async with httpx.AsyncClient(base_url=f"{second}/v1") as http:
            async with http.stream("GET", f"/responses/{begun['id']}?stream=true") as events:
                async for line in events.aiter_lines():
                    if line == "event: response.mcp_call.in_progress":
                        break  # the call is in the log
        death = [task for task in asyncio.all_tasks() if "RunWorker" in repr(task.get_coro())]
        for task in death:
            task.cancel()  # with nothing said, as when a process is killed
        async with httpx.AsyncClient(base_url=f"{second}/v1") as http:
            response = begun
            while response["status"] in ("queued", "in_progress"):
                response = (await http.get(f"/responses/{begun['id']}")).json()
                await asyncio.sleep(0.05)
            text = (await http.get(f"/responses/{begun['id']}?stream=true")).text
    assert response["status"] == "failed"
    assert [(item["type"], item["status"]) for item in response["output"]] == [("mcp_call", "incomplete")]
    laws.check([json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")])
    assert (lab.calls, len(backend.received)) == ([("wait", {})], 1)


async def test_hosted_tools_of_a_stopping_server_are_stopped(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__wait", {})), hello())
    lines: list[str] = []

    async def read(url: str) -> None:
        async with httpx.AsyncClient(base_url=url) as http:
            async with http.stream("POST", "/v1/responses", json=body(stream=True)) as answer:
                lines.extend([line async for line in answer.aiter_lines()])

    async with serving(create_app(settings(tools=TABLES, shutdown_grace=0), backend=backend)) as url:
        reading = asyncio.create_task(read(url))
        async with asyncio.timeout(60):
            await lab.started.wait()
    async with asyncio.timeout(60):
        await reading
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    laws.check(events)
    assert (events[-1]["type"], lab.stopped, lab.opened) == ("response.failed", ["wait"], 0)


async def test_truncation_of_a_conversation_with_rounds_drops_whole_rounds(lab: ScriptedTool) -> None:
    """With `truncation: auto` in the middle of a response; a call is never cut from its result."""
    too_long = BackendError("Too long.", code="context_length_exceeded", status=400)
    rounds = [made((("lab__long"), {"n": n})) for n in range(3)]
    backend = Scripted(*rounds, [too_long], [too_long], hello())
    async with client(backend) as http:
        response = (await http.post("/responses", json=body(truncation="auto"))).json()
    assert (response["status"], types(response)) == ("completed", ["mcp_call"] * 3 + ["message"])
    shapes = [shape(chat_body) for chat_body in backend.received[3:]]
    assert shapes[0] == ["user", *[("assistant", 1), "tool"] * 3]
    assert len(shapes[-1]) < len(shapes[0])
    for one in shapes:
        assert one.count("tool") == one.count(("assistant", 1))


async def test_conversation_with_hosted_calls_can_be_compacted(lab: ScriptedTool) -> None:
    backend = Scripted(made(("lab__add", {"a": 1, "b": 2})), hello(), hello("A summary."), hello())
    async with client(backend, MemoryStore(ttl=60)) as http:
        first = (await http.post("/responses", json=body())).json()
        compacted = (
            await http.post("/responses/compact", json={"model": "m", "previous_response_id": first["id"]})
        ).json()
        again = body(input=[*compacted["output"], {"role": "user", "content": "And?"}])
        assert (await http.post("/responses", json=again)).status_code == 200
    assert "3" in [message.get("content") for message in backend.received[2]["messages"]]
    assert "A summary." in json.dumps(backend.received[3]["messages"])
    assert "lab__add" not in json.dumps(backend.received[3]["messages"])


async def test_deferred_functions_without_a_search_are_all_offered(lab: ScriptedTool) -> None:
    backend = Scripted(hello())
    await ask(backend, tools=[{**LAB, "defer_loading": True}])
    assert "lab__add" in offered(backend.received[0])


async def test_shell_that_the_server_runs_does_not_wait_for_the_client(lab: ScriptedTool) -> None:
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    tables = {"box": {"tool": "tests.support.hosted_lab:ShellTool"}}
    backend = Scripted(made(("shell", {"commands": ["ls", "pwd"]})), hello())
    async with client(backend, tools=tables) as http:
        events = await events_of(http, tools=[tool])
    laws.check(events)
    response = events[-1]["response"]
    assert types(response) == ["shell_call", "shell_call_output", "message"]
    call_, output, _ = response["output"]
    assert call_["call_id"] == output["call_id"]
    names = [event["type"].removeprefix("response.") for event in events]
    assert names.count("shell_call_command.done") == 2
    assert names.index("shell_call_command.done") < names.index("shell_call_output_content.delta")
    assert shape(backend.received[1]) == ["user", ("assistant", 1), "tool"]


@pytest.mark.parametrize("last", ["shell_call_command.done", "shell_call_output_content.done", "output_item.done"])
async def test_shell_of_a_dead_worker_ends_with_what_is_known_of_it(lab: ScriptedTool, last: str) -> None:
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    tables = {"box": {"tool": "tests.support.hosted_lab:ShellTool"}}
    async with client(Scripted(made(("shell", {"commands": ["ls", "pwd"]})), hello()), tools=tables) as http:
        events = await events_of(http, tools=[tool])
    names = [event["type"].removeprefix("response.") for event in events]
    end = max(index for index, name in enumerate(names[: names.index("output_item.done") + 1]) if name == last)
    received = events[: end + 1]
    rest = recovered(dict(events[0]["response"]), received)
    laws.check([*received, *rest])
    response = rest[-1]["response"]
    call, *outputs = response["output"]
    assert (response["status"], call["status"], call["action"]["commands"]) == ("failed", "incomplete", ["ls", "pwd"])
    known = [entry["stdout"] for output in outputs for entry in output["output"]]
    assert known == ([] if last == "shell_call_command.done" else ["ls", "pwd"])


@pytest.mark.parametrize("stream", [True, False])
async def test_response_without_hosted_tools_calls_nothing_more(stream: bool) -> None:
    """Function by function: the same with tools in the settings as without, however long the answer is."""

    async def functions_called(tools: dict[str, Any], deltas: int) -> Counter[str]:
        backend = Scripted([*(delta(content=f"word {n} ") for n in range(deltas)), finish("stop")])
        app = create_app(settings(tools=tools), backend=backend)
        called = Counter[str]()

        def note(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and f"{os.sep}app{os.sep}" in frame.f_code.co_filename:
                called[f"{frame.f_code.co_filename} {frame.f_code.co_qualname}"] += 1

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost/v1") as http:
            for noting in (False, True):  # initialization is not counted
                sys.setprofile(note if noting else None)
                try:
                    answer = await http.post("/responses", json={"model": "m", "input": "Hi", "stream": stream})
                finally:
                    sys.setprofile(None)
                assert answer.status_code == 200
        return called

    for deltas in (20, 200):
        for _ in range(5):  # a stalled machine may wait differently for the backend
            without = await functions_called({}, deltas)
            assert without.total() > deltas
            within = await functions_called({**TABLES, "demo": {}}, deltas)
            if within == without:
                break
        assert within == without


SEARCH = {"type": "tool_search"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    "defer_loading": True,
}
RECIPE = {"type": "function", "name": "get_recipe", "description": "Get a recipe.", "defer_loading": True}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers and orders.",
    "defer_loading": True,
    "tools": [{"type": "function", "name": "list_orders"}, {"type": "custom", "name": "note"}],
}


def names(chat_body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in chat_body.get("tools", [])]


async def test_deferred_functions_of_the_client_are_offered_once_searched() -> None:
    backend = Scripted(
        made(("tool_search", {"query": "weather"})),
        made(("get_weather", {"location": "Paris"})),
        made(("tool_search", {"query": "customer orders"})),
        hello("None."),
    )
    async with client(backend) as http:
        fields: Any = {"tools": [WEATHER, RECIPE, CRM, SEARCH]}
        first = (await http.post("/responses", json=body(**fields))).json()
        fields |= {"input": [{"type": "function_call_output", "call_id": "c0", "output": "Sunny."}]}
        second = (await http.post("/responses", json=body(**fields, previous_response_id=first["id"]))).json()
    search, found, made_call = first["output"]
    assert (search["type"], search["execution"]) == ("tool_search_call", "server")
    assert (found["type"], found["execution"], found["tools"]) == ("tool_search_output", "server", [WEATHER])
    assert (made_call["type"], made_call["name"]) == ("function_call", "get_weather")
    assert types(second) == ["tool_search_call", "tool_search_output", "message"]
    assert [tool["name"] for tool in second["output"][1]["tools"]] == ["crm"]
    assert [names(chat_body) for chat_body in backend.received] == [
        ["tool_search"],
        ["tool_search", "get_weather"],
        ["tool_search", "get_weather"],
        ["tool_search", "get_weather", "crm__list_orders", "crm__note"],
    ]
    searches = [chat_body["tools"][0]["function"] for chat_body in backend.received]
    assert all(function == searches[0] for function in searches)
    assert "- get_weather: Get the current weather" in searches[0]["description"]
    assert "- crm: Customers and orders." in searches[0]["description"]
    for before, after in pairwise(chat_body["messages"] for chat_body in backend.received):
        assert after[: len(before)] == before


async def test_last_round_does_not_offer_what_no_search_has_found() -> None:
    backend = Scripted(made(("tool_search", {"query": "weather"})), hello())
    await ask(backend, tools=[WEATHER, RECIPE, SEARCH], max_tool_calls=1)
    assert [names(chat_body) for chat_body in backend.received] == [["tool_search"], ["get_weather"]]


async def test_search_without_deferred_tools_is_not_offered() -> None:
    backend = Scripted(hello())
    response = await ask(backend, tools=[MINE, SEARCH])
    assert types(response) == ["message"]
    assert names(backend.received[0]) == ["mine"]


async def test_search_is_served_without_any_table_to_every_key() -> None:
    backend = Scripted(made(("tool_search", {})), hello())
    app = create_app(settings(keys={"k": {"hash": hash_of("secret"), "tools": []}}), backend=backend)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost/v1") as http:
        headers = {"Authorization": "Bearer secret"}
        answer = await http.post("/responses", json=body(tools=[WEATHER, SEARCH]), headers=headers)
    assert types(answer.json()) == ["tool_search_call", "tool_search_output", "message"]
    assert "x-antiphon-warning" not in answer.headers and names(backend.received[0]) == ["tool_search"]
