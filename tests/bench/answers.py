"""
What the bench's model says: the answer is a function of the model's name, so both ends know it.

    count-200-10    200 deltas, one each 10 ms; 0 ms: as fast as they go
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

FIRST = "First:"  # opens every answer and stands nowhere else, so that the first delta is seen in the bytes
_NAME = re.compile(r"count-(\d+)-(\d+)")
_AWKWARD = (' "quoted"', " café →", "\n\\n", " 😀")  # what cannot be passed on without decoding and encoding it


class Answer(NamedTuple):
    """One answer: its pieces, and the seconds between two of them."""

    pieces: tuple[str, ...]
    delay: float

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@cache
def answer(model: str) -> Answer:
    """Return what a model says; raises ValueError for a name that is none of ours."""
    found = _NAME.fullmatch(model)
    if not found:
        raise ValueError(f"not a model: {model}")
    pieces = [_AWKWARD[n // 8 % len(_AWKWARD)] if n % 8 == 0 else f" {n:04d}" for n in range(int(found[1]))]
    return Answer((FIRST, *pieces[1:]), int(found[2]) / 1000)
