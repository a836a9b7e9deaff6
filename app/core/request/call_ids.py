"""
The ids of tool calls, as a backend takes them.

Ids go as they came, which Kimi insists on, unless the backend has a rule for them: Mistral takes nine letters and
digits. Nobody takes more than 64 characters, except the server that made the id: LiteLLM hides Gemini's signatures in
ids, and wants them back. An id that has to change always becomes the same other one, so that the prompt of the next
turn begins as that of this one did.
"""

from __future__ import annotations

import hashlib
import re
import string
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from app.core.stream.tool_calls import MAX_CALL_ID

VERBATIM = "verbatim"

_ALPHABETS = (
    string.digits + string.ascii_letters,
    string.digits + string.ascii_lowercase,
    string.digits,
    string.ascii_lowercase,
    string.ascii_uppercase,
)
_PREFIXES = ("call_", "")
_LENGTHS = (*range(32, 0, -1), *range(33, MAX_CALL_ID + 1))
_SAMPLES = "abcd"
_ATTEMPTS = 1000


class _Form(NamedTuple):
    """A way to make ids out of hashes."""

    prefix: str
    alphabet: str
    length: int

    def id(self, seed: str) -> str:
        number = int.from_bytes(hashlib.shake_256(seed.encode(errors="replace")).digest(64))
        digits = []
        for _ in range(self.length):
            number, digit = divmod(number, len(self.alphabet))
            digits.append(self.alphabet[digit])
        return self.prefix + "".join(digits)


_FORM = _Form("call_", _ALPHABETS[0], 32)


class CallIds:
    """
    Gives each call its id, which no other call of the request has.

    `pattern` is `verbatim`, or a regular expression that ids have to match from end to end.
    """

    def __init__(self, pattern: str = VERBATIM) -> None:
        self._pattern = None if pattern == VERBATIM else re.compile(pattern)
        self._form = _FORM if pattern == VERBATIM else _form(pattern)
        self._used: set[str] = set()
        self._tried: dict[str, int] = {}  # how many others were made of an id

    def take(self, id: str, said: object = None) -> str:
        """
        Return the id for a call that has this one; a second call of the same id gets another.

        `said` is the id that the backend gave the call, where that was too long to be told.
        """
        kept = id if self._fits(id) else self._other(id)
        taken = said if isinstance(said, str) and self._is_free(said) else kept
        self._used.add(taken)
        return taken

    def _fits(self, id: str) -> bool:
        return len(id) <= MAX_CALL_ID and self._is_free(id)

    def _is_free(self, id: str) -> bool:
        return id not in self._used and (self._pattern is None or self._pattern.fullmatch(id) is not None)

    def _other(self, id: str) -> str:
        for attempt in range(self._tried.get(id, 0), self._tried.get(id, 0) + _ATTEMPTS):
            self._tried[id] = attempt + 1
            other = self._form.id(f"{id}\n{attempt}")
            if self._fits(other):
                return other
        return _FORM.id(f"{id}\n{self._tried[id]}")  # the pattern has no id left: better a strange one than a wrong one


@lru_cache(maxsize=64)
def _form(pattern: str) -> _Form:
    """Find out how to make ids that match: for the fewest collisions, the longest of the usual lengths."""
    fits = re.compile(pattern).fullmatch
    best, most = _FORM, 0
    for length, prefix, alphabet in product(_LENGTHS, _PREFIXES, _ALPHABETS):
        form = _Form(prefix, alphabet, length)
        matches = sum(fits(form.id(seed)) is not None for seed in _SAMPLES)
        if matches > most and len(prefix) + length <= MAX_CALL_ID:
            best, most = form, matches
        if most == len(_SAMPLES):
            break
    return best
