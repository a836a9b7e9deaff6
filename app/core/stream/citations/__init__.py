"""
The citations in what a model writes: marks such as `【3】`, and Markdown links.

Hosted tools show a model sources, and say how each is cited: by its mark, or by a link to its URL. Only what the model
cites becomes an annotation of the text, where it cites it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.core.stream.citations.links import CitationLinks
from app.core.stream.citations.marks import Annotation, CitationMarks
from app.core.types.readings import NOTES


def noted_sources(upstream: Mapping[str, Mapping[str, Any]]) -> dict[str, Annotation]:
    """Return the sources that the calls of a conversation have shown the model, by number or URL."""
    sources: dict[str, Annotation] = {}
    for fields in upstream.values():
        notes = fields.get(NOTES)
        if notes and isinstance(notes, Mapping) and isinstance(shown := notes.get("sources"), Mapping):
            sources |= shown
    return sources


def cited_by(sources: Iterable[tuple[str | None, Annotation]]) -> dict[str, Annotation]:
    """Return the annotations of sources by what cites them: the number of the mark, else the URL."""
    cited: dict[str, Annotation] = {}
    for mark, annotation in sources:
        if key := mark.strip("【】") if mark else annotation.get("url"):
            cited[str(key)] = annotation
    return cited


class Citations:
    """Splits the texts of one response, fed piece by piece, into text and annotations with their positions."""

    def __init__(self) -> None:
        self._length = 0  # of the text so far
        self._links: CitationLinks | None = None
        self._marks: CitationMarks | None = None

    def add(self, sources: Mapping[str, Annotation]) -> None:
        """Take more sources, by number or URL."""
        marked = {key: annotation for key, annotation in sources.items() if key.isdigit()}
        linked = {key: annotation for key, annotation in sources.items() if key not in marked}
        if marked:
            self._marks = self._marks or CitationMarks()
            self._marks.add(marked)
        if linked:
            self._links = self._links or CitationLinks()
            self._links.add(linked)

    def feed(self, text: str) -> list[str | dict[str, Any]]:
        """Return the text and the annotations that are certain after this piece, in order."""
        found: list[str | dict[str, Any]] = []
        for piece in self._marks.feed(text) if self._marks else (text,):
            if isinstance(piece, str):
                found += self._linked(piece)
            else:
                found.append({**piece, **_position(piece, self._length)})
        return found

    def end(self) -> list[str | dict[str, Any]]:
        """Return what is left of the text and its annotations, and begin another text."""
        held = self._marks.end() if self._marks else ""
        found = self._linked(held) if held else []
        if self._links:
            found += self._links.end()
        self._length = 0
        return found

    def _linked(self, text: str) -> list[str | dict[str, Any]]:
        self._length += len(text)
        return [text, *(self._links.feed(text) if self._links else ())]


def _position(annotation: Mapping[str, Any], place: int) -> dict[str, int]:
    """Return where a mark stood: files of containers are cited with a span, which is empty, others with an index."""
    if annotation["type"] == "container_file_citation":
        return {"start_index": place, "end_index": place}
    return {"index": place}
