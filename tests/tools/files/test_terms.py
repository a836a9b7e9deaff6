"""Chunk terms as indexed in PostgreSQL, and the limit on the occurrences that a search reads."""

from __future__ import annotations

from app.tools.files.postgres.vector_stores import MAX_POSTINGS, hashed_terms, stem, terms_within_posting_budget


def test_term_is_hashed_with_its_store_and_its_frequency() -> None:
    once, words = hashed_terms("vs_1", "Bread, breads and 東京")
    assert words == 5
    assert len(once) == len({*once}) == 5  # bread, and, 東, 京, 東 京
    assert not {*once} & {*hashed_terms("vs_2", "Bread, breads and 東京")[0]}
    assert len({*once} & {*hashed_terms("vs_1", "bread and 東京")[0]}) == 4
    assert stem("houses") == stem("house")


def test_terms_beyond_the_posting_budget_are_dropped_rarest_first() -> None:
    counts = {"the": MAX_POSTINGS, "bread": 20, "missing": 0, "yeast": 3}
    assert terms_within_posting_budget(counts) == ["yeast", "bread"]


def test_single_term_beyond_the_posting_budget_is_searched() -> None:
    assert terms_within_posting_budget({"the": MAX_POSTINGS + 1, "a": MAX_POSTINGS + 2}) == ["the"]
