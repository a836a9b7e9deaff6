"""
What can go wrong, in the API's shape.

    APIError
     +- InvalidRequest        400  the request is wrong, and says where
     |   +- PreviousResponseNotFound
     +- Unauthorized          401  no key, or a wrong one
     +- NotFound              404  no such thing, or not the caller's
     +- TooManyRequests       429  always with `Retry-After`
     +- StoreUnavailable      503  the store does not answer
     +- BackendError          5xx  the backend failed, or refused in its own words

Every error a client sees is made here, over HTTP, in a stream or on a socket. The five types are the spec's:
`server_error`, `invalid_request`, `not_found`, `model_error`, `too_many_requests`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class APIError(Exception):
    """An error a caller may read: `message` says what to do about it, `param` names the field at fault."""

    status = 500
    type = "server_error"
    code = "server_error"
    reported = False  # is it in the log?
    server = ""  # the name and URL of the server that failed, without credentials: for operators alone

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.type = type or self.type
        self.status = status or self.status
        self.retry_after = retry_after

    @property
    def reason(self) -> str:
        """What anybody may hear of it: a log, or other callers."""
        return self.message

    @property
    def detail(self) -> str:
        """What only operators may read: the system's own words, which were added to it as notes."""
        return "; ".join(getattr(self, "__notes__", ()))

    @property
    def explanation(self) -> str:
        """The reason, and the detail behind it if there is one: for operators."""
        return f"{self.reason.rstrip('.')} ({self.detail})" if self.detail else self.reason

    def log_fields(self) -> dict[str, Any]:
        """Return what a line of the log has of it."""
        fields = {"code": self.code, "reason": self.reason, "server": self.server, "detail": self.detail}
        return {name: value for name, value in fields.items() if value}

    def payload(self) -> dict[str, Any]:
        """The error object of the API: `type`, `code`, `message`, `param`."""
        return {"type": self.type, "code": self.code, "message": self.message, "param": self.param}

    def body(self) -> dict[str, Any]:
        """The JSON body of an HTTP answer."""
        return {"error": self.payload()}

    def headers(self) -> dict[str, str]:
        """
        The headers of an HTTP answer.

        A 401 says how to show a key (RFC 9110, 11.6.1). `Retry-After` is in whole seconds, and a 429 always has one:
        Codex gives up at once without it.
        """
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        wait = self.retry_after
        if wait is None and self.status == 429:
            wait = 1
        return {} if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}


class InvalidRequest(APIError):
    """The request cannot be served as it is."""

    status = 400
    type = "invalid_request"
    code = "invalid_request"


class PreviousResponseNotFound(InvalidRequest):
    """Unknown, expired, deleted and foreign ids all get this one answer."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


class Unauthorized(APIError):
    """The caller did not show a key that this server knows."""

    status = 401
    type = "invalid_request"
    code = "invalid_api_key"


class NotFound(APIError):
    """There is no such thing, or it is somebody else's."""

    status = 404
    type = "not_found"
    code = "not_found"


class TooManyRequests(APIError):
    """Come back after `retry_after` seconds."""

    status = 429
    type = "too_many_requests"
    code = "rate_limit_exceeded"


class StoreUnavailable(APIError):
    """The store does not answer; requests with `store: false` and no history are not affected."""

    status = 503
    code = "store_unavailable"

    def __init__(self, message: str = "The response store is unavailable. Try again, or send `store: false`.") -> None:
        super().__init__(message, retry_after=1)


class BackendError(APIError):
    """The backend could not be reached, failed, or refused; built where its answer is read."""

    status = 502
    type = "server_error"
    code = "server_error"
    quoted = False  # are the words the backend's own?

    @property
    def reason(self) -> str:
        """What anybody may hear of it: its own words may repeat the prompt, which is for its caller alone."""
        return f"{self.status} {self.code}" if self.quoted else self.message


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest known name, behind a space, to end a message with; "" where none is alike."""
    found = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f" Did you mean '{found[0]}'?" if found else ""
