"""
The stream of chunks of one answer, over HTTP.

An answer is over at `[DONE]`, at the end of the body, or some time after the finish reason, since some servers send
heartbeats for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

import httpx

from app.backends.apis import AnswerDecoder
from app.backends.server.errors.classification import failure
from app.core.profile import Profile
from app.core.types.chunk import ChunkOrRun, LargeChunks, Receiver
from app.errors import BackendError

IDLE_TOO_LONG = "The backend has been silent for too long."
CONNECTION_BROKE = "The backend's answer ended early: the connection broke."
LARGE_EVENT = 256 * 1024  # bytes of an event that is decoded in a thread


class AnswerStream:
    """
    Iterates over lists of chunks, one list for each network read that completed any.

    Raises `BackendError` after the last chunk if the backend reports an error, sends nothing for too long, or the
    connection breaks. After a finish reason, a broken connection is a normal end.
    """

    def __init__(self, response: httpx.Response, profile: Profile, decoder: AnswerDecoder) -> None:
        self.receiver: Receiver | None = None  # see `BackendExchange.receiver`
        self._response = response
        self._loop = asyncio.get_running_loop()
        self._reads = _reads(response)
        self._reads.wait_at_most(profile.transport.first_byte_timeout)
        self._decoder = decoder
        self._repeated = getattr(decoder, "repeated", None)
        self._idle, self._grace = profile.transport.idle_timeout, profile.response.finish_grace_s
        self._started = False  # has anything been read?
        self._first: list[ChunkOrRun] | None = None
        self._undecoded = 0  # bytes of reads that completed no event
        self._last_chunk = 0.0  # after the finish reason: when the last chunk came, in loop time
        # What to raise after the last list. Usually a class: an exception refers to the frames it has passed, so one
        # that is stored here would leave each answer with its chunks to the garbage collector.
        self._end: Exception | type[Exception] | None = None

    @property
    def done(self) -> bool:
        """Whether the server has marked the end of the answer."""
        return self._decoder.done

    @property
    def empty(self) -> bool:
        """Whether the body has ended without a chunk."""
        return self._decoder.empty

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is an event stream, according to its type."""
        return bool(self._response.headers.get("content-type", "").startswith("text/event-stream"))

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> list[ChunkOrRun]:
        if self._first:
            first, self._first = self._first, None
            return first
        while self._end is None:
            chunks, large = await self._next(), self._undecoded > LARGE_EVENT
            if chunks:
                self._undecoded = 0
                if self._decoder.finished:
                    self._last_chunk = self._loop.time()
                return LargeChunks(chunks) if large else chunks
        raise self._end

    async def _next(self) -> list[ChunkOrRun]:
        """Return the chunks of the next read; records how the answer has ended, if it has."""
        decoder = self._decoder
        try:
            if decoder.finished:
                # After the finish reason, heartbeats no longer extend the timeout.
                grace = max(self._grace, self._idle) if decoder.resumed else self._grace
                self._reads.wait_at_most(max(0, self._last_chunk + grace - self._loop.time()))
            data = await anext(self._reads)
        except StopAsyncIteration:
            chunks = await self._decode(decoder.end)
            self._end = decoder.failure or StopAsyncIteration
        except (TimeoutError, httpx.ReadTimeout) as cause:
            chunks = await self._decode(decoder.cut)
            self._end = self._incomplete("timeout", IDLE_TOO_LONG, cause)
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as cause:
            chunks = await self._decode(decoder.cut)
            self._end = self._incomplete("failure", CONNECTION_BROKE, cause)
        else:
            if not self._started:
                self._started = True
                self._reads.wait_at_most(self._idle)
                self._reads.receiver = self._received if self.receiver else None
            chunks = await self._decode(decoder.decode, data)
            if not chunks:
                self._undecoded += len(data)
            if decoder.done or decoder.failure:
                self._end = decoder.failure or StopAsyncIteration
        return chunks

    async def _decode(self, decode: Callable[..., list[ChunkOrRun]], *data: bytes) -> list[ChunkOrRun]:
        """Call a method of the decoder, in a thread if a large event may be complete."""
        if self._undecoded > LARGE_EVENT:
            return await asyncio.to_thread(decode, *data)
        return decode(*data)

    def _incomplete(self, kind: str, message: str, cause: Exception) -> BackendError | type[StopAsyncIteration]:
        """Return what to raise for an incomplete body: a failure, unless the finish reason has been received."""
        if self._decoder.finished:
            return StopAsyncIteration
        error = failure(kind, message)
        error.__cause__ = cause
        return error

    def _received(self, data: bytes) -> bool:
        """Return whether the receiver has taken a read: it is offered those that are one event like an earlier one."""
        receiver, decoder = self.receiver, self._decoder
        if decoder.finished or receiver is None or self._repeated is None:
            return False
        repeated = self._repeated(data)
        return repeated is not None and receiver(*repeated)

    async def begin(self) -> None:
        """Wait for the first chunks, with which the iteration then starts; raises `BackendError` if there are none."""
        with contextlib.suppress(StopAsyncIteration):
            self._first = await anext(self)

    def linger(self, seconds: float) -> None:
        """Let the body end within some seconds after `aclose`, so that the connection can be used again."""
        if linger := self._response.extensions.get("linger"):
            linger(seconds)

    async def aclose(self) -> None:
        """Close the stream and its connection."""
        self._reads.receiver = None  # breaks a reference cycle
        await self._reads.aclose()
        stream = self._response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        await stream.aclose()


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
