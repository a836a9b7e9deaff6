"""
Parse untrusted JSON with a limit on the number of its values, and large JSON in pieces.

An empty array is three bytes of JSON and sixty of memory, and every value takes time in each pass over the document. So
values are counted before the document is parsed.

orjson holds the GIL while it runs: for 60 MB a tenth of a second, or a quarter with many escapes. Threads that handle
large documents decode and encode long strings in pieces, so that other threads can run in between.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import orjson

from app.core.size import LARGE, TEXT_PIECE, Size, counts, pieces_of

T = TypeVar("T")

MAX_VALUES = 100_000  # a conversation of thousands of turns has tens of thousands


class TooManyValues(orjson.JSONDecodeError):
    """A document has more values than the limit; most callers treat it as invalid."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} values", "", 0)


def loads(data: bytes | str, limit: int = MAX_VALUES) -> object:
    """Parse a JSON document; raises `orjson.JSONDecodeError`, or its subclass `TooManyValues`."""
    check_values(data, limit=limit)
    if len(data) <= LARGE:
        return orjson.loads(data)
    if isinstance(data, str):
        data = data.encode(errors="surrogatepass")  # the text is freed, if nothing else has it
    return loads_in_pieces(data)


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
            data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
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
_PIECE = 1024 * 1024  # bytes that are decoded at once: smaller blocks of memory are not returned when they are freed
_SHORT = 256  # bytes of strings that are decoded with the document
_LEVELS = 250  # of objects and arrays; orjson encodes no more than 254

# Bytes that decoded strings may take in memory, if that is more than 2.5 times their document: one character beyond the
# BMP makes all others of its string take four bytes.
_TEXT_BYTES = 64 * 1024 * 1024
_TEXT_RATIO = 2.5

_TEXT = re.compile(rb'[^"\\]*+(?:\\(?:[^u]|u[0-9a-fA-F]{4})[^"\\]*+)*+')
_ESCAPE = 6  # bytes of the longest escape
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")


class TextsTooLarge(orjson.JSONDecodeError):
    """The strings of a document take too much memory."""

    def __init__(self) -> None:
        super().__init__("texts that take many times their size", "", 0)


def loads_mended(data: bytes, mend: Callable[[bytes], bytes]) -> object:
    """
    Parse a JSON document like `orjson.loads`, and a large one without holding the GIL for long.

    `mend` is called with JSON that has unpaired surrogates, and returns it without them. Raises
    `orjson.JSONDecodeError`, or its subclass `TextsTooLarge`.
    """
    largest = max(_TEXT_BYTES, int(_TEXT_RATIO * len(data)))
    return loads_in_pieces(data, partial(_load, mend=mend), largest)


def loads_in_pieces(data: bytes, load: Callable[[bytes], Any] = orjson.loads, largest: int = sys.maxsize) -> Any:
    """
    Parse a JSON document by `load`, which is called with pieces of a large one, so that it does not hold the GIL long.

    Raises the errors of `load`, and `TextsTooLarge` if strings would take more than `largest` bytes of memory.
    """
    if len(data) <= LARGE:
        return load(data)
    mark = secrets.token_hex(16)  # prefix of the placeholders of long strings
    texts: dict[str, str] = {}
    rest: list[bytes] = []  # the document with placeholders for long strings
    taken = size = 0
    for begin, cuts in _long_strings(data):
        name = f"{mark}{len(texts)}"
        pieces = [load(b'"%b"' % data[at:to]) for at, to in pairwise(cuts)]
        size += max(map(_width, pieces)) * sum(map(len, pieces))
        if size > largest:
            raise TextsTooLarge
        texts[name] = "".join(pieces)
        rest += [data[taken:begin], b'"%b"' % name.encode()]
        taken = cuts[-1] + 1
    rest.append(data[taken:])
    value = load(b"".join(rest))
    return _with_texts(value, texts) if texts else value


def outline(text: str) -> object:
    """Parse like `loads`, but leave out the texts of a large document: the strings that are long are empty."""
    check_values(text)
    if len(text) <= LARGE:
        return orjson.loads(text)
    data = text.encode(errors="surrogatepass")
    rest: list[bytes] = []
    taken = 0
    for begin, cuts in _long_strings(data):
        for at, to in pairwise(cuts):
            orjson.loads(b'"%b"' % data[at:to])
        rest += [data[taken:begin], b'""']
        taken = cuts[-1] + 1
    return orjson.loads(b"".join([*rest, data[taken:]]))


def _long_strings(data: bytes) -> Iterator[tuple[int, list[int]]]:
    """Yield where the long strings of a JSON document begin, and the cuts of each; raises `orjson.JSONDecodeError`."""
    begin = data.find(b'"')
    while begin >= 0:
        cuts = cuts_of_text(data, begin + 1)
        if cuts is None:
            raise orjson.JSONDecodeError("a string has no end, or an invalid escape", "", 0)
        if cuts[-1] - begin > _SHORT:
            yield begin, cuts
        begin = data.find(b'"', cuts[-1] + 1)


def cuts_of_text(data: bytes, begin: int) -> list[int] | None:
    """Return where the pieces of a JSON string begin, and where its last one ends; None if it has no end."""
    cuts = [begin]
    while True:
        end = _end_of_text(data, cuts[-1], min(len(data), cuts[-1] + _PIECE))
        if data[end : end + 1] == b'"':
            return [*cuts, end]
        if end == cuts[-1]:
            return None
        while 0x80 <= (data[end : end + 1] or b"\0")[0] < 0xC0 and end - cuts[-1] < _PIECE + 4:
            end += 1  # do not cut a character of several bytes
        if low := _LOW_SURROGATE.match(data, end):
            end = low.end()  # nor a surrogate pair of escapes
        cuts.append(end)


def _end_of_text(data: bytes, begin: int, limit: int) -> int:
    """Return where the text of a JSON string ends, or may be cut: at the limit, or before an escape that goes on."""
    quote = data.find(b'"', begin, limit)
    # Searches take a small part of the time of the expression, and mostly tell: a quotation mark without a backslash
    # before it ends the text, and no escape goes on behind five bytes without one.
    if quote >= 0:
        if data[quote - 1 : quote] != b"\\":
            return quote
    else:
        for end in range(limit, max(begin, limit - _ESCAPE), -1):
            if data.find(b"\\", max(begin, end - _ESCAPE + 1), end) < 0:
                return end
    match = _TEXT.match(data, begin, limit)
    assert match
    return match.end()


def _width(text: str) -> int:
    """Return the bytes that a character of the string takes in memory."""
    return 1 if text.isascii() else min(4, sys.getsizeof(text) // len(text))


def _load(data: bytes, mend: Callable[[bytes], bytes]) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in error.msg:
            raise
        return orjson.loads(mend(data))


def _with_texts(value: Any, texts: dict[str, str]) -> Any:
    """Replace the placeholders in a value by their strings."""
    if isinstance(value, str):
        return texts.get(value, value)
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict) and not texts.keys().isdisjoint(node):
            named = {texts.get(name, name): inner for name, inner in node.items()}
            node.clear()
            node.update(named)
        for place, inner in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(inner, str):
                node[place] = texts.get(inner, inner)
            elif isinstance(inner, (dict, list)):
                nodes.append(inner)
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


class EncodedJSON(NamedTuple):
    """JSON that is to be a part of a document: what `orjson.Fragment` is for `orjson.dumps`."""

    data: bytes


def dumps_in_pieces(value: object) -> bytes:
    """Encode a value like `orjson.dumps`, without holding the GIL for long, and without a copy of the result."""
    result = io.BytesIO()  # grows in place
    for part in parts_of_json(value):
        result.writelines([part] if isinstance(part, bytes) else pieces_of_text(part))
    return result.getvalue()


def dumps_sized(value: object, size: Size, encode: Callable[[object], bytes] = dumps) -> bytes:
    """Encode a value of some size by `encode`, and a large one in pieces."""
    return dumps_in_pieces(value) if size.long else encode(value)


def pieces_sized(value: object, size: Size) -> list[bytes]:
    """Encode a value of some size like `dumps`: as one piece, and a large one as several."""
    return [*pieces_of_json(value)] if size.long else [dumps(value)]


def dumps_strictly(value: object) -> bytes:
    """Encode a value that may have `EncodedJSON` in it; raises `TypeError` for what has no form in JSON."""
    return orjson.dumps(value, default=_fragment)


def _fragment(value: object) -> orjson.Fragment:
    if isinstance(value, EncodedJSON):
        return orjson.Fragment(value.data)
    raise TypeError


def to_json(value: object) -> str:
    """
    Return a value as JSON, with unpaired surrogates replaced.

    It has a space after each comma and colon, as models write JSON; not if it is large.
    """
    if Size.of(value).large:
        return dumps_in_pieces(value).decode()
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def pieces_of_json(value: object) -> Iterator[bytes]:
    """Encode a value like `orjson.dumps`, and yield the result in pieces; long strings are encoded when they come."""
    before = b""
    for part in [*parts_of_json(value)]:
        if isinstance(part, bytes):
            before += part
        if before and (isinstance(part, str) or len(before) > TEXT_PIECE):
            yield before
            before = b""
        if isinstance(part, str):
            yield from pieces_of_text(part)
    if before:
        yield before


def pieces_of_text(text: str) -> Iterator[bytes]:
    """Yield the JSON of a string without its quotation marks, in pieces."""
    for piece in pieces_of(text):
        yield dumps(piece)[1:-1]


def parts_of_json(value: object) -> Iterator[bytes | str]:
    """Yield the JSON of a value, except for long strings, which are yielded as they are, between quotation marks."""
    if isinstance(value, str) and len(value) > TEXT_PIECE:
        yield b'"'
        yield value
        yield b'"'
    elif isinstance(value, EncodedJSON):
        for at in range(0, len(value.data), TEXT_PIECE):
            yield value.data[at : at + TEXT_PIECE]
    elif isinstance(value, dict):
        begin = b"{"
        for names in _batches(value.keys(), value.values()):
            if _is_heavy(heavy := value[names[0]]):
                yield begin + dumps({names[0]: None})[1:-5]
                yield from parts_of_json(heavy)
            else:
                yield begin + dumps({name: value[name] for name in names})[1:-1]
            begin = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, (list, tuple)):
        begin = b"["
        for batch in _batches(value, value):
            if _is_heavy(batch[0]):
                yield begin
                yield from parts_of_json(batch[0])
            else:
                yield begin + dumps(batch)[1:-1]
            begin = b","
        yield b"]" if value else b"[]"
    else:
        yield dumps(value)


def _batches(keys: Iterable[T], values: Iterable[object]) -> Iterator[list[T]]:
    """Yield the keys of values in groups that are encoded at once; a heavy value's is alone."""
    batch: list[T] = []
    total = 0
    for key, value in zip(keys, values, strict=True):
        weight = json_weight(value)
        if batch and total + weight > TEXT_PIECE:
            yield batch
            batch, total = [], 0
        batch.append(key)
        total += weight
    if batch:
        yield batch


def _is_heavy(value: object) -> bool:
    return json_weight(value) > TEXT_PIECE


_VALUE = 16  # weight of a value besides the length of a string


def json_weight(value: object) -> int:
    """Return about how many characters of JSON a value takes, or some number more than `TEXT_PIECE`."""
    characters, values = counts(value, TEXT_PIECE, TEXT_PIECE // _VALUE)
    return characters + _VALUE * values


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
