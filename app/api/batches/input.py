"""Reads a batch's input file: a request per line, as in OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import orjson

from app.tools.files.batches import MAX_REQUESTS, BatchJob, BatchRequest

MAX_ERRORS = 50  # per file, as reported in the batch
MAX_CUSTOM_ID = 512  # characters


class ReadInput(NamedTuple):
    total: int
    model: str | None  # set if all requests have the same model
    errors: Sequence[Mapping[str, object]]


class _Reader:
    def __init__(self, endpoint: str, max_bytes: int) -> None:
        self._endpoint, self._max_bytes = endpoint, max_bytes
        self._number = 0
        self._rest = bytearray()
        self._ids: set[str] = set()
        self._models: set[object] = set()
        self.total = 0
        self.errors: list[dict[str, object]] = []

    @property
    def model(self) -> str | None:
        (model, *others) = [*self._models] or [None]
        return model if isinstance(model, str) and not others else None

    @property
    def full(self) -> bool:
        return len(self.errors) >= MAX_ERRORS or self.total > MAX_REQUESTS or len(self._rest) > self._max_bytes

    def read(self, data: bytes) -> list[BatchRequest]:
        """Lines completed by these bytes."""
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [read for line in lines if (read := self._line(line))]

    def end(self) -> list[BatchRequest]:
        """The last line; also checks the file's total."""
        lines = [read for line in [bytes(self._rest)] if (read := self._line(line))]
        if self.total > MAX_REQUESTS:
            self._fail("too_many_requests", f"The file contains more than {MAX_REQUESTS} requests.", None)
        elif not self.total and not self.errors:
            self._fail("empty_file", "The file has no requests.", None)
        return lines

    def _fail(self, code: str, message: str, param: str | None) -> None:
        line = self._number if param is not None or code == "invalid_json_line" else None
        self.errors.append({"code": code, "message": message, "param": param, "line": line})

    def _line(self, line: bytes) -> BatchRequest | None:
        self._number += 1
        if not line.strip() or self.full:
            return None
        self.total += 1
        if len(line) > self._max_bytes:
            self._fail("request_too_large", f"A request must have at most {self._max_bytes} bytes.", "body")
            return None
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            self._fail("invalid_json_line", "This line is not a JSON object.", None)
            return None
        custom_id, body = fields.get("custom_id"), fields.get("body")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
            message = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID} characters."
            self._fail("missing_required_parameter" if custom_id is None else "invalid_value", message, "custom_id")
        elif custom_id in self._ids:
            self._fail(
                "duplicate_custom_id", "'custom_id' must be unique, but an earlier line has the same.", "custom_id"
            )
        elif fields.get("method") != "POST":
            self._fail("invalid_method", "'method' must be 'POST'.", "method")
        elif fields.get("url") != self._endpoint:
            self._fail("invalid_url", f"'url' must be the endpoint of the batch, '{self._endpoint}'.", "url")
        elif not isinstance(body, dict):
            self._fail("missing_required_parameter", "'body' must be a JSON object.", "body")
        elif body.get("stream") or body.get("background"):
            name = "stream" if body.get("stream") else "background"
            self._fail("invalid_value", f"Batch requests must not have '{name}'.", f"body.{name}")
        else:
            self._ids.add(custom_id)
            self._models.add(str(body.get("model")))
            return BatchRequest(self._number, custom_id, orjson.dumps(body))
        return None


async def read_lines(
    content: AsyncIterator[bytes],
    batch: BatchJob,
    max_bytes: int,
    add: Callable[[Sequence[BatchRequest]], Awaitable[bool]],
) -> ReadInput | None:
    """
    Pass requests to `add`; return None as soon as `add` returns False.

    `max_bytes` limits each request. Nothing is added after the first error.
    """
    reader = _Reader(batch.endpoint, max_bytes)
    async for piece in content:
        lines = await asyncio.to_thread(reader.read, piece)
        if lines and not reader.errors and not await add(lines):
            return None
        if reader.full:
            break
    lines = await asyncio.to_thread(reader.end)
    if lines and not reader.errors and not await add(lines):
        return None
    return ReadInput(reader.total, reader.model, reader.errors[:MAX_ERRORS])
