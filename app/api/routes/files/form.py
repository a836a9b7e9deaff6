"""Reads forms with a single file."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request

from app.api.multipart import FormPart, form_parts
from app.api.pagination import parse_whole_number
from app.errors import InvalidRequest, missing_parameter
from app.tools.files.uploads import upload_too_large

_OVERHEAD = 64 * 1024  # bytes in a form besides its file


def form_file(request: Request, name: str, max_bytes: int) -> AsyncIterator[tuple[FormPart, bytes]]:
    """
    Chunks with their parts; the part `name` is the file.

    Raises `InvalidRequest` for a large body and, during iteration, for no file or more than one.
    """
    length = parse_whole_number(request.headers.get("content-length", ""))
    if length is not None and length > max_bytes + _OVERHEAD:
        raise upload_too_large(max_bytes, name)
    return _with_one_file(form_parts(request), name)


async def _with_one_file(
    pieces: AsyncIterator[tuple[FormPart, bytes]], name: str
) -> AsyncIterator[tuple[FormPart, bytes]]:
    file: FormPart | None = None
    async for part, data in pieces:
        if part.name == name:
            if file is not None and part is not file:
                raise InvalidRequest(f"Send one file at a time, as '{name}'.", param=name)
            file = part
        yield part, data
    if file is None:
        raise missing(name)


def missing(name: str) -> InvalidRequest:
    return missing_parameter(name)
