"""
A backend stream that is split, stalled and broken at any byte: the caller receives exactly the arrived text, and a
correct end.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backends.server.client import ModelServer
from app.core.profile import Profile
from app.core.stream.event_batch import EventBatch, decode_events, encode_sse
from app.core.types.request import CreateResponse, Event
from app.errors import BackendError
from app.responses import Caller
from app.stores.memory import MemoryStore
from tests.streams.recording import CIPHER
from tests.support import laws
from tests.support.build import responses_on
from tests.support.deliveries import RecordingWriter, SlowWriter
from tests.support.server_apis import SERVER_APIS, Output, ServerAPI, encoded
from tests.support.upstream import CLOSE, RESET, Step, Upstream, head, piece

HEAD = head({"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
TEXTS = st.text('ab"\\\u00e9\U0001f600\n', min_size=1, max_size=3)


def streamed(api: ServerAPI, texts: list[str], thoughts: list[str], arguments: list[str]) -> bytes:
    """Return a whole answer's chunked body."""
    return b"".join(map(piece, [*map(encoded, api.whole(texts, thoughts, arguments)), b""]))


def unchunked(data: bytes) -> bytes:
    """Return the content of a chunked body as far as it has arrived."""
    content = b""
    while b"\r\n" in data:
        size, _, data = data.partition(b"\r\n")
        content += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return content


def arrived(api: ServerAPI, data: bytes) -> tuple[Output, bool]:
    """Return the text in the received frames, each parsed separately, and whether the model has finished."""
    written, finished = Output(), False
    *frames, _ = unchunked(data).split(b"\n\n")
    for frame in frames:
        content = frame.rpartition(b"data: ")[2]
        if content != b"[DONE]":
            more, ends = api.read(json.loads(content))
            written, finished = written.plus(more), finished or ends
    return written, finished


def read(events: list[Event]) -> Output:
    """Return the text in a stream's deltas."""
    texts: dict[str, str] = dict.fromkeys(("output_text", "reasoning", "function_call_arguments"), "")
    for event in events:
        kind, _, last = event["type"].removeprefix("response.").rpartition(".")
        if last == "delta":
            texts["reasoning" if kind == "reasoning_summary_text" else kind] += event["delta"]
    return Output(*texts.values())


async def followed(api: ServerAPI, data: bytes, cuts: list[int], end: Step | None, *, at_once: bool) -> list[Event]:
    """
    Return the events of a stream in these pieces, each sent after the earlier events were seen.

    `end` is the connection's fate after the last piece; empty if the backend was refused. `at_once`: the client reads
    events immediately; otherwise each batch waits for it.
    """
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    gates = [(arrived(api, data[:edge])[0], asyncio.Event()) for edge in edges[1:-1]]
    steps: list[Step] = [HEAD]
    for number, (begin, stop) in enumerate(itertools.pairwise(edges)):
        steps += [gates[number - 1][1]] if number else []
        steps.append(data[begin:stop])
    events: list[Event] = []

    def open_gates() -> None:
        seen = read(events)
        for written, gate in gates:
            if written == seen:
                gate.set()

    def take(batch: EventBatch) -> None:
        events.extend(decode_events(encode_sse(batch)))
        open_gates()

    open_gates()
    async with Upstream() as upstream:
        upstream.say(steps, *([end] if end else []))
        upstream.native = True
        backend = ModelServer(upstream.url, profile=Profile().override(api.settings), retries=0)
        try:
            responses = responses_on(backend, MemoryStore(ttl=60, max_bytes=1), cipher=CIPHER)
            request = {"model": "m", "input": "Hi", "store": False, "tools": [{"type": "function", "name": "f"}]}
            run = await responses.create(CreateResponse.model_validate(request), Caller())
            async with asyncio.timeout(20):
                if at_once:
                    await run.generate(RecordingWriter(take))
                else:
                    async for batch in SlowWriter().batches(run.generate):
                        take(batch)
        except BackendError:
            assert not events
        finally:
            await backend.aclose()
    return events


def cuts_of(body: bytes) -> st.SearchStrategy[list[int]]:
    """Return where a body is cut: anywhere, or at each of its events, as a slow model sends them."""
    events = [found.end() for found in re.finditer(rb"\n\n\r\n", body)]
    return st.lists(st.integers(1, 3000), max_size=5) | st.just(events)


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
@settings(max_examples=40)
@given(st.lists(TEXTS, max_size=6), st.lists(TEXTS, max_size=3), st.lists(TEXTS, max_size=2), st.booleans(), st.data())
def test_stream_cut_at_any_byte_emits_exactly_what_arrived(
    api: ServerAPI, texts: list[str], thoughts: list[str], arguments: list[str], at_once: bool, data: st.DataObject
) -> None:
    whole = streamed(api, texts, thoughts, arguments)
    cuts = data.draw(cuts_of(whole), label="cuts")
    broken_at = data.draw(st.just(len(whole)) | st.integers(0, len(whole)), label="broken at")
    end: Any = CLOSE if broken_at < len(whole) else None
    events = asyncio.run(followed(api, whole[:broken_at], cuts, end, at_once=at_once))
    written, finished = arrived(api, whole[:broken_at])
    assert read(events) == written
    if events:
        laws.check(events)
        final = events[-1]["response"]
        assert final["status"] == ("completed" if finished else "failed")
    else:
        assert not finished


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
@settings(max_examples=20)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.integers(0, 3000), st.booleans(), st.data())
def test_connection_reset_retracts_nothing_that_was_emitted(
    api: ServerAPI, texts: list[str], at: int, at_once: bool, data: st.DataObject
) -> None:
    whole = streamed(api, texts, [], [])
    sent = whole[: at % len(whole)]
    events = asyncio.run(followed(api, sent, data.draw(cuts_of(sent), label="cuts"), RESET, at_once=at_once))
    written, finished = arrived(api, sent)
    assert written.text.startswith(read(events).text)  # the kernel discards unread bytes
    if events:
        laws.check(events)
        assert finished or events[-1]["type"] == "response.failed"
