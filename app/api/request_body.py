"""Reads request bodies: size limit, decompression, JSON, pydantic validation."""

from __future__ import annotations

import codecs
import io
import json
import re
import zlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson
import zstandard
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope

from app.core.bounded_json import (
    LARGE,
    MAX_VALUES,
    JSONTooLarge,
    check_values,
    is_deeper,
    is_large,
    loads_repaired,
)
from app.core.types.request import CreateResponse, undeclared_fields
from app.errors import InvalidRequest, Warnings, did_you_mean, missing_parameter, quote
from app.loading import as_rule
from app.runtime.threads import LARGE_REQUEST, run_in_thread, run_in_thread_if_large

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")

MAX_DEPTH = 100  # levels; orjson writes at most 254, and responses repeat parts of the request
MAX_RATIO = 100  # for large bodies; texts have 3 to 20
_MAX_MEMBERS = 1000  # per gzip file; bgzip writes one per 64 KiB
_PIECE = 64 * 1024  # bytes
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    bytes: int  # decompressed
    values: int = MAX_VALUES
    strict: Callable[[], bool] = lambda: False


async def read_body(request: Request, model: type[Body], limits: BodyLimits) -> Body:
    """
    Parse the body as a `model`; raises `InvalidRequest` with the first invalid field.

    Unknown fields are rejected if they resemble a known field, otherwise reported in the warnings header; in
    `CreateResponse`, they depend on the backend.
    """
    model.model_rebuild()  # not during validation, where two threads could rebuild a deferred model
    body = await read_model(request.scope, request.receive, model, limits)
    if not isinstance(body, CreateResponse):
        unknown = {field.path: field.known for field in undeclared_fields(body) if field.value not in (None, [], {})}
        report_unknown(request, unknown, limits)
    return body


def read_model(scope: Scope, receive: Receive, model: type[Body], limits: BodyLimits) -> Coroutine[Any, Any, Body]:
    """Parse the body like `read_body`, without a check for unknown fields; `model` must not be deferred."""
    return read_as(scope, receive, partial(parse, model=model, max_values=limits.values), limits)


def report_unknown(request: Request, unknown: Mapping[str, Collection[str]], limits: BodyLimits) -> None:
    """
    `unknown` maps each field to the known fields at its position.

    Raises `InvalidRequest` for a field that resembles a known field, and in strict mode for any.
    """
    warnings = Warnings()
    for path, known in unknown.items():
        hint = did_you_mean(path.rpartition(".")[2], known)
        if hint or limits.strict():
            raise InvalidRequest(f"Unknown parameter: {quote(path)}.{hint}", param=path, code="unknown_parameter")
        warnings.add(f"The unknown parameter {quote(path)} was ignored.")
    request.state.warning_headers = warning_headers(warnings)


def warning_headers(warnings: Iterable[str]) -> dict[str, str]:
    """List dropped and changed fields in a header."""
    if not (text := "; ".join(warnings)):
        return {}
    return {"x-antiphon-warning": _CONTROL_CHARACTERS.sub(" ", text.encode("ascii", "replace").decode()[:2000])}


async def read_as(scope: Scope, receive: Receive, parsed: Callable[[bytes], T], limits: BodyLimits) -> T:
    """`parsed` reads the decompressed body; raises `InvalidRequest`."""
    received, more = io.BytesIO(), True  # grows in place, and returns its content without a copy
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("The client disconnected before its request was complete.", status=499)
        received.write(message.get("body", b""))
        more = message.get("more_body", False)
        if received.tell() > limits.bytes:
            raise body_too_large(limits.bytes)
    data = received.getvalue()
    if b"content-encoding" in dict(scope["headers"]):
        encodings = [value for name, value in scope["headers"] if name == b"content-encoding"]
        data = await _unpacked(data, b", ".join(encodings).decode("latin-1").strip().lower(), limits.bytes)
    data = data or b"{}"  # a body without required fields can be empty
    LARGE_REQUEST.set(large := is_large(data))
    return await run_in_thread(parsed, data) if large else parsed(data)


async def _unpacked(data: bytes, encoding: str, limit: int) -> bytes:
    if (decode := _DECODERS.get(encoding)) is None:
        message = f"Content-Encoding '{encoding}' is not supported; use zstd or gzip."
        raise InvalidRequest(message, code="unsupported_encoding", status=415)
    allowed = min(limit, max(LARGE, MAX_RATIO * len(data)))
    LARGE_REQUEST.set(len(data) * MAX_RATIO > LARGE)
    try:
        unpacked = await run_in_thread_if_large(decode, data, allowed)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise InvalidRequest(f"The body is not valid {encoding}.", code="invalid_body") from error
    if len(unpacked) > limit:
        raise body_too_large(limit)
    if len(unpacked) > allowed:
        message = f"The decompressed body is more than {MAX_RATIO} times larger. Send it uncompressed."
        raise InvalidRequest(message, code="request_too_large", status=413)
    return unpacked


async def read_data(data: bytes, parsed: Callable[[bytes], T]) -> T:
    """`parsed` reads a body or WebSocket frame that was already received."""
    LARGE_REQUEST.set(is_large(data))
    return await run_in_thread_if_large(parsed, data)


def parse(data: bytes, model: type[Body], max_values: int = MAX_VALUES) -> Body:
    """Parse JSON as a `model`; raises `InvalidRequest` with the first invalid field."""
    return validate(load_json(data, "body", max_values), model, len(data))


def validate(fields: dict[str, object], model: type[Body], length: int) -> Body:
    """`length` is the body's size in bytes; raises like `parse`."""
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        raise invalid_request(error.errors(include_url=False)[0]) from error
    if isinstance(body, CreateResponse):
        vars(body)["body_bytes"] = length  # a cached property; pydantic's assignment is ten times slower
    return body


def load_json(data: bytes | str, source: str, max_values: int = MAX_VALUES) -> dict[str, object]:
    """Parse a JSON object; raises `InvalidRequest`. `source` is "body" or "frame", for error messages."""
    value = _decode(data, source, max_values)
    if not isinstance(value, dict):
        raise InvalidRequest(f"The {source} must be a JSON object.", code="invalid_json")
    if len(data) > 2 * MAX_DEPTH and is_deeper(value, MAX_DEPTH):  # each level has two brackets
        message = f"The {source} is nested too deeply: at most {MAX_DEPTH} levels of objects and arrays are allowed."
        raise InvalidRequest(message, code="invalid_json")
    return value


def _decode(data: bytes | str, source: str, max_values: int) -> object:
    try:
        if len(data) > max_values:
            check_values(data, limit=max_values)
        document = data.encode() if isinstance(data, str) else data
        return loads_repaired(document.removeprefix(codecs.BOM_UTF8), _without_lone_surrogates)
    except JSONTooLarge as error:
        message = f"The {source} contains {error.msg}. Send less at once."
        raise InvalidRequest(message, code="request_too_large", status=413) from error
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The {source} is not valid JSON: {error.msg}.", code="invalid_json") from error


# JavaScript clients that truncate a string can split a surrogate pair, and repeat the half in every later turn, so a
# rejection would end the conversation. Python's string decoder accepts lone surrogates, three times faster than a
# regular expression. It reads the document as one string with only surrogate escapes; quotation marks, question marks
# and backslashes become control characters, which JSON forbids.
_HIDDEN = bytes.maketrans(b'"?\\', b"\1\2\3")
_SHOWN = bytes.maketrans(b"\0\1\2\3", b'\\"?\\')
_STRINGS = json.JSONDecoder(strict=False)


def _without_lone_surrogates(data: bytes) -> bytes:
    """Replace lone surrogates with U+FFFD, in pieces, because each step holds the GIL."""
    if any(control in data for control in b"\0\1\2\3"):
        return data  # not valid JSON
    hidden = data.replace(rb"\\", b"\0\0").translate(_HIDDEN)
    text = hidden.replace(b"\3ud", rb"\ud").replace(b"\3uD", rb"\uD")
    replaced, start = [], 0
    while start < len(text):
        end = text.find(b"\1", start + _PIECE)  # a quotation mark never splits a pair
        end = len(text) if end < 0 else end
        try:
            piece = _STRINGS.decode(f'"{text[start:end].decode()}"')
        except ValueError:
            return data  # not valid JSON
        whole = piece.encode(errors="replace").decode().replace("?", "\ufffd")
        replaced.append(whole.encode().translate(_SHOWN))
        start = end
    return b"".join(replaced)


def invalid_request(first: Mapping[str, Any]) -> InvalidRequest:
    """Convert pydantic's first error."""
    field = field_path(first["loc"])
    code = _code(first["type"], first.get("ctx", {}))
    message = as_rule(first["msg"])
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        message = f"{message}, not {quote(first['input'])}"
    if first["type"] == "missing":
        return missing_parameter(field)
    if first["type"] == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: '{field}'.", param=field, code="unknown_parameter")
    return InvalidRequest(f"Invalid '{field}': {message}." if field else f"{message}.", param=field or None, code=code)


_CODES = {
    "string_too_long": "string_above_max_length",
    "string_too_short": "string_below_min_length",
    "too_long": "array_above_max_length",
    "too_short": "array_below_min_length",
    "text_or_list": "invalid_type",
}
_BOUNDS = {"greater_than_equal": ("ge", "below_min"), "less_than_equal": ("le", "above_max")}


def _code(error_type: str, context: Mapping[str, object]) -> str:
    if bound := _BOUNDS.get(error_type):
        name, violation = bound
        return f"{'integer' if isinstance(context[name], int) else 'decimal'}_{violation}_value"
    if error_type == "too_long" and context["field_type"] == "Dictionary":
        return "object_above_max_properties"
    return _CODES.get(error_type) or ("invalid_type" if error_type.endswith("_type") else "invalid_value")


def field_path(location: tuple[int | str, ...]) -> str:
    """Convert pydantic's error location to a path, for example `input[2].content[0].text`."""
    path = ""
    for step in location[:-2] if location[-1:] == ("[key]",) else location:  # an invalid name identifies no field
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            path += f".{step}" if path else step
    return path


def body_too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(f"The body is larger than {limit} bytes.", code="request_too_large", status=413)


def _unzstd(data: bytes, limit: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data, read_across_frames=True)
    return reader.read(limit + 1)


def _inflate(data: bytes, limit: int) -> bytes:
    """Decompress zlib, or gzip with a single member."""
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    out = inflate.decompress(data, limit + 1)
    if len(out) <= limit and (not inflate.eof or inflate.unused_data):
        raise EOFError
    return out


def _gunzip(data: bytes, limit: int) -> bytes:
    """Decompress gzip with one or more members (RFC 1952, 2.2)."""
    if data[:2] != b"\x1f\x8b":
        return _inflate(data, limit)  # some clients label zlib as gzip
    out = bytearray()
    position = 0
    for _ in range(_MAX_MEMBERS):
        inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while position < len(data) and not inflate.eof:
            piece = data[position : position + _PIECE]
            out += inflate.decompress(piece, limit + 1 - len(out))
            if len(out) > limit:
                return bytes(out)
            position += len(piece) - len(inflate.unused_data)
        if not inflate.eof:
            raise EOFError
        if position == len(data):
            return bytes(out)
    raise EOFError


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, limit: data,
    "identity": lambda data, limit: data,
    "zstd": _unzstd,
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
}
