"""Citations and grounding metadata as annotations. Google counts positions in UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.backends.apis.annotations import flat_annotations
from app.core.json_values import json_list, json_object, json_objects, json_text
from app.core.types import JSONMapping, JSONObject
from app.core.types.deltas import CitedSource

_WEB = ("https://", "http://")


def citations(text: str, grounding: JSONMapping, cited: Iterable[JSONMapping]) -> list[JSONObject]:
    return [*flat_annotations([*_supports(text, grounding), *_quotations(text, cited)])]


def grounding_sources(grounding: JSONMapping) -> list[CitedSource]:
    pages = filter(None, map(_page, json_objects(grounding.get("groundingChunks"))))
    return [CitedSource(url=page["url"], title=page["title"]) for page in pages]


def _supports(text: str, grounding: JSONMapping) -> Iterator[JSONObject]:
    pages = [*map(_page, json_list(grounding.get("groundingChunks")))]
    for support in json_objects(grounding.get("groundingSupports")):
        span = _span(text, json_object(support.get("segment")))
        for index in json_list(support.get("groundingChunkIndices")):
            if span and isinstance(index, int) and 0 <= index < len(pages) and (page := pages[index]):
                yield {"type": "url_citation", **page, **span}


def _quotations(text: str, cited: Iterable[JSONMapping]) -> Iterator[JSONObject]:
    for citation in cited:
        url, span = json_text(citation.get("uri")), _span(text, citation)
        if span and url.startswith(_WEB):
            yield {"type": "url_citation", "url": url, "title": json_text(citation.get("title")) or url, **span}


def _page(chunk: object) -> JSONObject | None:
    fields = json_object(chunk)
    for kind in ("web", "retrievedContext", "maps"):
        page = json_object(fields.get(kind))
        if (url := json_text(page.get("uri"))).startswith(_WEB):
            return {"url": url, "title": json_text(page.get("title")) or url}
    return None


def _span(text: str, segment: JSONMapping) -> JSONObject | None:
    """Positions in characters; None if the segment is not in the text."""
    start, end = segment.get("startIndex") or 0, segment.get("endIndex")
    quoted = json_text(segment.get("text"))
    if isinstance(start, int) and isinstance(end, int) and 0 <= start < end:
        encoded = text.encode(errors="replace")
        before, inner = (encoded[begin:stop].decode(errors="replace") for begin, stop in ((0, start), (start, end)))
        if end <= len(encoded) and (not quoted or inner == quoted):
            return {"start_index": len(before), "end_index": len(before) + len(inner)}
    if quoted and (at := text.find(quoted)) >= 0:  # offsets relative to another part
        return {"start_index": at, "end_index": at + len(quoted)}
    return None
