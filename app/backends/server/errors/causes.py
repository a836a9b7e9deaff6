from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from app.backends.server.errors.classification import failure
from app.errors import BackendError
from app.runtime.connect_errors import causes, why_unreachable


def unreachable(error: httpx.TransportError) -> BackendError:
    if isinstance(error, httpx.TimeoutException):
        unanswered = failure("timeout", "The backend does not accept connections.")
    elif isinstance(error, httpx.ConnectError):
        why = why_unreachable(error)
        unanswered = failure("failure", f"The backend cannot be reached{f': {why}' if why else ''}.")
    else:
        unanswered = failure("failure", "The backend closed the connection without an answer.")
    unanswered.retryable = True
    return unanswered


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except BackendError as error:
        explain(error, error.__cause__)
        raise


def explain(error: BackendError, cause: BaseException | None) -> None:
    """Add the operating system's message as a note, for operators; it never quotes the request."""
    messages = [str(each) for each in causes(cause) if isinstance(each, OSError | httpx.TransportError) and str(each)]
    if messages and messages[-1] not in getattr(error, "__notes__", ()):
        error.add_note(messages[-1])
