"""Read a request's body: its size, its encoding, its JSON, and what pydantic makes of it."""

from __future__ import annotations

import codecs
import re
import zlib
from typing import Any, TypeVar

import orjson
import zstandard
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from app.errors import InvalidRequest

Body = TypeVar("Body", bound=BaseModel)

MAX_DEPTH = 100  # of what is read: orjson writes 254 levels, and what is read is part of what is written


async def read_body(request: Request, model: type[Body], limit: int) -> Body:
    """
    Return the body as a `model`; raises `InvalidRequest` that names the first field at fault.

    `limit` is in bytes, of the body as it was before compression.
    """
    data = await _read(request, limit)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in _DECODERS:
        message = f"Content-Encoding '{encoding}' is not supported; use zstd or gzip."
        raise InvalidRequest(message, code="unsupported_encoding", status=415)
    try:
        data = _DECODERS[encoding](data, limit)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise InvalidRequest(f"The body is not valid {encoding}.", code="invalid_body") from error
    return parse(data or b"{}", model)  # where nothing has to be said, nothing need be sent


def parse(data: bytes | str, model: type[Body]) -> Body:
    """Return JSON as a `model`; raises `InvalidRequest` that names the first field at fault."""
    try:
        return model.model_validate(load_json(data, "body"))
    except ValidationError as error:
        raise invalid(error) from error


def load_json(data: bytes | str, what: str) -> dict[str, Any]:
    """Return the JSON object that `what`, a body or a frame, consists of; raises `InvalidRequest`."""
    value = _decoded(data.encode() if isinstance(data, str) else data, what)
    if not isinstance(value, dict):
        raise InvalidRequest(f"The {what} has to be a JSON object.", code="invalid_json")
    if _deeper(value, MAX_DEPTH):
        message = f"The {what} is nested too deeply: {MAX_DEPTH} levels of objects and arrays is the most."
        raise InvalidRequest(message, code="invalid_json")
    return value


def _decoded(data: bytes, what: str) -> Any:
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            if "surrogate" not in error.msg:
                raise
            return orjson.loads(_HALVES.sub(_no_half, data))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The {what} is not valid JSON: {error.msg}.", code="invalid_json") from error


# Clients in JavaScript cut strings through the middle of a character, which they write as two escapes, and send one of
# them. The conversation would be dead from then on, since they send it again in each turn. Of the escapes, only those
# of halves are matched: large bodies have very many others.
_HALVES = re.compile(
    rb"(?<!\\)((?:\\\\)*)\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def _no_half(halves: re.Match[bytes]) -> bytes:
    return halves[0] if halves[2] else halves[1] + rb"\ufffd"


def _deeper(value: Any, levels: int) -> bool:
    """Tell whether there are more levels of objects and arrays than that."""
    level = [value]
    while level and levels:
        members = [node.values() if isinstance(node, dict) else node for node in level]
        level = [member for some in members for member in some if isinstance(member, (dict, list))]
        levels -= 1
    return bool(level)


def invalid(error: ValidationError) -> InvalidRequest:
    """Say what is wrong with the first field at fault, and what would be right."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = at(first["loc"])
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    message = first["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"Invalid '{field}': {message}." if field else f"{message}.", param=field or None, code=code)


def at(location: tuple[int | str, ...]) -> str:
    """Name the field that pydantic's error location points at: `input[2].content[0].text`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            path += f".{step}" if path else step
    return path


async def _read(request: Request, limit: int) -> bytes:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
    except ClientDisconnect as error:
        raise InvalidRequest("The client went away before its request was complete.", status=499) from error
    return b"".join(parts)


def too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(f"The body is larger than {limit} bytes.", code="request_too_large", status=413)


def _unzstd(data: bytes, limit: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data, read_across_frames=True)
    return _bounded(reader.read(limit + 1), limit)


def _gunzip(data: bytes, limit: int) -> bytes:
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # with a gzip or a zlib header
    out = inflate.decompress(data, limit + 1)
    if not inflate.eof and len(out) <= limit:
        raise EOFError
    return _bounded(out, limit)


def _bounded(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise too_large(limit)
    return data


_DECODERS = {
    "identity": _bounded,
    "": _bounded,
    "zstd": _unzstd,
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _gunzip,
}
