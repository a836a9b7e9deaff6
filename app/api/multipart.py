"""Parse `multipart/form-data` as it arrives, without buffering it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from app.errors import InvalidRequest

MAX_PARTS = 64


@dataclass(slots=True)
class FormPart:
    """One part of a form: a file if it has a file name, else a field."""

    name: str
    filename: str | None


class _Reader:
    """Collects the parts of each network read and their data, in order."""

    def __init__(self, boundary: bytes) -> None:
        self.pieces: list[tuple[FormPart, bytes]] = []
        self.ended = False
        self._header = self._value = b""
        self._disposition = b""
        self._part = FormPart("", None)
        self._parts = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_part_data": self._data,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> list[tuple[FormPart, bytes]]:
        """Return pieces of parts: an empty one where a part begins, then its content as far as `data` has it."""
        self.pieces = []
        self._parser.write(data)
        return self.pieces

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise FormParserError("too many parts")
        self._disposition = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise FormParserError("a part without a name")
        filename = options.get(b"filename")
        self._part = FormPart(_text(options[b"name"]), None if filename is None else _text(filename))
        self.pieces.append((self._part, b""))

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.pieces.append((self._part, data[start:end]))

    def _end(self) -> None:
        self.ended = True


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


async def form_parts(request: Request) -> AsyncIterator[tuple[FormPart, bytes]]:
    """
    Yield the content of a form in pieces, each with its part; every part begins with an empty piece.

    Raises `InvalidRequest` if the body is not a form, or is truncated.
    """
    media_type, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if media_type != b"multipart/form-data" or not boundary:
        raise InvalidRequest("Send the file as multipart/form-data.", code="unsupported_content_type", status=415)
    try:
        reader = _Reader(boundary)
        async for data in request.stream():
            for piece in reader.feed(data):
                yield piece
    except FormParserError as error:
        raise InvalidRequest("The body is not valid multipart/form-data.", code="invalid_body") from error
    except ClientDisconnect as error:
        raise InvalidRequest("The client disconnected before its request was complete.", status=499) from error
    if not reader.ended:
        raise InvalidRequest("The body ends in the middle of the form.", code="invalid_body")
