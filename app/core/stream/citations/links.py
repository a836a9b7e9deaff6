"""Find Markdown links to sources in text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

from app.core.stream.citations.marks import Annotation
from app.core.types import JSONObject

# Link text can contain brackets, as in `[a [draft] of it](...)`, but not a line break or another link.
_LINK = re.compile(
    r"\[(?:[^\[\]\n]|\[[^\[\]\n]{0,200}\](?!\()){0,500}\]\(<?(https?://[^\s<>()\[\]]*(?:\([^\s<>()\[\]]*\)[^\s<>()\[\]]*)*)>?"
    r"(?:\s+\"[^\"\n]{0,300}\")?\)"
)
_LONGEST = 3000  # characters
_TRACKING = re.compile(r"utm_[a-z]+=[^&]*&?", re.IGNORECASE)


def link_key(url: str) -> str:
    """Normalize a URL: models omit `www.` and trailing slashes, and add tracking parameters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    query = _TRACKING.sub("", parts.query).rstrip("&")
    host = parts.netloc.lower().removeprefix("www.")
    return urlunsplit(("", host, parts.path.rstrip("/"), query, ""))


class CitationLinks:
    """`sources` maps URLs to annotations without a position."""

    def __init__(self, sources: Mapping[str, Annotation] | None = None) -> None:
        self._sources: dict[str, Annotation] = {}
        self.add(sources or {})
        self._length = 0  # characters so far
        self._tail = ""  # the end of the text, possibly with the start of a link
        self._pending: tuple[Annotation, int, int] | None = None  # the next text can close an outer bracket

    def add(self, sources: Mapping[str, Annotation]) -> None:
        self._sources |= {link_key(url): annotation for url, annotation in sources.items()}

    @property
    def pending(self) -> bool:
        """Whether the next text can continue a link, or close a bracket around it."""
        return self._pending is not None or "[" in self._tail

    def skip(self, pieces: Sequence[str]) -> None:
        """Skip text without `[` while no link is pending."""
        text = "".join(pieces)
        self._length += len(text)
        self._tail = (self._tail + text)[-1:]

    def feed(self, text: str) -> list[JSONObject]:
        annotations = []
        if self._pending and text:
            annotation, start, end = self._pending
            self._pending = None
            outer = text.startswith(")")
            annotations.append(_at(annotation, start - outer, end + outer))
        self._length += len(text)
        if ")" in text and "](" in (tail := self._tail + text):
            offset, last = self._length - len(tail), 0
            for link in _LINK.finditer(tail):
                last = link.end()
                if source := self._sources.get(link_key(link[1])):
                    annotations += self._annotations_of(source, tail, link, offset)
            self._tail = tail[last:][-_LONGEST:]
        else:
            self._tail = (self._tail + text)[-_LONGEST:]
        if "[" not in self._tail:
            self._tail = self._tail[-1:]  # an outer bracket
        return annotations

    def end(self) -> list[JSONObject]:
        pending, self._pending = self._pending, None
        self._length, self._tail = 0, ""
        return [_at(*pending)] if pending else []

    def _annotations_of(self, annotation: Annotation, tail: str, link: re.Match[str], offset: int) -> list[JSONObject]:
        """Include surrounding brackets in the span, as in `([title](url))`."""
        start, end = link.start(), link.end()
        if not tail.endswith("(", 0, start):
            return [_at(annotation, offset + start, offset + end)]
        if end == len(tail):
            self._pending = (annotation, offset + start, offset + end)
            return []
        outer = tail[end] == ")"
        return [_at(annotation, offset + start - outer, offset + end + outer)]


def _at(annotation: Annotation, start: int, end: int) -> JSONObject:
    return {**annotation, "start_index": start, "end_index": end}
