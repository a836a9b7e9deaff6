"""Replace citation marks, for example `【3】`, with annotations in text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from app.core.types import JSONMapping

Annotation: TypeAlias = JSONMapping

# Models also combine several numbers in a mark, or add the source's name after the number.
_MARK = re.compile(r"【([0-9]{1,6}(?: ?[,;] ?[0-9]{1,6}){0,19})(?:†[^【】\n]{0,100})?】")
_BEGINNING = re.compile(r"【(?:[0-9]{1,6}(?: ?[,;] ?[0-9]{1,6}){0,19}(?: ?[,;] ?)?(?:†[^【】\n]{0,100})?)?\Z")
_LONGEST = 300  # characters in a mark, and in spaces before it
_NUMBER = re.compile(r"[0-9]+")


class CitationMarks:
    """
    `sources` maps numbers to annotations without a position.

    Spaces before a mark are removed with it, unless a word follows. An annotation is returned only once per position.
    """

    def __init__(self, sources: Mapping[str, Annotation] | None = None) -> None:
        self._sources = dict(sources or {})
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
        if "【" not in text and not text.endswith(" ") and not self._here:
            return [text] if text else []
        pieces: list[str | Annotation] = []
        start = 0
        for mark in _MARK.finditer(text):
            annotations = self._annotations(mark[1])
            if annotations is None:
                continue
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

    def _annotations(self, numbers: str) -> list[Annotation] | None:
        sources = [self._sources.get(number) for number in _NUMBER.findall(numbers)]
        annotations = [annotation for annotation in sources if annotation is not None]
        return annotations if len(annotations) == len(sources) else None

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
    opening = text.rfind("【", max(0, end - _LONGEST))
    if opening >= 0 and _BEGINNING.match(text, opening):
        end = opening
    spaces = max(0, end - _LONGEST)
    return spaces + len(text[spaces:end].rstrip(" "))
