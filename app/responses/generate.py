"""
ModelQuery the model and yield its answer as events.

This connects the pure core to the backend. A backend yields lists of chunks, one per network read; `respond` yields
batches of events, one per write. Chunks that arrive together are sent together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

from app.backends import Backend, BackendExchange, ChunkOrRun, EncodedQuestion, Question
from app.core.bounded_json import is_large
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_batch import EventBatch, Sink
from app.core.stream.event_builder import EventBuilder
from app.core.types import Item, Usage
from app.core.types.chunk import LargeChunks, RawChunk, Receiver
from app.core.types.token_estimate import estimate_chat
from app.core.types.usage import is_counted, usage_of
from app.errors import APIError, BackendError
from app.responses.off_loop import off_loop
from app.tasks import cancel

logger = logging.getLogger(__name__)

# Seconds to wait for the first chunk after the status line: many servers send an error in the first frame of a 200,
# and clients retry only on an HTTP status.
FIRST_CHUNK = 0.2


class Deadline:
    """The time at which an answer has to end: `seconds` after the first call of `start`."""

    def __init__(self, seconds: float) -> None:
        self.at: float | None = None  # in loop time; None: not started
        self._seconds = seconds

    def start(self) -> None:
        """Start the timer, unless it is running."""
        if self.at is None:
            self.at = asyncio.get_running_loop().time() + self._seconds


@dataclass(slots=True)
class ModelQuery:
    """One question to a backend, and the reader of its answer."""

    backend: Backend
    question: Question
    encoded: EncodedQuestion  # for the backend that is asked first
    reader: ChunkReader
    answered_by: list[str] = field(default_factory=list)  # the names of the backends that answered the response so far
    exchange: BackendExchange | None = None  # once the backend is asked

    @property
    def body(self) -> dict[str, Any]:
        """The request to the backend."""
        return self.encoded.body

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed, one sentence each."""
        warnings = self.exchange.warnings if self.exchange else None
        return [*(self.encoded.warnings if warnings is None else warnings)]

    def usage(self, output: Sequence[Item]) -> Usage:
        """Return the usage of an answer with that output: see `usage_of`."""
        return usage_of(self.reader.usage, self.body, output, self.reader.prompt_estimate)


Finish: TypeAlias = Callable[[EventBuilder, ModelQuery, BackendError | None], None]


class Generation(Protocol):
    """Generates a response: from one answer of a model, or from several with calls of hosted tools between them."""

    builder: EventBuilder

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed so far, one sentence each."""
        ...

    @property
    def body(self) -> dict[str, Any]:
        """The latest request to the backend; {} if there is none."""
        ...

    def events(
        self, open_after: float | None, sink: Sink[EventBatch] | None = None
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield the events except the terminal one; see `respond`."""
        ...

    def usage(self) -> Usage:
        """Return the usage so far: an estimate for an interrupted answer, {} without one."""
        ...

    def abort(self, error: APIError | None) -> None:
        """End the response after `events` was closed: as failed with that error, or as cancelled without one."""
        ...


class NoAnswer:
    """A response that queries no model: it has input but no output, and later responses can continue from it."""

    def __init__(self, builder: EventBuilder) -> None:
        self.builder = builder
        self.warnings: list[str] = []
        self.body: dict[str, Any] = {}

    async def events(
        self, open_after: float | None, sink: Sink[EventBatch] | None = None
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield the events except the terminal one."""
        self.builder.start()
        self.builder.complete()
        self.builder.response["usage"] = usage_of(None, {}, [])
        yield self.builder.take()

    def usage(self) -> Usage:
        """Return the usage, which is zero."""
        return self.builder.response["usage"] or {}

    def abort(self, error: APIError | None) -> None:
        """End the response as failed, or as cancelled without an error."""
        _abort(self.builder, error)
        self.builder.response["usage"] = usage_of(None, {}, [])


class OneAnswer:
    """A response that consists of one answer of a model."""

    def __init__(self, builder: EventBuilder, query: ModelQuery, deadline: Deadline | None = None) -> None:
        self.builder = builder
        self._query = query
        self._deadline = deadline

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed so far, one sentence each."""
        return self._query.warnings

    @property
    def body(self) -> dict[str, Any]:
        """The request to the backend."""
        return self._query.body

    def events(
        self, open_after: float | None, sink: Sink[EventBatch] | None = None
    ) -> AsyncGenerator[EventBatch, None]:
        """Yield the events except the terminal one; see `respond`."""
        return respond(self.builder, self._query, open_after=open_after, deadline=self._deadline, sink=sink)

    def usage(self) -> Usage:
        """Return the usage so far."""
        usage = self.builder.response["usage"]
        return usage or self._query.usage(self.builder.partial_output())

    def abort(self, error: APIError | None) -> None:
        """End the response as failed, or as cancelled without an error."""
        if self.builder.response["status"] == "queued":
            self.builder.start()
        self._query.reader.calls.end(cut=True)
        _abort(self.builder, error)
        _record_usage(self.builder, self._query)


async def respond(
    builder: EventBuilder,
    query: ModelQuery,
    *,
    open_after: float | None,
    deadline: Deadline | None = None,
    opened: bool = False,
    finish: Finish | None = None,
    sink: Sink[EventBatch] | None = None,
) -> AsyncGenerator[EventBatch, None]:
    """
    Yield the events of one answer; the last ones stay in the builder, and `builder.end()` adds the terminal event.

    The first batch is yielded when the backend starts to answer, or after `open_after` seconds (None: no limit). Raises
    `BackendError` for an error before that, unless the response was `opened` already; later errors become events. The
    `deadline` starts with the first chunk; when it passes, the response is incomplete. `finish` ends the response, or
    leaves it open for another round.

    After the first output, the events of chunks that arrive while the generator is awaited may go to the `sink`.
    """
    failure: BackendError | None = None
    step: str | None = None
    started = False
    end = finish or finish_response
    reader = query.reader
    receiver = _receiver(builder, reader, sink) if sink else None
    query.exchange = query.backend.open(query.question)
    try:
        async with BackendStream(query.exchange, receiver, open_after) as answer:
            async for chunks in DeadlineIterator(answer, deadline) if deadline else answer:
                if not started:
                    _start(builder)
                    step = builder.begin_step("model")
                    started = opened = True
                if type(chunks) is LargeChunks or builder.slow_to_close:
                    for work in reader.feed_in_pieces(chunks):
                        yield builder.take()
                        await (asyncio.to_thread(work) if work else asyncio.sleep(0))  # other requests are served
                for chunk in chunks:
                    reader.feed(chunk)
                if events := builder.take():
                    yield events
    except BackendError as error:
        if not opened:
            raise
        failure = error
    except DeadlineExceeded:
        end = _finish_at_deadline
    except Exception:
        if not opened:
            raise
        logger.exception("an answer could not be read")  # the stream still needs its terminal event
        failure = unreadable()
    finally:
        query.answered_by += query.exchange.answered_by
    if not started:
        _start(builder)
    builder.end_step(step, "model")
    await _finish(end, builder, query, failure)


async def _finish(end: Finish, builder: EventBuilder, query: ModelQuery, failure: BackendError | None) -> None:
    try:
        await _estimate_prompt(query)
        if builder.slow_to_close:
            await asyncio.to_thread(builder.prepare_close)
        end(builder, query, failure)
    except Exception:
        logger.exception("an answer could not be ended")
        if not builder.failure:
            builder.fail(unreadable())
        output = builder.response["output"]
        builder.response["usage"] = usage_of(None, query.body, output, query.reader.prompt_estimate)


async def _estimate_prompt(query: ModelQuery) -> None:
    """Estimate a large prompt in a thread, if the backend has not counted it."""
    if not is_counted(query.reader.usage) and (query.question.large or is_large(query.body.get("messages"))):
        query.reader.prompt_estimate = await off_loop(True, estimate_chat, query.body)


def _receiver(builder: EventBuilder, reader: ChunkReader, sink: Sink[EventBatch]) -> Receiver:
    """Return a receiver of chunks that sends their events to the sink at once, while the sink is open."""

    output = builder.response["output"]

    def receive(chunk: RawChunk, field: str, text: str) -> bool:
        send = sink.send
        if send is None or not output or builder.slow_to_close:
            return False
        reader.feed_texts(chunk, field, (text,))
        if (events := builder.take()).entries:
            send(events)
        return True

    return receive


def _start(builder: EventBuilder) -> None:
    if not builder.started:
        builder.start()


def _abort(builder: EventBuilder, error: APIError | None) -> None:
    if builder.response["status"] == "queued":
        builder.start()
    if error:
        builder.fail(error)
    else:
        builder.cancel()


class BackendStream:
    """
    The stream of chunks from a backend: a context manager and an asynchronous iterator over lists of chunks.

    The first list is empty if the backend has started to answer but sends no chunk yet, or has not answered within
    `open_after` seconds (None: no limit). After the first chunks, `__anext__` is that of the backend's own stream.
    """

    def __init__(self, exchange: BackendExchange, receiver: Receiver | None, open_after: float | None) -> None:
        self._answer = exchange
        self._receiver = receiver
        self._entered = False  # whether the answer has to be left
        self._open_after = open_after
        self._tasks: list[asyncio.Future[Any]] = []  # that wait for its first chunks
        self._next: Callable[[], Awaitable[list[ChunkOrRun]]] = self._open_stream

    async def __aenter__(self) -> BackendStream:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        try:
            for task in reversed(self._tasks):
                await cancel(task)
        finally:
            if self._entered:
                await self._answer.__aexit__(*exc)

    def __aiter__(self) -> BackendStream:
        return self

    def __anext__(self) -> Awaitable[list[ChunkOrRun]]:
        return self._next()

    async def _open_stream(self) -> list[ChunkOrRun]:
        if self._open_after is None:
            self._next = (await self._enter()).__anext__
            return await self._next()
        opening = asyncio.ensure_future(self._enter())
        self._next = partial(self._await_first, opening)
        return await self._next() if await self._done_within(self._open_after, opening) else []

    async def _enter(self) -> AsyncIterator[list[ChunkOrRun]]:
        await self._answer.__aenter__()
        self._entered = True
        self._answer.receiver = self._receiver
        return aiter(self._answer)

    async def _await_first(self, opening: asyncio.Future[AsyncIterator[list[ChunkOrRun]]]) -> list[ChunkOrRun]:
        chunks = await opening
        first = asyncio.ensure_future(_first(chunks))
        self._next = partial(self._return_first, chunks, first)
        return await self._next() if await self._done_within(FIRST_CHUNK, first) else []

    async def _return_first(
        self, chunks: AsyncIterator[list[ChunkOrRun]], first: asyncio.Future[list[ChunkOrRun]]
    ) -> list[ChunkOrRun]:
        self._next = chunks.__anext__
        return await first

    async def _done_within(self, seconds: float, task: asyncio.Future[Any]) -> bool:
        """Wait for a task, and return whether it is done; it is cancelled when the stream is closed."""
        self._tasks.append(task)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return bool(done)


class DeadlineExceeded(Exception):
    """The answer was not complete at its deadline."""


class DeadlineIterator:
    """Iterates over chunks until a deadline, which starts with the first one; then raises `DeadlineExceeded`."""

    def __init__(self, batches: AsyncIterator[list[ChunkOrRun]], deadline: Deadline) -> None:
        self._batches = batches
        self._deadline = deadline

    def __aiter__(self) -> DeadlineIterator:
        return self

    async def __anext__(self) -> list[ChunkOrRun]:
        try:
            async with asyncio.timeout_at(self._deadline.at) as limit:
                batch = await anext(self._batches)
        except TimeoutError:
            if limit.expired():
                raise DeadlineExceeded from None
            raise
        if batch:
            self._deadline.start()
        return batch


async def _first(chunks: AsyncIterator[list[ChunkOrRun]]) -> list[ChunkOrRun]:
    return await anext(chunks, [])


def ending_of(reader: ChunkReader, failure: BackendError | None) -> str | None:
    """
    Return how an answer ended: a value of `ChunkReader.ended`.

    A connection that breaks after the finish reason does not make the answer incomplete.
    """
    return "error" if failure and reader.finish_reason is None else reader.ended


def finish_response(builder: EventBuilder, query: ModelQuery, failure: BackendError | None) -> None:
    """End the response as completed, incomplete (if it was truncated), or failed."""
    ended = ending_of(query.reader, failure)
    query.reader.calls.end(cut=ended != "completed")
    if ended == "completed":
        builder.complete()
    elif ended in ("max_output_tokens", "content_filter"):
        builder.incomplete(ended)
    else:
        builder.fail(failure or (broken_off() if ended is None else gave_up()))
    _record_usage(builder, query)


def _finish_at_deadline(builder: EventBuilder, query: ModelQuery, failure: BackendError | None) -> None:
    """End the response as incomplete at its deadline."""
    query.reader.calls.end(cut=True)
    builder.incomplete("max_output_seconds")
    _record_usage(builder, query)


def _record_usage(builder: EventBuilder, query: ModelQuery) -> None:
    response = builder.response
    response["usage"] = query.usage(response["output"])
    response["service_tier"] = query.reader.service_tier or response["service_tier"]


# Each is a new exception, because a raised one holds its traceback's frames, and with them the answer.


def unreadable() -> BackendError:
    """Return the error for an answer that cannot be parsed."""
    return BackendError("The backend's answer could not be read.")


def broken_off() -> BackendError:
    """Return the error for a stream that ended early."""
    return BackendError("The backend's stream ended before the answer was complete.")


def gave_up() -> BackendError:
    """Return the error for an answer that ends with an error as its finish reason."""
    return BackendError("The backend reported an error while it was answering.", error_type="model_error")
