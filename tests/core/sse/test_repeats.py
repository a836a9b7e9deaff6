"""Repeat decoding gives the same events as parsing each of them, for any bytes and cuts."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backends.apis.chat.decoder import ChunkReader
from app.core.profile import Profile
from app.core.sse.decoder import END, EventDecoder
from app.core.sse.repeats import PatternMatcher, RepeatedEvent, ServerEvent
from app.core.types.deltas import DONE, AnswerMetadata, Delta, TextDelta
from tests.streams.recording import NAMES, load
from tests.support.build import singly


class Decoding:
    """Decodes reads with and without repeats, as the decoder of Chat Completions does."""

    def __init__(self, *, repeats: bool) -> None:
        self._reader = ChunkReader(Profile().response)
        self._repeats = PatternMatcher(self._reader.find_text) if repeats else None
        self._decoder = EventDecoder(self._repeats)
        self.repeated: list[list[str]] = []  # texts by repeat

    def deltas(self, *reads: bytes) -> list[Delta]:
        deltas: list[Delta] = []
        for data in reads:
            delta = self._repeats.match_frame(data) if self._repeats else None
            deltas += [delta] if delta else self._read(self._decoder.decode(data))
            self.repeated += [*filter(None, [getattr(delta, "texts", None)])]
        deltas += self._read(self._decoder.end())
        # A repeated event has the metadata of its pattern's event.
        return [delta for delta in singly(deltas) if not isinstance(delta, AnswerMetadata)]

    def _read(self, events: list[ServerEvent]) -> list[Delta]:
        return [delta for event in events for delta in self._read_event(event)]

    def _read_event(self, event: ServerEvent) -> list[Delta]:
        if not isinstance(event, RepeatedEvent):
            return [DONE] if event is END else self._reader.read(event)
        self.repeated.append(event.texts)
        delta = event.read(event.texts)
        return [delta] if delta else []


def decoded(*reads: bytes, runs: bool) -> list[Delta]:
    return Decoding(repeats=runs).deltas(*reads)


def runs_of(*reads: bytes) -> list[list[str]]:
    """Return the texts by repeat within a read."""
    decoding = Decoding(repeats=True)
    decoding.deltas(*reads)
    return decoding.repeated


def event(delta: dict[str, Any], before: str = "", **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **fields}
    data = {"id": "c", "object": before or "chat.completion.chunk", "choices": [choice], "usage": None}
    return b"data: %b\n\n" % json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def arguments(text: str, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": text}, **fields}]}


@pytest.mark.parametrize(
    "delta",
    [
        lambda text: {"content": text},
        lambda text: {"role": "assistant", "content": text, "tool_calls": None},
        lambda text: {"content": "", "reasoning_content": text},
        lambda text: {"reasoning": text},
        arguments,
    ],
)
def test_events_that_differ_in_their_text_become_one_run(delta: Any) -> None:
    texts = ["a", "b", '"\\\n', "\u00e9\U0001f600", " "]
    stream = b"".join(event(delta(text)) for text in texts)
    assert runs_of(stream) == [texts[1:]]
    assert decoded(stream, runs=True) == decoded(stream, runs=False)


@pytest.mark.parametrize(
    "events",
    [
        [event({"content": "a"}), event({"content": ""}), event({"content": None}), event({"content": 1})],
        [event({"content": text, "reasoning_content": "b"}) for text in "ab"],
        [event({"content": text}, finish_reason="stop") for text in "ab"],
        [event({"content": text}, logprobs={"content": [{"token": "a"}]}) for text in "ab"],
        [event(arguments(text, id="call_1")) for text in "ab"],
        [event({"content": text}, before="content") for text in "ab"],
        [event({"content": text}).replace(b"content", b"c\\u006fntent") for text in "ab"],
        [event({"content": text}).replace(b"null", b'"\\u0000"') for text in "ab"],
    ],
)
def test_events_of_another_form_are_parsed(events: list[bytes]) -> None:
    assert runs_of(b"".join(events)) == []


@pytest.mark.parametrize(
    "between",
    [
        [b'"', b'"', b'"a","b"'],  # instead of the text and its quotes: a full parser would find three values
        [b'"a\\"', b'","c"'],
        [b'"a"', b'""', b'"b"'],
        [b'"a"', b'"\t"', b'"b"'],
        [b'"a"', b'"\xff"', b'"b"'],
        [b'"a"', b'"b"x', b'"c"'],
    ],
)
def test_strings_that_are_invalid_alone_are_not_read_together(between: list[bytes]) -> None:
    good = event({"content": "text"})
    stream = b"".join([good, *(good.replace(b'"text"', one) for one in between), good])
    assert decoded(stream, runs=True) == decoded(stream, runs=False)


def test_stream_with_random_padding_is_soon_parsed_without_learning() -> None:
    padded = [event({"content": "a"}, pad="x" * count) for count in range(20)]
    alike = [event({"content": "a"})] * 2
    assert runs_of(*padded[:3], *alike) == [["a"]]
    assert runs_of(*padded, *alike) == []


CUTS = 100  # cuts per recorded stream; a server's streams are alike, but differ in their boundaries
CHARACTERS = 'ab"\\\u00e9\U0001f600\n {}:,'
TEXTS = st.text(CHARACTERS, max_size=6)
# Valid and invalid contents of a JSON string.
INNER = st.lists(
    st.sampled_from(
        [b"a", b" ", b'"', b"\\", b'\\"', b"\\n", b"\\ud83d", b"\\ude00", b"\xc3\xa9", b"\xff", b"\n", b"\r"]
    )
    | st.sampled_from([b'","content":"', b'"}', b"{", b"data: ", b"\t", b"\x00", b"\\u00e9", b"1", b"null", b": "]),
    max_size=5,
).map(b"".join)
DELTAS = (
    TEXTS.map(lambda text: {"content": text})
    | TEXTS.map(lambda text: {"reasoning": text})
    | TEXTS.map(arguments)
    | st.sampled_from([{}, {"content": None}, {"content": ["a"]}, {"tool_calls": []}, arguments("x", id="c")])
)
FRAMES = (
    st.builds(event, DELTAS)
    | INNER.map(lambda inner: event({"content": "@"}).replace(b"@", inner))
    | INNER.map(lambda inner: event({"content": "@"}).replace(b'"@"', inner))
    | INNER.map(lambda inner: event(arguments("@")).replace(b"@", inner))
    | st.sampled_from([b"data: [DONE]\n\n", b": ping\n\n", b"\n", b"\r\n", b"data: 1\n", b"event: error\n"])
)


@given(st.lists(FRAMES, max_size=8).map(b"".join), st.lists(st.integers(0, 1500)))
def test_bytes_of_any_kind_give_the_same_chunks_as_without_runs(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    reads = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert decoded(*reads, runs=True) == decoded(stream, runs=False)


@given(st.lists(FRAMES | st.sampled_from([b"data: 1\n", b": x\r"]), max_size=8))
def test_read_of_one_event_gives_the_same_chunks_as_without_runs(frames: list[bytes]) -> None:
    reads = [event({"content": "a"}), *(frame for one in frames for frame in (one, event({"content": "b"})))]
    assert decoded(*reads, runs=True) == decoded(b"".join(reads), runs=False)


@given(st.data())
def test_change_of_any_byte_gives_the_same_chunks_as_without_runs(data: st.DataObject) -> None:
    stream = bytearray(b"".join(event({"content": text}) for text in ("ab", "cd", "ef", "gh")))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    assert decoded(bytes(stream), runs=True) == decoded(bytes(stream), runs=False)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_streams_of_any_cut_give_the_same_chunks_as_without_runs(name: str) -> None:
    body = load(name).body
    expected = decoded(body, runs=False)
    assert decoded(*(body[n : n + 1] for n in range(len(body))), runs=True) == expected
    for cut in range(0, len(body), 1 + len(body) // CUTS):
        assert decoded(body[:cut], body[cut:], runs=True) == expected


@given(st.data(), st.booleans(), st.booleans())
def test_change_of_any_byte_of_counted_events_gives_the_same_texts(
    data: st.DataObject, count_first: bool, whole_reads: bool
) -> None:
    frames = [bytearray(counted(number, text, count_first)) for number, text in enumerate("abcd", 1)]
    for _ in range(data.draw(st.integers(0, 3))):
        frame = data.draw(st.sampled_from(frames))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    reads = [bytes(frame) for frame in frames] if whole_reads else [b"".join(frames)]
    assert counted_texts(reads, PatternMatcher(find_delta, COUNT)) == counted_texts(reads, None)


COUNT = re.compile(rb'"count":(\d+)')


def counted(number: int, text: str, count_first: bool) -> bytes:
    fields = {"type": "delta", "delta": text, "item": "x"}
    value = {"type": "delta", "count": number, **fields} if count_first else {**fields, "count": number, "last": True}
    return b"event: delta\ndata: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def find_delta(event: dict[str, Any]) -> tuple[str, Any] | None:
    return ("delta", TextDelta) if isinstance(event.get("delta"), str) else None


def counted_texts(reads: list[bytes], repeats: PatternMatcher | None) -> list[str]:
    decoder = EventDecoder(repeats, named=True)
    texts: list[str] = []
    for data in [*reads, None]:
        if data and repeats and (delta := repeats.match_frame(data)):
            assert isinstance(delta, TextDelta)
            texts += delta.texts
            continue
        for each in decoder.end() if data is None else decoder.decode(data):
            texts += each.texts if isinstance(each, RepeatedEvent) else [each.get("delta", "")]
    return [text for text in texts if isinstance(text, str) and text]
