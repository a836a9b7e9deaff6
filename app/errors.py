"""
The errors of the API, and the warnings beside a successful answer.

    APIError
     +- InvalidRequest        400  the request is invalid; `param` names the field
     |   +- PreviousResponseNotFound
     |   +- UnstorableValue       a store cannot hold it, whatever its own state
     +- Unauthorized          401  the API key is missing or wrong
     |   +- InvalidToken           the token or the identity is invalid
     +- PermissionDenied      403  the API key may not do this
     +- NotFound              404  the object does not exist, or belongs to another caller
     +- TooManyRequests       429  always with `Retry-After`
     +- StoreUnavailable      503  the store cannot be reached
     |   +- StoreBusy              no connection to it became free in time
     +- BackendError          5xx  the backend failed, or refused the request
         +- BackendBusy       429  its places are taken; a `TooManyRequests` too

Every error that a client receives is one of these, over HTTP, in a stream and on a WebSocket. The types are the spec's:
`server_error`, `invalid_request`, `not_found`, `model_error`, `too_many_requests`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TypedDict


class ErrorPayload(TypedDict):
    """The error object of the API."""

    type: str
    code: str
    message: str
    param: str | None


class APIError(Exception):
    """An error that is shown to the caller: `message` says what to do about it, `param` names the invalid field."""

    status = 500
    type = "server_error"
    code = "server_error"
    reported = False  # whether it has been logged
    server = ""  # name and URL of the server that failed, without credentials; only for operators

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        error_type: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.type = error_type or self.type
        self.status = status or self.status
        self.retry_after = retry_after

    @property
    def reason(self) -> str:
        """The message without anything confidential, for the log and for other callers."""
        return self.message

    @property
    def detail(self) -> str:
        """The exception's notes, such as the operating system's message; only for operators."""
        return "; ".join(getattr(self, "__notes__", ()))

    @property
    def explanation(self) -> str:
        """The reason with the detail, if any; only for operators."""
        return f"{self.reason.rstrip('.')} ({self.detail})" if self.detail else self.reason

    def log_fields(self) -> dict[str, object]:
        """Return the fields with which the error is logged."""
        fields = {"code": self.code, "reason": self.reason, "server": self.server, "detail": self.detail}
        return {name: value for name, value in fields.items() if value}

    def payload(self) -> ErrorPayload:
        """The error object of the API: `type`, `code`, `message`, `param`."""
        return {"type": self.type, "code": self.code, "message": self.message, "param": self.param}

    def body(self) -> dict[str, object]:
        """The JSON body of the HTTP response."""
        return {"error": self.payload()}

    def headers(self) -> dict[str, str]:
        """
        The headers of the HTTP response.

        A 401 has `WWW-Authenticate` (RFC 9110, 11.6.1). `Retry-After` is in whole seconds; a 429 always has it, since
        Codex does not retry without it.
        """
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        wait = self.retry_after
        if wait is None and self.status == 429:
            wait = 1
        return {} if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}


class InvalidRequest(APIError):
    """The request is invalid."""

    status = 400
    type = "invalid_request"
    code = "invalid_request"


class PreviousResponseNotFound(InvalidRequest):
    """The same error for ids that are unknown, expired, deleted, or another caller's."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


class UnstorableValue(InvalidRequest):
    """A store refuses a value: a text with NUL, half a character, a number or a name that is too large."""

    code = "invalid_value"

    def __init__(self) -> None:
        super().__init__("The request contains a text or a number that cannot be stored.")


class Unauthorized(APIError):
    """The API key is missing or wrong."""

    status = 401
    type = "invalid_request"
    code = "invalid_api_key"


class InvalidToken(Unauthorized):
    """A token or an identity is invalid (RFC 6750, 3.1). The message reveals only what helps an honest caller."""

    code = "invalid_token"

    def headers(self) -> dict[str, str]:
        """The headers of the HTTP response; clients fetch a new token when they read `invalid_token`."""
        return {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class PermissionDenied(APIError):
    """The API key is valid, but may not do this."""

    status = 403
    type = "invalid_request"
    code = "insufficient_permissions"


class NotFound(APIError):
    """The object does not exist, or belongs to another caller."""

    status = 404
    type = "not_found"
    code = "not_found"


class TooManyRequests(APIError):
    """A limit of this server is exhausted; retry after `retry_after` seconds. Every 429 of its own is one of these."""

    status = 429
    type = "too_many_requests"
    code = "rate_limit_exceeded"


def try_again_in(message: str, seconds: float) -> str:
    """Return a message with the seconds to wait, which Codex takes from it in a stream."""
    return f"{message} Please try again in {max(1, math.ceil(seconds))}s."


class StoreUnavailable(APIError):
    """The store cannot be reached. Requests with `store: false` and without history are not affected."""

    status = 503
    code = "store_unavailable"

    def __init__(self, message: str = "The response store is unavailable. Try again, or send `store: false`.") -> None:
        super().__init__(message, retry_after=1)


class StoreBusy(StoreUnavailable):
    """The store is reachable, but no connection to it became free in time."""

    def __init__(self) -> None:
        super().__init__("The store is busy. Try again.")


class BackendError(APIError):
    """The backend could not be reached, failed, or refused the request."""

    status = 502
    type = "server_error"
    code = "server_error"
    quoted = False  # whether the message is the backend's own
    retryable = False  # whether the same server may answer the same request later
    answered = 0  # the HTTP status with which the backend has answered, if that was an error

    def name_backend(self, name: str) -> None:
        """Name the backend in the message of a failure that is not the caller's, whether it is ours or its own."""
        begin = f"The backend '{name}' "
        if self.status < 500 or self.message.startswith(begin):
            return
        if self.answered:
            self.message = f"{begin}answered {self.answered}" + (f": {self.message}" if self.quoted else ".")
        elif not self.quoted and self.message.startswith("The backend "):
            self.message = begin + self.message.removeprefix("The backend ")
        self.args = (self.message,)

    @property
    def reason(self) -> str:
        """The message, or status and code if it is the backend's own, which may quote the caller's prompt."""
        return f"{self.status} {self.code}" if self.quoted else self.message


class ImagesUndescribed(BackendError):
    """The model accepts no images, and the question lacks descriptions of the images at `urls`."""

    status = 400
    type = "invalid_request_error"
    code = "images_undescribed"

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__("The model does not support images.")
        self.urls = urls


class BackendBusy(TooManyRequests, BackendError):
    """All places of a backend are taken; another one can be asked."""


class Warnings:
    """What was left out or changed of a request: sentences for the caller, each once, in order of their first use."""

    def __init__(self) -> None:
        self._messages: dict[str, None] = {}

    def add(self, message: str) -> None:
        """Add a sentence, unless it was added before."""
        self._messages[message] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._messages)


def missing_parameter(field: str) -> InvalidRequest:
    """Return the error for a request without a required field, in the words of OpenAI's API."""
    return InvalidRequest(f"Missing required parameter: '{field}'.", param=field, code="missing_required_parameter")


def label(value: object) -> str:
    """Return a caller's value for use in a message: printable ASCII in quotes, cut to 64 characters."""
    text = str(value)
    return ascii(text if len(text) <= 64 else f"{text[:64]}...")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the closest known name, with a leading space; "" if none is similar."""
    matches = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f" Did you mean '{matches[0]}'?" if matches else ""
