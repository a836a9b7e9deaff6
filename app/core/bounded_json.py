"""
Parse untrusted JSON with limits on values and memory, and encode values that orjson refuses.

An empty array is three bytes of JSON and sixty of memory, and every value takes time in each pass over the document. So
values are counted before the document is parsed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TypeVar

import orjson

T = TypeVar("T")

MAX_VALUES = 100_000  # a conversation of thousands of turns has tens of thousands


class TooManyValues(orjson.JSONDecodeError):
    """A document has more values than the limit; most callers treat it as invalid."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} values", "", 0)


def loads(data: bytes | str, limit: int = MAX_VALUES) -> object:
    """Parse a JSON document; raises `orjson.JSONDecodeError`, or its subclass `TooManyValues`."""
    if len(data) > limit:
        check_values(data, limit=limit)
    return orjson.loads(data)


def check_values(*documents: bytes | str, limit: int = MAX_VALUES) -> None:
    """
    Raise `TooManyValues` for JSON documents with more than `limit` values (objects, arrays, scalars) in all.

    In an invalid document, only values before the first error are counted exactly. Takes linear time, and no copy of a
    document.
    """
    if sum(map(len, documents)) <= limit:
        return
    # Commas and opening brackets are an upper bound. Excluding those in strings takes longer, so it is done only if the
    # bound exceeds the limit.
    if sum(map(_structure, documents)) <= limit:
        return
    count = 0
    for document in documents:
        count += _values(document, limit)
        if count > limit:
            raise TooManyValues(limit)


def _values(document: bytes | str, limit: int) -> int:
    """Return the number of values, or more than `limit`; an empty object or array may count twice."""
    count = 1
    quotes = 0  # two for each string, which is a value or a field name
    cut = b""  # the first half of an escape that ends in the next piece
    for start in range(0, len(document), _COUNTED):
        piece = document[start : start + _COUNTED]
        data = cut + (piece.encode(errors="surrogatepass") if isinstance(piece, str) else piece)
        cut = b"\\" * ((len(data) - len(data.rstrip(b"\\"))) % 2)
        data = data.removesuffix(cut)
        if b"\\" in data:
            data = data.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")  # in place, which takes half the time
        texts = data.split(b'"')
        count += _structure(b"".join(texts[quotes % 2 :: 2])) - 1
        quotes += len(texts) - 1
        if count > limit or quotes > 4 * limit:
            return limit + 1
    return count


def _structure(document: bytes | str) -> int:
    """Return one more than the commas and opening brackets of a document."""
    count = 1
    for start in range(0, len(document), _COUNTED):
        end = start + _COUNTED
        if isinstance(document, str):
            count += sum(document.count(mark, start, end) for mark in ",[{")
        else:
            count += sum(document.count(mark, start, end) for mark in b",[{")
    return count


_COUNTED = 256 * 1024  # bytes or characters of which the values are counted at once
_LEVELS = 250  # of objects and arrays; orjson encodes no more than 254

# Bytes that decoded strings may take in memory, if that is more than 2.5 times their document: one character beyond the
# BMP makes all others of its string take four bytes.
_TEXT_BYTES = 64 * 1024 * 1024
_TEXT_RATIO = 2.5


class TextsTooLarge(orjson.JSONDecodeError):
    """The strings of a document take too much memory."""

    def __init__(self) -> None:
        super().__init__("texts that take many times their size", "", 0)


def loads_mended(data: bytes, mend: Callable[[bytes], bytes]) -> object:
    """
    Parse a JSON document like `orjson.loads`.

    `mend` is called with JSON that has unpaired surrogates, and returns it without them. Raises
    `orjson.JSONDecodeError`, or its subclass `TextsTooLarge`.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in error.msg:
            raise
        value = orjson.loads(mend(data))
    # A character takes at most four bytes in memory, so short documents need no check.
    if 4 * len(data) > _TEXT_BYTES and size_of(value) > max(_TEXT_BYTES, int(_TEXT_RATIO * len(data))):
        raise TextsTooLarge
    return value


def dumps(value: object) -> bytes:
    """
    Encode a value like `orjson.dumps`, also one that JSON, or orjson, has no form for.

    What comes from other servers' libraries may have integers of more than 64 bits, which become floats, or unpaired
    surrogates, which become U+FFFD. What is no JSON becomes null: an answer with it can still be ended, and stored.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_encodable(value))


def _encodable(value: object, levels: int = _LEVELS) -> object:
    """Return a copy of a value that can be encoded."""
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
    """Return a value as models write JSON: with a space after each comma and colon. Replaces unpaired surrogates."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def size_of(value: object) -> int:
    """Return the bytes that a JSON value takes in memory; names of fields are left out, since objects share them."""
    size = 0
    values = [value]
    for inner in values:  # which grows meanwhile
        size += sys.getsizeof(inner)
        if isinstance(inner, dict):
            values += inner.values()
        elif isinstance(inner, (list, tuple)):
            values += inner
    return size
