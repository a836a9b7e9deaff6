"""
The API's errors, and warnings for successful responses.

    APIError
     +- InvalidRequest        400  the request is invalid; `param` names the field
     |   +- PreviousResponseNotFound
     |   +- UnstorableValue       stores cannot represent the value
     +- Unauthorized          401  the API key is missing or wrong
     |   +- InvalidToken           the token or the identity is invalid
     +- PermissionDenied      403  the API key lacks this permission
     +- NotFound              404  the object does not exist, or belongs to another caller
     +- TooManyRequests       429  always with `Retry-After`
     +- StoreUnavailable      503  the store cannot be reached
     |   +- StoreBusy              no store connection became free in time
     +- BackendError          5xx  the backend failed, or rejected the request
         +- BackendBusy       429  its slots are in use; also a `TooManyRequests`

Clients receive only these errors, over HTTP, in streams and on WebSockets. The types are the spec's: `server_error`,
`invalid_request`, `not_found`, `model_error`, `too_many_requests`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypedDict


class ErrorPayload(TypedDict):
    type: str
    code: str
    message: str
    param: str | None


class APIError(Exception):
    """An error for the caller: `message` explains the remedy, `param` names the invalid field."""

    status = 500
    type = "server_error"
    code = "server_error"
    reported = False  # already logged
    server = ""  # name and URL of the failed server, without credentials; only for operators

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        error_type: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,  # additional
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.type = error_type or self.type
        self.status = status or self.status
        self.retry_after = retry_after
        self._headers = headers or {}

    @property
    def reason(self) -> str:
        """The message without confidential parts, for the log and other callers."""
        return self.message

    @property
    def detail(self) -> str:
        """The exception's notes, for example the operating system's message; only for operators."""
        return "; ".join(getattr(self, "__notes__", ()))

    @property
    def explanation(self) -> str:
        """Only for operators."""
        return f"{self.reason.rstrip('.')} ({self.detail})" if self.detail else self.reason

    def log_fields(self) -> dict[str, object]:
        fields = {"code": self.code, "reason": self.reason, "server": self.server, "detail": self.detail}
        return {name: value for name, value in fields.items() if value}

    def payload(self) -> ErrorPayload:
        return {"type": self.type, "code": self.code, "message": self.message, "param": self.param}

    def body(self) -> dict[str, object]:
        return {"error": self.payload()}

    def headers(self) -> dict[str, str]:
        """
        A 401 has `WWW-Authenticate` (RFC 9110, 11.6.1).

        `Retry-After` is in whole seconds; a 429 always has it, because Codex does not retry without it.
        """
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        wait = self.retry_after
        if wait is None and self.status == 429:
            wait = 1
        standard = {} if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}
        return {**standard, **self._headers}


class InvalidRequest(APIError):
    status = 400
    type = "invalid_request"
    code = "invalid_request"


class PreviousResponseNotFound(InvalidRequest):
    """One error for unknown, expired and deleted ids, and ids of other callers."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


class UnstorableValue(InvalidRequest):
    """A string with NUL or a lone surrogate, or a number or name beyond the limits."""

    code = "invalid_value"

    def __init__(self) -> None:
        super().__init__("The request contains a text or a number that cannot be stored.")


class Unauthorized(APIError):
    status = 401
    type = "invalid_request"
    code = "invalid_api_key"


class InvalidToken(Unauthorized):
    """See RFC 6750, 3.1. The message reveals only hints for legitimate callers."""

    code = "invalid_token"

    def headers(self) -> dict[str, str]:
        """Clients fetch a new token for `invalid_token`."""
        return {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class PermissionDenied(APIError):
    status = 403
    type = "invalid_request"
    code = "insufficient_permissions"


class NotFound(APIError):
    status = 404
    type = "not_found"
    code = "not_found"


class TooManyRequests(APIError):
    """A limit of this server is exhausted; retry after `retry_after` seconds."""

    status = 429
    type = "too_many_requests"
    code = "rate_limit_exceeded"


def try_again_in(message: str, seconds: float) -> str:
    """Add the seconds to wait to a message, from which Codex parses them in a stream."""
    return f"{message} Please try again in {max(1, math.ceil(seconds))}s."


class StoreUnavailable(APIError):
    """Requests with `store: false` and without history are not affected."""

    status = 503
    code = "store_unavailable"

    def __init__(self, message: str = "The response store is unavailable. Try again, or send `store: false`.") -> None:
        super().__init__(message, retry_after=1)


class StoreBusy(StoreUnavailable):
    def __init__(self) -> None:
        super().__init__("The store is busy. Try again.")


class BackendError(APIError):
    status = 502
    type = "server_error"
    code = "server_error"
    quoted = False  # the message is the backend's own
    retryable = False  # the same server can answer the same request later
    answered = 0  # the backend's HTTP status, for an error response
    # Headers and body of the error response, if the caller receives it unchanged.
    response: tuple[Sequence[tuple[bytes, bytes]], bytes] | None = None

    def name_backend(self, name: str) -> None:
        """Name the backend in a server-side failure's message."""
        begin = f"The backend '{name}' "
        if self.status < 500 or self.message.startswith(begin):
            return
        if self.answered >= 500:
            self.message = f"{begin}answered {self.answered}" + (f": {self.message}" if self.quoted else ".")
        elif not self.quoted and self.message.startswith("The backend "):
            self.message = begin + self.message.removeprefix("The backend ")
        self.args = (self.message,)

    @property
    def reason(self) -> str:
        """A quoted message can contain the prompt, and is replaced by status and code."""
        return f"{self.status} {self.code}" if self.quoted else self.message


class ImagesUndescribed(BackendError):
    """The request lacks descriptions for the images at `urls`."""

    status = 400
    type = "invalid_request_error"
    code = "images_undescribed"

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__("The model does not support images.")
        self.urls = urls


class BackendBusy(TooManyRequests, BackendError):
    """All of a backend's slots are in use; another backend can serve the request."""


class Warnings(dict[str, None]):
    """Warnings about dropped or changed parts of the request, deduplicated, in order."""

    def add(self, message: str) -> None:
        self[message] = None


def missing_parameter(field: str) -> InvalidRequest:
    """Uses OpenAI's wording."""
    return InvalidRequest(f"Missing required parameter: '{field}'.", param=field, code="missing_required_parameter")


def quote(value: object) -> str:
    """Quote a caller's value for a message: printable ASCII, cut to 64 characters."""
    text = str(value)
    return ascii(text if len(text) <= 64 else f"{text[:64]}...")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, with a leading space; "" without a similar name."""
    matches = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f" Did you mean '{matches[0]}'?" if matches else ""
