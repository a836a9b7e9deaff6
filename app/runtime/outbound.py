from __future__ import annotations

import asyncio
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
