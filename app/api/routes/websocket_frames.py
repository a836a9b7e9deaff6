"""What travels over a WebSocket: `response.create` frames from the client, and error envelopes to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from app.api.request_body import invalid, load_json
from app.core.types.bounded_json import MAX_VALUES
from app.core.types.request import CreateResponse
from app.errors import APIError, InvalidRequest

# "HTTP/SSE transport-specific fields such as `stream`, `stream_options`, and `background` MUST NOT be sent on
# WebSocket requests." Codex sends them all the same, with the values that say what happens anyway.
_HARMLESS: dict[str, Callable[[Any], bool]] = {
    "stream": lambda value: value is True,
    "stream_options": lambda value: isinstance(value, dict),
    "background": lambda value: value is False,
}

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class _Rule(NamedTuple):
    fits: Callable[[Any], object]
    words: str  # say what fits
    code: str = "invalid_value"


# Fields of the frame, and not of the request.
_OWN = {
    "generate": _Rule(lambda value: isinstance(value, bool), "true or false", "invalid_type"),
    "stream_id": _Rule(
        lambda value: isinstance(value, str) and _STREAM_ID.fullmatch(value),
        "1 to 256 letters, digits, underscores, hyphens and periods",
        "invalid_stream_id",
    ),
}


@dataclass(slots=True)
class Create:
    """A `response.create` frame, or as much as is known of one that turns out to be wrong."""

    fields: dict[str, Any] = field(default_factory=dict)  # of the request's body, and some that are of the frame

    @property
    def stream_id(self) -> str | None:
        """What the client calls the turn: each of its frames is to have it, too."""
        stream_id = self.fields.get("stream_id")
        return stream_id if _OWN["stream_id"].fits(stream_id) else None

    @property
    def previous_response_id(self) -> str | None:
        previous = self.fields.get("previous_response_id")
        return previous if isinstance(previous, str) else None

    @property
    def generate(self) -> bool:
        """Whether to ask the model at all. Else the request only warms up: its input is kept, to be continued from."""
        return self.fields.get("generate") is not False

    def request(self, *, lenient: bool) -> CreateResponse:
        """
        Return the request; raises `InvalidRequest`.

        What belongs to HTTP is refused; if `lenient`, only where it asks for what cannot be.
        """
        for name, harmless in _HARMLESS.items():
            value = self.fields.get(name)
            if value is not None and not (lenient and harmless(value)):
                message = f"'{name}' belongs to HTTP: leave it out on a WebSocket."
                raise InvalidRequest(message, param=name, code="unsupported_parameter")
        for name, rule in _OWN.items():
            if self.fields.get(name) is not None and not rule.fits(self.fields[name]):
                raise InvalidRequest(f"Invalid '{name}': it has to be {rule.words}.", param=name, code=rule.code)
        try:
            return CreateResponse.model_validate({k: v for k, v in self.fields.items() if k not in _HARMLESS})
        except ValidationError as error:
            raise invalid(error) from error


def read_frame(frame: str | bytes, max_values: int = MAX_VALUES) -> Create:
    """
    Return what a frame asks for; raises `InvalidRequest` for anything but `response.create`.

    The fields of the body stand beside `type`, or in `response`, where OpenAI's Realtime API has them.
    """
    fields = load_json(frame, "frame", max_values)
    kind = fields.pop("type", None)
    if kind != "response.create":
        message = f"Invalid 'type': {repr(kind)[:100]} is not known here; send 'response.create'."
        raise InvalidRequest(message, param="type", code="invalid_value")
    nested = fields.pop("response", None)
    return Create({**nested, **fields} if isinstance(nested, dict) else fields)


def envelope(error: APIError, stream_id: str | None = None) -> dict[str, Any]:
    """Return an error as the spec's `WebSocketErrorEvent`, with the headers that it would have over HTTP."""
    headers = error.headers()
    told: dict[str, Any] = {"headers": headers} if headers else {}
    frame = {"type": "error", "status": error.status, "error": {**error.payload(), **told}, **told}
    return frame if stream_id is None else {**frame, "stream_id": stream_id}
