"""Batched deltas are cited like single deltas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.core.stream.citations import Citations
from tests.support.build import builder

URL = "https://example.com/a"
SOURCES = {
    "1": {"type": "file_citation", "file_id": "a", "filename": "a.txt"},
    URL: {"type": "url_citation", "url": URL, "title": "A"},
}
DELTAS = ["a", "b ", " ", "", "\n", "(", ")", "[", "]", "【", "1", "】", " 【1】", f"[a]({URL})", f"([a]({URL})", "\0"]


def events(batches: Iterable[list[str]]) -> list[Any]:
    made = builder()
    made.cite(SOURCES)
    made.start()
    for batch in batches:
        made.text(*batch)
    made.complete()
    made.end()
    return made.pop_events().events()


@given(st.lists(st.lists(st.sampled_from(DELTAS).filter(bool), min_size=1, max_size=8), max_size=8))
def test_citations_of_any_batching_are_the_same(batches: list[list[str]]) -> None:
    assert events(batches) == events([delta] for batch in batches for delta in batch)


@given(st.lists(st.lists(st.sampled_from(DELTAS), max_size=4), max_size=8))
def test_skipped_text_is_what_feed_returns_unchanged(batches: list[list[str]]) -> None:
    skipping, feeding = Citations(), Citations()
    skipping.add(SOURCES)
    feeding.add(SOURCES)
    for batch in batches:
        fed = [piece for text in batch for piece in feeding.feed(text)]
        if skipping.skip(batch):
            assert [piece for piece in fed if piece] == [text for text in batch if text]
        else:
            assert [piece for text in batch for piece in skipping.feed(text)] == fed
    assert skipping.end() == feeding.end()


def test_plain_text_is_skipped() -> None:
    citations = Citations()
    citations.add(SOURCES)
    assert citations.skip(["It", " is", " so", "."])
    assert not citations.skip([" ["])
