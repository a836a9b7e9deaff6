"""A JSON body that is forwarded: reads its model, and replaces it."""

from __future__ import annotations

import json
from json.decoder import JSONDecoder
from typing import Any

from starlette.requests import Request

from app.api.request_body import BodyLimits, read_object
from app.errors import InvalidRequest

_DECODER = JSONDecoder(strict=False)


class JSONBody:
    """A JSON body: its decompressed bytes, and the parsed object."""

    replayable = True

    def __init__(self, data: bytes, fields: dict[str, Any]) -> None:
        self._data = data
        self.length: int | None = len(data)
        self.fields = fields

    @classmethod
    async def read(cls, request: Request, limits: BodyLimits) -> JSONBody:
        """Return the body of a request; raises `InvalidRequest`."""
        return cls(*await read_object(request, limits))

    @property
    def model(self) -> str:
        """The model of the request; empty if it has none."""
        model = self.fields.get("model")
        if model is None:
            return ""
        if not isinstance(model, str):
            raise InvalidRequest("Invalid 'model': should be a string.", param="model", code="invalid_type")
        return model

    def with_model(self, model: str) -> JSONBody:
        """Return the body with another model; all other bytes are unchanged."""
        return JSONBody(replace_model(self._data, model), self.fields)

    def content(self) -> bytes:
        """Return the bytes."""
        return self._data


def replace_model(data: bytes, model: str) -> bytes:
    """Return a JSON object with its field `model` replaced, or added as the first field."""
    text = data.decode("utf-8-sig", "surrogatepass")
    encoded = json.dumps(model)
    spans = _values_of(text, "model")
    if not spans:
        start = text.index("{") + 1
        separator = "" if text[start:].lstrip().startswith("}") else ","
        return f'{text[:start]}"model":{encoded}{separator}{text[start:]}'.encode("utf-8", "surrogatepass")
    for start, end in reversed(spans):
        text = text[:start] + encoded + text[end:]
    return text.encode("utf-8", "surrogatepass")


def _values_of(text: str, name: str) -> list[tuple[int, int]]:
    """Return the start and end of each value of a field in a valid JSON object; the field may occur twice."""
    spans = []
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)  # after the colon
        _, end = _DECODER.raw_decode(text, start)
        if key == name:
            spans.append((start, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return spans


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
