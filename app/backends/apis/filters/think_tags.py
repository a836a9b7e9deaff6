from __future__ import annotations

from enum import Enum, auto
from typing import TypeAlias

Parts: TypeAlias = tuple[str, str]  # reasoning, and the text after it


class _State(Enum):
    UNDECIDED = auto()  # only white space or the start of a tag
    INSIDE = auto()
    OUTSIDE = auto()  # after a closing tag, or without tags
    REPEATED = auto()  # after reasoning in a separate field, which the text may repeat


class Splitter:
    """
    Separates reasoning between tags, for example `<think>`, at the start of a text fed in pieces.

    With `implicit`, the opening tag is in the prompt. If the server also sends reasoning in a separate field
    (`structured`), tags stay in the text unless they only repeat this field.
    """

    def __init__(self, opening: str, closing: str, implicit: bool) -> None:
        self._open, self._close, self._implicit = opening, closing, implicit
        self._held = ""  # possibly the start of a tag
        self._structured: list[str] = []
        self._state = _State.UNDECIDED

    def feed(self, text: str) -> Parts:
        text, self._held = self._held + text, ""
        return _STEPS[self._state](self, text) if text else ("", "")

    def structured(self, thought: str) -> None:
        self._structured.append(thought)
        if self._state is _State.UNDECIDED:
            self._state = _State.REPEATED

    def flush(self) -> Parts:
        held, self._held = self._held, ""
        inside = self._state is _State.INSIDE or (self._implicit and self._state is _State.UNDECIDED)
        self._state = _State.INSIDE if inside else _State.OUTSIDE
        return (held, "") if inside else ("", held)

    def _undecided(self, text: str) -> Parts:
        bare = text.lstrip()
        if bare.startswith(self._open):
            self._state = _State.INSIDE
            return self._inside(bare[len(self._open) :])
        if self._open.startswith(bare):
            self._held = text
            return "", ""
        self._state = _State.INSIDE if self._implicit else _State.OUTSIDE
        return _STEPS[self._state](self, text)

    def _inside(self, text: str) -> Parts:
        thought, tag, rest = text.partition(self._close)
        if tag:
            self._state = _State.OUTSIDE
            return thought, rest
        certain = len(text) - overlap(text, self._close)
        self._held = text[certain:]
        return text[:certain], ""

    def _outside(self, text: str) -> Parts:
        return "", text

    def _repeated(self, text: str) -> Parts:
        bare = text.lstrip()
        if self._open.startswith(bare):
            self._held = text
            return "", ""
        thought, tag, rest = bare.removeprefix(self._open).partition(self._close)
        if not tag:
            thought = thought[: len(thought) - overlap(thought, self._close)]
        if not bare.startswith(self._open) or not self._structured_text().startswith(thought.strip()):
            self._state = _State.OUTSIDE
            return "", text
        if not tag:
            self._held = text
            return "", ""
        self._state = _State.OUTSIDE
        return "", rest

    def _structured_text(self) -> str:
        self._structured = ["".join(self._structured)]
        return self._structured[0].strip()


_STEPS = {
    _State.UNDECIDED: Splitter._undecided,
    _State.INSIDE: Splitter._inside,
    _State.OUTSIDE: Splitter._outside,
    _State.REPEATED: Splitter._repeated,
}


def overlap(text: str, tag: str) -> int:
    """Length of a possible start of `tag` at the end of `text`."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:length])), 0)
