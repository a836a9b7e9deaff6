"""WebSocket frames from the client, and error events to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from app.api.request_body import load_json, validate
from app.core.bounded_json import MAX_VALUES
from app.core.types import JSONObject
from app.core.types.request import CreateResponse
from app.errors import APIError, InvalidRequest

# "HTTP/SSE transport-specific fields such as `stream`, `stream_options`, and `background` MUST NOT be sent on WebSocket
# requests." Codex sends them, with values without effect.
_HARMLESS: dict[str, Callable[[object], bool]] = {
    "stream": lambda value: value is True,
    "stream_options": lambda value: isinstance(value, dict),
    "background": lambda value: value is False,
}

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class _Rule(NamedTuple):
    is_valid: Callable[[object], object]
    expected: str
    code: str = "invalid_value"


# Outside the request.
_FRAME_FIELDS = {
    "generate": _Rule(lambda value: isinstance(value, bool), "true or false", "invalid_type"),
    "stream_id": _Rule(
        lambda value: isinstance(value, str) and _STREAM_ID.fullmatch(value),
        "1 to 256 letters, digits, underscores, hyphens and periods",
        "invalid_stream_id",
    ),
}


@dataclass(slots=True)
class Create:
    fields: JSONObject  # request fields and frame fields
    length: int  # bytes
    request: CreateResponse | InvalidRequest  # the error is raised when the turn begins

    @property
    def stream_id(self) -> str | None:
        """The client's turn id, repeated in each frame of the response."""
        stream_id = self.fields.get("stream_id")
        return stream_id if _FRAME_FIELDS["stream_id"].is_valid(stream_id) else None

    @property
    def previous_response_id(self) -> str | None:
        previous = self.fields.get("previous_response_id")
        return previous if isinstance(previous, str) else None

    @property
    def generate(self) -> bool:
        """False only stores the input, for a later request."""
        return self.fields.get("generate") is not False


@dataclass(slots=True)
class ControlFrame:
    """Frames that are answered at once, even during a response."""

    type: object  # a string in a valid frame
    fields: JSONObject

    def unknown(self) -> dict[str, object]:
        """The `frame` field distinguishes this error from a turn's error."""
        types = ", ".join(map(repr, FRAME_TYPES))
        message = f"Invalid 'type': must be one of {types}, not {repr(self.type)[:100]}."
        error = InvalidRequest(message, param="type", code="invalid_value")
        return {**envelope(error), "frame": self.type[:100] if isinstance(self.type, str) else None}


CREATE, CANCEL, STEER = FRAME_TYPES = "response.create", "response.cancel", "response.steer"


def read_frame(frame: bytes, max_values: int = MAX_VALUES, *, lenient: bool = False) -> Create | ControlFrame:
    """
    Raises `InvalidRequest` if the frame is not a JSON object.

    Request fields are next to `type`, or in `response` as in OpenAI's Realtime API. `lenient` accepts HTTP fields with
    values without effect.
    """
    fields = load_json(frame, "frame", max_values)
    frame_type = fields.pop("type", None)
    if frame_type != CREATE:
        return ControlFrame(frame_type, fields)
    nested = fields.pop("response", None)
    fields = {**nested, **fields} if isinstance(nested, dict) else fields
    try:
        return Create(fields, len(frame), _request(fields, len(frame), lenient=lenient))
    except InvalidRequest as error:
        return Create(fields, len(frame), error)


def _request(fields: JSONObject, length: int, *, lenient: bool) -> CreateResponse:
    for name, harmless in _HARMLESS.items():
        value = fields.get(name)
        if value is not None and not (lenient and harmless(value)):
            message = f"Invalid '{name}': must be omitted on a WebSocket."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    for name, rule in _FRAME_FIELDS.items():
        if fields.get(name) is not None and not rule.is_valid(fields[name]):
            raise InvalidRequest(f"Invalid '{name}': must be {rule.expected}.", param=name, code=rule.code)
    return validate({name: value for name, value in fields.items() if name not in _HARMLESS}, CreateResponse, length)


def steer_failure(fields: JSONObject, number: int) -> dict[str, object]:
    """
    Reject a `response.steer` frame; `number` is its sequence number.

    Chat Completions cannot add input to a response in progress. The answer returns the input, which the client can send
    with the next turn.
    """
    steer = {name: fields.get(name) for name in ("input", "previous_response_id")}
    if not isinstance(steer["previous_response_id"], str) or not isinstance(steer["input"], (str, list)):
        code, message = (
            "invalid_input",
            "A steer must have 'previous_response_id' and 'input', a string or a list of messages.",
        )
    else:
        code = "steering_not_supported"
        message = "This server cannot steer a response in progress. Send the input after it has ended."
    error = {"code": code, "message": message, "type": "invalid_request_error"}
    return {"type": "response.steer.failed", "sequence_number": number, "steer": steer, "error": error}


def envelope(error: APIError, stream_id: str | None = None) -> dict[str, object]:
    """An error as the spec's `WebSocketErrorEvent`, with an HTTP error response's headers."""
    headers: dict[str, object] = {"headers": error.headers()} if error.headers() else {}
    frame = {"type": "error", "status": error.status, "error": {**error.payload(), **headers}, **headers}
    return frame if stream_id is None else {**frame, "stream_id": stream_id}
