"""Detect a body's format from its first byte, regardless of headers: event stream, JSON, or HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import orjson

from app.core.sse.decoder import MAX_EVENT_BYTES, TOO_LONG, EventDecoder, check_piece, encodable
from app.core.sse.repeats import RawEvent, ServerEvent
from app.core.types import JSONObject
from app.errors import BackendError

# Converts a complete JSON answer to stream events; raises `BackendError`.
AsEvents: TypeAlias = Callable[[list[JSONObject]], list[RawEvent]]


class ChunkDecoding(Protocol):
    """Raises `BackendError`."""

    def decode(self, data: bytes) -> list[ServerEvent]: ...

    def end(self) -> list[ServerEvent]: ...


class BodyDecoder:
    def __init__(self, as_events: AsEvents, stream: EventDecoder) -> None:
        self._head = b""
        self._stream = stream
        self._as_events = as_events
        self._decoder: ChunkDecoding | None = None

    def decode(self, data: bytes) -> list[ServerEvent]:
        if self._decoder is None:
            data = self._detect(data)
        return self._decoder.decode(data) if self._decoder else []

    def _detect(self, data: bytes) -> bytes:
        self._head = data = (self._head + data).lstrip(b"\xef\xbb\xbf \t\r\n")
        if data:
            if data[:1] in (b"{", b"["):
                self._decoder = _JSON(self._as_events)
            else:
                self._decoder = _WebPage() if data[:1] == b"<" else self._stream
        return data

    def end(self) -> list[ServerEvent]:
        return self._decoder.end() if self._decoder else []


class _JSON:
    """Some servers append `data: [DONE]`, some send several values."""

    def __init__(self, as_events: AsEvents) -> None:
        self._as_events = as_events
        self._pieces: list[bytes] = []
        self._size = 0  # bytes

    def decode(self, data: bytes) -> list[ServerEvent]:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MAX_EVENT_BYTES:
            self._pieces.clear()
            raise BackendError(TOO_LONG)
        return []

    def end(self) -> list[ServerEvent]:
        text = b"".join(self._pieces)
        self._pieces.clear()
        values = _values(text)
        del text
        return [*self._as_events(values)]


class _WebPage:
    """HTML with status 200: usually the base URL points to a web site."""

    def decode(self, data: bytes) -> list[ServerEvent]:
        raise BackendError("The backend answered with a web page. Check its base URL, including a path such as /v1.")

    def end(self) -> list[ServerEvent]:
        return []


NO_ANSWER = "The backend's answer is empty."
_BLANKS = re.compile(r"\s*")


def _values(text: bytes) -> list[JSONObject]:
    """JSON values before the first invalid one, with lists flattened."""
    check_piece(text)
    try:
        values = [orjson.loads(text)]
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
