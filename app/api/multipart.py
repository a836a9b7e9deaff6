"""Parses `multipart/form-data` incrementally, without buffering."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from app.errors import InvalidRequest

MAX_PARTS = 64
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NAMES = re.compile(rb";\s*name\s*(\*[^=]*)?=", re.IGNORECASE)


@dataclass(slots=True)
class FormPart:
    """A file if it has a file name, otherwise a field. Header names are lower case."""

    name: str
    filename: str | None
    headers: Sequence[tuple[bytes, bytes]] = ()


class FormReader:
    """Collects `chunks`, with their parts, in each `parse`. A subclass can process them instead."""

    def __init__(self, boundary: bytes, max_parts: int = MAX_PARTS) -> None:
        self.ended = False
        self._max_parts = max_parts
        self._parts = 0
        self._part = FormPart("", None)
        self.chunks: list[tuple[FormPart, bytes]] = []  # a part starts with an empty chunk
        self.size = 0  # bytes parsed in earlier calls
        self._header = self._value = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._headers_at = 0  # in bytes from the form's start
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_part_data": lambda data, start, end: self.on_data(data[start:end]),
                "on_part_end": self.on_part_end,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_end": self._end,
            },
        )

    def on_part(self, part: FormPart, start: int) -> None:
        """The content begins at `start`, in bytes from the form's start."""
        self._part = part
        self.chunks.append((part, b""))

    def on_data(self, data: bytes) -> None:
        self.chunks.append((self._part, data))

    def on_part_end(self) -> None: ...

    def parse(self, data: bytes) -> None:
        """Raises `InvalidRequest`."""
        self.chunks = []
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest("The body is not valid multipart/form-data.", code="invalid_body") from error
        self.size += len(data)

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > self._max_parts:
            raise FormParserError("too many parts")
        self._headers = []

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._headers_at = self.size + end

    def _header_end(self) -> None:
        self._headers.append((self._header.lower(), self._value))
        self._header = self._value = b""

    def _headers_end(self) -> None:
        # Other parsers may read a different name if repeated or encoded.
        dispositions = [value for name, value in self._headers if name == b"content-disposition"]
        names = [name for value in dispositions for name in _NAMES.findall(_QUOTED.sub(b"", value))]
        _, options = parse_options_header(dispositions[0] if dispositions else b"")
        if names != [b""] or b"\\" in options.get(b"name", b"\\"):
            raise FormParserError("each part must have exactly one name")
        filename = options.get(b"filename")
        part = FormPart(_text(options[b"name"]), None if filename is None else _text(filename), self._headers)
        self.on_part(part, self._headers_at + len(b"\r\n\r\n"))

    def _end(self) -> None:
        self.ended = True


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


async def form_parts(request: Request) -> AsyncIterator[tuple[FormPart, bytes]]:
    """Yield `FormReader.chunks`. Raises `InvalidRequest` if the body is not a form or is truncated."""
    media_type, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if media_type != b"multipart/form-data" or not boundary:
        raise InvalidRequest("Send the file as multipart/form-data.", code="unsupported_content_type", status=415)
    reader = FormReader(boundary)
    async for _ in parsed_data(request, reader):
        for chunk in reader.chunks:
            yield chunk


async def parsed_data(request: Request, reader: FormReader) -> AsyncGenerator[bytes, None]:
    """Yield the body's data as received, after `reader` has parsed it. Raises `InvalidRequest` if it is truncated."""
    try:
        async for data in request.stream():
            if data:
                reader.parse(data)
                yield data
    except ClientDisconnect as error:
        raise InvalidRequest("The client disconnected before its request was complete.", status=499) from error
    if not reader.ended:
        raise InvalidRequest("The form is incomplete.", code="invalid_body")
