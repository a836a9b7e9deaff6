"""
The run of a response, from the backend request to the terminal event.

`Run` is the same for JSON (drained), SSE (encoded), WebSocket (framed) and background (written to a log). `RunWorker`
runs a background response: it appends the events to the log and renews the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast

from app.core.access import UNRESTRICTED, KeyAccess, hash_of
from app.core.dialects import DIALECTS, Dialect
from app.core.history.context import RequestContext
from app.core.history.turns import Turn
from app.core.prices import NANO
from app.core.request import COST
from app.core.sse.encoder import encode_sse
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_builder import resolve_upstream
from app.core.types import JSONObject, Usage
from app.core.types.frozen import frozen
from app.core.types.request import TERMINAL, Item, Response
from app.errors import APIError, StoreUnavailable
from app.observability import log_context
from app.observability.lifecycle import ResponseLifecycle, clock
from app.responses import compaction
from app.responses.delivery import EventWriter, NoDelivery, Outbox
from app.responses.generate import Generation
from app.responses.images import turn_changes
from app.stores import Change, Store, apply_with
from app.stores.event_log import EventLog, EventSegment, LeaseState, RunKey

T = TypeVar("T")

logger = logging.getLogger(__name__)
content = logging.getLogger("app.content")  # disabled unless the settings enable it

UNEXPECTED = "The server failed while creating this response."

_WARNINGS_STORED = 50
# Seconds between two appends of one run: an append costs the store as much as many events, and clients that follow a
# background run do not notice the delay.
APPEND_PAUSE = 0.05
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


@frozen
class Caller:
    """The caller of a request."""

    owner: str = "anonymous"  # of the objects that the caller stores
    key: str | None = None  # the key itself, for backends that pass it through
    dialect: Dialect = DIALECTS["openresponses"]
    access: KeyAccess = UNRESTRICTED  # what the key may do

    @property
    def key_names(self) -> frozenset[str]:
        """What the settings may call the key: the name of its table, if it has one, and `sha256:` with its SHA-256."""
        names = {self.access.table or self.access.name} if self.access.configured else set()
        return frozenset(names if self.key is None else {*names, hash_of(self.key)})


class SaveTurn(Protocol):
    """Stores a turn and applies the changes that belong to it; `again`: whether it may have been stored before."""

    async def __call__(self, turn: Turn, addition: Sequence[Change], /, *, again: bool) -> None: ...


class LeaseLost(Exception):
    """The worker has lost its lease or cannot store the run; another process ends it when the lease expires."""


@frozen
class Storage:
    """How a response is stored when it ends, and the data that is stored with it."""

    save: SaveTurn
    addition: Callable[[Turn], Awaitable[list[Change]]]  # returns the changes that add it to its conversation
    input: list[Item]  # the request's own items, as the API lists them
    request: JSONObject  # the stored fields of the request: see `recorded_request`


class Run:
    """
    Generates one response: `response` is its current state, and `generate` delivers its events in batches.

    The terminal event is delivered after the response was stored, so a client that receives it can continue from it.
    """

    def __init__(
        self,
        context: RequestContext,
        caller: Caller,
        generation: Generation,
        storage: Storage | None,
        lifecycle: ResponseLifecycle,
    ) -> None:
        """`storage` is None for a response that is not stored anywhere."""
        self.response = generation.builder.response
        self.key = RunKey(f"{caller.owner}:{context.key}", self.response["id"])
        self._builder = generation.builder
        self._context = context
        self.answering = False  # whether the head of a JSON answer was sent, so that errors have to be in the response
        self._opened = False  # whether an event was delivered, so that errors have to be events
        self._ended = False  # whether the terminal event was emitted
        self._may_be_stored = False
        self._generation = generation
        self._lifecycle = lifecycle
        self._storage = storage
        self._warned: set[str] = set()  # the warnings that an event was emitted for

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed, one sentence each."""
        return [*self._context.warnings, *self._generation.warnings]

    @property
    def failure(self) -> APIError | None:
        """The error with which the response has failed; None if it has not."""
        return self._builder.failure

    @property
    def stop_sequence(self) -> str | None:
        """The stop sequence that ended the text, if known."""
        return self._builder.stop_sequence

    async def generate(self, delivery: EventWriter, open_after: float | None = None) -> None:
        """
        Generate the response and deliver its events.

        Raises errors before the first event, usually `APIError`, unless `answering` is set; all others are events.
        """
        lifecycle, builder, response = self._lifecycle, self._builder, self.response
        logger.debug("response started", extra={"response_id": response["id"], "model": response["model"]})
        self._log_content("request content", body=self._generation.body)
        with self.watched():
            try:
                with lifecycle.stoppable():
                    await self._generation.generate(_FirstOutput(self, delivery), open_after)
            except Exception as error:
                if not (self._opened or self.answering):
                    raise
                self._generation.abort(_failure(error))
            lifecycle.last = clock()
            lifecycle.failure = builder.failure
            self._charge()
            await self._save()
            lifecycle.failure = builder.failure
        self._emit_warnings()
        builder.end()
        self._ended = True
        delivery.send(builder.pop_events())

    def note_events(self, events: EventBatch) -> bool:
        """Note the first output, and add warnings to the events before it; return whether there was output."""
        self._opened = True
        if self.response["output"]:
            self._lifecycle.first = clock()
        self._emit_warnings()
        events.extend(self._builder.pop_events())
        return self._lifecycle.first is not None

    def _emit_warnings(self) -> None:
        """Emit an `antiphon:warning` event for each new warning, if the caller has requested such events."""
        builder = self._builder
        for warning in self.warnings if builder.framework_events else ():
            if warning not in self._warned:
                self._warned.add(warning)
                builder.framework("warning", message=warning)

    def watched(self) -> AbstractContextManager[None]:
        """
        Notify the observers of the response's start and end, and log its end. `generate` enters this context itself.

        Entered around `generate` and `stop`, it makes them one lifecycle.
        """
        return self._lifecycle.watched(self._usage, self._log_end)

    def queue(self) -> EventBatch:
        """Mark the response as queued and return the events."""
        self._builder.mark_queued()
        return self._builder.pop_events()

    async def stop(self, error: APIError | None = None) -> EventBatch:
        """
        End the response after `generate` was cancelled: as failed with that error, or as cancelled without one.

        Returns the events that were not delivered yet. Does nothing if the terminal event was delivered.
        """
        return EventBatch() if self._ended else await self._stop(error)

    async def break_off(self, cause: Exception) -> EventBatch:
        """
        End the response as failed once `generate` has ended, since an event could not be sent; returns the last ones.

        It fails even if that was the terminal event.
        """
        return await self._stop(_failure(cause))

    async def _stop(self, error: APIError | None) -> EventBatch:
        self._generation.abort(error)
        self._charge()
        await self._save()
        self._lifecycle.failure = self._builder.failure
        if self._lifecycle.ended:
            self._log_end()
        self._builder.end()
        self._ended = True
        return self._builder.pop_events()

    def turn(self) -> Turn:
        """Return the turn to store, with the response in its current state."""
        upstream = {item_id: resolve_upstream(fields) for item_id, fields in self._builder.upstream.items()}
        added, request = (self._storage.input, self._storage.request) if self._storage else ([], {})
        upstream = self._context.decrypted | upstream
        warnings = self.warnings[:_WARNINGS_STORED]
        measures = self._lifecycle.measures() if self.response["status"] in TERMINAL else None
        return Turn(self.response, added, upstream, request, warnings, measures=measures)

    async def drain(self) -> Response:
        """
        Generate the response and return it when it has ended.

        Raises `APIError` if it failed without any output: clients retry on an HTTP status, not on a failed response.
        It does not once `answering` is set.
        """
        await self.generate(NoDelivery())
        failure = self._builder.failure
        if failure and not self.response["output"] and not self.answering:
            raise failure
        return self.response

    async def compacted(self) -> JSONObject:
        """Generate a compaction and return the resource of `POST /responses/compact`; raises as `drain`."""
        context = self._context
        return compaction.resource(await self.drain(), context.items, context.key)

    def keepalive(self) -> EventBatch:
        """Return a `keepalive` event."""
        self._builder.keepalive()
        return self._builder.pop_events()

    def _usage(self) -> Usage:
        """Return the usage so far: an estimate for an interrupted answer, {} if none had started."""
        if self._lifecycle.failure and self._lifecycle.first is None:
            return {}  # there is no output
        return self._generation.usage()

    def _charge(self) -> None:
        """Charge the usage, and add the cost to the response if the request includes it."""
        if usage := self._usage():
            self._lifecycle.charge(usage)
        if self._lifecycle.shows_cost:
            cost = self._lifecycle.cost
            cast(JSONObject, self.response)[COST] = None if cost is None else cost / NANO

    def _log_end(self) -> None:
        """Log the end of the response, in the line of its HTTP request or in a line of its own."""
        response, lifecycle = self.response, self._lifecycle
        line = log_context.request_line() if lifecycle.delivery in ("json", "sse") else None
        if lifecycle.failure or (log_context.access if line else logger).isEnabledFor(logging.INFO):
            level, ended = lifecycle.end_of_log(response["usage"])
            fields = {"response_id": response["id"], **ended}
            if line:
                line.message, line.level, line.fields = "response ended", level, fields
            else:
                logger.log(level, "response ended", extra=fields)
        self._log_content("response content", output=response["output"])

    def _log_content(self, event: str, **fields: object) -> None:
        # By the logger's own level, not the effective one: "`store: false` is not stored anywhere, nor logged."
        if content.level == logging.DEBUG and self.response["store"]:
            content.debug(event, extra={"response_id": self.response["id"], **fields})

    async def _save(self) -> None:
        if self._storage is None:
            return
        turn = self.turn()
        again, self._may_be_stored = self._may_be_stored, True
        try:
            await self._storage.save(turn, await self._storage.addition(turn), again=again)
        except LeaseLost:
            raise
        except Exception as error:
            failure = _failure(error)
            logger.warning("response not stored", extra={"response_id": self.response["id"], "reason": failure.reason})
            self._builder.fail(failure)
            try:
                await self._storage.save(self.turn(), [], again=True)  # if it was stored, it has to match the stream
            except LeaseLost:
                raise
            except Exception as again:
                _failure(again)


def _failure(error: Exception) -> APIError:
    """Return the error with which a response ends because of an exception; one that is a bug is logged."""
    if isinstance(error, APIError):
        return error
    logger.error("unexpected error", exc_info=error)
    return APIError(UNEXPECTED)


class _FirstOutput:
    """Takes the events up to the first output, tells the run of them, and passes them on to a delivery."""

    def __init__(self, run: Run, delivery: EventWriter) -> None:
        self._run = run
        self._delivery = delivery

    @property
    def paused(self) -> bool:
        return self._delivery.paused

    def send(self, events: EventBatch) -> EventWriter:
        noted = self._run.note_events(events)
        self._delivery.send(events)
        return self._delivery if noted else self

    async def drain(self) -> None:
        await self._delivery.drain()


class RunWorker:
    """
    Runs one background response in this process.

    One task generates the response; another appends its events to the log, with a pause after each append except the
    last. A slow store leads to larger batches, and slows down the backend only if much text is unwritten.
    """

    def __init__(
        self,
        run: Run,
        store: Store,
        log: EventLog,
        worker: str,
        *,
        timeout: float,
        announce: Callable[[Response], Awaitable[None]] | None = None,
    ) -> None:
        """`timeout` is how long to retry store operations, in seconds; `announce` is called before the log ends."""
        self.task: asyncio.Task[None] | None = None
        self.renewed = asyncio.get_running_loop().time()  # when its stored data was last renewed, in loop time
        self._run = run
        self._store = store
        self._log = log
        self._worker = worker
        self._timeout = timeout
        self._announce = announce
        self._stopped: asyncio.Future[APIError | None] = asyncio.get_running_loop().create_future()
        self._unwritten = Outbox()

    @property
    def response(self) -> Response:
        """The response as it is now."""
        return self._run.response

    async def queue(self) -> Response:
        """Store the response, start its log, and return the queued response."""
        events, turn = self._run.queue(), self._run.turn()
        queued: Response = {**turn.response, "output": []}
        await self._log.begin(self._run.key, self._worker)
        await self._store.apply(*await turn_changes(self._run.key.bucket, turn))
        await self._log.append(self._run.key, self._worker, segment_of(events))
        return queued

    def begin(self, ended: Callable[[], object]) -> None:
        """Start the run; `ended` is called at its end."""
        self.task = asyncio.create_task(self._write())
        self.task.add_done_callback(lambda _: ended())

    def stop(self, error: APIError | None = None) -> None:
        """Make the run fail with that error, or cancel it without one, unless it has ended."""
        if not self._stopped.done():
            self._stopped.set_result(error)

    def release(self) -> None:
        """Abandon the run: another process has it, or it was deleted."""
        if self.task:
            self.task.cancel()

    def apply_claim(self, claim: LeaseState) -> None:
        """Release or stop the run if its lease was lost or it was cancelled."""
        if claim == "lost":
            self.release()
        elif claim == "cancelled":
            self.stop()

    async def _write(self) -> None:
        """Append events to the log as they are generated."""
        making = asyncio.create_task(self._generate())
        making.add_done_callback(lambda _: self._unwritten.close())
        try:
            while self._unwritten or not making.done():
                await self._unwritten.wait()
                if self._unwritten:
                    is_paused = self._unwritten.paused
                    await self._write_batch()
                    await asyncio.wait({making}, timeout=0 if is_paused else APPEND_PAUSE)
            await making
        except (LeaseLost, StoreUnavailable) as error:
            logger.warning("response abandoned", extra={"response_id": self._run.key.id, "reason": str(error)})
        except Exception:  # no code awaits this task, so the exception has to be logged here
            logger.exception("unexpected error", extra={"response_id": self._run.key.id})
        finally:
            making.cancel()
            await asyncio.wait({making})

    async def _write_batch(self) -> None:
        """Append the events that are not written yet."""
        for part in self._unwritten.pop().parts():
            await self._append(segment_of(part))
            await asyncio.sleep(0)  # for other requests: appending to a log in memory does not yield

    async def _append(self, batch: EventSegment) -> None:
        if batch.ends and (announce := self._announce):
            try:
                await persist(lambda: announce(self._run.response), self._timeout)
            except StoreUnavailable:
                logger.warning("webhook lost", extra={"response_id": self._run.key.id})
        claim = await persist(lambda: self._log.append(self._run.key, self._worker, batch), self._timeout)
        if claim == "lost":
            raise LeaseLost("another worker took it over")
        self.apply_claim(claim)

    async def _generate(self) -> None:
        """Generate the response until it ends or is stopped."""
        with self._run.watched():
            await self._until_stopped()

    async def _until_stopped(self) -> None:
        turn = self._run.turn()
        await self.save(turn._replace(response={**turn.response, "status": "in_progress", "output": []}), again=True)
        draining = asyncio.create_task(self._run.generate(self._unwritten, open_after=0))
        try:
            first: list[asyncio.Future[Any]] = [draining, self._stopped]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._run.response["status"] not in TERMINAL:
                draining.cancel()
            await asyncio.wait({draining})
        finally:
            draining.cancel()
            await asyncio.wait({draining})
        if draining.cancelled():
            error = self._stopped.result()
        elif (failure := draining.exception()) is None:
            return
        elif isinstance(failure, Exception) and not isinstance(failure, LeaseLost):
            error = _failure(failure)
        else:
            raise failure
        self._unwritten.send(await self._run.stop(error))

    async def save(self, turn: Turn, addition: Sequence[Change] = (), /, *, again: bool) -> None:
        """
        Store a turn in place of the earlier record; if that is missing, the response was deleted.

        The lease is renewed first, because a worker without a lease must not overwrite what its successor stored.
        """

        bucket, response_id = self._run.key

        async def put() -> None:
            if (await self._log.renew(self._worker, [self._run.key]))[self._run.key] == "lost":
                raise LeaseLost("another worker took it over")
            changes = await turn_changes(bucket, turn, requires=response_id)
            if not await apply_with(self._store, changes, addition):
                raise LeaseLost("it was deleted")

        try:
            await persist(put, self._timeout)
        except StoreUnavailable as error:
            raise LeaseLost("it cannot be stored") from error


async def persist(attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Repeat an attempt while the store is unavailable, for up to so many `seconds`; then raise `StoreUnavailable`."""
    give_up = asyncio.get_running_loop().time() + seconds
    pause = 0.05
    while True:
        try:
            return await attempt()
        except StoreUnavailable:
            if asyncio.get_running_loop().time() + pause > give_up:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1)


def segment_of(events: EventBatch) -> EventSegment:
    """Encode consecutive events."""
    first, last = events.first, events.last
    return EventSegment(
        first["sequence_number"], last["sequence_number"], encode_sse(events), ends=last["type"] in _LAST
    )
