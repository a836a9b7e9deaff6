from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpx

_CAUSES: dict[type[BaseException], str] = {
    ssl.SSLError: "TLS failed",
    socket.gaierror: "its host name is unknown",
    ConnectionRefusedError: "it refuses connections",
}


def why_unreachable(error: httpx.HTTPError) -> str | None:
    """For example `it refuses connections`; None if unknown."""
    for cause in causes(error):
        for kind, why in _CAUSES.items():
            if isinstance(cause, kind):
                return why
    return None


def why_no_answer(error: httpx.HTTPError) -> str:
    """For example `it refuses connections`."""
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    if isinstance(error, httpx.ConnectError):
        return why_unreachable(error) or "it cannot be reached"
    return "it closed the connection"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, root cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
