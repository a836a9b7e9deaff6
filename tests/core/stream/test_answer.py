"""Chunks with large texts are cut into ordinary ones, which say the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app.core.size import pieces_of
from app.core.stream import answer
from app.core.stream.answer import in_pieces
from app.core.stream.chunk_reader import ChunkReader
from app.core.types.chunk import TEXT_PATHS, ChunkRun
from tests.support.build import builder, call, delta, normal

ARGUMENTS = '{"city": "Paris"}'
CHUNKS = {
    "text": [delta(content="Hello, world.")],
    "all": [{**delta(reasoning="Let me think.", content="Hello.", refusal="But no."), "usage": {"total_tokens": 9}}],
    "call": [call(0, "a", "f", ARGUMENTS)],
    "call without index": [call(None, "a", "f", ARGUMENTS)],
    "call without id": [call(0, None, "f", ARGUMENTS)],
    "call in fragments": [call(0, "a", "f", ARGUMENTS[:9]), call(0, None, None, ARGUMENTS[9:])],
    "call that is repeated under its id": [call(None, "a", "f", ARGUMENTS)] * 2,
    "call that is repeated under its index": [call(0, None, "f", ARGUMENTS)] * 2,
    "call that is repeated under another index": [call(0, "a", "f", ARGUMENTS), call(1, "a", "f", ARGUMENTS)],
    "earlier call that is repeated": [
        call(None, "a", "f", ARGUMENTS),
        call(None, "b", "f", "{}"),
        call(None, "a", "f", ARGUMENTS),
    ],
    "calls with one id": [call(None, "a", "f", ARGUMENTS), call(None, "a", "f", '{"city": "Prague"}')],
    "calls with one index": [call(0, None, "f", ARGUMENTS), call(0, None, "f", '{"city": "Prague"}')],
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces have three characters."""
    monkeypatch.setattr(answer, "pieces_of", lambda text, size=0: pieces_of(text, 3))


def output(chunks: list[Any]) -> list[Any]:
    """Return the items of an answer, without their ids."""
    made = builder()
    made.start()
    reader = ChunkReader(made)
    for one in chunks:
        reader.feed(one)
    reader.calls.end()
    made.complete()
    return [{name: value for name, value in item.items() if name != "id"} for item in made.response["output"]]


@pytest.mark.parametrize("name", CHUNKS)
def test_chunk_in_pieces_gives_the_same_items(name: str) -> None:
    chunks = normal(copy.deepcopy(CHUNKS[name]))
    whole = output(copy.deepcopy(chunks))
    pieces = [*in_pieces(chunks)]
    assert len(pieces) > len(CHUNKS[name])
    assert not chunks
    assert output(pieces) == whole


def test_usage_and_finish_reason_come_with_the_last_piece() -> None:
    *pieces, last = in_pieces(
        [{"choices": [{"delta": {"content": "Hello."}, "finish_reason": "stop"}], "usage": {"a": 1}}]
    )
    assert pieces == [delta_of("Hel"), delta_of("lo.")]
    assert last == {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"a": 1}}


def delta_of(text: str) -> Any:
    return {"choices": [{"delta": {"content": text}}]}


def test_text_with_logprobs_stays_in_one_piece() -> None:
    whole: Any = {"choices": [{"delta": {"content": "Hello."}, "logprobs": {"content": []}}]}
    assert [*in_pieces([whole])] == [whole]


@pytest.mark.parametrize("field", TEXT_PATHS)
def test_run_of_chunks_in_pieces_has_the_same_texts(field: str) -> None:
    runs = [*in_pieces([ChunkRun({}, field, ["Hello", "world"])])]
    assert [run.texts for run in runs if isinstance(run, ChunkRun)] == [["Hel"], ["lo"], ["wor"], ["ld"]]
