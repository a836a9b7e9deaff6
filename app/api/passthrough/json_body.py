"""Forwards a JSON body with a checked or replaced model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from app.api.request_body import load_json
from app.core.bounded_json import MAX_VALUES
from app.errors import InvalidRequest

_Span: TypeAlias = tuple[int, int]  # start and end in bytes

_MODEL = "model"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # possessive, to avoid memory for backtracking
_TOKENS = re.compile(rb"[\[{]|[\]}]|%b(\s*:\s*(?:%b|[^\s\[{,}]+)?)?" % (_STRING, _STRING), re.DOTALL)
_LIKE_MODEL = re.compile(r"[\W_]*".join(["", *"model", ""]), re.IGNORECASE)
_ESCAPED_LETTER = re.compile(rb"\\u00[46][0-9a-fA-F]")


def reads_as_model(name: str) -> bool:
    """Whether some parsers read a name as `model`, for example `Model`, `model[]` or ` model`."""
    return name != _MODEL and _LIKE_MODEL.fullmatch(name) is not None


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
