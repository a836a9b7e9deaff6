"""Decoding bytes to chunks: every known framing, with any cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.sse import decoder as sse_decoder
from app.core.sse.decoder import END, EventDecoder, encodable
from app.core.sse.repeats import ServerEvent


def decoded(*reads: bytes) -> list[ServerEvent]:
    decoder = EventDecoder()
    return [chunk for data in reads for chunk in decoder.decode(data)] + decoder.end()


def content(text: str, index: int = 0) -> ServerEvent:
    return {"choices": [{"index": index, "delta": {"content": text}}]}


A, B = {"n": 1}, {"n": 2}

ENDLESS = {"a": -9999.0, "b": None, "c": 1.5, "d": None}

FRAMINGS: dict[str, tuple[bytes, list[ServerEvent]]] = {
    "plain": (b'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n', [A, B, END]),
    "CRLF": (b'data: {"n": 1}\r\n\r\ndata: {"n": 2}\r\n\r\ndata: [DONE]\r\n\r\n', [A, B, END]),
    "CR": (b'data: {"n": 1}\r\rdata: {"n": 2}\r\r', [A, B]),
    "all line ends at once": (b'data: {"n": 1}\r\n\ndata: {"n": 2}\n\r\ndata: [DONE]\r\r', [A, B, END]),
    "no blank behind the colon": (b'data:{"n": 1}\n\ndata:[DONE]\n\n', [A, END]),
    "comments before, between and inside": (
        b': OPENROUTER PROCESSING\n\n: keepalive 1/1\n\ndata: {"n": 1}\n: ping\n\n:\n\ndata: {"n": 2}\n\n',
        [A, B],
    ),
    "id, retry and unknown fields": (b'id: 1\nretry: 3\nx\ndata: {"n": 1}\nid: 2\n\n', [A]),
    "data over several lines": (b'data: {"n":\ndata:  1}\n\n', [A]),
    "a named event that is a chunk": (
        b'event: completion.chunk\ndata: {"choices": []}\n\ndata: {"n": 1}\n\n',
        [{"choices": []}, A],
    ),
    "named events that are none": (
        b'event: ping\ndata: {"type": "ping"}\n\nevent: sglext_ids\ndata: [1, 2]\n\ndata: {"n": 1}\n\n',
        [A],
    ),
    "empty data": (b'data:\n\ndata: \n\ndata\n\ndata: {"n": 1}\n\n', [A]),
    "frames that are no objects": (
        b'data: null\n\ndata: []\n\ndata: "ok"\n\ndata: 1\n\ndata: oops\n\ndata: {"n"\n\ndata: {"n": 1}\n\n',
        [A],
    ),
    "no blank line at the end": (b'data: {"n": 1}\n\ndata: {"n": 2}', [A, B]),
    "no line end behind the last": (b'data: {"n": 1}\n\ndata: [DONE]', [A, END]),
    "data behind [DONE]": (b'data: {"n": 1}\n\ndata: [DONE]\n\ndata: {"n": 2}\n\n', [A, END]),
    "blanks around [DONE]": (b"data:  [DONE] \n\n", [END]),
    "more blank lines than needed": (b'\n\n\ndata: {"n": 1}\n\n\n\n\ndata: {"n": 2}\n\n\n', [A, B]),
    "blank lines forgotten": (b'data: {"n": 1}\ndata: {"n": 2}\ndata: [DONE]\n\n', [A, B, END]),
    "an error event with an object": (
        b'event: error\ndata: {"message": "no", "code": 5}\n\n',
        [{"error": {"message": "no", "code": 5}}],
    ),
    "an error event with an envelope": (
        b'event: error\ndata: {"error": {"message": "no"}}\n\n',
        [{"error": {"message": "no"}}],
    ),
    "an error event with a string": (b'event: error\ndata: "no"\n\n', [{"error": "no"}]),
    "an error event with bare words": (b"event: error\ndata: no such\ndata: model\n\n", [{"error": "no such\nmodel"}]),
    "an error event with nothing much": (b"event: error\ndata: {}\n\n", [{"error": "unknown error"}]),
    "an error in a list": (b'data: [{"error": {"code": 400}}]\n\n', [{"error": {"code": 400}}]),
    "UTF-8": ('data: {"s": "\u20ac\U0001f600"}\n\n'.encode(), [{"s": "\u20ac\U0001f600"}]),
    "broken UTF-8": (b'data: {"s": "a\xffb"}\n\n', [{"s": "a\ufffdb"}]),
    "numbers that JSON does not have": (b'data: {"a": -Infinity, "b": NaN}\n\n', [{"a": -9999.0, "b": None}]),
    "numbers without an end": (b'data: {"a": -1e999, "b": 1e999, "c": 1.5, "d": NaN}\n\n', [ENDLESS]),
    "more levels than anybody reads": (
        b'data: {"n": %b"\\ud800"%b}\n\ndata: {"n": 1}\n\n' % (b"[" * 2_000, b"]" * 2_000),
        [A],
    ),
    "nothing": (b"", []),
    "only line ends": (b"\n\r\n\r\r\n", []),
}


@pytest.mark.parametrize(("data", "expected"), FRAMINGS.values(), ids=FRAMINGS)
def test_framing_of_any_kind_gives_its_chunks(data: bytes, expected: list[ServerEvent]) -> None:
    assert decoded(data) == expected


@pytest.mark.parametrize(("data", "expected"), FRAMINGS.values(), ids=FRAMINGS)
def test_bytes_one_by_one_give_the_same_chunks(data: bytes, expected: list[ServerEvent]) -> None:
    assert decoded(*(data[n : n + 1] for n in range(len(data)))) == expected


FRAMES = st.sampled_from([data for data, _ in FRAMINGS.values() if b"[DONE]" not in data])
LINES = st.sampled_from(
    [
        b"data: {}",
        b'data: {"n":1}',
        b'data: {"s":"\xe2\x82\xac"}',
        b'data: {"s":"\\ud83d"}',
        b": x",
        b"event: error",
        b"data",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS).map(b"".join) | FRAMES, max_size=8).map(b"".join)


@given(STREAMS, st.lists(st.integers(0, 400)))
def test_bytes_of_any_cut_give_the_same_chunks(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    assert decoded(*(stream[a:b] for a, b in itertools.pairwise(edges))) == decoded(stream)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_read(data: bytes) -> None:
    assert decoded(b"data: " + data + b'\n\n\ndata: {"n": 1}\n\n')[-1:] in ([A], [END])


def test_chunk_is_returned_as_soon_as_its_event_ends() -> None:
    decoder = EventDecoder()
    assert decoder.decode(b'data: {"n": 1}\n\ndata: {"n"') == [A]
    assert decoder.decode(b": 2}\r\n") == []
    assert decoder.decode(b"\r") == [B]
    assert decoder.decode(b'\ndata: {"n": 1}\n\n') == [A]


def test_line_of_any_length_is_read() -> None:
    line = b"data: " + orjson.dumps(content("x" * 5_000_000)) + b"\n\n"
    reads = [line[n : n + 16384] for n in range(0, len(line), 16384)]
    assert decoded(*reads, b'data: {"n": 1}\n\n') == [content("x" * 5_000_000), A]


def events(*chunks: Any) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks)


def test_surrogate_halves_in_two_chunks_are_joined() -> None:
    stream = events(content("a\ud83d"), content("\ude00b"))
    assert decoded(stream) == [content("a"), content("\U0001f600b")]


def test_surrogate_halves_of_arguments_are_joined_per_call() -> None:
    def arguments(text: str) -> ServerEvent:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 3, "function": {"arguments": text}}]}}]}

    assert decoded(events(arguments('"\ud83d'), arguments('\ude00"'))) == [arguments('"'), arguments('\U0001f600"')]


def test_surrogate_half_without_the_other_is_replaced_in_place() -> None:
    stop = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    stream = events(content("\ud83d"), content("b"), content("\ude00"), content("c\ud83d"), stop)
    assert decoded(stream) == [
        content(""),
        content("\ufffdb"),
        content("\ufffd"),
        content("c"),
        content("\ufffd"),
        stop,
    ]


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"])
def test_surrogate_half_at_the_end_is_replaced(end: bytes) -> None:
    assert decoded(events(content("\ud83d")) + end)[:2] == [content(""), content("\ufffd")]


def test_surrogate_half_waits_for_the_next_chunk_with_choices() -> None:
    usage = {"choices": [], "usage": {"total_tokens": 1}}
    assert decoded(events(content("\ud83d"), usage, content("\ude00"))) == [content(""), usage, content("\U0001f600")]


SURROGATES = st.text(st.sampled_from("ab\ud83d\ude00\U0001f600"), max_size=5)


@given(st.lists(SURROGATES, max_size=6))
def test_surrogate_halves_of_any_cut_give_the_whole_text(texts: list[str]) -> None:
    chunks = decoded(events(*map(content, texts)))
    orjson.dumps(chunks)
    whole = "".join(texts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == whole


def test_surrogate_halves_in_a_value_are_made_encodable() -> None:
    assert encodable({"\ud83d": ["\U0001f600", "\ude00", 1, None]}) == {"\ufffd": ["\U0001f600", "\ufffd", 1, None]}


@pytest.mark.parametrize("name", FRAMINGS)
def test_events_that_count_as_large_give_the_same_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, chunks = FRAMINGS[name]
    monkeypatch.setattr(sse_decoder, "MAX_VALUES", 0)
    monkeypatch.setattr(sse_decoder, "_BLOCK", 8)
    for size in (1, 7, 1000):
        assert decoded(*(body[at : at + size] for at in range(0, len(body), size))) == chunks


@given(st.text(st.characters(codec=None), max_size=200), st.booleans())
def test_unpaired_surrogates_are_replaced_and_pairs_joined(text: str, escaped: bool) -> None:
    event = b"data: " + json.dumps(content(text), ensure_ascii=escaped).encode("utf-8", "surrogatepass") + b"\n\n"
    with pytest.MonkeyPatch.context() as patch:
        ordinary = decoded(event)
        patch.setattr(sse_decoder, "MAX_VALUES", 0)
        assert decoded(event) == ordinary
    if escaped:
        joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in ordinary) == joined
