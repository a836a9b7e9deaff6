"""Links to sources are annotated at the right positions, however the text is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.stream.citations import CitationLinks

URLS = ("https://example.com/a", "https://example.com/b_(c)", "https://www.example.org/?q=1&p=2")
SOURCES = {url: {"type": "url_citation", "url": url, "title": url} for url in URLS}


def with_sources() -> CitationLinks:
    links = CitationLinks()
    links.add(SOURCES)
    return links


def cited(*pieces: str) -> list[tuple[str, str]]:
    """Annotated texts with their URLs."""
    citations = with_sources()
    found = [annotation for piece in pieces for annotation in citations.feed(piece)] + citations.end()
    text = "".join(pieces)
    return [(text[one["start_index"] : one["end_index"]], one["url"]) for one in found]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("It is [so](https://example.com/a).", ["[so](https://example.com/a)"]),
        ("It is so ([a.com](https://example.com/a)).", ["([a.com](https://example.com/a))"]),
        ("(see [a](https://example.com/a), too)", ["[a](https://example.com/a)"]),
        ("([a](https://example.com/a)", ["[a](https://example.com/a)"]),
        ("([a](https://example.com/a) b)", ["[a](https://example.com/a)"]),
        ("[c](https://example.com/b_(c)) ", ["[c](https://example.com/b_(c))"]),
        ("[a [b] c](https://example.com/a)", ["[a [b] c](https://example.com/a)"]),
        ('[a](<https://example.com/a> "title")', ['[a](<https://example.com/a> "title")']),
        ("[a](https://EXAMPLE.com/a/?utm_source=openai#part)", ["[a](https://EXAMPLE.com/a/?utm_source=openai#part)"]),
        ("[q](http://example.org/?q=1&p=2)", ["[q](http://example.org/?q=1&p=2)"]),
        (
            "[1](https://example.com/a)[2](https://example.com/a)",
            ["[1](https://example.com/a)", "[2](https://example.com/a)"],
        ),
        ("[[a](https://example.com/a)](https://example.com/a)", ["[a](https://example.com/a)"]),
        ("[made up](https://example.com/other)", []),
        ("[a](https://example.com/a", []),
        ("[a]\n(https://example.com/a)", []),
        ("https://example.com/a", []),
    ],
)
def test_links_to_sources_are_annotated(text: str, spans: list[str]) -> None:
    assert [span for span, _ in cited(text)] == spans
    assert [span for span, _ in cited(*text)] == spans


def test_empty_piece_does_not_end_a_link_in_brackets() -> None:
    (span, _), *more = cited("([a](https://example.com/a)", "", ")")
    assert (span, more) == ("([a](https://example.com/a))", [])


def test_annotation_follows_the_piece_that_closes_its_link() -> None:
    citations = with_sources()
    assert citations.feed("So [a](https://exam") == []
    assert citations.feed("ple.com/a)") == [
        {"type": "url_citation", "url": URLS[0], "title": URLS[0], "start_index": 3, "end_index": 29}
    ]


def test_empty_piece_closes_nothing() -> None:
    text = "([a](https://example.com/a)"
    assert cited(text, "", ")") == cited(text + ")") == [(text + ")", URLS[0])]


_PARTS = st.sampled_from(["[", "]", "(", ")", "](", " ", "x", "\n", *URLS, *(f"[t]({url})" for url in URLS)])


@settings(max_examples=500)
@given(st.lists(_PARTS, max_size=30), st.data())
def test_links_of_any_cut_are_the_same(parts: list[str], data: Any) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert cited(*pieces) == cited(*text) == cited(text)


def test_text_without_an_end_is_read_in_linear_time() -> None:
    citations = with_sources()
    for _ in range(2000):
        citations.feed("[](" * 100)
    assert len(citations._tail) <= 3000
