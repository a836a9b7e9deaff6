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
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from app.backends import Backend, ChatRequest, Chunk
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_builder import EventBuilder
from app.core.types import Usage
from app.core.types.usage import usage_of
from app.errors import APIError, BackendError
from app.responses.prompt import Prompt

logger = logging.getLogger(__name__)

# Seconds to wait, once the status line is known, for a first chunk: many servers hide a refusal in the first frame of
# a 200, and clients retry on nothing but an HTTP status.
FIRST_CHUNK = 0.2


class Deadline:
    """The time at which an answer has to end: so many `seconds` after it was begun, whoever began it."""

    def __init__(self, seconds: float) -> None:
        self.at: float | None = None  # in loop time; None: not begun
        self._seconds = seconds

    def start(self) -> None:
        """Let the time run, if it does not yet."""
        if self.at is None:
            self.at = asyncio.get_running_loop().time() + self._seconds


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a backend, and what reads the answer."""

    backend: Backend
    request: ChatRequest
    reader: ChunkReader
    prompt: Prompt | None = None  # that the request was made of

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed, a sentence each."""
        return [*(self.prompt.warnings if self.prompt else ()), *self.request.warnings]


Finish: TypeAlias = Callable[[EventBuilder, ChunkReader, ChatRequest, BackendError | None], None]


class Generation(Protocol):
    """A response as it is generated: by one answer of a model, or by several and what hosted tools do between them."""

    builder: EventBuilder

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed by now, a sentence each."""
        ...

    @property
    def body(self) -> dict[str, Any]:
        """The latest request to the backend; {} where there is none."""
        ...

    def events(self, open_after: float | None) -> AsyncGenerator[EventBatch, None]:
        """Yield the events, all but the terminal one; see `respond`."""
        ...

    def usage(self) -> Usage:
        """Return the usage by now: estimated for an answer that was broken off, {} where there is nothing to count."""
        ...

    def abort(self, error: APIError | None) -> None:
        """End the response from outside, once `events` is closed: it fails with that error, or else was cancelled."""
        ...


class NoAnswer:
    """A response for which no model is asked: there is its input, and no output, to be continued from."""

    def __init__(self, builder: EventBuilder) -> None:
        self.builder = builder
        self.warnings: list[str] = []
        self.body: dict[str, Any] = {}

    async def events(self, open_after: float | None) -> AsyncGenerator[EventBatch, None]:
        """Yield the events, all but the terminal one."""
        self.builder.start()
        self.builder.complete()
        self.builder.response["usage"] = usage_of(None, {}, [])
        yield self.builder.take()

    def usage(self) -> Usage:
        """Return the usage, which is none."""
        return self.builder.response["usage"] or {}

    def abort(self, error: APIError | None) -> None:
        """End the response from outside."""
        _abort(self.builder, error)
        self.builder.response["usage"] = usage_of(None, {}, [])


class OneAnswer:
    """A response that is one answer of a model."""

    def __init__(self, builder: EventBuilder, question: Question, deadline: Deadline | None = None) -> None:
        self.builder = builder
        self._question = question
        self._deadline = deadline

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed by now, a sentence each."""
        return self._question.warnings

    @property
    def body(self) -> dict[str, Any]:
        """The request to the backend."""
        return self._question.request.body

    def events(self, open_after: float | None) -> AsyncGenerator[EventBatch, None]:
        """Yield the events, all but the terminal one; see `respond`."""
        return respond(self.builder, self._question, open_after=open_after, deadline=self._deadline)

    def usage(self) -> Usage:
        """Return the usage by now."""
        known = self.builder.response["usage"]
        return known or usage_of(self._question.reader.usage, self.body, self.builder.partial_output())

    def abort(self, error: APIError | None) -> None:
        """End the response from outside."""
        reader = self._question.reader
        if self.builder.response["status"] == "queued":
            self.builder.start()
        reader.calls.end(cut=True)
        _abort(self.builder, error)
        _record_usage(self.builder, reader, self._question.request)


async def respond(
    builder: EventBuilder,
    question: Question,
    *,
    open_after: float | None,
    deadline: Deadline | None = None,
    opened: bool = False,
    finish: Finish | None = None,
) -> AsyncGenerator[EventBatch, None]:
    """
    Yield the events of one answer. What closes it stays in the builder, and the terminal event is for `builder.end()`.

    The first list is yielded once the backend is known to answer, or after `open_after` seconds without a sign of it
    (None: however long it takes). Raises `BackendError` for a refusal that is known before that, unless the response
    has been `opened` already; later errors are events. `deadline` begins with the first chunk, and where it passes the
    response is incomplete. `finish` brings the response to its end, or decides that it is not its end.
    """
    failure: BackendError | None = None
    step: str | None = None
    begun = False
    end = finish or finish_response
    reader, request = question.reader, question.request
    try:
        async with BackendStream(question.backend, request, open_after) as answer:
            async for chunks in DeadlineIterator(answer, deadline) if deadline else answer:
                if not begun:
                    _start(builder)
                    step = builder.begin_step("model")
                    begun = opened = True
                for chunk in chunks:
                    reader.feed(chunk)
                if events := builder.take():
                    yield events
    except BackendError as error:
        if not opened:
            raise
        failure = error
    except DeadlineExceeded:
        end = _cut
    except Exception:
        if not opened:
            raise
        logger.exception("an answer could not be read")  # whoever hears the stream has to hear its end
        failure = unreadable()
    if not begun:
        _start(builder)
    builder.end_step(step, "model")
    try:
        end(builder, reader, request, failure)
    except Exception:
        logger.exception("an answer could not be ended")
        if not builder.failure:
            builder.fail(unreadable())
        builder.response["usage"] = usage_of(None, request.body, builder.response["output"])


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
    """Iterates over what comes before a deadline, which begins with the first chunk; then raises `DeadlineExceeded`."""

    def __init__(self, batches: AsyncIterator[list[Chunk]], deadline: Deadline) -> None:
        self._batches = batches
        self._deadline = deadline

    def __aiter__(self) -> DeadlineIterator:
        return self

    async def __anext__(self) -> list[Chunk]:
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


async def _first(chunks: AsyncIterator[list[Chunk]]) -> list[Chunk]:
    return await anext(chunks, [])


async def _put_away(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # known elsewhere, or of no interest any more


def ending_of(reader: ChunkReader, failure: BackendError | None) -> str | None:
    """
    Return how an answer ended, as `ChunkReader.ended` has it.

    A connection that breaks behind the finish reason takes nothing away from the answer.
    """
    return "error" if failure and reader.finish_reason is None else reader.ended


def finish_response(
    builder: EventBuilder, reader: ChunkReader, request: ChatRequest, failure: BackendError | None
) -> None:
    """Bring the response to its end, truthfully: what was cut off is incomplete, and what broke has failed."""
    ended = ending_of(reader, failure)
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
