"""Query the model and deliver its answer. Each list of deltas becomes an event batch, delivered in a single write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from app.backends import Backend, OpenRequest
from app.core.history.truncation import fitting_share, shorter_conversations
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_builder import EventBuilder
from app.core.types import Item, JSONObject, Usage
from app.core.types.deltas import Delta, Tap
from app.core.usage import estimate_prompt, usage_of
from app.errors import APIError, BackendError, ImagesUndescribed
from app.responses.delivery import EventWriter

if TYPE_CHECKING:
    from app.responses.images.descriptions import ImageDescriber

logger = logging.getLogger(__name__)

# Seconds to wait for the first delta after the status line: many servers send an error in the first frame of a 200, and
# clients retry only on an HTTP status.
FIRST_CHUNK = 0.2


class Deadline:
    """`seconds` after the first `start`."""

    def __init__(self, seconds: float) -> None:
        self.at: float | None = None  # loop time; None: not started
        self._seconds = seconds

    def start(self) -> None:
        if self.at is None:
            self.at = asyncio.get_running_loop().time() + self._seconds


@dataclass(slots=True)
class ModelQuery:
    """A model request and its answer's reader."""

    backend: Backend
    model_request: ModelRequest
    encoded: EncodedRequest  # for the first backend
    reader: DeltaReader
    margin: float | None = None  # share (0 to 1) of the context for a long prompt; None: not truncated
    images: ImageDescriber | None = None  # None: not described
    open_request: OpenRequest | None = None  # set when the request is sent
    left_out: int = 0  # items dropped from a long prompt
    _shorter: Iterator[list[Item]] | None = None  # ever shorter conversations

    @property
    def body(self) -> JSONObject:
        return self.encoded.body

    @property
    def warnings(self) -> list[str]:
        warnings = self.open_request.warnings if self.open_request else None
        named = list(self.encoded.warnings if warnings is None else warnings)
        if self.images:
            named += self.images.warnings
        if self.left_out:
            count = self.left_out
            named.append(f"The conversation is too long for the model; its oldest {count} items were dropped.")
        return named

    async def shorten(self, error: BackendError) -> bool:
        """Drop items after a "prompt too long" error; return whether any were dropped."""
        if self.margin is None or error.code != "context_length_exceeded":
            return False
        # In a thread: estimating and encoding an 8 MB prompt takes a second.
        if not await asyncio.to_thread(self._drop_items, error.message, self.margin):
            return False
        logger.info("prompt too long; retried with fewer items", extra={"omitted_items": self.left_out})
        return True

    def _drop_items(self, message: str, margin: float) -> bool:
        before = self.model_request.items
        if self._shorter is None:
            self._shorter = shorter_conversations(before, estimate_prompt(self.body), fitting_share(message), margin)
        if (items := next(self._shorter, None)) is None:
            return False
        self.model_request = self.model_request.without_oldest(items)
        self.encoded = self.model_request.encoded = self.backend.encode(self.model_request)
        self.left_out += len(before) - len(items)
        return True

    def usage(self, output: Sequence[Item]) -> Usage:
        return usage_of(self.reader.usage, self.body, output, self.reader.prompt_estimate)


# Ends a response, or leaves it open. The second argument is how the answer ended (`DeltaReader.ended`, or
# `max_output_seconds`); the failure is None without an error.
Finish: TypeAlias = Callable[[ModelQuery, str | None, BackendError | None], None]


class Generation:
    """Generates a response. This class queries no model: the response only stores input for later responses."""

    def __init__(self, builder: EventBuilder) -> None:
        self.builder = builder
        self._query: ModelQuery | None = None  # the latest

    @property
    def warnings(self) -> list[str]:
        """One sentence each, about dropped or changed parts."""
        return self._query.warnings if self._query else []

    @property
    def body(self) -> JSONObject:
        """Latest backend request, or {}."""
        return self._query.body if self._query else {}

    async def generate(self, delivery: EventWriter, open_after: float | None) -> None:
        """Deliver all events but the last: see `respond`."""
        self.builder.start()
        self.builder.complete()
        self.builder.response["usage"] = usage_of(None, {}, [])
        delivery.send(self.builder.pop_events())

    def usage(self) -> Usage:
        """Estimated if interrupted, {} without an answer."""
        return self.builder.response["usage"] or {}

    def abort(self, error: APIError | None) -> None:
        """End a cancelled response: failed with this error, or cancelled without an error."""
        abort_response(self.builder, error)
        self.builder.response["usage"] = usage_of(None, {}, [])


class OneAnswer(Generation):
    def __init__(self, query: ModelQuery, deadline: Deadline | None = None) -> None:
        self.builder = query.reader.builder
        self._query: ModelQuery = query
        self._deadline = deadline

    # Not `async`: each read would resume another coroutine.
    def generate(self, delivery: EventWriter, open_after: float | None) -> Coroutine[Any, Any, None]:
        return respond(self._query, delivery, open_after=open_after, deadline=self._deadline)

    def usage(self) -> Usage:
        return self.builder.response["usage"] or self._query.usage(self.builder.partial_output())

    def abort(self, error: APIError | None) -> None:
        self.builder.start()
        self._query.reader.end(cut=True)
        abort_response(self.builder, error)
        _record_usage(self._query)


class DeliveredAnswer:
    """Delivers an answer on arrival; the first delta starts the response. `taps` observe the deltas first."""

    def __init__(self, reader: DeltaReader, delivery: EventWriter, deadline: Deadline | None) -> None:
        self.reader = reader
        self.begun = False  # whether a delta was received; before that, another server can answer instead
        self.taps: list[Tap] = []
        self.started = False  # this answer has started the response
        self.limit: asyncio.Timeout | None = None  # of the task that awaits the answer
        self._reads = reader.reads  # Python 3.11 is slow to find class attributes
        self._builder = reader.builder
        self._delivery = delivery
        self._deadline = deadline
        self._step: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start_within(self, seconds: float) -> None:
        """Start the response after `seconds` without a delta or an error."""
        self.stop_timer()
        if not self.started:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.start)

    def stop_timer(self) -> None:
        """The first delta starts the response."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def start(self) -> None:
        """Start the response once, and deliver its first events."""
        if not self.started:
            self._start()
            if events := self._builder.pop_events():
                self._delivery.send(events)

    def _start(self) -> None:
        if self._timer:
            self.stop_timer()
        self.started = True
        self._builder.start()
        self._builder.delivered = True
        self._step = self._builder.begin_step("model")

    def end_step(self) -> None:
        """Record that the model has answered."""
        if not self.started:
            self._builder.start()
        if self._step:
            self._builder.end_step(self._step, "model")

    @property
    def over(self) -> bool:
        """Whether further deltas are unwanted: a stop sequence was found."""
        return self.reader.stopped

    @property
    def paused(self) -> bool:
        return self._delivery.paused

    async def drain(self) -> None:
        if self._delivery.paused:
            await self._delivery.drain()

    def _begin(self) -> None:
        self.begun = True
        if not self.started:
            self._start()
        if self._deadline and self.limit:
            self._deadline.start()
            self.limit.reschedule(self._deadline.at)

    def receive(self, deltas: Sequence[Delta]) -> bool:
        if not self.begun:
            self._begin()
        if self.taps:
            for tap in self.taps:
                tap(deltas)
        reader, reads, builder, delivery = self.reader, self._reads, self._builder, self._delivery
        for delta in deltas:  # not `feed`, to save a call per read
            reads[type(delta)](reader, delta)
        if builder.on_delivery is not None:
            builder.on_delivery()
        if events := builder.events:  # not `pop_events`, for the same reason
            builder.events = EventBatch()
            delivery.send(events)
        return not (delivery.paused or reader.stopped)


async def respond(
    query: ModelQuery,
    delivery: EventWriter,
    *,
    open_after: float | None,
    deadline: Deadline | None = None,
    finish: Finish | None = None,
) -> None:
    """
    Deliver an answer's events; the last stay in the reader's builder, for `builder.end()`.

    Delivery begins with the backend's answer, or after `open_after` seconds (None: no limit). Earlier errors raise
    `BackendError`; later errors become events. At the `deadline`, which starts with the first delta, the response is
    incomplete. `finish` ends the response, or leaves it open for another round.
    """
    builder = query.reader.builder
    ended: str | None = None
    failure: BackendError | None = None
    answer = DeliveredAnswer(query.reader, delivery, deadline)
    limit = asyncio.timeout_at(deadline.at) if deadline else None
    try:
        if open_after is not None:
            answer.start_within(open_after)
        if limit is None:
            ended = await _receive(query, answer, open_after)
        else:
            async with limit:
                answer.limit = limit
                ended = await _receive(query, answer, open_after)
    except BackendError as error:
        if not builder.delivered:
            raise
        failure = error
    except Exception as error:
        if isinstance(error, TimeoutError) and limit and limit.expired():
            ended = "max_output_seconds"
        elif builder.delivered:
            logger.exception("backend response processing failed")  # the stream still needs its terminal event
            failure = unreadable()
        else:
            raise
    finally:
        answer.stop_timer()
    answer.end_step()
    _finish(finish or finish_response, query, ended, failure)


async def _receive(query: ModelQuery, answer: DeliveredAnswer, open_after: float | None) -> str | None:
    """
    Receive a query's answer, if necessary again with a shorter prompt or described images; see `DeltaReader.ended`.
    """
    while True:
        if query.images:
            await query.images.describe(query.backend.undescribed_images(query.model_request))
        open_request = query.open_request = query.backend.open(query.model_request)
        try:
            async with open_request:
                if open_after is not None:
                    answer.start_within(FIRST_CHUNK)
                await open_request.receive(answer)
                ended = answer.reader.ended
                query.model_request.attempts.broken_off = ended in (None, "error")
            return ended
        except BackendError as error:
            # Some servers reject a prompt only in a stream's first frame.
            if query.images and isinstance(error, ImagesUndescribed):
                await query.images.describe(error.urls)
            elif answer.begun or not await query.shorten(error):
                raise


def _finish(end: Finish, query: ModelQuery, ended: str | None, failure: BackendError | None) -> None:
    try:
        if query.reader.usage is None:
            query.reader.prompt_estimate = estimate_prompt(query.body)
        end(query, ending_of(query.reader, failure) if failure else ended, failure)
        if query.reader.usage and (cost := query.reader.usage.cost) is not None:
            query.model_request.attempts.costs.append(cost)
    except Exception:
        logger.exception("backend response completion failed")
        builder = query.reader.builder
        if not builder.failure:
            builder.fail(unreadable())
        output = builder.response["output"]
        builder.response["usage"] = usage_of(None, query.body, output, query.reader.prompt_estimate)


def abort_response(builder: EventBuilder, error: APIError | None) -> None:
    """End the response: failed with this error, or cancelled."""
    builder.start()
    if error:
        builder.fail(error)
    else:
        builder.cancel()


class DeadlineExceeded(Exception): ...


def ending_of(reader: DeltaReader, failure: BackendError | None) -> str | None:
    """How an answer ended (`DeltaReader.ended`); failures after the finish reason are ignored."""
    return "error" if failure and reader.finish_reason is None else reader.ended


def finish_response(query: ModelQuery, ended: str | None, failure: BackendError | None) -> None:
    """End the response as completed, incomplete (truncated), or failed."""
    builder = query.reader.builder
    query.reader.end(cut=ended != "completed")
    if ended == "completed":
        builder.complete()
    elif ended in ("max_output_tokens", "max_output_seconds", "content_filter"):
        builder.incomplete(ended)
    else:
        builder.fail(failure or _FAILURES[ended]())
    _record_usage(query)


def _record_usage(query: ModelQuery) -> None:
    response = query.reader.builder.response
    response["usage"] = query.usage(response["output"])
    response["service_tier"] = query.reader.service_tier or response["service_tier"]


def unreadable() -> BackendError:
    return BackendError("The backend's answer could not be read.")


# By `DeltaReader.ended`. New exceptions each time: a raised exception retains its frames, and with them the answer.
_FAILURES: Mapping[str | None, Callable[[], BackendError]] = {
    None: partial(BackendError, "The backend's stream ended before the answer was complete."),
    "error": partial(BackendError, "The backend reported an error during its response.", error_type="model_error"),
    "no_summary": partial(BackendError, "The model wrote no summary.", error_type="model_error", code="model_error"),
}
