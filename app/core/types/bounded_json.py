"""
Parse JSON that strangers wrote, with a bound on the number of its values.

An empty array takes three bytes of JSON and sixty of memory, and every value costs its time in each pass over them. So
the values are counted before they are made.
"""

from __future__ import annotations

from typing import Any

import orjson

MAX_VALUES = 100_000  # a conversation of thousands of turns has some ten thousands


class TooManyValues(orjson.JSONDecodeError):
    """A document has more values than it may; for most callers as good as invalid."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} values", "", 0)


def loads(data: bytes | str, limit: int = MAX_VALUES) -> Any:
    """Return the value of a JSON document; raises `orjson.JSONDecodeError`, and of these `TooManyValues`."""
    check_values(data, limit=limit)
    return orjson.loads(data)


def check_values(*documents: bytes | str, limit: int = MAX_VALUES) -> None:
    """
    Raise `TooManyValues` for JSON documents with more than `limit` values (objects, arrays, scalars) in all.

    Of a document that is not valid, what stands before its first error is counted right. Takes linear time, and makes
    at most two copies of a document.
    """
    if sum(map(len, documents)) <= limit:
        return
    # Commas and opening brackets are at least as many as values. Those within strings mean nothing, but it takes longer
    # to tell them apart.
    if sum(map(_structure, documents)) <= limit:
        return
    count = 0
    for document in documents:
        count += _values(document, limit)
        if count > limit:
            raise TooManyValues(limit)


def _values(document: bytes | str, limit: int) -> int:
    """Return the number of values, or one beyond the limit; an empty object or array may count twice."""
    data = document.encode(errors="surrogatepass") if isinstance(document, str) else document
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if data.count(b'"') > 4 * limit:  # two for each string, which is a value or the name of one
        return limit + 1
    return _structure(b"".join(data.split(b'"')[::2]))


def _structure(document: bytes | str) -> int:
    if isinstance(document, str):
        return 1 + document.count(",") + document.count("[") + document.count("{")
    return 1 + document.count(b",") + document.count(b"[") + document.count(b"{")
