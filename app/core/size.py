"""
What is large, and is therefore handled in a thread, and in pieces, while other requests are served.

This is decided at three edges: where a request comes in (its `Size` stays with it), where an answer of a backend comes
in (its texts are cut into pieces, which are small), and where bytes go out. Between them work is done by
`app.off_loop.off_loop`, which is told the size and does the rest.

Other requests shall not wait for more than 100 ms. On one core of 2026, a text of 1 MiB takes 2 ms to parse, translate
and encode, or 12 ms if it consists of unpaired surrogates; and so do messages with 5,000 commas in their JSON take 10.
So each limit is about a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

LARGE = 1024 * 1024  # bytes or characters
MANY = 5000  # JSON values
_AT_ONCE = 10  # times so many are encoded at once

# Characters of the pieces into which texts are cut. Not less: smaller blocks of memory are not returned to the system
# when they are freed.
TEXT_PIECE = 320 * 1024


def pieces_of(text: str, size: int = TEXT_PIECE) -> Iterator[str]:
    """Yield the pieces, of `size` characters, of a text."""
    for at in range(0, len(text), size):
        yield text[at : at + size]


class Size(NamedTuple):
    """How much there is of something: more than it is does no harm, and less only delays others."""

    characters: int = 0  # or bytes
    values: int = 0  # JSON values

    @property
    def large(self) -> bool:
        """Whether work on it takes too long for the event loop."""
        return self.characters > LARGE or self.values > MANY

    @property
    def long(self) -> bool:
        """Whether its JSON is encoded in pieces, which takes longer: at once it holds the GIL, a tenth of that time."""
        return self.characters > LARGE or self.values > _AT_ONCE * MANY

    def __add__(self, other: Size) -> Size:  # type: ignore[override]
        return Size(self.characters + other.characters, self.values + other.values)

    @classmethod
    def of(cls, *values: object) -> Size:
        """Return the size of JSON values; of long ones, some size that is long."""
        return cls(*counts(values, LARGE, _AT_ONCE * MANY))

    @classmethod
    def of_json(cls, *documents: bytes | str) -> Size:
        """Return the size of JSON documents that are not parsed."""
        characters = sum(map(len, documents))
        if characters <= MANY or characters > LARGE:
            return cls(characters)
        return cls(characters, sum(one.count(",") if isinstance(one, str) else one.count(b",") for one in documents))


def counts(value: Any, most_characters: int, most_values: int) -> tuple[int, int]:
    """
    Return the characters of the strings in a JSON value, and the number of values in it.

    Where there are more than a limit, some numbers of which one is more than that limit.

    JSON in bytes has more characters than a piece, so that it is a piece of its own.
    """
    characters = 0
    values = [value]
    for inner in values:  # which grows meanwhile
        kind = type(inner)
        if kind is str:
            characters += len(inner)
            continue
        if kind in _SCALARS:
            continue
        if kind is dict:
            values += inner.values()
        elif kind is bytes:
            characters += max(len(inner), TEXT_PIECE + 1)
        elif isinstance(inner, (list, tuple)):
            values += inner
        elif isinstance(inner, Mapping):
            values += inner.values()
        if len(values) > most_values or characters > most_characters:
            break
    return characters, len(values)


_SCALARS = frozenset({int, float, bool, type(None)})
