"""Chunks are small enough, overlap, and have all of the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.usage.token_estimate import estimate
from app.tools.files.ingestion.chunking import chunks

WORDS = st.lists(
    st.sampled_from(["word", "a", "Another", "end.", "what?", "\n", "\n\n", "漢字。", "1234"]), max_size=400
)


def test_short_text_is_one_chunk() -> None:
    assert [*chunks("Hello.\n\nWorld.", 100, 50)] == ["Hello.\n\nWorld."]
    assert [*chunks("  \n ", 100, 50)] == []
    assert [*chunks("", 100, 50)] == []


def test_chunk_begins_with_the_end_of_the_one_before() -> None:
    text = " ".join(f"This is sentence number {number}." for number in range(100))
    made = [*chunks(text, 100, 40)]
    assert len(made) > 5
    for one, other in pairwise(made):
        assert other.split(".")[0] in one
        assert one[0] == "T" and one[-1] == "."


def test_chunks_without_overlap_repeat_nothing() -> None:
    text = " ".join(f"This is sentence number {number}." for number in range(100))
    assert " ".join(chunks(text, 100, 0)) == text


def test_chunk_ends_with_a_paragraph_where_it_can() -> None:
    paragraph = "Some words stand here. " * 8
    made = [*chunks("\n\n".join([paragraph] * 12), 100, 0)]
    assert all(chunk.endswith("here.") and chunk.startswith("Some") for chunk in made)


@pytest.mark.parametrize("text", ["x" * 50_000, "漢" * 50_000, "." * 50_000, "a.b" * 20_000, "word " * 20_000])
def test_text_without_ends_is_cut(text: str) -> None:
    made = [*chunks(text, 100, 50)]
    assert max(map(estimate, made)) <= 100
    assert len(made) < 5000


@given(WORDS, st.integers(100, 300), st.integers(0, 50))
def test_chunks_have_all_of_the_text_in_order(words: list[str], max_tokens: int, overlap: int) -> None:
    text = " ".join(words)
    made = [*chunks(text, max_tokens, overlap)]
    search_start = 0
    covered = 0
    for chunk in made:
        assert estimate(chunk) <= max_tokens
        start = text.find(chunk, search_start)
        assert start >= 0
        assert not text[covered:start].strip()  # nothing was left out in between
        search_start, covered = start + 1, max(covered, start + len(chunk))
    assert not text[covered:].strip()
