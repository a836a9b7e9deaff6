"""
The body of one answer, over HTTP, which is passed on as it is received.

An answer is over at its end mark, at the end of the body, or some time after the finish reason, since some servers send
heartbeats for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

import httpx

from app.backends import AnswerReceiver
from app.backends.server.errors.classification import failure
from app.core.profile import Profile
from app.core.size import LARGE
from app.core.stream.answer import AnswerDecoder
from app.core.types import JSONObject
from app.core.types.deltas import Delta
from app.errors import BackendError

# Seconds for other requests between decoding a large event and reading its deltas, which take some 100 ms each. After
# `sleep(0)`, the event loop would resume here before it looks at the sockets.
_BREATH = 0.001
_PIECE = 256  # bytes to decompress at once: at the very worst they become some megabytes

IDLE_TOO_LONG = "The backend has been silent for too long."
CONNECTION_BROKE = "The backend's answer ended early: the connection broke."


class AnswerBody:
    """
    The body of an answer.

    Its bytes are decoded in the call in which they are received, and their deltas passed on. Only bytes that arrive
    while the receiver is slow, or that end a large event, are decoded by the task that awaits `receive`.
    """

    def __init__(self, response: httpx.Response, profile: Profile, decoder: AnswerDecoder) -> None:
        self._response = response
        self._profile = profile
        self._loop = asyncio.get_running_loop()
        self._reads = _reads(response)
        self._reads.wait_at_most(profile.transport.first_byte_timeout)
        self._decoder = decoder
        self._idle, self._grace = profile.transport.idle_timeout, profile.response.finish_grace_s
        self._receiver: AnswerReceiver | None = None
        self._direct: AnswerReceiver | None = None  # the receiver, if reads are passed on without the task
        self._started = False  # has anything been read?
        self._unread: bytes | None = None  # what the task has to decode
        self._held: list[Delta] = []  # deltas that came before there was a receiver
        self._undecoded = 0  # bytes of reads that completed no event
        self._last_delta = 0.0  # after the finish reason: when the last delta came, in loop time
        # What to raise after the last delta. Usually a class: an exception refers to the frames it has passed, so one
        # that is stored here would leave each answer with its deltas to the garbage collector.
        self._end: Exception | type[Exception] | None = None

    @property
    def done(self) -> bool:
        """Whether the server has marked the end of the answer."""
        return self._decoder.done

    @property
    def empty(self) -> bool:
        """Whether the body has ended without a delta."""
        return self._decoder.empty

    @property
    def continuation(self) -> JSONObject | None:
        """The request that has the server go on, if it has paused: see `AnswerDecoder`."""
        return self._decoder.continuation

    def resumed(self, response: httpx.Response) -> AnswerBody:
        """Return the body of the response to `continuation`."""
        self._decoder.resume()
        return AnswerBody(response, self._profile, self._decoder)

    @property
    def warnings(self) -> list[str]:
        """What was left out of the answer so far; the list grows."""
        return self._decoder.warnings

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is an event stream, according to its type."""
        return header_of(self._response, b"content-type").startswith(b"text/event-stream")

    async def begin(self) -> None:
        """Wait for the first deltas, which are held; raises `BackendError` if there are none."""
        while not self._held and self._end is None:
            await self._read()
        if not self._held and self._end is not StopAsyncIteration:
            assert self._end
            raise self._end

    async def receive(self, receiver: AnswerReceiver) -> None:
        """
        Pass on the deltas until the answer has ended.

        Raises `BackendError` after the last delta if the server reports an error, sends nothing for too long, or the
        connection breaks. After a finish reason, a broken connection is a normal end.
        """
        self._receiver = receiver
        held, self._held = self._held, []
        await self._pass_on(held)
        while self._end is None:
            await self._read()
        if self._end is not StopAsyncIteration:
            raise self._end

    def _take(self, data: bytes) -> bool:
        """Decode a read and pass its deltas on; return whether the next one may follow without the task."""
        decoder, receiver = self._decoder, self._direct
        if receiver is None:
            self._unread = data
            return False
        if deltas := decoder.decode(data):
            self._undecoded = 0
            goes_on = receiver.receive(deltas)
            if not decoder.ending:
                return goes_on
            if decoder.finished:
                self._last_delta = self._loop.time()
            return False
        self._undecoded += len(data)
        if self._undecoded > LARGE:
            self._direct = None
        return not decoder.ending

    async def _read(self) -> None:
        """Pass on what is received until there is something else to do; record how the answer has ended, if it has."""
        decoder = self._decoder
        if decoder.finished:
            # After the finish reason, heartbeats no longer extend the timeout.
            grace = max(self._grace, self._idle) if decoder.resumed else self._grace
            self._reads.wait_at_most(max(0, self._last_delta + grace - self._loop.time()))
        receiver = self._receiver if self._started else None
        self._direct = None if receiver is None or receiver.slow else receiver
        try:
            await self._reads.deliver(self._take)
        except StopAsyncIteration:
            await self._pass_on(decoder.end())
            self._end = decoder.failure or StopAsyncIteration
        except (TimeoutError, httpx.ReadTimeout) as cause:
            await self._pass_on(decoder.cut())
            self._end = self._incomplete("timeout", IDLE_TOO_LONG, cause)
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as cause:
            await self._pass_on(decoder.cut())
            self._end = self._incomplete("failure", CONNECTION_BROKE, cause)
        else:
            if not self._started:
                self._started = True
                self._reads.wait_at_most(self._idle)
            await self._decode_unread()
            if decoder.done or decoder.failure:
                self._end = decoder.failure or StopAsyncIteration
            elif self._receiver and self._receiver.over:
                self._end = StopAsyncIteration

    async def _decode_unread(self) -> None:
        """Decode a read that `_take` has left to the task, if there is one, and wait until the receiver is ready."""
        data, self._unread = self._unread, None
        if data is not None:
            self._undecoded += len(data)
            await self._pass_on(self._decoder.decode(data))
        elif self._receiver:
            await self._receiver.ready()

    async def _pass_on(self, deltas: list[Delta]) -> None:
        """Pass deltas on, or hold them if there is no receiver yet; wait until the receiver is ready for more."""
        if not deltas:
            return
        if self._undecoded > LARGE:
            await asyncio.sleep(_BREATH)
        self._undecoded = 0
        if self._decoder.finished:
            self._last_delta = self._loop.time()
        if self._receiver is None:
            self._held += deltas
        else:
            self._receiver.receive(deltas)
            await self._receiver.ready()

    def _incomplete(self, kind: str, message: str, cause: Exception) -> BackendError | type[StopAsyncIteration]:
        """Return what to raise for an incomplete body: a failure, unless the finish reason has been received."""
        if self._decoder.finished:
            return StopAsyncIteration
        error = failure(kind, message)
        error.__cause__ = cause
        return error

    def linger(self, seconds: float) -> None:
        """Let the body end within some seconds after `aclose`, so that the connection can be used again."""
        if linger := self._response.extensions.get("linger"):
            linger(seconds)

    async def aclose(self) -> None:
        """Stop receiving, and close the connection."""
        await self._reads.aclose()
        stream = self._response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        await stream.aclose()


class Reads(Protocol):
    """
    The network reads of a body: as an iterator, or passed on as they are received.

    A read that exceeds its timeout raises `TimeoutError` or `httpx.ReadTimeout`, and is the last.
    """

    async def __anext__(self) -> bytes: ...

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Pass each read to `take` until that returns False; raises what the iterator would raise at its end."""
        ...

    def wait_at_most(self, seconds: float) -> None:
        """Set the timeout of each further read."""
        ...

    async def aclose(self) -> None: ...


def _reads(response: httpx.Response) -> Reads:
    compressed = isinstance(response.stream, _CompressedBody)
    return _TimedReads(aiter(response.aiter_bytes())) if compressed else body_reads(response)


def body_reads(response: httpx.Response) -> Reads:
    """Return the body of a response as it was sent, compressed or not."""
    ours: Reads | None = response.extensions.get("stream")
    return ours or _TimedReads(aiter(response.aiter_raw()))


def bound_decompression(response: httpx.Response) -> None:
    """Have a compressed body decompressed in small pieces; the request allows only `identity`."""
    if header_of(response, b"content-encoding") not in (b"", b"identity"):
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _CompressedBody(response.stream)


def header_of(response: httpx.Response, name: bytes) -> bytes:
    """Return a header, empty if there is none; `response.headers` decodes all of them at first."""
    return b", ".join([value for field, value in response.headers.raw if field.lower() == name])


class _CompressedBody(httpx.AsyncByteStream):
    """A compressed body in small pieces, since httpx decompresses each piece as a whole."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            for at in range(0, len(data), _PIECE):
                yield data[at : at + _PIECE]

    async def aclose(self) -> None:
        await self._stream.aclose()


class _TimedReads:
    """The reads of a response that is not from `HTTPToolsTransport`, with a timeout for each."""

    def __init__(self, reads: AsyncIterator[bytes]) -> None:
        self._reads = reads
        self._seconds: float | None = None

    async def __anext__(self) -> bytes:
        async with asyncio.timeout(self._seconds):
            return await anext(self._reads)

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        async with asyncio.timeout(self._seconds) as timeout:
            while take(await anext(self._reads)):
                if self._seconds is not None:
                    timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def __aiter__(self) -> _TimedReads:
        return self

    def wait_at_most(self, seconds: float) -> None:
        self._seconds = seconds

    async def aclose(self) -> None:
        if isinstance(self._reads, AsyncGenerator):
            await self._reads.aclose()
