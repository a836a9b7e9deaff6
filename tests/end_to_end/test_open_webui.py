"""
Open WebUI with a connection of the type "Responses": replayed requests, because its package is too large to install.

It translates Chat Completions messages. With `ENABLE_RESPONSES_API_STATEFUL`, it continues the response with its calls,
and repeats the response's items; otherwise it sends the whole conversation in each round.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.clients.answers import calling, saying, thinking
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, DONE, Upstream, call, chunk, finish, sse, status, upstream, usage

__all__ = ["upstream"]

HEADERS = {"authorization": "Bearer lab", "user-agent": "Python/3.12 aiohttp/3.13.5"}
PERSON = {
    "x-openwebui-user-name": "Ada%20Lovelace",
    "x-openwebui-user-id": "0190-ada",
    "x-openwebui-user-email": "ada@example.org",
    "x-openwebui-user-role": "admin",
    "x-openwebui-chat-id": "0190-chat",
}  # with `ENABLE_FORWARD_USER_INFO_HEADERS`
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


@dataclass
class Chat:
    """Open WebUI's state from the events: shown and stored items."""

    items: list[dict[str, Any]] = field(default_factory=list)
    usage: Any = None
    response_id: str = ""
    error: Any = None
    ended: bool = False
    seen: list[str] = field(default_factory=list)  # thoughts shown before their item is complete

    def read(self, event: Mapping[str, Any]) -> None:
        kind, index = event["type"], event.get("output_index", len(self.items) - 1)
        match kind:
            case "response.output_item.added":
                self.items.append(dict(event["item"]))
            case "response.output_item.done":
                self.items[index] = event["item"]
            case "response.content_part.added" if self.items[index]["type"] == "message":
                self.items[index].setdefault("content", []).append(dict(event["part"]))
            case "response.output_text.delta":
                self.items[index]["content"][event["content_index"]]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                self.items[index]["arguments"] += event["delta"]
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                self.seen.append(event["delta"])
            case "response.completed":
                response = event["response"]
                self.items, self.usage, self.response_id = response["output"], response["usage"], response["id"]
                self.ended = True
            case "response.failed":
                self.error = event["response"]["error"]

    def texts(self, type_: str) -> list[str]:
        """The texts in all messages or thoughts; summaries precede raw reasoning."""
        items = [item for item in self.items if item["type"] == type_]
        parts = [item.get("summary") or item.get("content") or [] for item in items]
        return ["".join(part["text"] for part in some) for some in parts]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item["type"] == "function_call"]

    def repeated(self, **results: str) -> list[dict[str, Any]]:
        """These items as Open WebUI sends them, each call with its result; thoughts are in the texts."""
        sent = []
        for item in self.items:
            if item["type"] == "message":
                sent.append(assistant("".join(part["text"] for part in item["content"])))
            if item["type"] == "function_call":
                arguments = json.dumps(json.loads(item["arguments"]), separators=(",", ":"))
                names = {name: item[name] for name in ("type", "call_id", "name")}
                output = [{"type": "input_text", "text": results[item["call_id"]]}]
                sent.append({**names, "arguments": arguments})
                sent.append({"type": "function_call_output", "call_id": item["call_id"], "output": output})
        return sent


@pytest_asyncio.fixture
async def http(upstream: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        antiphon(backend_url=upstream.url, backend_retries=0, api_keys=["lab"]) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", headers=HEADERS, timeout=60, trust_env=False) as client,
    ):
        yield client


async def ask(http: httpx.AsyncClient, *items: dict[str, Any], **fields: Any) -> Chat:
    """One round: a stream, read line by line."""
    body = {"model": "m", "stream": True, "input": [*items], **fields}
    chat = Chat()
    async with http.stream("POST", "/responses", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
                chat.read(json.loads(data))
    return chat


def sent_to_model(upstream: Upstream) -> list[dict[str, Any]]:
    return list(upstream.requests[-1].json["messages"])


async def test_open_webui_text_is_shown_with_its_usage(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(saying("Hel", "lo", "."))
    image = {"type": "input_image", "image_url": PIXEL}
    message = {**user("Hi."), "content": [*user("Hi.")["content"], image]}
    chat = await ask(http, message, instructions="Be brief.", max_output_tokens=100, temperature=0.5)
    assert (chat.texts("message"), chat.ended) == (["Hello."], True)
    assert (chat.usage["input_tokens"], chat.usage["output_tokens"], chat.usage["total_tokens"]) == (5, 3, 8)
    system, question = sent_to_model(upstream)
    assert system == {"role": "system", "content": "Be brief."}
    assert question["content"][1]["image_url"]["url"] == PIXEL


async def test_open_webui_task_is_answered_whole(http: httpx.AsyncClient, upstream: Upstream) -> None:
    """Chat titles and tags are requested without a stream. Only messages are read."""
    upstream.say(thinking("It is about weather.", '{"title": ', '"Weather"}'))
    body = {"model": "m", "stream": False, "input": [user("Name this chat.")], "max_output_tokens": 1000}
    response = (await http.post("/responses", json=body)).json()
    texts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    assert "".join(texts) == '{"title": "Weather"}'


@pytest.mark.parametrize("headers", [{}, PERSON, {"originator": "open-webui"}], ids=["unknown", "named", "configured"])
async def test_open_webui_thoughts_are_shown(
    http: httpx.AsyncClient, upstream: Upstream, headers: dict[str, str]
) -> None:
    """They appear as they are streamed, also if it is not recognised."""
    http.headers.update(headers)
    upstream.say(thinking("Six times seven.", "42."))
    chat = await ask(http, user("What is it?"))
    assert (chat.texts("reasoning"), chat.texts("message")) == (["Six times seven."], ["42."])
    assert "".join(chat.seen) == "Six times seven."


async def test_open_webui_sends_all_messages_with_results(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(calling("weather", '{"place": ', '"Paris"}'))
    first = await ask(http, QUESTION, tools=[WEATHER])
    assert [(one["name"], json.loads(one["arguments"])) for one in first.calls] == [("weather", {"place": "Paris"})]
    upstream.say(saying("It is ", "sunny."))
    second = await ask(http, QUESTION, *first.repeated(call_1="Sunny."), tools=[WEATHER])
    assert second.texts("message") == ["It is sunny."]
    assert [message["role"] for message in sent_to_model(upstream)] == ["user", "assistant", "tool"]
    assert sent_to_model(upstream)[-1]["content"] == "Sunny."


async def test_open_webui_continues_and_repeats_what_the_response_had(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    """In each round it repeats the items of all rounds in this answer: the model receives each item once."""
    places = {"call_1": "Paris", "call_2": "Oslo", "call_3": "Rome"}
    chunks = [chunk("I look it up.")]
    for index, (call_id, place) in enumerate([*places.items()][:2]):
        chunks += [call(index, id=call_id, name="weather", arguments=json.dumps({"place": place}))]
    upstream.say(sse(*chunks, finish("tool_calls"), usage(), DONE))
    fields = {"tools": [WEATHER], "instructions": "Be brief."}
    first = await ask(http, QUESTION, **fields)
    sent = first.repeated(call_1="Sunny.", call_2="Rainy.")
    upstream.say(calling("weather", '{"place": "Rome"}', id="call_3"))
    second = await ask(http, *sent, previous_response_id=first.response_id, **fields)
    assert [one["call_id"] for one in second.calls] == ["call_3"]
    sent += second.repeated(call_3="Windy.")
    upstream.say(saying("Done."))
    third = await ask(http, *sent, previous_response_id=second.response_id, **fields)
    assert third.texts("message") == ["Done."]
    system, question, begun, *results, more, last = sent_to_model(upstream)
    assert (system["content"], question["content"]) == ("Be brief.", "How is the weather?")
    assert begun["content"] == "I look it up."
    assert [one["id"] for one in begun["tool_calls"]] == ["call_1", "call_2"]
    assert [(one["role"], one["content"]) for one in results] == [("tool", "Sunny."), ("tool", "Rainy.")]
    assert [one["id"] for one in more["tool_calls"]] == ["call_3"]
    assert (last["role"], last["content"]) == ("tool", "Windy.")
    # The next question is a turn of its own, with all messages.
    listed = (await http.get(f"/responses/{third.response_id}/input_items")).json()["data"]
    assert [item["type"] for item in listed] == ["function_call_output"]


async def test_open_webui_stored_items_with_fields_of_its_own_are_read(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.say(saying("Hello."))
    thought = {
        "type": "reasoning",
        "id": "r_1",
        "status": "completed",
        "start_tag": "<think>",
        "end_tag": "</think>",
        "attributes": {"type": "reasoning_content"},
        "content": [{"type": "output_text", "text": "They said hi."}],
        "summary": None,
        "started_at": 1.5,
        "ended_at": 2.5,
        "duration": 1,
    }
    code = {"type": "open_webui:code_interpreter", "id": "ci_1", "code": "1", "output": "1", "status": "completed"}
    chat = await ask(http, user("Hi."), thought, code, assistant("Hi."), user("And now?"))
    assert chat.texts("message") == ["Hello."]
    turns = [(message["role"], message["content"]) for message in sent_to_model(upstream)]
    assert turns == [("user", "Hi."), ("assistant", "Hi."), ("user", "And now?")]


async def test_open_webui_shows_the_words_of_a_refusal(http: httpx.AsyncClient, upstream: Upstream) -> None:
    upstream.say(status(400, {"error": {"message": "The prompt is odd.", "code": "invalid_value"}}))
    answer = await http.post("/responses", json={"model": "m", "stream": True, "input": [user("Hi.")]})
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/json")
    assert "The prompt is odd." in answer.json()["error"]["message"]


async def test_open_webui_takes_no_stream_that_breaks_off_for_an_answer(
    http: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.say(sse(chunk("Hel"), 0.3, {"error": {"message": "The GPU is on fire.", "type": "server_error"}}, CLOSE))
    chat = await ask(http, user("Hi."))
    assert (chat.ended, chat.texts("message")) == (False, ["Hel"])
    assert "The GPU is on fire." in chat.error["message"]
