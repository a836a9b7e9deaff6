"""Requests to other servers, and why they fail."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


class RequestFailed(ValueError):
    """A request without a response; the message has neither addresses nor content."""


async def send_request(
    http: httpx.AsyncBaseTransport, request: httpx.Request, seconds: float, *, read: bool = True
) -> httpx.Response:
    """
    Send a request to an operator's service; return its closed response, with the body if `read`.

    `http` must limit response sizes and must not follow redirects; `seconds` limits the whole exchange. Raises
    `RequestFailed`, caused by the transport's error, or without a cause after a timeout.
    """
    try:
        async with asyncio.timeout(seconds):
            response = await http.handle_async_request(request)
            try:
                if read:
                    await response.aread()
            finally:
                await response.aclose()
    except TimeoutError:
        raise RequestFailed(f"no answer within {seconds:g} seconds") from None
    except Exception as error:  # from the transport, or the guard around it
        raise RequestFailed(type(error).__name__) from error
    return response


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
    import httpx  # slow import, only on first use

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
