"""
Take the marks of citations, such as `【3】`, out of a text, however the text is cut into pieces.

A model is shown sources with a mark each and writes the mark behind what it has from there. A reader gets an annotation
at that place in place of the mark. What only looks like a mark stays in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

Annotation: TypeAlias = Mapping[str, Any]

# Models write what they were shown, several numbers in one mark, or the name of the source beside the number.
_MARK = re.compile(r"【([0-9]{1,6}(?: ?[,;] ?[0-9]{1,6}){0,19})(?:†[^【】\n]{0,100})?】")
_BEGINNING = re.compile(r"【(?:[0-9]{1,6}(?: ?[,;] ?[0-9]{1,6}){0,19}(?: ?[,;] ?)?(?:†[^【】\n]{0,100})?)?\Z")
_LONGEST = 300  # characters of a mark
_NUMBER = re.compile(r"[0-9]+")


class CitationMarks:
    """
    Splits one text, fed piece by piece, into text and annotations.

    `sources` has the annotation for each number, without its position. Spaces in front of a mark go with it, unless a
    word follows. An annotation that has just been given is not given again at the same place.
    """

    def __init__(self, sources: Mapping[str, Annotation] | None = None) -> None:
        self._sources = dict(sources or {})
        self._held = ""  # what may be the beginning of a mark, and the spaces before it
        self._spaces = ""  # that stood before a mark
        self._here: list[Annotation] = []  # given since the last text

    def add(self, sources: Mapping[str, Annotation]) -> None:
        """Take the marks of more sources."""
        self._sources |= sources

    def feed(self, text: str) -> list[str | Annotation]:
        """Return the text and the annotations that are certain after this piece, in order."""
        text, self._held = self._held + text, ""
        if "【" not in text and not text.endswith(" ") and not self._here:
            return [text] if text else []
        found: list[str | Annotation] = []
        place = 0
        for mark in _MARK.finditer(text):
            annotations = self._annotations(mark[1])
            if annotations is None:
                continue
            self._cite(text[place : mark.start()], annotations, found)
            place = mark.end()
        rest = text[place:]
        certain = _certain(rest)
        self._held = rest[certain:]
        self._add(rest[:certain], found)
        return found

    def end(self) -> str:
        """Return what is held: nothing follows."""
        held, self._held, self._spaces, self._here = self._held, "", "", []
        return held

    def _annotations(self, numbers: str) -> list[Annotation] | None:
        """Return what a mark stands for; None if it has a number that was not given."""
        found = [self._sources.get(number) for number in _NUMBER.findall(numbers)]
        known = [annotation for annotation in found if annotation is not None]
        return known if len(known) == len(found) else None

    def _cite(self, before: str, annotations: list[Annotation], found: list[str | Annotation]) -> None:
        text = before.rstrip(" ")
        self._add(text, found)
        self._spaces = self._spaces or before[len(text) :]
        for annotation in annotations:
            if annotation not in self._here:
                self._here.append(annotation)
                found.append(annotation)

    def _add(self, text: str, found: list[str | Annotation]) -> None:
        if not text:
            return
        if self._spaces and text[0].isalnum():
            text = self._spaces + text
        self._spaces, self._here = "", []
        found.append(text)


def _certain(text: str) -> int:
    """Return how much of a text cannot belong to a mark: the rest may be the beginning of one, or spaces before it."""
    end = len(text)
    opening = text.rfind("【", max(0, end - _LONGEST))
    if opening >= 0 and _BEGINNING.match(text, opening):
        end = opening
    return len(text[:end].rstrip(" "))
