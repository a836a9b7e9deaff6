"""Read a forwarded answer's usage and errors without parsing its body."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable

from app.backends.apis.chat.usage import has_counts, normal_usage
from app.core.types import JSONObject
from app.core.usage import is_token_count

_TAIL = 64 * 1024  # bytes at the body's end
_HEAD = 4 * 1024  # bytes at its start
_LONGEST_USAGE = 8 * 1024  # bytes
_LONGEST_ERROR = 8 * 1024
# At the start of a line, which JSON text cannot contain.
_ERROR = re.compile(rb'^(?:event: ?error\r?$|data: ?\{\s*"error"\s*:\s*[{"])', re.MULTILINE)
_EVENT = b"data:"
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_DECODER = json.JSONDecoder()


class UsageReader:
    def __init__(self, *, streamed: bool) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0  # bytes
        self._total = 0
        self._head = b""
        self._streamed = streamed
        self._events = 0  # in discarded pieces

    def feed(self, piece: bytes) -> None:
        size = len(piece)
        if len(self._head) < _HEAD:
            self._head += piece[: _HEAD - len(self._head)]
        self._pieces.append(piece)
        self._total += size
        self._size += size
        while self._size > _TAIL and self._size - len(self._pieces[0]) >= _TAIL:
            dropped = self._pieces.popleft()
            self._size -= len(dropped)
            if self._streamed:
                self._events += dropped.count(_EVENT)

    def usage(self) -> JSONObject | None:
        tail = b"".join(self._pieces)[-_TAIL:]
        usage = _first_with_counts(tail, reversed([*_USAGE.finditer(tail)]))
        if self._streamed or not usage:
            # Anthropic's streams report input usage first and output usage last.
            first = _first_with_counts(self._head, _USAGE.finditer(self._head))
            usage = {**first, **{name: count for name, count in usage.items() if count is not None}}
        total = usage.get("total_tokens")
        if (normal := normal_usage(usage)) or not is_token_count(total):
            return normal
        return normal_usage({"prompt_tokens": total, "total_tokens": total})  # rerank servers report nothing else

    def estimate(self) -> int:
        """The body's tokens: one per event, or per four bytes of JSON."""
        return self._events + b"".join(self._pieces).count(_EVENT) if self._streamed else self._total // 4

    def failed(self) -> bool:
        """Whether a stream's last events contain an error."""
        if not self._streamed:
            return False
        end = b"".join(self._pieces)[-_LONGEST_ERROR:]
        # `in` first tests whether its operand is a number: slower.
        return end.rfind(b"error") >= 0 and _ERROR.search(end) is not None


def _first_with_counts(data: bytes, names: Iterable[re.Match[bytes]]) -> JSONObject:
    for name in names:
        if data[name.start() - 1 : name.start()] == b"\\":  # quoted JSON
            continue
        try:
            usage = _DECODER.raw_decode(data[name.end() : name.end() + _LONGEST_USAGE].decode("utf-8", "replace"))[0]
        except (ValueError, RecursionError):
            continue
        if has_counts(usage) or is_token_count(usage.get("total_tokens")):
            return dict(usage)
    return {}
