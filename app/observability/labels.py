"""Labels of metrics and spans, kept few."""

from __future__ import annotations


class BoundedLabels:
    """
    Keeps labels few. What callers or backends can name at will would otherwise fill the memory of whoever collects.

    The first `most` names that prove themselves are labels; every other is `other`.
    """

    OTHER = "other"

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str, *, confirmed: bool = True) -> str:
        """Return the label of a name; one that is new and not `proven` does not take a place."""
        if name in self._known:
            return name
        if not confirmed or len(self._known) >= self._most:
            return self.OTHER
        self._known.add(name)
        return name
