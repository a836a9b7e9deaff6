"""
Ask the model, and answer in events.

This is where the pure core meets the backend. A backend yields lists of chunks, one for each read from the network,
and `respond` yields lists of events, one for each write: what arrived together leaves together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from app.backends import Backend, ChatRequest, Chunk
from app.core.chat_stream import ChunkReader
from app.core.events import EventBuilder
from app.core.response import usage_of
from app.core.schema import Event
from app.errors import APIError, BackendError

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
    Yield the events of one answer, all but the terminal one, which is for `builder.end()` to make.

    The first list is yielded once the backend is known to answer, or after `open_after` seconds without a sign of it
    (None: however long it takes). Raises `BackendError` for a refusal that is known before that; later errors are
    events. The backend has so many `seconds` for its answer (0: any number), and then the response is incomplete.
    """
    started = False
    failure: BackendError | None = None
    answer = ask(backend, request, open_after)
    if seconds:
        answer = cut_off(answer, seconds)
    try:
        async with contextlib.aclosing(answer) as batches:
            async for chunks in batches:
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
    except OutOfTime:
        reader.calls.end(cut=True)
        builder.incomplete("max_output_seconds")
        _account(builder, reader, request)
        return
    if not started:
        builder.start()
    settle(builder, reader, request, failure)


async def warm_up(builder: EventBuilder) -> AsyncGenerator[list[Event], None]:
    """Yield the events of a response for which no model is asked, all but the terminal one: there is its input, and no
    output, to be continued from."""
    builder.start()
    builder.complete()
    builder.response["usage"] = usage_of(None, {}, [])
    yield builder.take()


async def ask(backend: Backend, request: ChatRequest, open_after: float | None) -> AsyncGenerator[list[Chunk], None]:
    """
    Yield what the backend says, a list for each read.

    An empty list comes first where the backend is there but has nothing to say yet, or where it has not been heard of
    for `open_after` seconds.
    """
    if open_after is None:
        async with backend.stream(request) as chunks:
            async for batch in chunks:
                yield batch
        return
    async with contextlib.AsyncExitStack() as stack:
        opening = asyncio.ensure_future(stack.enter_async_context(backend.stream(request)))
        if not await _within(open_after, opening, stack):
            yield []
        chunks = await opening
        first = asyncio.ensure_future(_next(chunks))
        if not await _within(FIRST_CHUNK, first, stack):
            yield []
        yield await first
        async for batch in chunks:
            yield batch


class OutOfTime(Exception):
    """An answer takes longer than it may."""


async def cut_off(batches: AsyncGenerator[list[Chunk], None], seconds: float) -> AsyncGenerator[list[Chunk], None]:
    """Yield what comes within so many seconds from the first chunk on; if it has not ended then, raise `OutOfTime`."""
    loop = asyncio.get_running_loop()
    end: float | None = None
    async with contextlib.aclosing(batches):
        while True:
            try:
                async with asyncio.timeout_at(end) as limit:
                    batch = await anext(batches, None)
            except TimeoutError:
                if limit.expired():
                    raise OutOfTime from None
                raise
            if batch is None:
                return
            if batch and end is None:
                end = loop.time() + seconds
            yield batch


async def _next(chunks: AsyncIterator[list[Chunk]]) -> list[Chunk]:
    async for batch in chunks:
        return batch
    return []


async def _within(seconds: float, task: asyncio.Future[Any], stack: contextlib.AsyncExitStack) -> bool:
    """Wait for a task, and see to it that it does not outlive the stack; tell whether it is done."""
    stack.push_async_callback(_put_away, task)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


async def _put_away(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # known elsewhere, or of no interest any more


def settle(builder: EventBuilder, reader: ChunkReader, request: ChatRequest, failure: BackendError | None) -> None:
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
        builder.fail(failure or (BROKEN_OFF if ended is None else GAVE_UP))
    _account(builder, reader, request)


def stop(builder: EventBuilder, reader: ChunkReader, request: ChatRequest, error: APIError | None) -> None:
    """Bring a response to its end from outside: it fails with that error, or else was cancelled."""
    if builder.response["status"] == "queued":
        builder.start()
    reader.calls.end(cut=True)
    if error:
        builder.fail(error)
    else:
        builder.cancel()
    _account(builder, reader, request)


def _account(builder: EventBuilder, reader: ChunkReader, request: ChatRequest) -> None:
    response = builder.response
    response["usage"] = usage_of(reader.usage, request.body, response["output"])
    response["service_tier"] = reader.service_tier or response["service_tier"]


BROKEN_OFF = BackendError("The backend's stream ended before the answer was complete.")
GAVE_UP = BackendError("The backend reported an error while it was answering.", type="model_error")
