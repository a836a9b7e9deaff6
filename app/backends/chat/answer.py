"""
The stream of chunks of one answer, over HTTP.

An answer is over at `[DONE]`, at the end of the body, or some time after the finish reason, since some servers send
heartbeats for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx

from app.backends.chat.body_decoder import NO_ANSWER, BodyDecoder
from app.backends.chat.errors.classification import failure
from app.backends.chat.filters import filters
from app.backends.chat.normalize import NO_REASON, Normalizer
from app.core.profile import Profile
from app.core.types.chunk import DONE, Chunk, LargeChunks, RawChunk, Receiver
from app.errors import BackendError

IDLE_TOO_LONG = "The backend has been silent for too long."
CONNECTION_BROKE = "The backend's answer ended early: the connection broke."

LARGE_EVENT = 256 * 1024  # bytes of an event that is decoded in a thread


class ChatStream:
    """
    Iterates over lists of chunks, one list for each network read that completed any.

    Raises `BackendError` after the last chunk if the backend reports an error (`error_in` returns that of a chunk),
    sends nothing for too long, or the connection breaks. After a finish reason, a broken connection is a normal end.
    """

    def __init__(
        self,
        response: httpx.Response,
        profile: Profile,
        error_in: Callable[[RawChunk], BackendError | None],
        tools: Sequence[Mapping[str, Any]] = (),
        receiver: Receiver | None = None,
    ) -> None:
        """For `receiver` see `ChatRequest.receiver`."""
        self.done = False  # has the server sent `[DONE]`?
        self.empty = False  # has the body ended without a chunk?
        self._loop = asyncio.get_running_loop()
        self._reads = _reads(response)
        self._reads.wait_at_most(profile.transport.first_byte_timeout)
        self._filters = filters(profile, tools)
        self._reader = BodyDecoder(runs=not self._filters)
        self._normalizer = Normalizer()
        self._error_in = error_in
        self._receiver = receiver
        self._idle, self._grace = profile.transport.idle_timeout, profile.response.finish_grace_s
        self._started = False  # has anything been read?
        self._first: list[Chunk] | None = None
        self._has_chunks = False  # has there been any chunk?
        self._undecoded = 0  # bytes of reads that completed no event
        self._finished: float | None = None  # once there is a finish reason: when the last chunk came, in loop time
        # What to raise after the last list. Usually a class: an exception refers to the frames it has passed, so one
        # that is stored here would leave each answer with its chunks to the garbage collector.
        self._end: Exception | type[Exception] | None = None

    def __aiter__(self) -> ChatStream:
        return self

    async def __anext__(self) -> list[Chunk]:
        if self._first:
            first, self._first = self._first, None
            return first
        while self._end is None:
            try:
                if self._finished is not None:
                    # After the finish reason, heartbeats no longer extend the timeout.
                    self._reads.wait_at_most(max(0, self._finished + self._grace - self._loop.time()))
                data = await anext(self._reads)
                if not self._started:
                    self._started = True
                    self._reads.wait_at_most(self._idle)
                    self._reads.receiver = self._received if self._receiver else None
                if self._undecoded > LARGE_EVENT:
                    chunks = await asyncio.to_thread(self._reader.decode, data)
                elif not (chunks := self._reader.decode(data)):
                    self._undecoded += len(data)
            except Exception as reason:
                chunks = await self._on_end(reason)
            if self._undecoded > LARGE_EVENT:
                if (chunks or self._end) and (large := await self._take_large(chunks)):
                    return large
            elif normal := self._take(chunks):
                return normal
        raise self._end

    def _received(self, data: bytes) -> bool:
        """Return whether the receiver has taken a read: it is offered those that are one event like an earlier one."""
        receiver, match = self._receiver, self._reader.repeated
        if self._finished is not None or receiver is None or (repeated := match(data)) is None:
            return False
        pattern, text = repeated
        return pattern.chunk is self._normalizer.plain and receiver(pattern.chunk, pattern.field, text)

    async def begin(self) -> None:
        """Wait for the first chunks, with which the iteration then starts; raises `BackendError` if there are none."""
        with contextlib.suppress(StopAsyncIteration):
            self._first = await anext(self)

    async def aclose(self) -> None:
        """Close the iterator; the connection belongs to the caller."""
        self._reads.receiver = None  # breaks a reference cycle
        await self._reads.aclose()

    async def _on_end(self, reason: Exception) -> list[RawChunk]:
        """Record why the stream has ended, and return the remaining chunks."""
        match reason:
            case StopAsyncIteration():
                return await self._flush()
            case BackendError():
                self._end = reason
            case TimeoutError() | httpx.ReadTimeout():
                self._end = self._incomplete("timeout", IDLE_TOO_LONG, reason)
            case httpx.TransportError() | httpx.DecodingError() | httpx.StreamError():
                self._end = self._incomplete("failure", CONNECTION_BROKE, reason)
            case _:
                raise reason
        return []

    def _incomplete(self, kind: str, message: str, cause: Exception) -> BackendError | type[StopAsyncIteration]:
        """Return what to raise for an incomplete body: a failure, unless the finish reason has been received."""
        if self._finished is not None:
            return StopAsyncIteration
        error = failure(kind, message)
        error.__cause__ = cause
        return error

    async def _flush(self) -> list[RawChunk]:
        end = self._reader.end
        try:
            chunks = await asyncio.to_thread(end) if self._undecoded > LARGE_EVENT else end()
        except BackendError as error:
            self._end = error
            return []
        self.empty = not (chunks or self._has_chunks)
        self._end = failure("failure", NO_ANSWER) if self.empty else StopAsyncIteration
        return chunks

    async def _take_large(self, chunks: list[RawChunk]) -> LargeChunks:
        """Take the chunks of a read that completed a large event, such as an image, in a thread."""
        self._undecoded = 0
        normal = await asyncio.to_thread(self._take, chunks)
        self._normalizer.forget()
        return LargeChunks(normal)

    def _take(self, chunks: list[RawChunk]) -> list[Chunk]:
        """Return filtered and normalised chunks, up to an error; record the finish reason, error and end."""
        if chunks:
            self._has_chunks = True
            if chunks[-1] is DONE:
                chunks.pop()
                self.done = True
                self._end = StopAsyncIteration
            if not self._filters and self._finished is None and self._normalizer.is_plain(chunks):
                return [*chunks, DONE] if self.done else chunks
            chunks = self._before_error(chunks)
            if self._finished is not None:
                self._finished = self._loop.time()
        for filter in self._filters:
            chunks = filter.feed(chunks)
            if self._end:
                chunks = chunks + filter.end()
        normal = self._normalizer.feed(chunks)
        return [*normal, DONE] if self.done else normal

    def _before_error(self, chunks: list[RawChunk]) -> list[RawChunk]:
        for n, chunk in enumerate(chunks):
            choices = chunk.get("choices")
            choice = _first(choices) if choices else _NO_CHOICE
            reason = choice.get("finish_reason")
            suspect = not choices or "error" in chunk or "error" in choice or reason == "error" or "x_groq" in chunk
            if suspect and (error := self._error_in(chunk)):
                self._end, self.done = error, False
                return chunks[:n]
            if self._finished is not None and _has_output(choice.get("delta")):
                # Some gateways send a finish reason with every chunk.
                self._grace = max(self._grace, self._idle)
            if reason and reason != NO_REASON:
                self._finished = 0
        return chunks


_NO_CHOICE: dict[str, Any] = {}


def _has_output(delta: Any) -> bool:
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def _first(choices: Any) -> dict[str, Any]:
    choice = choices[0] if isinstance(choices, list) else None
    return choice if isinstance(choice, dict) else _NO_CHOICE


class Reads(Protocol):
    """
    The network reads of a body.

    A read that exceeds its timeout raises `TimeoutError` or `httpx.ReadTimeout`, and is the last.
    """

    receiver: Callable[[bytes], bool] | None  # may be offered reads while the next one is awaited: see `Reply`

    async def __anext__(self) -> bytes: ...

    def wait_at_most(self, seconds: float) -> None:
        """Set the timeout of each further read."""
        ...

    async def aclose(self) -> None: ...


def _reads(response: httpx.Response) -> Reads:
    return _TimedReads(aiter(response.aiter_bytes())) if is_compressed(response) else body_reads(response)


def is_compressed(response: httpx.Response) -> bool:
    """Return whether a body has to be decompressed, although the request allows only `identity`."""
    # Most responses have no such header: `headers.get` would raise and catch an exception.
    return "content-encoding" in response.headers and response.headers["content-encoding"] != "identity"


def body_reads(response: httpx.Response) -> Reads:
    """Return the body of a response as it was sent, compressed or not."""
    ours: Reads | None = response.extensions.get("stream")
    return ours or _TimedReads(aiter(response.aiter_raw()))


class _TimedReads:
    """The reads of a response that is not from `HTTPToolsTransport`, with a timeout for each."""

    def __init__(self, reads: AsyncIterator[bytes]) -> None:
        self.receiver: Callable[[bytes], bool] | None = None
        self._reads = reads
        self._seconds: float | None = None

    async def __anext__(self) -> bytes:
        async with asyncio.timeout(self._seconds):
            return await anext(self._reads)

    def wait_at_most(self, seconds: float) -> None:
        self._seconds = seconds

    async def aclose(self) -> None:
        if isinstance(self._reads, AsyncGenerator):
            await self._reads.aclose()
