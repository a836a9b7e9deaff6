"""
Checks every answer: text, reasoning or call, and the number of messages that reached the upstream.

A peer's deltas and final response must contain the model's text; Antiphon's stream must also have the specification's
order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.bench.answers import answer, tool_call
from tests.bench.scenarios import Scenario
from tests.bench.servers import Server

TEXT = {"response.output_text.delta", "response.function_call_arguments.delta"}
REASONING = {"response.reasoning.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta"}


class Wrong(ValueError):
    """The message describes the error in an answer."""


class Received(NamedTuple):
    """An answer's content, in either API."""

    text: str
    reasoning: str | None  # None: not checked
    messages: int | None  # messages received by the upstream; None: the answer has no usage


def wrong(server: Server, scenario: Scenario, body: bytes, messages: int) -> str:
    """Return the error in an answer to this number of messages, or ""."""
    try:
        api, _ = server.endpoint(chat=scenario.chat)
        received = _chat(body, scenario) if api == "chat" else _response(body, scenario, strict=not server.peer)
    except Wrong as error:
        return str(error)
    except (ValueError, LookupError, TypeError) as error:
        return f"{error!r} in {body[-200:].decode(errors='replace')!r}"
    expected = answer(scenario.model)
    if api == "chat" and messages <= 2 * scenario.rounds:
        expected = tool_call(scenario.model, messages // 2)
    if received.text != expected.text:
        return f"wrong text: {received.text[:80]!r}"
    if received.reasoning is not None and received.reasoning != expected.reasoning:
        return f"wrong reasoning: {received.reasoning[:80]!r}"
    if received.messages != messages and not (server.peer and received.messages is None):
        return f"the upstream received {received.messages} messages, not {messages}"
    return ""


def _data(body: bytes) -> Iterator[bytes]:
    return (found[1] for found in re.finditer(rb"^data: *(.*?)\r?$", body, re.MULTILINE))


def _chat(body: bytes, scenario: Scenario) -> Received:
    if not scenario.stream:
        completion = json.loads(body)
        message = completion["choices"][0]["message"]
        text = message["content"] or "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
        return Received(text, None, completion["usage"]["prompt_tokens"])
    chunks = [json.loads(data) for data in _data(body) if data != b"[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
    return Received(
        "".join(delta.get("content") or "" for delta in deltas)
        + "".join(call["function"]["arguments"] for call in calls),
        "".join(delta.get("reasoning_content") or "" for delta in deltas),
        chunks[-1]["usage"]["prompt_tokens"],
    )


def _response(body: bytes, scenario: Scenario, *, strict: bool) -> Received:
    if not scenario.stream:
        return _final(json.loads(body))
    *data, last = _data(body)
    if last != b"[DONE]":
        data.append(last)
    events = [json.loads(one) for one in data]
    if strict:
        _in_order(events, ended=last == b"[DONE]")
    if events[-1]["type"] != "response.completed":
        raise Wrong(f"the last event is {events[-1]['type']}")
    text = "".join(event["delta"] for event in events if event["type"] in TEXT)
    final = _final(events[-1]["response"])
    if text != final.text:
        raise Wrong(f"the deltas are {text[:24]!r}, but the response has {final.text[:40]!r}")
    return final._replace(reasoning="".join(event["delta"] for event in events if event["type"] in REASONING))


def _in_order(events: list[dict[str, Any]], *, ended: bool) -> None:
    if not ended:
        raise Wrong("the stream does not end with [DONE]")
    if [event["sequence_number"] for event in events] != list(range(len(events))):
        raise Wrong("sequence_number does not count 0, 1, 2, ...")
    if (kinds := [event["type"] for event in events])[:2] != ["response.created", "response.in_progress"]:
        raise Wrong(f"the stream begins with {kinds[:2]}")
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    if not added == done == [item["id"] for item in events[-1]["response"]["output"]]:
        raise Wrong(f"items added {added}, and done {done}")


def _final(response: Any) -> Received:
    if not isinstance(response, dict):
        raise Wrong(f"the response is {json.dumps(response)}")
    if response["status"] != "completed":
        raise Wrong(f"the status is {response['status']}")
    text = ""
    for item in response["output"]:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            text += item["arguments"]
    return Received(text, None, (response.get("usage") or {}).get("input_tokens"))
