"""
A response's run, from the backend request to the terminal event.

`Run` creates the events of every response: JSON, SSE, WebSocket and background. `RunWorker` runs a background response
and writes its events to the event log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from app.core.access import UNRESTRICTED, KeyAccess, hash_of
from app.core.dialects import DIALECTS, Dialect
from app.core.history.context import RequestContext
from app.core.history.turns import Turn
from app.core.prices import NANO
from app.core.request import COST
from app.core.stream.event_batch import EventBatch, encode_sse
from app.core.stream.event_builder import resolve_upstream
from app.core.types import JSONObject, Usage, frozen
from app.core.types.request import TERMINAL, Item, Response
from app.errors import APIError, StoreUnavailable
from app.observability import log_context
from app.observability.lifecycle import ResponseLifecycle, Watched, clock
from app.responses import compaction
from app.responses.delivery import NO_DELIVERY, EventWriter, Outbox
from app.responses.generate import Generation
from app.responses.images import turn_changes
from app.stores import Change, EventLog, EventSegment, LeaseState, RunKey, Store, apply_with

T = TypeVar("T")

logger = logging.getLogger(__name__)
content = logging.getLogger("app.content")  # used if its own level, not the effective level, is DEBUG

UNEXPECTED = "The server failed while creating this response."

_WARNINGS_STORED = 50
# Seconds between appends to an event log. An append costs the store as much as storing many events.
APPEND_PAUSE = 0.05
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


@frozen
class Caller:
    owner: str = "anonymous"  # owner of stored objects
    key: str | None = None  # for backends that receive the caller's key
    dialect: Dialect = DIALECTS["openresponses"]
    access: KeyAccess = UNRESTRICTED  # permissions

    @property
    def key_names(self) -> frozenset[str]:
        """The key's names in the settings: its table's name, if any, and its `sha256:` hash."""
        names = {self.access.table or self.access.name} if self.access.configured else set()
        return frozenset(names if self.key is None else {*names, hash_of(self.key)})


class LeaseLost(Exception):
    """The worker has lost its lease or cannot store the run; another process ends the run when the lease expires."""


@frozen
class Storage:
    """How to store a response at its end."""

    save: Callable[[Turn, bool], Awaitable[None]]  # the bool: whether an earlier attempt may have succeeded
    input: list[Item]  # the request's own items, without its history, as the API lists them
    request: JSONObject  # stored fields: see `recorded_request`


class Run:
    """
    Generates one response; `response` is its resource in the current state.

    The response is stored before the terminal event is delivered, so that clients can continue from it immediately.
    """

    def __init__(
        self,
        context: RequestContext,
        caller: Caller,
        generation: Generation,
        storage: Storage | None,
        lifecycle: ResponseLifecycle,
    ) -> None:
        """`storage`: None for an unstored response."""
        self.response = generation.builder.response
        self._owner = caller.owner
        self._builder = generation.builder
        self._context = context
        self.answering = False  # a JSON answer's head was sent: errors must be in the response
        self.ended = False  # the terminal event was emitted
        self._may_be_stored = False
        self._generation = generation
        self._lifecycle = lifecycle
        self._storage = storage
        self._warned: set[str] = set()  # already emitted as events

    @property
    def key(self) -> RunKey:
        return RunKey(f"{self._owner}:{self._context.key}", self.response["id"])

    @property
    def warnings(self) -> list[str]:
        return [*self._context.warnings, *self._generation.warnings]

    @property
    def failure(self) -> APIError | None:
        return self._builder.failure

    @property
    def stop_sequence(self) -> str | None:
        """Stop sequence that ended the text, if known."""
        return self._builder.stop_sequence

    async def generate(self, delivery: EventWriter, open_after: float | None = None) -> None:
        """
        Deliver the response's events.

        Raises errors before the first event, unless `answering` is set; later errors are events. See also `drain`.
        """
        lifecycle, builder, response = self._lifecycle, self._builder, self.response
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("response started", extra={"response_id": response["id"], "model": response["model"]})
        if content.level == logging.DEBUG:
            self._log_content("request content", body=self._generation.body)
        with self.watched():
            try:
                builder.on_delivery = self._note_delivery
                with lifecycle:
                    await self._generation.generate(delivery, open_after)
            except Exception as error:
                if not (builder.delivered or self.answering):
                    raise
                self._generation.abort(_failure(error))
            finally:
                builder.on_delivery = None
            lifecycle.last = clock()
            lifecycle.failure = builder.failure
            self._charge()
            if self._storage:
                await self._save(self._storage)
                lifecycle.failure = builder.failure
        self.ended = True
        if builder.events is not None:
            self._emit_warnings()
            builder.end()
            delivery.send(builder.pop_events())
        elif builder.failure and not (response["output"] or self.answering):
            raise builder.failure

    def _note_delivery(self) -> None:
        """Record the first output, and emit warnings until then."""
        if self.response["output"]:
            self._lifecycle.seconds_to_first = clock() - self._lifecycle.began
            self._builder.on_delivery = None
        if self._builder.framework_events:
            self._emit_warnings()

    def _emit_warnings(self) -> None:
        """Emit an `antiphon:warning` event for each new warning, if requested."""
        builder = self._builder
        for warning in self.warnings if builder.framework_events else ():
            if warning not in self._warned:
                self._warned.add(warning)
                builder.framework("warning", message=warning)

    def watched(self) -> Watched:
        """
        Notify observers of the response's start and end, and log its end.

        `generate` enters this context itself. To report `generate` and `stop` as one response, enter it around both.
        """
        return Watched(self._lifecycle, self._usage, self._log_end)

    def queue(self) -> EventBatch:
        """Mark the response as queued; return the events."""
        self._builder.mark_queued()
        return self._builder.pop_events()

    async def stop(self, error: APIError | None = None) -> EventBatch:
        """
        End a cancelled response: failed with this error, or cancelled. Returns undelivered events; none after the
        terminal event.
        """
        return EventBatch() if self.ended else await self._stop(error)

    async def break_off(self, cause: Exception) -> EventBatch:
        """Fail the response because an event, possibly the terminal one, could not be sent; return the last events."""
        return await self._stop(_failure(cause))

    async def _stop(self, error: APIError | None) -> EventBatch:
        self._generation.abort(error)
        self._charge()
        if self._storage:
            await self._save(self._storage)
        self._lifecycle.failure = self._builder.failure
        if self._lifecycle.seconds:  # ended
            self._log_end()
        self._builder.end()
        self.ended = True
        return self._builder.pop_events()

    def turn(self) -> Turn:
        """The turn to store, in its current state."""
        upstream = {item_id: resolve_upstream(fields) for item_id, fields in self._builder.upstream.items()}
        added, request = (self._storage.input, self._storage.request) if self._storage else ([], {})
        upstream = self._context.decrypted | upstream
        warnings = self.warnings[:_WARNINGS_STORED]
        measures = self._lifecycle.measures() if self.response["status"] in TERMINAL else None
        return Turn(self.response, added, upstream, request, warnings, measures=measures)

    def drain(self) -> Coroutine[Any, Any, None]:
        """
        Generate the response without events.

        Raises `APIError` for a failure without output, because clients retry only on an HTTP status; with `answering`
        set, never raises.
        """
        self._builder.events = None
        return self.generate(NO_DELIVERY)

    async def compacted(self) -> JSONObject:
        """Generate a compaction, as the resource of `POST /responses/compact`. Raises as `drain`."""
        await self.drain()
        return compaction.resource(self.response, self._context.items, self._context.key)

    def keepalive(self) -> EventBatch:
        self._builder.keepalive()
        return self._builder.pop_events()

    def _usage(self) -> Usage:
        if self._lifecycle.failure and self._lifecycle.seconds_to_first is None:
            return {}  # no output
        return self._generation.usage()

    def _charge(self) -> None:
        if usage := self._usage():
            self._lifecycle.usage = usage
            self._lifecycle.account.charge(self._lifecycle, usage)
        if self._lifecycle.shows_cost:
            cost = self._lifecycle.cost
            cast(JSONObject, self.response)[COST] = None if cost is None else cost / NANO

    def _log_end(self) -> None:
        """Log in the HTTP request's access log line, or separately."""
        response, lifecycle = self.response, self._lifecycle
        line = log_context.request_line() if lifecycle.delivery in ("json", "sse") else None
        if lifecycle.failure or (log_context.access if line else logger).isEnabledFor(logging.INFO):
            level, ended = lifecycle.end_of_log(response["usage"])
            fields = {"response_id": response["id"], **ended}
            if line:
                line.message, line.level, line.fields = "response ended", level, fields
            else:
                logger.log(level, "response ended", extra=fields)
        if content.level == logging.DEBUG:
            self._log_content("response content", output=response["output"])

    def _log_content(self, event: str, **fields: object) -> None:
        if self.response["store"]:  # `store: false` must not be logged
            content.debug(event, extra={"response_id": self.response["id"], **fields})

    async def _save(self, storage: Storage) -> None:
        again, self._may_be_stored = self._may_be_stored, True
        try:
            await storage.save(self.turn(), again)
        except LeaseLost:
            raise
        except Exception as error:
            failure = _failure(error)
            logger.warning("response not stored", extra={"response_id": self.response["id"], "reason": failure.reason})
            self._builder.fail(failure)
            try:
                await storage.save(self.turn(), True)  # if it was stored, it must match the stream
            except LeaseLost:
                raise
            except Exception as again:
                _failure(again)


def _failure(error: Exception) -> APIError:
    """Return the error for the caller; an unexpected exception is logged."""
    if isinstance(error, APIError):
        return error
    logger.error("unexpected error", exc_info=error)
    return APIError(UNEXPECTED)


class RunWorker:
    """
    Runs a background response in this process.

    A task generates the response; another appends its events to the log, with pauses. A slow store leads to larger
    batches, and delays the backend only if much text is unwritten.
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
        """`timeout` limits store retries, in seconds; `announce` is called before the log ends."""
        self.task: asyncio.Task[None] | None = None
        self.renewed = asyncio.get_running_loop().time()  # loop time of the last renewal of its stored data
        self._run = run
        self._store = store
        self._log = log
        self._worker = worker
        self._timeout = timeout
        self._announce = announce
        self._stopped: asyncio.Future[APIError | None] = asyncio.get_running_loop().create_future()
        self._unwritten = Outbox()

    async def queue(self) -> Response:
        """Store the response and start its log; return the queued response."""
        events, turn = self._run.queue(), self._run.turn()
        queued: Response = {**turn.response, "output": []}
        await self._log.begin(self._run.key, self._worker)
        await self._store.apply(*turn_changes(self._run.key.partition, turn))
        await self._log.append(self._run.key, self._worker, segment_of(events))
        return queued

    def begin(self, ended: Callable[[], object]) -> None:
        """`ended` is called at the run's end."""
        self.task = asyncio.create_task(self._write())
        self.task.add_done_callback(lambda _: ended())

    def stop(self, error: APIError | None = None) -> None:
        """Fail the run with this error, or cancel it, unless it has ended."""
        if not self._stopped.done():
            self._stopped.set_result(error)

    def release(self) -> None:
        """Abandon the run: another process owns it, or it was deleted."""
        if self.task:
            self.task.cancel()

    def apply_claim(self, claim: LeaseState) -> None:
        """Release the run after a lost lease, or stop it after a cancellation."""
        if claim == "lost":
            self.release()
        elif claim == "cancelled":
            self.stop()

    async def _write(self) -> None:
        making = asyncio.create_task(self._generate())
        making.add_done_callback(lambda _: self._unwritten.close())
        try:
            while self._unwritten or not making.done():
                await self._unwritten.wait()
                if self._unwritten:
                    is_paused = self._unwritten.paused
                    for part in self._unwritten.pop().parts():
                        await self._append(segment_of(part))
                        await asyncio.sleep(0)  # for other requests: an in-memory log does not yield
                    await asyncio.wait({making}, timeout=0 if is_paused else APPEND_PAUSE)
            await making
        except (LeaseLost, StoreUnavailable) as error:
            logger.warning("response abandoned", extra={"response_id": self._run.key.id, "reason": str(error)})
        except Exception:  # not awaited, so exceptions must be logged here
            logger.exception("unexpected error", extra={"response_id": self._run.key.id})
        finally:
            making.cancel()
            await asyncio.wait({making})

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
        with self._run.watched():
            turn = self._run.turn()
            await self.save(turn._replace(response={**turn.response, "status": "in_progress", "output": []}))
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

    async def save(self, turn: Turn, addition: Sequence[Change] = ()) -> None:
        """
        Replace the stored turn. Raises `LeaseLost` if the response was deleted, or cannot be stored.

        The lease is renewed first: a worker without it must not overwrite its successor's data.
        """
        partition, response_id = self._run.key

        async def put() -> None:
            if (await self._log.renew(self._worker, [self._run.key]))[self._run.key] == "lost":
                raise LeaseLost("another worker took it over")
            changes = turn_changes(partition, turn, requires=response_id)
            if not await apply_with(self._store, changes, addition):
                raise LeaseLost("it was deleted")

        try:
            await persist(put, self._timeout)
        except StoreUnavailable as error:
            raise LeaseLost("it cannot be stored") from error


async def persist(attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Retry during a store outage for up to `seconds`; then raises `StoreUnavailable`."""
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
