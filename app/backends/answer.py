"""
The chunks of one answer, as they come in over HTTP.

Decides when an answer is over: at `[DONE]`, where the body ends, or after a while of nothing behind the finish reason,
since some servers send heartbeats for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx

from app.backends.body import NO_ANSWER, Reader, Sniffer
from app.backends.filters import filters
from app.backends.refusals import failure
from app.core.chat_stream import DONE, Chunk
from app.core.profile import Profile
from app.errors import BackendError

T = TypeVar("T")

SILENT = "The backend has been silent for too long."
BROKEN = "The backend's answer ended early: the connection broke."


class Answer:
    """
    Iterates over lists of chunks, one list for each read that brought any.

    Raises `BackendError` behind the last chunk where the backend reports an error (`error_in` finds it in a chunk), is
    silent for too long, or breaks off. What breaks behind a finish reason takes nothing away, and is the end.
    """

    def __init__(
        self, response: httpx.Response, profile: Profile, error_in: Callable[[Chunk], BackendError | None]
    ) -> None:
        self.done = False  # has the server said that this was all?
        self.empty = False  # has the body ended with nothing in it?
        self._reads = _reads(response)
        self._reader: Reader = Sniffer()
        self._filters = filters(profile)
        self._error_in = error_in
        self._allowed = profile.transport.first_byte_timeout  # seconds for the next read
        self._idle, self._grace = profile.transport.idle_timeout, profile.response.finish_grace_s
        self._patience = Patience()
        self._first: list[Chunk] | None = None
        self._heard = False  # has there been any chunk?
        self._finished: float | None = None  # once there is a finish reason: when the last chunk came, in loop time
        self._end: Exception | None = None  # what to raise behind the last list

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> list[Chunk]:
        if self._first:
            first, self._first = self._first, None
            return first
        while self._end is None:
            if chunks := self._take(await self._read()):
                return chunks
        raise self._end

    async def begin(self) -> None:
        """Wait for the first chunks, which the iteration then begins with; raise `BackendError` if there are none."""
        with contextlib.suppress(StopAsyncIteration):
            self._first = await anext(self)

    async def aclose(self) -> None:
        """Let go of what belongs to the iteration; the connection belongs to whoever opened it."""
        self._patience.close()
        if isinstance(self._reads, AsyncGenerator):
            await self._reads.aclose()

    async def _read(self) -> list[Chunk]:
        """Return the chunks of one read, and note where there will be no other."""
        now = self._patience.loop.time()
        try:
            # Heartbeats show that the server lives, but behind the finish reason they show nothing.
            deadline = now + self._allowed if self._finished is None else self._finished + self._grace
            data = await self._patience.wait(anext(self._reads), deadline)
            self._allowed = self._idle
            return self._reader.decode(data)
        except StopAsyncIteration:
            return self._last()
        except BackendError as error:
            self._end = error
        except TimeoutError:
            self._end = failure("timeout", SILENT) if self._finished is None else StopAsyncIteration()
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError):
            self._end = failure("failure", BROKEN) if self._finished is None else StopAsyncIteration()
        return []

    def _last(self) -> list[Chunk]:
        try:
            chunks = self._reader.end()
        except BackendError as error:
            self._end = error
            return []
        self.empty = not (chunks or self._heard)
        self._end = failure("failure", NO_ANSWER) if self.empty else StopAsyncIteration()
        return chunks

    def _take(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks as the profile has them, those before an error; note finish reason, error and end."""
        if chunks:
            self._heard = True
            if chunks[-1] is DONE:
                chunks.pop()
                self.done = True
                self._end = StopAsyncIteration()
            chunks = self._before_error(chunks)
            if self._finished is not None:
                self._finished = self._patience.loop.time()
        for each in self._filters:
            chunks = each.feed(chunks)
            if self._end:
                chunks = chunks + each.end()
        return [*chunks, DONE] if self.done else chunks

    def _before_error(self, chunks: list[Chunk]) -> list[Chunk]:
        for n, chunk in enumerate(chunks):
            choices = chunk.get("choices")
            reason = _finish_reason(choices) if choices else None
            suspect = not choices or "error" in chunk or reason == "error"
            if suspect and (error := self._error_in(chunk)):
                self._end, self.done = error, False
                return chunks[:n]
            if reason:
                self._finished = 0
        return chunks


def _finish_reason(choices: Any) -> Any:
    choice = choices[0] if isinstance(choices, list) else None
    return choice.get("finish_reason") if isinstance(choice, dict) else None


def _reads(response: httpx.Response) -> AsyncIterator[bytes]:
    if response.headers.get("content-encoding", "identity") != "identity":
        return response.aiter_bytes()  # we did not ask for it
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return aiter(response.stream)


class Patience:
    """
    Bounds how long to wait for each of many things.

    `asyncio.timeout` sets and cancels a timer each time; here one timer is moved on, and only when it fires.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._over = False

    async def wait(self, awaited: Awaitable[T], deadline: float) -> T:
        """Await something; raises `TimeoutError` if it takes longer than until `deadline`, in loop time."""
        if self._timer is None or deadline < self._deadline:
            self.close()
            self._timer = self.loop.call_at(deadline, self._fire)
        self._deadline = deadline
        task = self._waiting = asyncio.current_task()
        assert task
        cancelling = task.cancelling()
        try:
            return await awaited
        except asyncio.CancelledError:
            if self._over and task.uncancel() <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        """Forget the timer."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._fire)
        else:
            self._over = True
            self._waiting.cancel()
