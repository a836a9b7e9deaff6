"""
Why a server could not be reached, or broke off: in the system's own words for operators, in a few of ours for callers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from app.backends.chat.errors.classification import failure
from app.errors import BackendError

# Why a connection could not be made; callers are told no more of it than this.
_UNREACHABLE = {
    ssl.SSLError: "TLS failed",
    socket.gaierror: "its host name is not known",
    ConnectionRefusedError: "it refuses connections",
}


def unreachable(error: httpx.TransportError) -> BackendError:
    """Return the error that callers are told where a request could not be sent, or was not answered."""
    if isinstance(error, httpx.TimeoutException):
        return failure("timeout", "The backend does not accept connections.")
    if not isinstance(error, httpx.ConnectError):
        return failure("failure", "The backend closed the connection without an answer.")
    for cause in _causes(error):
        for kind, why in _UNREACHABLE.items():
            if isinstance(cause, kind):
                return failure("failure", f"The backend cannot be reached: {why}.")
    return failure("failure", "The backend cannot be reached.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, the cause of all last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def explained() -> Iterator[None]:
    """Add the system's own words to an error of the backend's that leaves the context."""
    try:
        yield
    except BackendError as error:
        explain(error, error.__cause__)
        raise


def explain(error: BackendError, cause: BaseException | None) -> None:
    """Add the system's own words for the cause of an error as a note, for operators; they quote no request."""
    words = [str(one) for one in _causes(cause) if isinstance(one, OSError | httpx.TransportError) and str(one)]
    if words and words[-1] not in getattr(error, "__notes__", ()):
        error.add_note(words[-1])
