"""
Separates reasoning between tags, such as `<think>` and `</think>`, from a text that arrives in pieces.

Only tags at the beginning count: in the middle of a text they are part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Parts: TypeAlias = tuple[str, str]  # reasoning, and the text after it


class Splitter:
    """
    Splits one text, fed piece by piece.

    With `implicit`, the opening tag is in the prompt, so the text starts with reasoning. If the server also sends
    reasoning in a separate field (`structured`), tags are left in the text, unless they only repeat that field.
    """

    def __init__(self, opening: str, closing: str, implicit: bool) -> None:
        self._open, self._close, self._implicit = opening, closing, implicit
        self._held = ""  # the end of the text, which may be the beginning of a tag
        self._structured: list[str] = []
        self._step: Callable[[str], Parts] = self._undecided

    def feed(self, text: str) -> Parts:
        """Return the reasoning and the text that are certain after this piece."""
        text, self._held = self._held + text, ""
        return self._step(text) if text else ("", "")

    def structured(self, thought: str) -> None:
        """Record reasoning from the server's separate field."""
        self._structured.append(thought)
        if self._step == self._undecided:
            self._step = self._repeated

    def flush(self) -> Parts:
        """Return the held text as reasoning or text, since something other than text follows."""
        held, self._held = self._held, ""
        inside = self._step == self._inside or (self._implicit and self._step == self._undecided)
        self._step = self._inside if inside else self._outside
        return (held, "") if inside else ("", held)

    def end(self) -> Parts:
        """Return the held text, at the end."""
        return self.flush()

    # The states.

    def _undecided(self, text: str) -> Parts:
        bare = text.lstrip()
        if bare.startswith(self._open):
            self._step = self._inside
            return self._inside(bare[len(self._open) :])
        if self._open.startswith(bare):
            self._held = text
            return "", ""
        self._step = self._inside if self._implicit else self._outside
        return self._step(text)

    def _inside(self, text: str) -> Parts:
        thought, tag, rest = text.partition(self._close)
        if tag:
            self._step = self._outside
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
            self._step = self._outside
            return "", text
        if not tag:
            self._held = text
            return "", ""
        self._step = self._outside
        return "", rest

    def _structured_text(self) -> str:
        """Return the reasoning from the separate field, joined."""
        self._structured = ["".join(self._structured)]
        return self._structured[0].strip()


def overlap(text: str, tag: str) -> int:
    """Return the number of characters at the end of the text that may be the beginning of the tag."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:length])), 0)
