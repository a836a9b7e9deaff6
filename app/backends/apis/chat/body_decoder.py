"""
Detects the format of a response body from its first byte, whatever the headers say: event stream, JSON, or web page.

Each format has a decoder with `decode(data)` and `end()`, like `ChunkDecoder`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

import orjson

from app.backends.server.errors import error_in_chunk
from app.core.bounded_json import loads_in_pieces
from app.core.sse.decoder import ChunkDecoder, check_piece, encodable
from app.core.sse.framing import MAX_EVENT_BYTES, TOO_LONG
from app.core.types.chunk import DONE, RawChunk, RawOrRun
from app.errors import BackendError


class ChunkDecoding(Protocol):
    """Decodes the bytes of a body into chunks; raises `BackendError`."""

    def decode(self, data: bytes) -> list[RawOrRun]: ...

    def end(self) -> list[RawOrRun]: ...


class BodyDecoder:
    """Decodes a body whose format is detected from its first character."""

    def __init__(self, *, runs: bool = False) -> None:
        """For `runs` see `ChunkDecoder`."""
        self._head = b""
        self._runs = runs
        self._decoder: ChunkDecoding | None = None

    def decode(self, data: bytes) -> list[RawOrRun]:
        """Return the complete chunks; raises `BackendError` if the body is a web page."""
        if self._decoder is None:
            data = self._detect(data)
        return self._decoder.decode(data) if self._decoder else []

    def _detect(self, data: bytes) -> bytes:
        """Choose the decoder if there is a character to choose it by; return the bytes to decode."""
        self._head = data = (self._head + data).lstrip(b"\xef\xbb\xbf \t\r\n")
        if data:
            decoder = _DECODERS.get(data[:1])
            self._decoder = decoder() if decoder else ChunkDecoder(runs=self._runs)
        return data

    def end(self) -> list[RawOrRun]:
        """Return the remaining chunks; raises `BackendError` if the body is no answer."""
        return self._decoder.end() if self._decoder else []


class _JSON:
    """
    A whole completion, although a stream was requested: one chunk whose `delta` is the message, then `DONE`.

    Some servers append `data: [DONE]`, and some send chunks as consecutive JSON values.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0  # of the pieces, in bytes

    def decode(self, data: bytes) -> list[RawOrRun]:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MAX_EVENT_BYTES:
            self._pieces.clear()
            raise BackendError(TOO_LONG)
        return []

    def end(self) -> list[RawOrRun]:
        text = b"".join(self._pieces)
        self._pieces.clear()
        values = _values(text)
        del text
        chunks = [_as_chunk(value) for value in values]
        if not any(chunk.get("choices") for chunk in chunks):
            raise next(filter(None, map(error_in_chunk, chunks)), None) or BackendError(NO_ANSWER)
        return [*chunks, DONE]


class _WebPage:
    """HTML with status 200: usually the base URL is that of a web site, not of its API."""

    def decode(self, data: bytes) -> list[RawOrRun]:
        raise BackendError("The backend answered with a web page. Is its base URL right, with /v1 or the like?")

    def end(self) -> list[RawOrRun]:
        return []


_DECODERS: dict[bytes, type[ChunkDecoding]] = {b"{": _JSON, b"[": _JSON, b"<": _WebPage}

NO_ANSWER = "The backend's answer is empty."
_BLANKS = re.compile(r"\s*")


def _values(text: bytes) -> list[dict[str, Any]]:
    """Parse consecutive JSON values, up to the first invalid one; a list is replaced by its items."""
    check_piece(text)
    try:
        values = [loads_in_pieces(text)]
    except orjson.JSONDecodeError:
        values = _leading_values(text.decode(errors="replace"))
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for item in items if isinstance(item, dict)]


def _leading_values(text: str) -> list[Any]:
    values: list[Any] = []
    at, decoder = 0, json.JSONDecoder()
    try:
        while (at := _BLANKS.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, at = decoder.raw_decode(text, at)
            values.append(encodable(value))
    except (ValueError, RecursionError) as error:
        if not values:
            raise BackendError("The backend's answer is not complete, or not JSON.") from error
    return values


def _as_chunk(completion: dict[str, Any]) -> RawChunk:
    if "choices" not in completion:  # Cline and Workers AI wrap the completion
        wrapped = (completion.get(name) for name in ("data", "result"))
        completion = next((value for value in wrapped if isinstance(value, dict) and value.get("choices")), completion)
    choices = completion.get("choices")
    if not isinstance(choices, list):
        return completion
    return {**completion, "choices": [_as_delta(choice) for choice in choices]}


def _as_delta(choice: Any) -> Any:
    if not isinstance(choice, dict) or "message" not in choice or choice.get("delta"):
        return choice
    rest = {name: value for name, value in choice.items() if name != "message"}
    return {**rest, "delta": choice["message"]}
