"""
Is the answer right? Every one is read: its text, its reasoning or its call, and how many messages the upstream saw.

Of a peer it is asked that the deltas and the final response say what the model said; of Antiphon also that the stream
has the order of the specification.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.bench.answers import answer
from tests.bench.scenarios import Scenario
from tests.bench.servers import Server

TEXT = {"response.output_text.delta", "response.function_call_arguments.delta"}
REASONING = {"response.reasoning.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta"}


class Wrong(ValueError):
    """What is wrong, in words."""


class Said(NamedTuple):
    """What an answer says, whatever the API it came by."""

    text: str
    reasoning: str | None  # None: it is not asked for
    messages: int | None  # that the upstream received; None: the answer has no usage


def wrong(server: Server, scenario: Scenario, body: bytes, messages: int) -> str:
    """Say what is wrong with the body of an answer to so many messages, or nothing."""
    try:
        api, _ = server.endpoint(chat=scenario.chat)
        said = _chat(body, scenario) if api == "chat" else _response(body, scenario, strict=not server.peer)
    except Wrong as error:
        return str(error)
    except (ValueError, LookupError, TypeError) as error:
        return f"{error!r} in {body[-200:].decode(errors='replace')!r}"
    expected = answer(scenario.model)
    if said.text != expected.text:
        return f"wrong text: {said.text[:80]!r}"
    if said.reasoning is not None and said.reasoning != expected.reasoning:
        return f"wrong reasoning: {said.reasoning[:80]!r}"
    if said.messages != messages and not (server.peer and said.messages is None):
        return f"the upstream received {said.messages} messages, not {messages}"
    return ""


def _data(body: bytes) -> Iterator[bytes]:
    return (found[1] for found in re.finditer(rb"^data: *(.*?)\r?$", body, re.MULTILINE))


def _chat(body: bytes, scenario: Scenario) -> Said:
    if not scenario.stream:
        completion = json.loads(body)
        message = completion["choices"][0]["message"]
        text = message["content"] or "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
        return Said(text, None, completion["usage"]["prompt_tokens"])
    chunks = [json.loads(data) for data in _data(body) if data != b"[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
    return Said(
        "".join(delta.get("content") or "" for delta in deltas)
        + "".join(call["function"]["arguments"] for call in calls),
        "".join(delta.get("reasoning_content") or "" for delta in deltas),
        chunks[-1]["usage"]["prompt_tokens"],
    )


def _response(body: bytes, scenario: Scenario, *, strict: bool) -> Said:
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
        raise Wrong(f"the deltas say {text[:24]!r}, the response {final.text[:40]!r}")
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


def _final(response: Any) -> Said:
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
    return Said(text, None, (response.get("usage") or {}).get("input_tokens"))
