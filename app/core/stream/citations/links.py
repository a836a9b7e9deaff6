"""
Find the links of a text that lead to sources, however the text is cut into pieces.

A model is asked to cite as Markdown does: `[title](https://example.com/page)`. Nothing is taken out of the text; where
a link closes whose URL is that of a source, an annotation says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from app.core.stream.citations.marks import Annotation

# The text of a link may have brackets in it, as in `[a [draft] of it](...)`, but no line break and no other link.
_LINK = re.compile(
    r"\[(?:[^\[\]\n]|\[[^\[\]\n]{0,200}\](?!\()){0,500}\]\(<?(https?://[^\s<>()\[\]]*(?:\([^\s<>()\[\]]*\)[^\s<>()\[\]]*)*)>?"
    r"(?:\s+\"[^\"\n]{0,300}\")?\)"
)
_LONGEST = 3000  # characters of a link; what is longer is none
_TRACKING = re.compile(r"utm_[a-z]+=[^&]*&?", re.IGNORECASE)


def link_key(url: str) -> str:
    """Return what spellings of one URL share: models leave out `www.` and the last slash, and add tracking."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    query = _TRACKING.sub("", parts.query).rstrip("&")
    host = parts.netloc.lower().removeprefix("www.")
    return urlunsplit(("", host, parts.path.rstrip("/"), query, ""))


class CitationLinks:
    """Follows one text, fed piece by piece; `sources` has the annotation for each URL, without its position."""

    def __init__(self, sources: Mapping[str, Annotation] | None = None) -> None:
        self._sources: dict[str, Annotation] = {}
        self.add(sources or {})
        self._length = 0  # of the text so far
        self._tail = ""  # the end of it, in which a link may have begun
        self._pending: tuple[Annotation, int, int] | None = None  # a link in brackets that may close next

    def add(self, sources: Mapping[str, Annotation]) -> None:
        """Take more sources, by their URLs."""
        self._sources |= {link_key(url): annotation for url, annotation in sources.items()}

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Return the annotations of the links that this piece of text closes, in order."""
        found = []
        if self._pending and text:
            annotation, start, end = self._pending
            self._pending = None
            outer = text.startswith(")")
            found.append(_at(annotation, start - outer, end + outer))
        self._length += len(text)
        if ")" in text and "](" in (tail := self._tail + text):
            offset, last = self._length - len(tail), 0
            for link in _LINK.finditer(tail):
                last = link.end()
                if source := self._sources.get(link_key(link[1])):
                    found += self._found(source, tail, link, offset)
            self._tail = tail[last:][-_LONGEST:]
        else:
            self._tail = (self._tail + text)[-_LONGEST:]
        if "[" not in self._tail:
            self._tail = self._tail[-1:]  # an outer bracket
        return found

    def end(self) -> list[dict[str, Any]]:
        """Return the annotation that is left, and begin another text."""
        pending, self._pending = self._pending, None
        self._length, self._tail = 0, ""
        return [_at(*pending)] if pending else []

    def _found(self, annotation: Annotation, tail: str, link: re.Match[str], offset: int) -> list[dict[str, Any]]:
        """Return the annotation of a link: with the brackets around it, as in `([title](url))`, if they close."""
        start, end = link.start(), link.end()
        if not tail.endswith("(", 0, start):
            return [_at(annotation, offset + start, offset + end)]
        if end == len(tail):
            self._pending = (annotation, offset + start, offset + end)
            return []
        outer = tail[end] == ")"
        return [_at(annotation, offset + start - outer, offset + end + outer)]


def _at(annotation: Annotation, start: int, end: int) -> dict[str, Any]:
    return {**annotation, "start_index": start, "end_index": end}
