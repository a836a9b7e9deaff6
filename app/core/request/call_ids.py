"""
Tool call ids in a form accepted by the backend.

Ids are sent unchanged, as some models require, unless the profile has an id pattern. Ids above 64 characters are
replaced, except for their own server, because gateways hide signatures in ids. A replacement is a hash, for a stable
prompt prefix.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from app.core.stream.tool_calls import MAX_CALL_ID, ORIGINAL_ID, ORIGINAL_ID_V1

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
    Unique ids for a request's calls.

    `pattern` is `verbatim`, or a regular expression for the whole id.
    """

    def __init__(self, pattern: str = VERBATIM) -> None:
        self._pattern = None if pattern == VERBATIM else re.compile(pattern)
        self._form = _FORM if pattern == VERBATIM else _form(pattern)
        self._used: set[str] = set()
        self._tried: dict[str, int] = {}  # replacements so far, by original id

    def next_id(self, call_id: str, source: Mapping[str, object] | None = None) -> str:
        """`source` contains the backend's own id if that was too long for the client."""
        fits = len(call_id) <= MAX_CALL_ID and self._is_free(call_id)
        result = call_id if fits else self._replacement(call_id)
        original = (source.get(ORIGINAL_ID) or source.get(ORIGINAL_ID_V1)) if source else None
        if isinstance(original, str) and self._is_free(original):
            result = original
        self._used.add(result)
        return result

    def _is_free(self, call_id: str) -> bool:
        return call_id not in self._used and (self._pattern is None or self._pattern.fullmatch(call_id) is not None)

    def _replacement(self, call_id: str) -> str:
        for attempt in range(self._tried.get(call_id, 0), self._tried.get(call_id, 0) + _ATTEMPTS):
            self._tried[call_id] = attempt + 1
            candidate = self._form.id(f"{call_id}\n{attempt}")
            if len(candidate) <= MAX_CALL_ID and self._is_free(candidate):
                return candidate
        return _FORM.id(f"{call_id}\n{self._tried[call_id]}")  # uniqueness matters more than an exhausted pattern


@lru_cache(maxsize=64)
def _form(pattern: str) -> _Form:
    """An id format for the pattern, preferably long, for fewer collisions."""
    fits = re.compile(pattern).fullmatch
    for length, prefix, alphabet in product(_LENGTHS, _PREFIXES, _ALPHABETS):
        form = _Form(prefix, alphabet, length)
        if len(prefix) + length <= MAX_CALL_ID and all(fits(form.id(seed)) for seed in _SAMPLES):
            return form
    return _FORM
