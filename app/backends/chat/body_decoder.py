"""
What the body of a good answer turns out to be, whatever its headers say: an event stream, JSON, or a web page.

Each kind is read by an object with `decode(data)` and `end()`, as `ChunkDecoder` has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from app.backends.chat.errors import error_in_chunk
from app.core.sse.decoder import MAX_EVENT_BYTES, TOO_LONG, ChunkDecoder, check_piece, encodable
from app.core.types.chunk import DONE, RawChunk
from app.errors import BackendError


class ChunkDecoding(Protocol):
    """Turns the bytes of a body into chunks; raises `BackendError` where it cannot."""

    def decode(self, data: bytes) -> list[RawChunk]: ...

    def end(self) -> list[RawChunk]: ...


class BodyDecoder:
    """Reads a body whose kind shows with its first character."""

    def __init__(self, *, runs: bool = False) -> None:
        """For `runs` see `ChunkDecoder`."""
        self._head = b""
        self._runs = runs
        self._reader: ChunkDecoding | None = None
        self.decode: Callable[[bytes], list[RawChunk]] = self._sniff

    def _sniff(self, data: bytes) -> list[RawChunk]:
        """Return the chunks that are complete; raise `BackendError` if the body is a web page."""
        self._head = data = (self._head + data).lstrip(b"\xef\xbb\xbf \t\r\n")
        if not data:
            return []
        other = _READERS.get(data[:1])
        self._reader = other() if other else ChunkDecoder(runs=self._runs)
        self.decode = self._reader.decode  # from here on directly
        return self._reader.decode(data)

    def end(self) -> list[RawChunk]:
        """Return the remaining chunks; raise `BackendError` if this was no answer."""
        return self._reader.end() if self._reader else []


class _JSON:
    """
    A completion as a whole, though a stream was asked for: one chunk whose `delta` is the message, then `DONE`.

    Some servers put `data: [DONE]` behind it, and some send chunks as JSON values one after the other.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._kept = 0  # bytes of them

    def decode(self, data: bytes) -> list[RawChunk]:
        self._pieces.append(data)
        self._kept += len(data)
        if self._kept > MAX_EVENT_BYTES:
            self._pieces.clear()
            raise BackendError(TOO_LONG)
        return []

    def end(self) -> list[RawChunk]:
        values = _values(b"".join(self._pieces))
        chunks = [_as_chunk(value) for value in values]
        if not any(chunk.get("choices") for chunk in chunks):
            raise next(filter(None, map(error_in_chunk, chunks)), None) or BackendError(NO_ANSWER)
        return [*chunks, DONE]


class _WebPage:
    """HTML under 200: as a rule the base URL is that of a site, not of its API."""

    def decode(self, data: bytes) -> list[RawChunk]:
        raise BackendError("The backend answered with a web page. Is its base URL right, with /v1 or the like?")

    def end(self) -> list[RawChunk]:
        return []


_READERS: dict[bytes, type[ChunkDecoding]] = {b"{": _JSON, b"[": _JSON, b"<": _WebPage}

NO_ANSWER = "The backend's answer is empty."
_BLANKS = re.compile(r"\s*")


def _values(text: bytes) -> list[dict[str, Any]]:
    """Parse JSON values that follow each other, up to what is none; a list stands for its items."""
    check_piece(text)
    try:
        found = [orjson.loads(text)]
    except orjson.JSONDecodeError:
        found = _leading_values(text.decode(errors="replace"))
    items = [item for value in found for item in (value if isinstance(value, list) else [value])]
    return [item for item in items if isinstance(item, dict)]


def _leading_values(text: str) -> list[Any]:
    found: list[Any] = []
    at, decoder = 0, json.JSONDecoder()
    try:
        while (at := _BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, at = decoder.raw_decode(text, at)
            found.append(encodable(value))
    except (ValueError, RecursionError) as error:
        if not found:
            raise BackendError("The backend's answer is not complete, or not JSON.") from error
    return found


def _as_chunk(completion: dict[str, Any]) -> RawChunk:
    if "choices" not in completion:  # Cline and Workers AI wrap it
        wrapped = (completion.get(name) for name in ("data", "result"))
        completion = next((one for one in wrapped if isinstance(one, dict) and one.get("choices")), completion)
    choices = completion.get("choices")
    if not isinstance(choices, list):
        return completion
    return {**completion, "choices": [_as_delta(choice) for choice in choices]}


def _as_delta(choice: Any) -> Any:
    if not isinstance(choice, dict) or "message" not in choice or choice.get("delta"):
        return choice
    rest = {name: value for name, value in choice.items() if name != "message"}
    return {**rest, "delta": choice["message"]}
