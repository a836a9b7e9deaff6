"""
Parse untrusted JSON with limits on values and memory, and encode values that orjson rejects.

An empty array has three bytes of JSON and sixty in memory, so values are counted before parsing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

T = TypeVar("T")

MAX_VALUES = 100_000  # a conversation with thousands of turns has tens of thousands

# Limits above which requests are parsed and translated in a thread. On a core from 2026, parsing, translating and
# encoding 1 MiB of text takes 2 ms, or 12 ms for unpaired surrogates; messages with 5,000 commas take 10 ms.
LARGE = 1024 * 1024  # bytes or characters
MANY = 5000  # JSON values


def is_large(*documents: bytes) -> bool:
    size = sum(map(len, documents))
    return size > LARGE or (size > MANY and sum(document.count(b",") for document in documents) > MANY)


class JSONTooLarge(orjson.JSONDecodeError):
    """`msg` names the excess, for example `more than 100000 JSON values`."""


def loads(data: bytes | str, limit: int = MAX_VALUES) -> object:
    """Raises `orjson.JSONDecodeError`, or its subclass `JSONTooLarge`."""
    if len(data) > limit:
        check_values(data, limit=limit)
    return orjson.loads(data)


def is_deeper(value: Any, levels: int) -> bool:
    """Whether an object or array is nested deeper than `levels`. Iterative, since nesting has no limit."""
    level = [value]
    while level and levels:
        children = [node.values() if isinstance(node, dict) else node for node in level]
        level = [child for values in children for child in values if isinstance(child, (dict, list))]
        levels -= 1
    return bool(level)


def check_values(*documents: bytes | str, limit: int = MAX_VALUES) -> None:
    """Raises `JSONTooLarge` for more than `limit` values in total. Linear time, without copies."""
    if sum(map(len, documents)) <= limit:
        return
    # An upper bound; excluding strings is slower.
    if sum(map(_structure, documents)) <= limit:
        return
    count = 0
    for document in documents:
        count += _values(document, limit)
        if count > limit:
            raise JSONTooLarge(f"more than {limit} JSON values (objects, arrays, strings, numbers)", "", 0)


def _values(document: bytes | str, limit: int) -> int:
    """May count an empty object or array twice; returns early above `limit`."""
    count = 1
    quotes = 0  # two per string, which is a value or a field name
    cut = b""  # the first half of an escape that ends in the next piece
    for start in range(0, len(document), _CHUNK):
        piece = document[start : start + _CHUNK]
        data = cut + (piece.encode(errors="surrogatepass") if isinstance(piece, str) else piece)
        cut = b"\\" * ((len(data) - len(data.rstrip(b"\\"))) % 2)
        data = data.removesuffix(cut)
        if b"\\" in data:
            data = data.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")  # in place, which is twice as fast
        texts = data.split(b'"')
        count += _structure(b"".join(texts[quotes % 2 :: 2])) - 1
        quotes += len(texts) - 1
        if count > limit or quotes > 4 * limit:
            return limit + 1
    return count


def _structure(document: bytes | str) -> int:
    """The number of commas and opening brackets, plus one."""
    text: Any = document
    marks = ",[{" if isinstance(document, str) else b",[{"
    count = 1
    for start in range(0, len(document), _CHUNK):
        count += sum(text.count(mark, start, start + _CHUNK) for mark in marks)
    return count


_CHUNK = 256 * 1024  # bytes or characters
_LEVELS = 250  # nested objects and arrays; orjson encodes at most 254

# Limit on decoded strings, unless below 2.5 times the document: a character outside the BMP makes every character in
# its string use four bytes.
_TEXT_BYTES = 64 * 1024 * 1024
_TEXT_RATIO = 2.5


def loads_repaired(data: bytes, repair: Callable[[bytes], bytes]) -> object:
    """
    Raises `orjson.JSONDecodeError`, or its subclass `JSONTooLarge`.

    `repair` replaces unpaired surrogates in the JSON.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in error.msg:
            raise
        value = orjson.loads(repair(data))
    if 4 * len(data) > _TEXT_BYTES and size_of(value) > max(_TEXT_BYTES, int(_TEXT_RATIO * len(data))):
        raise JSONTooLarge("strings that need many times their size in memory", "", 0)
    return value


def dumps(value: object) -> bytes:
    """
    Like `orjson.dumps`, but also for values that it rejects.

    Integers above 64 bits become floats, and unpaired surrogates U+FFFD. Values without a JSON form become null, so
    that the response can still be completed and stored.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_encodable(value))


def _encodable(value: object, levels: int = _LEVELS) -> object:
    if not levels:
        return None
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_encodable(str(name)): _encodable(inner, levels - 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(inner, levels - 1) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) <= sys.float_info.max else None
    return value if value is None or isinstance(value, (int, float, orjson.Fragment)) else None


def to_json(value: object) -> str:
    """Encode like models: with spaces after commas and colons, without unpaired surrogates."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def size_of(value: object) -> int:
    """Bytes in memory, without field names, which objects share."""
    size = 0
    values = [value]
    for inner in values:  # grows during the loop
        size += sys.getsizeof(inner)
        if isinstance(inner, dict):
            values += inner.values()
        elif isinstance(inner, (list, tuple)):
            values += inner
    return size
