"""
Take out of a text the thoughts that stand between tags, such as `<think>` and `</think>`, however the text is cut.

Only what stands at the beginning is a thought: tags in the middle of a text are what the model talks about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Parts: TypeAlias = tuple[str, str]  # a thought, and the text behind it


class Splitter:
    """
    Splits one text, fed piece by piece.

    With `implicit` the opening tag stands in the prompt, so the text begins inside. Where the server also sends its
    reasoning in a field of its own (`structured`), tags are left alone, but for a thought that only repeats that field.
    """

    def __init__(self, open: str, close: str, implicit: bool) -> None:
        self._open, self._close, self._implicit = open, close, implicit
        self._held = ""  # what cannot be told yet
        self._structured: list[str] = []
        self._step: Callable[[str], Parts] = self._undecided

    def feed(self, text: str) -> Parts:
        """Return the thought and the text that are certain after this piece."""
        text, self._held = self._held + text, ""
        return self._step(text) if text else ("", "")

    def structured(self, thought: str) -> None:
        """Note a thought from the server's own field for it."""
        self._structured.append(thought)
        if self._step == self._undecided:
            self._step = self._repeated

    def flush(self) -> Parts:
        """Return what is held as what it seems to be: something else than text follows."""
        held, self._held = self._held, ""
        inside = self._step == self._inside or (self._implicit and self._step == self._undecided)
        self._step = self._inside if inside else self._outside
        return (held, "") if inside else ("", held)

    def end(self) -> Parts:
        """Return what is held: nothing follows."""
        return self.flush()

    # Where we are in the text.

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
        thought, found, rest = text.partition(self._close)
        if found:
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
        thought, found, rest = bare.removeprefix(self._open).partition(self._close)
        if not found:
            thought = thought[: len(thought) - overlap(thought, self._close)]
        if not bare.startswith(self._open) or not self._told().startswith(thought.strip()):
            self._step = self._outside
            return "", text
        if not found:
            self._held = text
            return "", ""
        self._step = self._outside
        return "", rest

    def _told(self) -> str:
        """Return the thought from the server's own field, in one piece from now on."""
        self._structured = ["".join(self._structured)]
        return self._structured[0].strip()


def overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the tag."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:length])), 0)
