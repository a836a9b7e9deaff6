"""
VS Code's chat with a custom endpoint's model, for each `apiType`. It has no package, so its requests are replayed.

Users configure `url`, `apiType` (`responses`, `messages`, `chat-completions`) and the model's capabilities.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.clients.answers import asking_for_the_weather, calling, saying, thinking
from tests.support.message_events import MessagesUpstream, message_stream, text_block, tool_block
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, DONE, Upstream, call, chunk, finish, sse, status, upstream, usage

__all__ = ["upstream"]  # a fixture

HEADERS = {
    "user-agent": "GitHubCopilotChat/0.55.0",
    "x-request-id": "0b6c1c0e-7a5c-4d3e-9b86-2b8a5e3f1d10",
    "x-agent-task-id": "0b6c1c0e-7a5c-4d3e-9b86-2b8a5e3f1d10",
    "x-interaction-type": "conversation-agent",
    "x-vscode-user-agent-library-version": "electron-fetch",
    "x-github-api-version": "2025-05-01",
    "openai-intent": "conversation-agent",
}
KEY = {"authorization": "Bearer lab"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
WEATHER = {"name": "weather", "description": "The weather of a place.", "parameters": SCHEMA}
TOOL = {**WEATHER, "type": "function", "strict": False}
SYSTEM = {"role": "system", "content": [{"type": "input_text", "text": "You are a coding assistant."}]}
ON_FIRE = "The GPU is on fire."
BROKEN = sse(chunk("Hel"), 0.3, {"error": {"message": ON_FIRE, "type": "server_error"}}, CLOSE)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def result(call_id: str, output: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def body(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request of a model with `thinking` and `toolCalling`; `store` is left out unless the user says something."""
    return {
        "model": "m",
        "input": [*items],
        "stream": True,
        "tools": [TOOL],
        "max_output_tokens": 4096,
        "truncation": "disabled",
        "reasoning": {"effort": "medium", "summary": "detailed"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "6f1e2d3c-conversation:m",
        **fields,
    }


@dataclass
class Turn:
    """A response's events, as the extension reads them."""

    text: str = ""
    thoughts: str = ""
    sealed: list[dict[str, str]] = field(default_factory=list)  # reasoning to send back
    begun: list[tuple[str, str]] = field(default_factory=list)  # call names and ids, shown while they are written
    written: dict[int, str] = field(default_factory=dict)  # arguments so far, by output index
    calls: list[dict[str, str]] = field(default_factory=list)
    compaction: dict[str, str] | None = None
    response_id: str = ""  # from which the next request continues
    tokens: tuple[int, ...] = ()
    content: str = ""  # from messages in the last event
    finish: str = ""
    errors: list[str] = field(default_factory=list)

    def read(self, event: Mapping[str, Any]) -> None:
        item = event.get("item") or {}
        match event["type"], item.get("type"):
            case "error", _:
                self.errors.append(event["message"])
            case "response.output_text.delta", _:
                self.text += event["delta"]
            case "response.output_item.added", "function_call":
                self.begun.append((item["name"], item["call_id"]))
                self.written[event["output_index"]] = ""
            case "response.output_item.added", "tool_search_call" if item["execution"] == "client" and item["call_id"]:
                self.begun.append(("tool_search", item["call_id"]))
            case "response.function_call_arguments.delta", _:
                self.written[event["output_index"]] += event["delta"]
            case "response.output_item.done", "function_call":
                assert self.written[event["output_index"]] == item["arguments"]
                self.calls.append({name: item[name] for name in ("name", "arguments", "call_id")})
            case "response.output_item.done", "tool_search_call" if item["execution"] == "client" and item["call_id"]:
                arguments = json.dumps(item["arguments"])
                self.calls.append({"name": "tool_search", "arguments": arguments, "call_id": item["call_id"]})
            case "response.output_item.done", "reasoning" if item.get("encrypted_content"):
                assert item["id"].startswith("rs")
                self.sealed.append({"id": item["id"], "encrypted_content": item["encrypted_content"]})
                self.thoughts = self.thoughts or "".join(part["text"] for part in item["summary"])
            case "response.output_item.done", "compaction":
                self.compaction = {name: item[name] for name in ("type", "id", "encrypted_content")}
            case "response.reasoning_summary_text.delta", _:
                self.thoughts += event["delta"]
            case ("response.completed" | "response.incomplete" | "response.failed") as kind, _:
                self.finish = kind.removeprefix("response.")
                self._end(event["response"])

    def _end(self, response: Mapping[str, Any]) -> None:
        assert (response["model"], response["created_at"] > 0) == ("m", True)
        if self.finish == "completed":
            assert response["id"].startswith("resp_")  # it does not continue from others
            self.response_id = response["id"]
        if counts := response["usage"]:
            self.tokens = (
                counts["input_tokens"],
                counts["output_tokens"],
                counts["total_tokens"],
                counts["input_tokens_details"]["cached_tokens"],
                counts["output_tokens_details"]["reasoning_tokens"],
            )
        messages = [item for item in response["output"] if item["type"] == "message"]
        self.content = "".join(part["text"] for message in messages for part in message["content"])
        if self.finish == "incomplete":
            self.finish = response["incomplete_details"]["reason"]
        if self.finish == "failed":
            self.errors.append(response["error"]["message"])

    @property
    def items(self) -> list[dict[str, Any]]:
        """These items as the extension sends them back, without the ids of messages and calls."""
        sent_items: list[dict[str, Any]] = [{"type": "reasoning", "summary": [], **thought} for thought in self.sealed]
        if self.text.strip():
            sent_items.append(
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": self.text}]}
            )
        return sent_items + [{"type": "function_call", **one} for one in self.calls]


@pytest_asyncio.fixture
async def http(upstream: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    values = {"backend_url": upstream.url, "backend_retries": 0, "api_keys": ["lab"], "secret_key": "the secret"}
    async with (
        antiphon(**values) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", headers={**HEADERS, **KEY}, timeout=60, trust_env=False) as client,
    ):
        yield client


async def events(http: httpx.AsyncClient, path: str, sent: Mapping[str, Any]) -> list[Any]:
    """All events' data."""
    async with http.stream("POST", path, json=sent) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert "text/event-stream" in answer.headers["content-type"]
        lines = [line async for line in answer.aiter_lines()]
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(one) for one in data if one != "[DONE]"]


async def ask(http: httpx.AsyncClient, sent: Mapping[str, Any]) -> Turn:
    turn = Turn()
    for event in await events(http, "/responses", sent):
        turn.read(event)
    return turn


def sent_messages(upstream: Upstream) -> list[dict[str, Any]]:
    return list(upstream.requests[-1].json["messages"])


# apiType: responses.


async def test_vs_code_text_is_shown_with_its_usage(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(saying("Hel", "lo", "."))
    image = {"type": "input_image", "detail": "auto", "image_url": PIXEL}
    pdf = {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    question = {"role": "user", "content": [*user("What is it?")["content"], image, pdf]}
    turn = await ask(http, body(SYSTEM, question, tool_choice="auto", text={"verbosity": "low"}, top_p=0.9))
    assert (turn.text, turn.content, turn.finish, turn.errors) == ("Hello.", "Hello.", "completed", [])
    assert turn.tokens == (5, 3, 8, 0, 0)
    request = upstream.requests[-1].json
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert [part["type"] for part in request["messages"][1]["content"]] == ["text", "image_url", "file"]
    assert request["tools"][0]["function"] == {**WEATHER, "strict": False}
    assert (request["max_tokens"], request["top_p"], request["tool_choice"]) == (4096, 0.9, "auto")


@pytest.mark.parametrize("summary", [{"summary": "detailed"}, {}], ids=["asked", "unasked"])
async def test_vs_code_thoughts_are_shown_and_sealed(
    http: httpx.AsyncClient, upstream: Upstream, summary: dict[str, str]
) -> None:
    """Its setting `responsesApiReasoningSummary` can be off; it reads nothing of thoughts but summaries."""
    upstream.say(thinking("Six times seven.", "42."))
    turn = await ask(http, body(user("What is it?"), reasoning={"effort": "medium", **summary}))
    assert (turn.thoughts, turn.text, len(turn.sealed)) == ("Six times seven.", "42.", 1)


async def test_vs_code_model_without_thinking_is_asked_for_none(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(thinking("Six times seven.", "42."))
    sent = body(user("What is it?"))
    del sent["reasoning"], sent["include"]
    turn = await ask(http, sent)
    assert (turn.thoughts, turn.text, turn.sealed) == ("Six times seven.", "42.", [])


async def test_vs_code_continues_with_results_alone(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    first = await ask(http, body(SYSTEM, user("How is the weather?")))
    assert first.begun == [("weather", "call_Paris"), ("weather", "call_Oslo")]
    assert [json.loads(one["arguments"]) for one in first.calls] == [{"place": "Paris"}, {"place": "Oslo"}]
    upstream.say(saying("Sunny in both."))
    image = {"type": "input_image", "detail": "auto", "image_url": PIXEL}
    shown = {"role": "user", "content": [*user("Image associated with the above tool call:")["content"], image]}
    results = [result("call_Paris", "Sunny."), shown, result("call_Oslo", "Sunny, too.")]
    second = await ask(http, body(*results, previous_response_id=first.response_id))
    assert second.text == "Sunny in both."
    roles = [message["role"] for message in sent_messages(upstream)]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    upstream.say(saying("Yes."))
    await ask(http, body(user("Really?"), previous_response_id=second.response_id))
    assert [message["role"] for message in sent_messages(upstream)] == [*roles, "assistant", "user"]


async def test_vs_code_without_retention_sends_everything_back(http: httpx.AsyncClient, upstream: Upstream) -> None:
    """With `zeroDataRetentionEnabled`, or `statefulResponses: false`: thoughts come back encrypted."""
    begun = (chunk(reasoning_content="Ask first."), chunk("I look it up."), call(id="call_1", name="weather"))
    upstream.say(sse(*begun, call(arguments='{"place": "Paris"}'), finish("tool_calls"), usage(), DONE))
    first_messages = [SYSTEM, user("How is the weather?")]
    first = await ask(http, body(*first_messages, store=False))
    upstream.say(saying("Sunny."))
    second = await ask(http, body(*first_messages, *first.items, result("call_1", "Sunny."), store=False))
    assert second.text == "Sunny."
    _, _, answer, last = sent_messages(upstream)
    assert (answer["content"], answer["reasoning_content"]) == ("I look it up.", "Ask first.")
    assert (last["role"], last["tool_call_id"]) == ("tool", "call_1")
    gone = await http.get(f"/responses/{first.response_id}")
    assert gone.status_code == 404


async def test_vs_code_sends_everything_where_a_response_is_gone(http: httpx.AsyncClient, upstream: Upstream) -> None:
    """It reads the code of the error, and asks again without the id."""
    upstream.always(saying("Hello."))
    first = await ask(http, body(user("Hi.")))
    await http.delete(f"/responses/{first.response_id}")
    answer = await http.post("/responses", json=body(user("Again."), previous_response_id=first.response_id))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")
    second = await ask(http, body(user("Hi."), *first.items, user("Again.")))
    assert second.text == "Hello."
    assert [message["content"] for message in sent_messages(upstream)] == ["Hi.", "Hello.", "Again."]


async def test_vs_code_compaction_is_sent_again_with_the_results(http: httpx.AsyncClient, upstream: Upstream) -> None:
    """The call comes after the compaction in the same response, and stays although the compaction is repeated."""
    management = [{"type": "compaction", "compact_threshold": 1000}]
    upstream.say(saying("They count."))
    upstream.say(calling("weather", '{"place": ', '"Paris"}'))
    long = [user("Count."), {"role": "assistant", "content": [{"type": "output_text", "text": "1 " * 1500}]}]
    first = await ask(http, body(*long, user("How is the weather?"), context_management=management))
    assert first.compaction and first.calls
    upstream.say(saying("Sunny."))
    sent = body(first.compaction, result("call_1", "Sunny."), context_management=management)
    second = await ask(http, {**sent, "previous_response_id": first.response_id})
    assert second.text == "Sunny."
    *_, question, called, last = sent_messages(upstream)
    assert question["content"] == "How is the weather?"
    assert (called["tool_calls"][0]["id"], last["content"]) == ("call_1", "Sunny.")
    assert "They count." in str(sent_messages(upstream)) and "1 1 1" not in str(sent_messages(upstream))
    # Without the id, it is the start of the whole history.
    upstream.say(saying("Sunny."))
    await ask(http, body(first.compaction, *first.items, result("call_1", "Sunny."), store=False))
    summary, called, last = sent_messages(upstream)
    assert "They count." in summary["content"]
    assert (called["tool_calls"][0]["id"], last["content"]) == ("call_1", "Sunny.")


async def test_vs_code_searches_tools_itself(http: httpx.AsyncClient, upstream: Upstream) -> None:
    """Found tools are sent with the result; calls of them come back with the name also as their namespace."""
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    search = {
        "type": "tool_search",
        "execution": "client",
        "description": "Search for tools.",
        "parameters": parameters,
    }
    upstream.say(calling("tool_search", '{"query": ', '"weather"}'))
    history = [user("How is the weather?")]
    first = await ask(http, body(*history, tools=[search], store=False))
    (searched,) = first.calls
    assert (searched["name"], json.loads(searched["arguments"])) == ("tool_search", {"query": "weather"})
    call_id = searched["call_id"]
    pair = {"execution": "client", "call_id": call_id, "status": "completed"}
    found = {"type": "function", **WEATHER, "defer_loading": True, "strict": False}
    history += [
        {"type": "tool_search_call", **pair, "arguments": {"query": "weather"}},
        {"type": "tool_search_output", **pair, "tools": [found]},
    ]
    upstream.say(calling("weather", '{"place": ', '"Paris"}', id="call_2"))
    second = await ask(http, body(*history, tools=[search], store=False))
    assert [one["name"] for one in second.calls] == ["weather"]
    offered = {tool["function"]["name"] for tool in upstream.requests[-1].json["tools"]}
    assert offered == {"tool_search", "weather"}
    upstream.say(saying("Sunny."))
    called = {"type": "function_call", **second.calls[0], "namespace": "weather"}
    third = await ask(http, body(*history, called, result("call_2", "Sunny."), tools=[search], store=False))
    assert third.text == "Sunny."
    names = [one["function"]["name"] for message in sent_messages(upstream) for one in message.get("tool_calls", ())]
    assert names == ["tool_search", "weather"]


@pytest.mark.parametrize(("reason", "shown"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_vs_code_knows_why_an_answer_is_incomplete(
    http: httpx.AsyncClient, upstream: Upstream, reason: str, shown: str
) -> None:
    upstream.say(sse(chunk("Hel"), finish(reason), usage(), DONE))
    turn = await ask(http, body(user("Hi.")))
    assert (turn.finish, turn.content, turn.tokens[:2]) == (shown, "Hel", (5, 2))


async def test_vs_code_takes_no_stream_that_breaks_off_for_an_answer(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.say(BROKEN)
    turn = await ask(http, body(user("Hi.")))
    assert (turn.finish, turn.text, turn.response_id) == ("failed", "Hel", "")
    assert ON_FIRE in turn.errors[0]


async def test_vs_code_shows_the_words_of_a_refusal(http: httpx.AsyncClient, upstream: Upstream) -> None:
    """It reads `error.message` and `error.code`, from JSON only."""
    upstream.say(status(400, {"error": {"message": "The prompt is odd.", "code": "invalid_value"}}))
    refused = await http.post("/responses", json=body(user("Hi.")))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    assert "The prompt is odd." in refused.json()["error"]["message"]
    unknown = await http.post("/responses", json=body(user("Hi.")), headers={"authorization": "Bearer other"})
    assert unknown.status_code == 401
    assert "Incorrect API key provided." in unknown.json()["error"]["message"]


# apiType: chat-completions.


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "messages": [*messages],
        "model": "m",
        "temperature": 0.1,
        "top_p": 1,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": WEATHER}],
        **fields,
    }


async def test_vs_code_chat_is_passed_through(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    sent = chat({"role": "system", "content": "Be brief."}, {"role": "user", "content": "How is the weather?"})
    chunks = await events(http, "/chat/completions", sent)
    assert upstream.requests[-1].json == sent
    deltas = [choice["delta"] for one in chunks for choice in one["choices"]]
    names = [part["function"]["name"] for delta in deltas for part in delta.get("tool_calls", ()) if part.get("id")]
    assert names == ["weather", "weather"]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Ask twice."
    assert [choice["finish_reason"] for one in chunks for choice in one["choices"]][-1] == "tool_calls"
    assert chunks[-1]["usage"]["total_tokens"] == 7
    # Calls and reasoning are in separate fields.
    calls = [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": "weather", "arguments": f'{{"place":"{place}"}}'},
        }
        for place in ("Paris", "Oslo")
    ]
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": calls,
        "cot_id": "thinking_0",
        "cot_summary": "Ask twice.",
    }
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "Sunny."} for one in calls]
    upstream.say(saying("Sunny in both."))
    sent = chat(*sent["messages"], answer, *results, max_completion_tokens=4096, reasoning_effort="medium")
    chunks = await events(http, "/chat/completions", sent)
    assert upstream.requests[-1].json == sent
    assert "".join(choice["delta"].get("content") or "" for one in chunks for choice in one["choices"]) == (
        "Sunny in both."
    )


async def test_vs_code_chat_that_breaks_off_has_an_error(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(BROKEN)
    chunks = await events(http, "/chat/completions", chat({"role": "user", "content": "Hi."}))
    first, *_ = (one for one in chunks if "choices" not in one)
    assert first["error"]["message"] == ON_FIRE


# apiType: messages.


@pytest_asyncio.fixture
async def claude() -> AsyncIterator[tuple[httpx.AsyncClient, MessagesUpstream]]:
    async with MessagesUpstream() as up:
        overrides = {"transport.messages": True}
        headers = {
            **HEADERS,
            "x-api-key": "lab",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27",
        }
        async with (
            antiphon(backend_url=up.url, backend_retries=0, backend_overrides=overrides, api_keys=["lab"]) as url,
            httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=60, trust_env=False) as client,
        ):
            yield client, up


CACHED = {"cache_control": {"type": "ephemeral"}}


def messages(*turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    tool = {"name": "weather", "description": "The weather of a place.", "input_schema": SCHEMA, **CACHED}
    return {
        "model": "m",
        "messages": [*turns],
        "system": [{"type": "text", "text": "Be brief.", **CACHED}],
        "stream": True,
        "tools": [tool],
        "max_tokens": 4096,
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "medium"},
        **fields,
    }


async def test_vs_code_messages_are_passed_through(claude: tuple[httpx.AsyncClient, MessagesUpstream]) -> None:
    http, up = claude
    up.say(
        message_stream(
            *text_block(0, "I look ", "it up."), *tool_block(1, "weather", {"place": "Paris"}), stop="tool_use"
        )
    )
    question = {"role": "user", "content": [{"type": "text", "text": "How is the weather?", **CACHED}]}
    read = await events(http, "/messages", messages(question))
    assert up.requests[-1].json == messages(question)
    assert up.requests[-1].headers["anthropic-beta"].startswith("interleaved-thinking-2025-05-14")
    assert [event["type"] for event in read][:: len(read) - 1] == ["message_start", "message_stop"]
    begun = [event["content_block"] for event in read if event["type"] == "content_block_start"]
    assert [(block["type"], block.get("name")) for block in begun] == [("text", None), ("tool_use", "weather")]
    pieces = [event["delta"].get("partial_json", "") for event in read if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"place": "Paris"}
    (end,) = [event for event in read if event["type"] == "message_delta"]
    assert (end["delta"]["stop_reason"], end["usage"]["output_tokens"]) == ("tool_use", 7)


async def test_vs_code_messages_that_break_off_have_no_end(claude: tuple[httpx.AsyncClient, MessagesUpstream]) -> None:
    http, up = claude
    error = {"type": "error", "error": {"type": "overloaded_error", "message": ON_FIRE}}
    whole = message_stream(*text_block(0, "Hel", "lo."))
    up.say(*whole[:4], 0.3, sse(error, CLOSE)[1:])
    read = await events(http, "/messages", messages({"role": "user", "content": [{"type": "text", "text": "Hi."}]}))
    assert "message_stop" not in [event["type"] for event in read]
    first, *_ = (event for event in read if event["type"] == "error")
    assert first["error"]["message"] == ON_FIRE
    # Errors have the backend's message.
    up.say(status(429, {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down."}}))
    refused = await http.post(
        "/messages", json=messages({"role": "user", "content": [{"type": "text", "text": "Hi."}]})
    )
    assert refused.json()["error"]["message"] == "Slow down."
