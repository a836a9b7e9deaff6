"""
A form (`multipart/form-data`) that is forwarded as it arrives, once its field `model` has been read.

The bytes before the model are buffered in memory or in a temporary file. A small form is read to its end, so that it
can be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from tempfile import SpooledTemporaryFile
from types import MappingProxyType

from starlette.requests import ClientDisconnect, Request

from app.api.multipart import FormPart, FormReader
from app.api.pagination import parse_whole_number
from app.api.passthrough.plain_form import Delimiters, ambiguous, check_part, form_type
from app.api.request_body import body_too_large
from app.core.access import MAX_MODEL_NAME, KeyAccess
from app.errors import InvalidRequest

MAX_MODEL = 4 * MAX_MODEL_NAME  # bytes of a model's name
MAX_PART_COUNT = 1000
_MEMORY = 1024 * 1024  # bytes of a form that are kept in memory; more are kept in a file
_PIECE = 256 * 1024  # bytes per read of the buffer
_MODEL_PART = b'--%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'


class ModelField(FormReader):
    """
    Parses a form to find its field `model`: the `value`, and its `start` in bytes.

    A form that could be read in another way is refused: see `plain_form`.
    """

    def __init__(self, boundary: bytes, access: KeyAccess) -> None:
        super().__init__(boundary, MAX_PART_COUNT)
        self.value = bytearray()
        self.start: int | None = None
        self.complete = False  # whether the whole value has been read
        self._inside = False
        self._access = access
        self._left: int | None = None  # bytes of the part to come, by its own `Content-Length`
        self._delimiters = Delimiters(boundary)

    def parse(self, data: bytes) -> None:
        self._delimiters.feed(data)
        super().parse(data)

    def on_part(self, part: FormPart, start: int) -> None:
        """Note where the value starts; raises `InvalidRequest` if there is a second one."""
        check_part(part)
        length = dict(part.headers).get(b"content-length")
        self._left = None if length is None else parse_whole_number(length.decode("latin-1").strip())
        if length is not None and self._left is None:
            raise ambiguous("a part has an invalid 'Content-Length'")
        self._inside = part.name == "model"
        if not self._inside:
            self._access.check_unread_field(part.name)
            return
        if self.start is not None:
            raise InvalidRequest("Invalid 'model': must occur once in the form.", param="model", code="invalid_value")
        self.start = start

    def on_data(self, data: bytes) -> None:
        """Collect the value; raises `InvalidRequest` if it is too long."""
        if self._left is not None:
            self._left -= len(data)
        if self._inside:
            self.value += data
            if len(self.value) > MAX_MODEL:
                raise InvalidRequest(
                    f"Invalid 'model': must be at most {MAX_MODEL} bytes long.",
                    param="model",
                    code="string_above_max_length",
                )

    def on_part_end(self) -> None:
        """Note that the value is complete; raises `InvalidRequest` if the part is not as long as it says."""
        if self._left:
            raise ambiguous("a part is not as long as its 'Content-Length'")
        self.complete = self.complete or self._inside
        self._inside = False


class ReceivedForm:
    """A form that is being received: a buffer with the bytes read so far, and the rest, which is read while sending."""

    def __init__(
        self,
        read: SpooledTemporaryFile[bytes],
        field: ModelField,
        rest: AsyncGenerator[bytes, None],
        length: int | None,
        boundary: bytes,
    ) -> None:
        self.field = field
        self.length = length
        self.boundary = boundary
        self.on_received: Callable[[], None] = lambda: None  # called when the last byte has been received
        self._read = read
        self._rest = rest
        self._size = read.tell()
        self._sending = False  # whether the rest is being sent

    @classmethod
    async def read(cls, request: Request, boundary: bytes, access: KeyAccess, limit: int) -> ReceivedForm:
        """
        Read a form up to its model, or to its end if it is small or has no model.

        Raises `InvalidRequest`, and `PermissionDenied` for fields in which the key could name further models.
        """
        length = parse_whole_number(request.headers.get("content-length", ""))
        if length is not None and length > limit:
            raise body_too_large(limit)
        small = length is not None and length <= _MEMORY
        field = ModelField(boundary, access)
        pieces = _received(request, field, limit)
        read: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(_MEMORY)  # noqa: SIM115 (closed by `aclose`)
        try:
            async for piece in pieces:
                if read.tell() + len(piece) <= _MEMORY:
                    read.write(piece)
                else:
                    await asyncio.to_thread(read.write, piece)
                if field.complete and not small:
                    break
        except BaseException:
            read.close()
            raise
        return cls(read, field, pieces, length, boundary)

    @property
    def complete(self) -> bool:
        """Whether the whole form has been received."""
        return self.field.ended

    @property
    def replayable(self) -> bool:
        """Whether the form can still be sent from its start."""
        return self.field.ended or not self._sending

    def content(self, model: bytes, before: bytes) -> bytes | AsyncIterator[bytes]:
        """
        Return the form with `model` in place of its own: bytes if it is in memory, otherwise a stream.

        `before` is what comes before the form.
        """
        start = self.field.start
        if not self.complete or self._size > _MEMORY:
            return self._pieces(model, before)
        self._read.seek(0)
        data = self._read.read()
        return before + (data if start is None else data[:start] + model + data[start + len(self.field.value) :])

    async def _pieces(self, model: bytes, before: bytes) -> AsyncIterator[bytes]:
        if before:
            yield before
        start = self._size if self.field.start is None else self.field.start
        async for piece in self._buffered(0, start):
            yield piece
        if self.field.start is not None:
            yield model
            async for piece in self._buffered(start + len(self.field.value), self._size):
                yield piece
        self._sending = True
        async for piece in self._rest:
            yield piece
        self.on_received()

    async def _buffered(self, start: int, end: int) -> AsyncIterator[bytes]:
        while start < end:
            piece = await asyncio.to_thread(self._read_at, start, min(_PIECE, end - start))
            start += len(piece)
            yield piece

    def _read_at(self, start: int, size: int) -> bytes:
        self._read.seek(start)
        return self._read.read(size)

    async def aclose(self) -> None:
        """Remove the temporary file."""
        await self._rest.aclose()
        self._read.close()


class FormBody:
    """A form to forward, with its own model or another one."""

    fields: Mapping[str, object] = MappingProxyType({})

    def __init__(self, form: ReceivedForm, model: str | None = None) -> None:
        self._form = form
        self.media_type = form_type(form.boundary)
        own = bytes(form.field.value)
        self._model = own if model is None else model.encode()
        self._before = b""  # the part with the model, if the form has none
        if self._model and form.field.start is None:
            self._before = _MODEL_PART % (form.boundary, self._model)
        added = len(self._before or self._model) - len(own)
        self.length = None if form.length is None else form.length + added

    @property
    def model(self) -> str:
        """The model of the form; empty if it has none."""
        try:
            return self._model.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("Invalid 'model': must be UTF-8.", param="model") from None

    @property
    def replayable(self) -> bool:
        return self._form.replayable

    def with_model(self, model: str) -> FormBody:
        """Return the form with another model; a form without the field `model` gets it as its first part."""
        return FormBody(self._form, model)

    def content(self) -> bytes | AsyncIterator[bytes]:
        """Return the form as bytes, or as a stream while it is being received."""
        return self._form.content(self._model, self._before)


async def _received(request: Request, field: ModelField, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield a form as it arrives, parsed by `field`; raises `InvalidRequest`."""
    size = 0
    try:
        async for data in request.stream():
            size += len(data)
            if size > limit:
                raise body_too_large(limit)
            if data:
                field.parse(data)
                yield data
    except ClientDisconnect as error:
        raise InvalidRequest("The client disconnected before its request was complete.", status=499) from error
    if not field.ended:
        raise InvalidRequest("The body ends in the middle of the form.", code="invalid_body")
