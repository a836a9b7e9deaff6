"""
Answers of the benchmark model: a function of its name, known to both ends.

    count-200-10          200 deltas, every 10 ms; 0 ms: as fast as possible
    count-50-0-call       a function call, with arguments in 50 deltas
    count-50-0-thought    25 deltas with reasoning, then 25 with text
    count-20-0-agent      10 deltas with reasoning, then a function call with arguments in 10
    count-20-0-tools4     four tool calls in sequence, with arguments in 20 deltas, then 20 with text
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

FIRST = "First:"  # starts every answer and occurs nowhere else, to find the first delta in the bytes
_NAME = re.compile(r"count-(\d+)-(\d+)(-call|-thought|-agent|-tools(\d+)|)")
_AWKWARD = (' "quoted"', " café →", "\n\\n", " 😀")  # text that needs decoding and encoding


class Answer(NamedTuple):
    """An answer: its pieces, and the seconds between two pieces."""

    pieces: tuple[str, ...]
    delay: float
    call: bool  # whether the pieces are a call's arguments
    thoughts: int  # number of reasoning pieces
    rounds: int = 0  # earlier tool calls; each is the answer of `count-N-0-call`

    @property
    def text(self) -> str:
        """The text, or the call's arguments."""
        return "".join(self.pieces[self.thoughts :])

    @property
    def reasoning(self) -> str:
        return "".join(self.pieces[: self.thoughts])


@cache
def answer(model: str) -> Answer:
    """Return the answer of a model; raises `ValueError` for an unknown name."""
    found = _NAME.fullmatch(model)
    if not found:
        raise ValueError(f"not a model: {model}")
    count, delay, call = int(found[1]), int(found[2]) / 1000, found[3] in ("-call", "-agent")
    thoughts = count // 2 if found[3] in ("-thought", "-agent") else 0
    pieces = [f" {n:04d}" if call or n % 8 else _AWKWARD[n // 8 % len(_AWKWARD)] for n in range(count)]
    pieces[0] = FIRST
    if call:
        pieces[thoughts], pieces[-1] = '{"' + pieces[thoughts], pieces[-1] + '":1}'
    return Answer(tuple(pieces), delay, call, thoughts, int(found[4] or 0))


def tool_call(model: str, round: int) -> Answer:
    """
    Return a tool call for a round of `count-N-0-toolsM`. Arguments differ per round, or the calls would be a loop.
    """
    first = answer(f"count-{len(answer(model).pieces)}-0-call")
    return first._replace(pieces=(*first.pieces[:-1], first.pieces[-1].replace(":1}", f":{round}}}")))


def call_id(messages: int) -> str:
    """Return the call id for this number of messages: each turn has another."""
    return f"call_{messages:04d}"
