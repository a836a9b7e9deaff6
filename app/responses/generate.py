"""
Ask the model, and answer in events.

This is where the pure core meets the backend. A backend yields lists of chunks, one for each read from the network,
and `respond` yields lists of events, one for each write: what arrived together leaves together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from app.backends import Backend, ChatRequest, Chunk
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_builder import EventBuilder
from app.core.types.request import Event
from app.core.types.response import usage_of
from app.errors import APIError, BackendError

logger = logging.getLogger(__name__)

# Seconds to wait, once the status line is known, for a first chunk: many servers hide a refusal in the first frame of
# a 200, and clients retry on nothing but an HTTP status.
FIRST_CHUNK = 0.2


async def respond(
    builder: EventBuilder,
    reader: ChunkReader,
    backend: Backend,
    request: ChatRequest,
    *,
    open_after: float | None,
    seconds: float = 0,
) -> AsyncGenerator[list[Event], None]:
    """
    Yield the events of one answer. What closes it stays in the builder, and the terminal event is for `builder.end()`.

    The first list is yielded once the backend is known to answer, or after `open_after` seconds without a sign of it
    (None: however long it takes). Raises `BackendError` for a refusal that is known before that; later errors are
    events. The backend has so many `seconds` for its answer (0: any number), and then the response is incomplete.
    """
    started = False
    failure: BackendError | None = None
    end = finish
    try:
        async with BackendStream(backend, request, open_after) as answer:
            async for chunks in DeadlineIterator(answer, seconds) if seconds else answer:
                if not started:
                    builder.start()
                    started = True
                for chunk in chunks:
                    reader.feed(chunk)
                if events := builder.take():
                    yield events
    except BackendError as error:
        if not started:
            raise
        failure = error
    except DeadlineExceeded:
        end = _cut
    except Exception:
        if not started:
            raise
        logger.exception("an answer could not be read")  # whoever hears the stream has to hear its end
        failure = unreadable()
    if not started:
        builder.start()
    try:
        end(builder, reader, request, failure)
    except Exception:
        logger.exception("an answer could not be ended")
        if not builder.failure:
            builder.fail(unreadable())
        builder.response["usage"] = usage_of(None, request.body, builder.response["output"])


async def prewarm(builder: EventBuilder) -> AsyncGenerator[list[Event], None]:
    """Yield the events of a response for which no model is asked, all but the terminal one: there is its input, and no
    output, to be continued from."""
    builder.start()
    builder.complete()
    builder.response["usage"] = usage_of(None, {}, [])
    yield builder.take()


class BackendStream:
    """
    A question to a backend, and what it says: a context manager, and the iterator that it gives, a list for each read.

    An empty list comes first where the backend is there but has nothing to say yet, or where it has not been heard of
    for `open_after` seconds (None: it is waited for). Behind the first chunks there is nothing between the backend and
    whoever iterates.
    """

    def __init__(self, backend: Backend, request: ChatRequest, open_after: float | None) -> None:
        self._question = backend.stream(request)
        self._open_after = open_after
        self._open = contextlib.AsyncExitStack()
        self._next: Callable[[], Awaitable[list[Chunk]]] = self._begin

    async def __aenter__(self) -> BackendStream:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._open.__aexit__(*exc)

    def __aiter__(self) -> BackendStream:
        return self

    def __anext__(self) -> Awaitable[list[Chunk]]:
        return self._next()

    async def _begin(self) -> list[Chunk]:
        if self._open_after is None:
            chunks = await self._open.enter_async_context(self._question)
            self._next = chunks.__anext__
            return await self._next()
        opening = asyncio.ensure_future(self._open.enter_async_context(self._question))
        self._next = partial(self._opened, opening)
        return await self._next() if await self._within(self._open_after, opening) else []

    async def _opened(self, opening: asyncio.Future[AsyncIterator[list[Chunk]]]) -> list[Chunk]:
        chunks = await opening
        first = asyncio.ensure_future(_first(chunks))
        self._next = partial(self._heard, chunks, first)
        return await self._next() if await self._within(FIRST_CHUNK, first) else []

    async def _heard(self, chunks: AsyncIterator[list[Chunk]], first: asyncio.Future[list[Chunk]]) -> list[Chunk]:
        self._next = chunks.__anext__
        return await first

    async def _within(self, seconds: float, task: asyncio.Future[Any]) -> bool:
        """Wait for a task, and see to it that it does not outlive the answer; tell whether it is done."""
        self._open.push_async_callback(_put_away, task)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return bool(done)


class DeadlineExceeded(Exception):
    """An answer takes longer than it may."""


class DeadlineIterator:
    """Iterates over what comes within so many seconds from the first chunk on, and then raises `DeadlineExceeded`."""

    def __init__(self, batches: AsyncIterator[list[Chunk]], seconds: float) -> None:
        self._batches = batches
        self._seconds = seconds
        self._end: float | None = None  # in loop time

    def __aiter__(self) -> DeadlineIterator:
        return self

    async def __anext__(self) -> list[Chunk]:
        try:
            async with asyncio.timeout_at(self._end) as limit:
                batch = await anext(self._batches)
        except TimeoutError:
            if limit.expired():
                raise DeadlineExceeded from None
            raise
        if batch and self._end is None:
            self._end = asyncio.get_running_loop().time() + self._seconds
        return batch


async def _first(chunks: AsyncIterator[list[Chunk]]) -> list[Chunk]:
    return await anext(chunks, [])


async def _put_away(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # known elsewhere, or of no interest any more


def finish(builder: EventBuilder, reader: ChunkReader, request: ChatRequest, failure: BackendError | None) -> None:
    """
    Bring the response to its end, truthfully: what was cut off is incomplete, and what broke has failed.

    A connection that breaks behind the finish reason takes nothing away from the answer.
    """
    ended = reader.ended
    if failure and reader.finish_reason is None:
        ended = "error"
    reader.calls.end(cut=ended != "completed")
    if ended == "completed":
        builder.complete()
    elif ended in ("max_output_tokens", "content_filter"):
        builder.incomplete(ended)
    else:
        builder.fail(failure or (broken_off() if ended is None else gave_up()))
    _record_usage(builder, reader, request)


def _cut(builder: EventBuilder, reader: ChunkReader, request: ChatRequest, failure: BackendError | None) -> None:
    """Bring the response to its end when its time is over."""
    reader.calls.end(cut=True)
    builder.incomplete("max_output_seconds")
    _record_usage(builder, reader, request)


def abort(builder: EventBuilder, reader: ChunkReader, request: ChatRequest, error: APIError | None) -> None:
    """Bring a response to its end from outside: it fails with that error, or else was cancelled."""
    if builder.response["status"] == "queued":
        builder.start()
    reader.calls.end(cut=True)
    if error:
        builder.fail(error)
    else:
        builder.cancel()
    _record_usage(builder, reader, request)


def _record_usage(builder: EventBuilder, reader: ChunkReader, request: ChatRequest) -> None:
    response = builder.response
    response["usage"] = usage_of(reader.usage, request.body, response["output"])
    response["service_tier"] = reader.service_tier or response["service_tier"]


# One that is raised keeps the frames that it went through, and with them what was said: so each is a new one.


def unreadable() -> BackendError:
    """Return the failure of an answer that nobody can make sense of."""
    return BackendError("The backend's answer could not be read.")


def broken_off() -> BackendError:
    """Return the failure of an answer that has no end."""
    return BackendError("The backend's stream ended before the answer was complete.")


def gave_up() -> BackendError:
    """Return the failure of an answer that ends with word of an error."""
    return BackendError("The backend reported an error while it was answering.", type="model_error")
