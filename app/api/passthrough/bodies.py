"""
Forwards JSON bodies and forms (`multipart/form-data`) with a checked or replaced model.

A large form is forwarded once its model is known; earlier bytes are buffered. A small form is read completely, for
retries. Ambiguous forms are rejected, because a backend could read another model than the checked one; clients do not
send them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from tempfile import SpooledTemporaryFile
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from starlette.requests import Request

from app.api.multipart import FormPart, FormReader, parsed_data
from app.api.pagination import parse_whole_number
from app.api.request_body import body_too_large, load_json
from app.core.access import MAX_MODEL_NAME, KeyAccess
from app.core.bounded_json import MAX_VALUES
from app.errors import InvalidRequest

_Span: TypeAlias = tuple[int, int]  # start and end in bytes

_MODEL = "model"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # possessive, to avoid memory for backtracking
_TOKENS = re.compile(rb"[\[{]|[\]}]|%b(\s*:\s*(?:%b|[^\s\[{,}]+)?)?" % (_STRING, _STRING), re.DOTALL)
_LIKE_MODEL = re.compile(r"[\W_]*".join(["", *"model", ""]), re.IGNORECASE)
_ESCAPED_LETTER = re.compile(rb"\\u00[46][0-9a-fA-F]")


def reads_as_model(name: str) -> bool:
    """Whether some parsers read a name as `model`, for example `model`, `Model`, `model[]` or ` model`."""
    return _LIKE_MODEL.fullmatch(name) is not None


@dataclass(eq=False, slots=True)
class JSONBody:
    data: bytes
    fields: dict[str, object]
    span: _Span | None = None  # of the `model` value
    replayable: ClassVar[bool] = True
    media_type: ClassVar[bytes] = b"application/json"  # without a charset: the body was read as UTF-8

    @property
    def length(self) -> int | None:
        return len(self.data)

    @classmethod
    def parse(cls, data: bytes, max_values: int = MAX_VALUES) -> JSONBody:
        """Raises `InvalidRequest`."""
        fields = load_json(data, "body", max_values)
        # Backends differ in which duplicate field they read, and some ignore case. Only unambiguous models can be
        # checked and charged.
        variants = [name for name in fields if name == _MODEL or reads_as_model(name)]
        spans = [*_model_spans(data)] if variants == [_MODEL] else []
        if len(variants) > 1 or len(spans) != len(variants):
            raise InvalidRequest("Invalid 'model': must occur once in the body.", param="model", code="invalid_value")
        return cls(data, fields, *spans)

    @property
    def model(self) -> str:
        model = self.fields.get("model")
        if model is None:
            return ""
        if not isinstance(model, str):
            raise InvalidRequest("Invalid 'model': must be a string.", param="model", code="invalid_type")
        return model

    def with_model(self, model: str) -> JSONBody:
        """No other byte changes."""
        data, encoded = memoryview(self.data), json.dumps(model).encode()
        before = after = b""
        if self.span:
            start, end = self.span
        else:
            start = end = self.data.index(b"{") + 1
            before, after = b'"model":', b"," if self.fields else b""
        # One join copies a large body only once.
        replaced = b"".join((data[:start], before, encoded, after, data[end:]))
        start += len(before)
        return JSONBody(replaced, self.fields, (start, start + len(encoded)))

    def content(self) -> bytes:
        return self.data


def _model_spans(data: bytes) -> Iterator[_Span]:
    """Positions of `model` values in a valid JSON object that contains the field."""
    if data.count(b'"model"') == 1 and not _ESCAPED_LETTER.search(data):
        field = _TOKENS.match(data, data.index(b'"model"'))
        assert field
        yield _value_span(field)
        return
    depth = 0
    for token in _TOKENS.finditer(data):
        first = token[0][:1]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        elif depth == 1 and (value := token[1]):
            name = token[0][: -len(value)]
            if name == b'"model"' or (b"\\" in name and json.loads(name) == _MODEL):
                yield _value_span(token)


def _value_span(field: re.Match[bytes]) -> _Span:
    return field.end() - len(field[1].lstrip(b" \t\r\n:")), field.end()


_MAX_MODEL = 4 * MAX_MODEL_NAME  # bytes
_MAX_PART_COUNT = 1000
_MEMORY = 1024 * 1024  # bytes in memory; larger forms use a file
_PIECE = 256 * 1024  # bytes per read

_TOKEN = rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_UTF_8 = rb"(?:[ \t]*;[ \t]*charset=\"?utf-?8\"?)?"
# Some characters require quotation marks (RFC 2046, 5.1.1). Spaces are rejected.
_PLAIN = rb"[A-Za-z0-9'+_.=-]{1,200}"
_BOUNDARY = rb"boundary=(?:(?P<plain>%b)|\"(?P<quoted>[A-Za-z0-9'()+_,./:=?-]{1,200})\")" % _PLAIN
_CONTENT_TYPE = re.compile(rb"multipart/form-data%b[ \t]*;[ \t]*%b%b" % (_UTF_8, _BOUNDARY, _UTF_8), re.IGNORECASE)
# Only some parsers read backslashes as escapes. .NET sends `filename*` (RFC 5987).
_DISPOSITION = re.compile(
    rb'form-data(?:;[ ]?(?:name|filename)=(?:%b|"[^"\\]*")|;[ ]?filename\*=%b)+' % (_TOKEN, _TOKEN), re.IGNORECASE
)
_QUOTED = re.compile(rb'"[^"]*"')
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_ENCODINGS = (b"7bit", b"8bit", b"binary")
_TEXT = re.compile(rb"text/plain(?:[ ]?;[ ]?charset=\"?(?:utf-?8|us-ascii)\"?)?", re.IGNORECASE)
_MODEL_PART = b'--%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'


def form_boundary(content_types: Sequence[bytes]) -> bytes | None:
    """None for other bodies. Raises `InvalidRequest` if the boundary is ambiguous."""
    if not any(value.lstrip().lower().startswith(b"multipart/form-data") for value in content_types):
        return None
    match = _CONTENT_TYPE.fullmatch(content_types[0].strip())
    if match is None or len(content_types) > 1:
        raise _ambiguous("'Content-Type' must be 'multipart/form-data; boundary=...', once, and nothing else")
    return match["plain"] or match["quoted"]


class ModelReader(FormReader):
    """Finds a form's field `model`. Raises `InvalidRequest` for ambiguous forms."""

    def __init__(self, boundary: bytes, access: KeyAccess, limit: int) -> None:
        """`limit`: maximum form size in bytes."""
        super().__init__(boundary, _MAX_PART_COUNT)
        self.value = bytearray()
        self.start: int | None = None  # offset in bytes
        self.complete = False
        self.on_received: Callable[[], None] = lambda: None  # after the form's last byte
        self._inside = False
        self._access = access
        self._limit = limit
        self._left: int | None = None  # bytes left in the part, by its `Content-Length`
        self._delimiter = b"--" + boundary
        self._data_end = -2  # end of the last part; -2 because the first delimiter follows no line end
        self._tail = b""  # last two bytes
        self._window = b""  # last bytes of the part

    def parse(self, data: bytes) -> None:
        if self.size + len(data) > self._limit:
            raise body_too_large(self._limit)
        if not self.size and not data.startswith(b"-"):
            raise _ambiguous("there is data before its first boundary")
        super().parse(data)
        self._tail = (self._tail + data)[-2:]
        if self.ended:
            trailing = self.size - self._data_end - len(b"\r\n%b--" % self._delimiter)
            if trailing > 2 or (trailing and not b"\r\n".startswith(self._tail[-trailing:])):
                raise _ambiguous("there is data after its end")

    def on_part(self, part: FormPart, start: int) -> None:
        self._check(part)
        length = dict(part.headers).get(b"content-length")
        self._left = None if length is None else parse_whole_number(length.decode("latin-1").strip())
        if length is not None and self._left is None:
            raise _ambiguous("a part has an invalid 'Content-Length'")
        self._window, self._data_end = b"", start
        self._inside = part.name == "model"
        if not self._inside:
            self._access.check_unread_field(part.name)
            return
        if self.start is not None:
            raise InvalidRequest("Invalid 'model': must occur once in the form.", param="model", code="invalid_value")
        self.start = start

    def on_data(self, data: bytes) -> None:
        window = self._window + data
        if self._delimiter in window:
            raise _ambiguous("its boundary is part of a line")
        self._window = window[1 - len(self._delimiter) :]
        self._data_end += len(data)
        if self._left is not None:
            self._left -= len(data)
        if self._inside:
            self.value += data
            if len(self.value) > _MAX_MODEL:
                raise InvalidRequest(
                    f"Invalid 'model': must be at most {_MAX_MODEL} bytes long.",
                    param="model",
                    code="string_above_max_length",
                )

    def on_part_end(self) -> None:
        if self._left:
            raise _ambiguous("a part is not as long as its 'Content-Length'")
        self.complete = self.complete or self._inside
        self._inside = False

    def _check(self, part: FormPart) -> None:
        names = [name for name, _ in part.headers if name.startswith(b"content-")]
        if len(set(names)) < len(names) or not all(value and not _CONTROL.search(value) for _, value in part.headers):
            raise _ambiguous("a part has a header twice, or one that is empty or has control characters")
        if any(self._delimiter.lower() in b"%b:%b" % (name, value.lower()) for name, value in part.headers):
            raise _ambiguous("its boundary is part of a line")
        headers = dict(part.headers)
        disposition = headers[b"content-disposition"].rstrip(b" \t;")
        fields = [each.strip().partition(b"=")[0].lower() for each in _QUOTED.sub(b"", disposition).split(b";")[1:]]
        if not _DISPOSITION.fullmatch(disposition) or len(set(fields)) < len(fields):
            raise _ambiguous("a part has a 'Content-Disposition' other than 'form-data' with 'name' and 'filename'")
        content_type = headers.get(b"content-type", b"text/plain").strip()
        if headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in _ENCODINGS:
            raise _ambiguous("a part has a 'Content-Transfer-Encoding'")
        if content_type.lower().startswith(b"multipart/"):
            raise _ambiguous("a part is a form itself")
        if part.name == "_charset_":
            raise _ambiguous("it declares a character set in '_charset_'")
        if part.name == "model":
            if b"filename" in disposition.lower() or not _TEXT.fullmatch(content_type):
                raise _ambiguous("the field 'model' is not plain text in UTF-8")
        elif reads_as_model(part.name):
            raise _ambiguous(f"the field {part.name[:64]!r} could be taken for 'model'")


@dataclass(eq=False)
class FormBody:
    """Forwards buffered bytes, and the rest as it arrives."""

    reader: ModelReader
    new_model: bytes  # to send
    boundary: bytes
    buffer: SpooledTemporaryFile[bytes]
    size: int  # bytes in the buffer
    rest: AsyncGenerator[bytes, None]
    received_length: int | None  # in bytes, by `Content-Length`
    fields: ClassVar[Mapping[str, object]] = MappingProxyType({})

    @classmethod
    async def read(cls, request: Request, boundary: bytes, access: KeyAccess, limit: int) -> FormBody:
        """
        Read a form up to its model, or completely if it is small or has no model.

        Raises `InvalidRequest`, and `PermissionDenied` for fields that could name further models.
        """
        length = parse_whole_number(request.headers.get("content-length", ""))
        if length is not None and length > limit:
            raise body_too_large(limit)
        small = length is not None and length <= _MEMORY
        reader = ModelReader(boundary, access, limit)
        pieces = parsed_data(request, reader)
        buffer: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(_MEMORY)  # noqa: SIM115 (closed by `aclose`)
        try:
            async for piece in pieces:
                if buffer.tell() + len(piece) <= _MEMORY:
                    buffer.write(piece)
                else:
                    await asyncio.to_thread(buffer.write, piece)
                if reader.complete and not small:
                    break
        except BaseException:
            buffer.close()
            raise
        return cls(reader, bytes(reader.value), boundary, buffer, buffer.tell(), pieces, length)

    @property
    def model(self) -> str:
        """Empty if the form has no model."""
        try:
            return self.new_model.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("Invalid 'model': must be UTF-8.", param="model") from None

    @property
    def media_type(self) -> bytes:
        plain = re.fullmatch(_PLAIN, self.boundary)
        return b"multipart/form-data; boundary=" + (self.boundary if plain else b'"%b"' % self.boundary)

    @property
    def replayable(self) -> bool:
        return self.reader.ended or self.reader.size == self.size  # all bytes sent are buffered

    @property
    def length(self) -> int | None:
        start, inserted, end = self._replacement()
        return None if self.received_length is None else self.received_length + len(inserted) - (end - start)

    def with_model(self, model: str) -> FormBody:
        """Replace or insert the `model` field."""
        return replace(self, new_model=model.encode())

    def _replacement(self) -> tuple[int, bytes, int]:
        """The replaced bytes' start offset, their replacement, and their end offset."""
        start = self.reader.start
        if start is None:
            return 0, _MODEL_PART % (self.boundary, self.new_model) if self.new_model else b"", 0
        return start, self.new_model, start + len(self.reader.value)

    def content(self) -> bytes | AsyncIterator[bytes]:
        """Bytes if the form is in memory, otherwise a stream."""
        if not self.reader.ended or self.size > _MEMORY:
            return self._pieces()
        start, inserted, end = self._replacement()
        data = self._read_at(0, self.size)
        return data[:start] + inserted + data[end:]

    async def _pieces(self) -> AsyncIterator[bytes]:
        start, inserted, end = self._replacement()
        async for piece in self._buffered(0, start):
            yield piece
        if inserted:
            yield inserted
        async for piece in self._buffered(end, self.size):
            yield piece
        async for piece in self.rest:
            yield piece
        self.reader.on_received()

    async def _buffered(self, start: int, end: int) -> AsyncIterator[bytes]:
        while start < end:
            piece = await asyncio.to_thread(self._read_at, start, min(_PIECE, end - start))
            start += len(piece)
            yield piece

    def _read_at(self, start: int, size: int) -> bytes:
        self.buffer.seek(start)
        return self.buffer.read(size)

    async def aclose(self) -> None:
        await self.rest.aclose()
        self.buffer.close()


def _ambiguous(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The form is ambiguous: {reason}.", code="invalid_body")
