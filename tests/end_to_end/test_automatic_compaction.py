"""Compaction by the server within a response that would be too long: `context_management`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from app.errors import BackendError
from app.responses.compaction import PROMPT
from tests.support import laws
from tests.support.build import call, delta, finish, story
from tests.support.hosted_lab import ScriptedTool
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.sockets import ask, dial, listening

ASKED = [{"type": "compaction", "compact_threshold": 500}]
LONG = "1 " * 600  # as many tokens
SUMMARY = [delta(content="They count.")]
ANSWER = [delta(content="Five.")]
READ = "Summary of the conversation before this message:\n\nThey count."
FUNCTION = {"type": "function", "name": "count", "parameters": {"type": "object", "properties": {}}}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text}


TALK = [user("Count."), assistant(LONG), user("And now?")]


def counting(script: list[Any], prompt: int, completion: int) -> list[Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return [*script, finish("stop"), {"choices": [], "usage": counts}]


@contextlib.asynccontextmanager
async def serving(*scripts: Any, **values: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Scripted]]:
    backend = Scripted(*scripts)
    async with (
        antiphon(backend, **{"secret_key": "the secret", **values}) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http,
    ):
        yield http, backend


async def post(http: httpx.AsyncClient, **body: Any) -> httpx.Response:
    body = {"model": "m", "context_management": ASKED, **body}
    return await http.post("/responses", json={name: value for name, value in body.items() if value is not None})


async def created(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await post(http, **body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def sent_to_model(backend: Scripted, position: int = -1) -> list[tuple[str, str]]:
    return [(message["role"], message.get("content") or "") for message in backend.received[position]["messages"]]


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_long_conversation_is_compacted_and_answered_in_one_response() -> None:
    async with serving(counting(SUMMARY, 600, 20), counting(ANSWER, 60, 3)) as (http, backend):
        response = await created(http, input=TALK, tools=[FUNCTION], max_output_tokens=16)

    assert response["status"] == "completed" and types(response) == ["compaction", "message"]
    assert "count" not in response["output"][0]["encrypted_content"]
    assert sent_to_model(backend, 0)[-1] == ("user", PROMPT)
    assert "tools" not in backend.received[0] and not {"max_tokens", "max_completion_tokens"} & {*backend.received[0]}
    # The input comes last.
    assert sent_to_model(backend) == [("user", "Count."), ("user", READ), ("user", "And now?")]
    assert backend.received[1]["tools"][0]["function"]["name"] == "count"
    assert 16 in backend.received[1].values()
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (660, 23)


async def test_compaction_item_is_streamed_before_the_answer() -> None:
    async with serving(SUMMARY, ANSWER) as (http, _):
        answer = await post(http, input=TALK, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]

    laws.check(events)
    assert story(events) == (
        "created in_progress output_item.added output_item.done output_item.added content_part.added "
        "output_text.delta output_text.done content_part.done output_item.done completed"
    )
    assert events[3]["item"]["type"] == "compaction" and events[3]["item"]["encrypted_content"]


@pytest.mark.parametrize("how", ["previous_response_id", "conversation", "replayed", "without what came before it"])
async def test_next_turn_knows_the_summary_and_is_not_compacted_again(how: str) -> None:
    async with serving(SUMMARY, ANSWER) as (http, backend):
        beside: dict[str, Any] = {"store": how in ("previous_response_id", "conversation")}
        if how == "conversation":
            beside["conversation"] = (await http.post("/conversations", json={})).json()["id"]
        first = await created(http, input=TALK, **beside)
        following: Any = [user("Sure?")]
        if how == "previous_response_id":
            beside["previous_response_id"] = first["id"]
        elif how == "replayed":
            following = [*TALK, *first["output"], *following]
        elif how != "conversation":
            following = [*first["output"], *following]
        second = await created(http, input=following, **beside)

    assert types(second) == ["message"] and len(backend.received) == 3
    before = [] if how.startswith("without") else [("user", "Count."), ("user", READ), ("user", "And now?")]
    assert sent_to_model(backend) == [*(before or [("user", READ)]), ("assistant", "Five."), ("user", "Sure?")]


async def test_chain_that_has_grown_is_compacted_again() -> None:
    async with serving(SUMMARY, [delta(content=LONG)], [delta(content="They count more.")], ANSWER) as (http, backend):
        first = await created(http, input=TALK)
        second = await created(http, input="More?", previous_response_id=first["id"])

    assert types(second) == ["compaction", "message"]
    assert ("user", READ) in sent_to_model(backend, 2)  # the second summary includes the first
    assert [text for _, text in sent_to_model(backend)][2] == READ.replace("They count", "They count more")
    assert [text for role, text in sent_to_model(backend) if role == "user"][-1] == "More?"


async def test_results_of_the_clients_functions_are_in_the_summary() -> None:
    calling = [call(0, "c1", "count", "{}"), finish("tool_calls")]
    async with serving(calling, SUMMARY, ANSWER) as (http, backend):
        first = await created(http, input="Count.", tools=[FUNCTION])
        output = {"type": "function_call_output", "call_id": "c1", "output": LONG}
        second = await created(http, input=[output], previous_response_id=first["id"], tools=[FUNCTION])

    assert types(second) == ["compaction", "message"]
    assert ("tool", LONG) in sent_to_model(backend, 1)
    assert sent_to_model(backend) == [("user", "Count."), ("user", READ)]


async def test_response_is_compacted_between_its_rounds() -> None:
    lab = ScriptedTool.reset()
    calling = [call(0, "c1", "lab__echo", json.dumps({"text": LONG})), finish("tool_calls")]
    tools = {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}
    async with serving(calling, SUMMARY, ANSWER, ANSWER, tools=tools) as (http, backend):
        declared = [{"type": "mcp", "server_label": "lab"}]
        response = await created(http, input="Echo.", tools=declared)
        following = await created(http, input="Sure?", previous_response_id=response["id"], tools=declared)

    assert lab.calls and types(response) == ["mcp_call", "compaction", "message"]
    assert ("tool", LONG) in sent_to_model(backend, 1)
    assert sent_to_model(backend, 2) == [("user", "Echo."), ("user", READ)]
    assert sent_to_model(backend) == [*sent_to_model(backend, 2), ("assistant", "Five."), ("user", "Sure?")]
    assert types(following)[-1] == "message"


async def test_conversation_below_the_threshold_is_unchanged() -> None:
    async with serving(ANSWER) as (http, backend):
        answer = await post(http, input=[user("Count."), assistant("1"), user("And now?")])
    assert types(answer.json()) == ["message"]
    assert "x-antiphon-warning" not in answer.headers
    assert len(backend.received) == 1


async def test_conversation_of_user_messages_alone_is_unchanged_with_a_warning() -> None:
    async with serving(ANSWER) as (http, backend):
        answer = await post(http, input=[user(LONG), assistant("Yes."), user(LONG)])
    assert types(answer.json()) == ["message"] and len(backend.received) == 1
    assert "exceeds 'compact_threshold', but was not compacted" in answer.headers["x-antiphon-warning"]


async def test_request_without_a_threshold_has_the_servers() -> None:
    async with serving(SUMMARY, ANSWER, compact_threshold=500) as (http, _):
        response = await created(http, input=TALK, context_management=[{"type": "compaction"}])
    assert types(response) == ["compaction", "message"]


@pytest.mark.parametrize("script", [[], [delta(content="  ")], [delta(content="They"), BackendError("Gone.")]])
async def test_model_without_a_summary_answers_uncompacted(script: list[Any]) -> None:
    async with serving(script, ANSWER) as (http, backend):
        answer = await post(http, input=TALK)

    assert answer.json()["status"] == "completed" and types(answer.json()) == ["message"]
    assert sent_to_model(backend)[1] == ("assistant", LONG)


async def test_refusal_of_the_summary_is_one_of_the_request() -> None:
    async with serving([BackendError("Later.", status=429, code="rate_limit_exceeded")], ANSWER) as (http, backend):
        refused = await post(http, input=TALK)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert len(backend.received) == 1


async def test_conversation_too_long_for_the_summary_loses_its_oldest_turns() -> None:
    too_long = BackendError("Too long.", status=400, code="context_length_exceeded")
    async with serving([too_long], SUMMARY, ANSWER) as (http, backend):
        response = await created(http, input=[user("Hi."), assistant("Hello."), *TALK])
    assert types(response) == ["compaction", "message"]
    assert len(sent_to_model(backend, 1)) < len(sent_to_model(backend, 0))


async def test_client_that_disconnects_during_the_summary_stops_and_pays_it() -> None:
    writing = asyncio.Event()
    backend = Scripted([delta(content="They"), writing])
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        queued = await created(http, input=TALK, background=True)
        while not backend.waiting:
            await asyncio.sleep(0.01)
        cancelled = (await http.post(f"/responses/{queued['id']}/cancel")).json()

    assert (cancelled["status"], cancelled["output"], backend.left) == ("cancelled", [], 1)
    assert cancelled["usage"]["input_tokens"] > 400


async def test_background_and_websocket_responses_are_compacted() -> None:
    backend = Scripted(SUMMARY, ANSWER, SUMMARY, ANSWER)
    async with listening(backend) as url:
        async with dial(url) as socket:
            events = await ask(socket, input=TALK, context_management=ASKED)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
            response = await client.responses.create(
                model="m",
                input=TALK,
                context_management=ASKED,
                background=True,  # type: ignore[arg-type]
            )
            async for event in await client.responses.retrieve(response.id, stream=True):
                last = event

    laws.check(events)
    assert types(events[-1]["response"]) == ["compaction", "message"]
    assert [item.type for item in last.response.output] == ["compaction", "message"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([{"type": "forget"}], "context_management[0].type"),
        ([{"type": "compaction", "compact_threshold": 0}], "context_management[0].compact_threshold"),
        ([{"type": "compaction", "compact_threshold": "many"}], "context_management[0].compact_threshold"),
        ({"type": "compaction"}, "context_management"),
    ],
)
async def test_context_management_that_is_invalid_is_refused(given: Any, param: str) -> None:
    async with serving(ANSWER) as (http, backend):
        refused = await post(http, input="Hi.", context_management=given)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert backend.received == []
