from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from app.backends.server.answer import CONNECTION_BROKE, IDLE_TOO_LONG
from app.backends.server.errors.classification import failure
from app.backends.server.passthrough.headers import answer_headers
from app.backends.server.passthrough.usage import UsageReader
from app.backends.transport.httpx_transport import HTTPReply, HTTPXReply
from app.core.profile import Profile
from app.core.types import JSONObject
from app.core.usage import cost_in_nanos

# In Messages, Responses or Chat Completions.
_FIRST_ERROR = re.compile(
    rb'\s*(?:event: ?error\r?\n)?data: ?(\{"(?:type": ?"error"|error": ?\{)[^\r\n]{1,10000}\})\r?\n\r?\n'
)


class ForwardedAnswer:
    """A server's answer (`RawAnswer`); `begin` must be called first."""

    def __init__(self, response: httpx.Response, profile: Profile) -> None:
        self.status = response.status_code
        self.headers = headers = answer_headers(response.headers.raw)
        self.first = b""
        self._response = response
        self._reads: HTTPReply = response.extensions.get("stream") or HTTPXReply(response)
        self._reads.wait_at_most(profile.transport.first_byte_timeout)
        self._idle = profile.transport.idle_timeout
        self._streamed = dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")
        self._usage = UsageReader(streamed=self._streamed)
        self.estimate, self.failed = self._usage.estimate, self._usage.failed

    async def begin(self) -> JSONObject | None:
        """Wait for the body's first bytes; return a stream's first event if it may be an error."""
        try:
            with _read_failures():
                self.first = await self._reads.__anext__()
        except StopAsyncIteration:
            return None
        self._reads.wait_at_most(self._idle)
        self._usage.feed(self.first)
        if not self._streamed or (match := _FIRST_ERROR.match(self.first)) is None:
            return None
        try:
            event = json.loads(match[1])
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None

    async def deliver(self, take: Callable[[bytes], bool]) -> bool:
        usage = self._usage

        def noted(data: bytes) -> bool:
            usage.feed(data)
            return take(data)

        try:
            with _read_failures():
                await self._reads.deliver(noted)
        except StopAsyncIteration:
            return False
        return True

    def usage(self) -> JSONObject | None:
        """Includes the cost in LiteLLM's header."""
        usage = self._usage.usage()
        if usage and "cost" not in usage and not self._streamed:
            cost = cost_in_nanos(self._response.headers.get("x-litellm-response-cost"))
            return usage if cost is None else {**usage, "cost": cost}
        return usage

    async def aclose(self) -> None:
        await self._reads.aclose()
        await self._response.aclose()


@contextmanager
def _read_failures() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, httpx.ReadTimeout) as error:
        raise failure("timeout", IDLE_TOO_LONG) from error
    except (httpx.TransportError, httpx.StreamError) as error:
        raise failure("failure", CONNECTION_BROKE) from error
