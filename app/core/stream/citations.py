"""
Citations in model output: marks, for example `【3】`, and Markdown links.

Each citation of a hosted tool's source becomes an annotation with its text position.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

from app.core.items.readings import NOTES
from app.core.types import JSONMapping, JSONObject

Annotation: TypeAlias = JSONMapping  # without a position

# The start of a mark or link, or a space at the end of a piece, in pieces joined with NULs.
_MAY_CITE = re.compile(r"[\[【]| \0")


def noted_sources(upstream: Mapping[str, Mapping[str, object]]) -> dict[str, Annotation]:
    """Sources shown by the conversation's calls, by number or URL."""
    sources: dict[str, Annotation] = {}
    for notes in [fields[NOTES] for fields in upstream.values() if NOTES in fields]:
        if isinstance(notes, Mapping) and isinstance(shown := notes.get("sources"), Mapping):
            sources |= shown
    return sources


def cited_by(sources: Iterable[tuple[str | None, Annotation]]) -> dict[str, Annotation]:
    """Annotations by mark number, or by URL without a mark."""
    cited: dict[str, Annotation] = {}
    for mark, annotation in sources:
        if key := mark.strip("【】") if mark else annotation.get("url"):
            cited[str(key)] = annotation
    return cited


class Citations:
    """Splits text, fed in pieces, into text and annotations with positions."""

    def __init__(self) -> None:
        self._length = 0  # characters so far
        self._links = CitationLinks()
        self._marks = CitationMarks()

    def add(self, sources: Mapping[str, Annotation]) -> None:
        self._marks.add({key: annotation for key, annotation in sources.items() if key.isdigit()})
        self._links.add({key: annotation for key, annotation in sources.items() if not key.isdigit()})

    def skip(self, pieces: Sequence[str]) -> bool:
        """
        Whether pieces were skipped, because `feed` would return them unchanged.

        Most text cites nothing, but after a search all later turns have sources.
        """
        text = "\0".join((*pieces, ""))
        if _MAY_CITE.search(text) or self._marks.pending or self._links.pending:
            return False
        self._length += len(text) - len(pieces)
        self._links.skip(pieces)
        return True

    def feed(self, text: str) -> list[str | JSONObject]:
        """Text and annotations completed by this piece, in order."""
        pieces: list[str | JSONObject] = []
        for piece in self._marks.feed(text):
            if isinstance(piece, str):
                pieces += self._linked(piece)
            elif piece["type"] == "container_file_citation":  # with an empty span, other sources with an index
                pieces.append({**piece, "start_index": self._length, "end_index": self._length})
            else:
                pieces.append({**piece, "index": self._length})
        return pieces

    def end(self) -> list[str | JSONObject]:
        """The rest; resets for the next text."""
        held = self._marks.end()
        pieces = [*(self._linked(held) if held else ()), *self._links.end()]
        self._length = 0
        return pieces

    def _linked(self, text: str) -> list[str | JSONObject]:
        self._length += len(text)
        return [text, *self._links.feed(text)]


# Models also combine several numbers in a mark, or add the source's name after the number.
_MARK = re.compile(r"【([0-9]{1,6}(?: ?[,;] ?[0-9]{1,6}){0,19})(?:†[^【】\n]{0,100})?】")
_BEGINNING = re.compile(r"【(?:[0-9]{1,6}(?: ?[,;] ?[0-9]{1,6}){0,19}(?: ?[,;] ?)?(?:†[^【】\n]{0,100})?)?\Z")
_LONGEST_MARK = 300  # characters in a mark, and in spaces before it
_NUMBER = re.compile(r"[0-9]+")


class CitationMarks:
    """
    Replaces citation marks with annotations in text that arrives in pieces.

    Spaces before a mark are removed with it, unless a word follows. An annotation is returned only once per position.
    """

    def __init__(self) -> None:
        self._sources: dict[str, Annotation] = {}  # by number
        self._held = ""  # a possible start of a mark, and spaces before it
        self._spaces = ""  # before a mark
        self._here: list[Annotation] = []  # annotations since the last text

    def add(self, sources: Mapping[str, Annotation]) -> None:
        self._sources |= sources

    @property
    def pending(self) -> bool:
        """Whether the next text can continue or follow a mark."""
        return bool(self._held or self._here)

    def feed(self, text: str) -> list[str | Annotation]:
        text, self._held = self._held + text, ""
        if not self._sources or ("【" not in text and not text.endswith(" ") and not self._here):
            return [text] if text else []
        pieces: list[str | Annotation] = []
        start = 0
        for mark in _MARK.finditer(text):
            numbers = _NUMBER.findall(mark[1])
            annotations = [self._sources[number] for number in numbers if number in self._sources]
            if len(annotations) == len(numbers):
                self._cite(text[start : mark.start()], annotations, pieces)
                start = mark.end()
        rest = text[start:]
        certain = _certain(rest)
        self._held = rest[certain:]
        self._add(rest[:certain], pieces)
        return pieces

    def end(self) -> str:
        held, self._held, self._spaces, self._here = self._held, "", "", []
        return held

    def _cite(self, before: str, annotations: list[Annotation], pieces: list[str | Annotation]) -> None:
        text = before.rstrip(" ")
        self._add(text, pieces)
        self._spaces = self._spaces or before[len(text) :]
        for annotation in annotations:
            if annotation not in self._here:
                self._here.append(annotation)
                pieces.append(annotation)

    def _add(self, text: str, pieces: list[str | Annotation]) -> None:
        if not text:
            return
        if self._spaces and text[0].isalnum():
            text = self._spaces + text
        self._spaces, self._here = "", []
        pieces.append(text)


def _certain(text: str) -> int:
    """Length before a possible mark, and before spaces in front of it."""
    end = len(text)
    opening = text.rfind("【", max(0, end - _LONGEST_MARK))
    if opening >= 0 and _BEGINNING.match(text, opening):
        end = opening
    spaces = max(0, end - _LONGEST_MARK)
    return spaces + len(text[spaces:end].rstrip(" "))


# Link text can contain brackets, as in `[a [draft] of it](...)`, but not a line break or another link.
_LINK = re.compile(
    r"\[(?:[^\[\]\n]|\[[^\[\]\n]{0,200}\](?!\()){0,500}\]\(<?(https?://[^\s<>()\[\]]*(?:\([^\s<>()\[\]]*\)[^\s<>()\[\]]*)*)>?"
    r"(?:\s+\"[^\"\n]{0,300}\")?\)"
)
_LONGEST_LINK = 3000  # characters
_TRACKING = re.compile(r"utm_[a-z]+=[^&]*&?", re.IGNORECASE)


def _link_key(url: str) -> str:
    """Normalize a URL: models omit `www.` and trailing slashes, and add tracking parameters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    query = _TRACKING.sub("", parts.query).rstrip("&")
    host = parts.netloc.lower().removeprefix("www.")
    return urlunsplit(("", host, parts.path.rstrip("/"), query, ""))


class CitationLinks:
    """Finds Markdown links to sources in text that arrives in pieces."""

    def __init__(self) -> None:
        self._sources: dict[str, Annotation] = {}  # by `_link_key`
        self._length = 0  # characters so far
        self._tail = ""  # the end of the text, possibly with the start of a link
        self._pending: tuple[Annotation, int, int] | None = None  # the next text can close an outer bracket

    def add(self, sources: Mapping[str, Annotation]) -> None:
        self._sources |= {_link_key(url): annotation for url, annotation in sources.items()}

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
        if not self._sources:
            return []
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
                if source := self._sources.get(_link_key(link[1])):
                    annotations += self._annotations_of(source, tail, link, offset)
            self._tail = tail[last:][-_LONGEST_LINK:]
        else:
            self._tail = (self._tail + text)[-_LONGEST_LINK:]
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
