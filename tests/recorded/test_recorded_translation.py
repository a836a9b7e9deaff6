"""
OpenAI's recorded exchanges through Antiphon.

Each recorded request is sent to Antiphon; its backend is a Responses server with OpenAI's answers. Features that
Antiphon runs itself are skipped: compaction, MCP, tool search, and custom tools, which it declares as functions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest_asyncio

from openresponses_verify.exchange import read_events
from openresponses_verify.laws import breaches_of
from tests.recorded.recordings import Recording, recordings
from tests.support.serving import antiphon
from tests.support.upstream import Upstream, reply

Json = dict[str, Any]

OWN_FEATURES = ("test_compaction", "test_mcp", "test_custom_tool", "test_codex_custom_tool")
OWN_FEATURES += ("test_tool_search", "test_client_executed_tool_search")
# A second server has its own ids and its own encryption.
IDENTIFIERS = ("id", "encrypted_content")
PASSED = ("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "apply_patch")


class ResponsesServer(Upstream):
    native = True


@dataclass(frozen=True)
class Repeated:
    """A recorded exchange, and its repetition through Antiphon."""

    recording: Recording
    sent: Json  # to the backend
    status: int
    content: bytes

    @property
    def events(self) -> list[Json]:
        return [json.loads(event.data) for event in read_events(self.content) if event.data != "[DONE]"]

    @property
    def response(self) -> Json:
        return dict(self.events[-1]["response"] if self.recording.streamed else json.loads(self.content))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def repeated() -> AsyncIterator[list[Repeated]]:
    chosen = [one for one in recordings() if not one.name.startswith(OWN_FEATURES)]
    chosen = [one for one in chosen if "previous_response_id" not in one.request]  # OpenAI's earlier response
    options = {"transport.api": "responses", "request.passes": list(PASSED)}
    async with (
        ResponsesServer() as upstream,
        antiphon(backend_url=upstream.url, backend_overrides=options) as url,
        httpx.AsyncClient(timeout=120) as client,
    ):
        yield [await repeat(recording, upstream, client, f"{url}/v1/responses") for recording in chosen]


async def repeat(recording: Recording, upstream: Upstream, client: httpx.AsyncClient, url: str) -> Repeated:
    upstream.say(reply(recording.content, "text/event-stream" if recording.streamed else "application/json"))
    answer = await client.post(url, json={**recording.request, "store": False})
    assert answer.status_code == 200, (recording.name, answer.text)
    return Repeated(recording, upstream.requests[-1].json, answer.status_code, answer.content)


def normal_item(item: Json) -> Json:
    """Return an output item without identifiers and without optional empty fields."""
    item = {name: value for name, value in item.items() if name not in IDENTIFIERS and value not in (None, [])}
    if item["type"] == "reasoning":
        item.pop("status", None)
    if item["type"] == "message":
        item["content"] = [{"logprobs": [], **part} for part in item["content"]]
    return item


async def test_output_items_reach_the_client_as_openai_sent_them(repeated: list[Repeated]) -> None:
    assert len(repeated) > 140
    different = []
    for one in repeated:
        expected = [normal_item(item) for item in one.recording.response["output"]]
        found = [normal_item(item) for item in one.response["output"]]
        different += [(one.recording.name, expected, found)] if expected != found else []
    assert different == []


async def test_status_and_usage_are_those_of_openai(repeated: list[Repeated]) -> None:
    assert len(repeated) > 140
    different = []
    for one in repeated:
        theirs, ours = one.recording.response, one.response
        usage = {name: ours["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")}
        expected = {name: theirs["usage"][name] for name in usage}
        if (theirs["status"], expected) != (ours["status"], usage):
            different.append((one.recording.name, theirs["status"], expected, ours["status"], usage))
    assert different == []


async def test_repeated_streams_keep_every_law(repeated: list[Repeated]) -> None:
    streams = [one for one in repeated if one.recording.streamed]
    assert len(streams) > 100
    broken = [
        f"{one.recording.name}: {law.name}: {breach.message}"
        for one in streams
        for law, breach in breaches_of(one.events)
    ]
    assert broken == []


# Another server's encrypted reasoning is unreadable here, and the others are instructions to the server.
NOT_SENT = ("reasoning", "configuration_update", "additional_tools")
# A second server has its own ids, a finished item may be sent without its status, and `auto` is the default.
OPTIONAL_INPUT = ("id", "status", "annotations", "detail")


def normal_input(items: str | list[Json]) -> list[Json]:
    """Return the input in its long form, without optional fields."""
    messages = [{"role": "user", "content": items}] if isinstance(items, str) else items
    normal = [_without_optional({"type": "message", **item}) for item in messages]
    for item in normal:
        if isinstance(item.get("content"), str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            item["content"] = [{"type": kind, "text": item["content"]}]
        for name in ("content", "output"):
            parts = item.get(name)
            item |= {name: [_without_optional(part) for part in parts]} if isinstance(parts, list) else {}
    return [item for item in normal if item["type"] not in NOT_SENT]


def _without_optional(item: Json) -> Json:
    return {name: value for name, value in item.items() if name not in OPTIONAL_INPUT and value is not None}


async def test_requests_reach_the_backend_as_they_reached_openai(repeated: list[Repeated]) -> None:
    assert len(repeated) > 140
    different = []
    for one in repeated:
        expected, found = normal_input(one.recording.request["input"]), normal_input(one.sent["input"])
        different += [(one.recording.name, expected, found)] if expected != found else []
    assert different == []
