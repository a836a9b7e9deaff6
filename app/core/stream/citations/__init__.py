"""
Citations in model output: marks, for example `【3】`, and Markdown links.

Each citation of a hosted tool's source becomes an annotation with its text position.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from app.core.items.readings import NOTES
from app.core.stream.citations.links import CitationLinks
from app.core.stream.citations.marks import Annotation, CitationMarks
from app.core.types import JSONObject

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
        self._links: CitationLinks | None = None
        self._marks: CitationMarks | None = None

    def add(self, sources: Mapping[str, Annotation]) -> None:
        marked = {key: annotation for key, annotation in sources.items() if key.isdigit()}
        linked = {key: annotation for key, annotation in sources.items() if key not in marked}
        if marked:
            self._marks = self._marks or CitationMarks()
            self._marks.add(marked)
        if linked:
            self._links = self._links or CitationLinks()
            self._links.add(linked)

    def skip(self, pieces: Sequence[str]) -> bool:
        """
        Whether pieces were skipped, because `feed` would return them unchanged.

        Most text cites nothing, but after a search all later turns have sources.
        """
        text = "\0".join((*pieces, ""))
        if _MAY_CITE.search(text) or (self._marks and self._marks.pending) or (self._links and self._links.pending):
            return False
        self._length += len(text) - len(pieces)
        if self._links:
            self._links.skip(pieces)
        return True

    def feed(self, text: str) -> list[str | JSONObject]:
        """Text and annotations completed by this piece, in order."""
        pieces: list[str | JSONObject] = []
        for piece in self._marks.feed(text) if self._marks else (text,):
            if isinstance(piece, str):
                pieces += self._linked(piece)
            else:
                pieces.append({**piece, **_position(piece, self._length)})
        return pieces

    def end(self) -> list[str | JSONObject]:
        """The rest; resets for the next text."""
        held = self._marks.end() if self._marks else ""
        pieces = self._linked(held) if held else []
        if self._links:
            pieces += self._links.end()
        self._length = 0
        return pieces

    def _linked(self, text: str) -> list[str | JSONObject]:
        self._length += len(text)
        return [text, *(self._links.feed(text) if self._links else ())]


def _position(annotation: Mapping[str, object], offset: int) -> dict[str, int]:
    """An empty span for container files, an index for other sources."""
    if annotation["type"] == "container_file_citation":
        return {"start_index": offset, "end_index": offset}
    return {"index": offset}
