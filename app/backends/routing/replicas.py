"""
A backend's interchangeable servers: selection, concurrency limit, queue.

A conversation stays with its last server, which caches its prompt, unless this server is down, full, or much busier
than the others in this process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from app.backends import LOW_PRIORITY, Backend, RequestObserver
from app.core.redaction import without_password
from app.core.types import JSONObject
from app.errors import BackendBusy, BackendError, try_again_in
from app.runtime.tasks import end

logger = logging.getLogger(__name__)

# A conversation's server keeps it up to this factor times the mean load, plus this margin.
_LOAD_FACTOR, _LOAD_MARGIN = 1.25, 2
_CHECK_TIMEOUT, _LISTING_TIMEOUT = 10.0, 8.0  # seconds
_MAX_RETRY_AFTER = 60  # seconds


class BackendConfig(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def models(self) -> list[str]: ...
    @property
    def aliases(self) -> dict[str, str]: ...
    @property
    def fallbacks(self) -> list[str] | None: ...
    @property
    def max_concurrency(self) -> int | None: ...
    @property
    def max_queue(self) -> int: ...
    @property
    def queue_timeout(self) -> float: ...
    @property
    def max_failures(self) -> int: ...
    @property
    def recovery(self) -> float: ...
    @property
    def check_interval(self) -> float: ...
    @property
    def forwards_caller_key(self) -> bool: ...
    @property
    def explicit(self) -> frozenset[str]: ...  # settings that were set

    def each(self) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class RoutingHooks:
    """Hooks for metrics and traces; a backend's name and a number identify a server."""

    observers: Sequence[RequestObserver] = ()
    queued: Callable[[str, int], None] = lambda name, change: None  # a request enters (1) or leaves (-1) the queue
    health: Callable[[str, str, bool | None], None] = lambda name, number, up: None  # None: server removed


@dataclass(eq=False, slots=True)
class Replica:
    server: tuple[str, str]  # backend name, and number from 1 in settings order
    url: str
    backend: Backend
    circuit: Circuit
    load: int = 0  # requests in progress
    up: bool = True  # the last request or check succeeded

    @property
    def redacted_url(self) -> str:
        """URL without credentials, or ""."""
        return without_password(self.url)


@dataclass(eq=False, slots=True)
class Lease:
    """A request's slot at a server, until `pool.release`."""

    pool: ReplicaPool
    replica: Replica
    only_candidate: bool
    since: float  # clock time


@dataclass(eq=False, slots=True)
class _Waiter:
    exclude: Collection[Replica]
    only_candidate: bool
    low_priority: bool = field(default_factory=LOW_PRIORITY.get)
    lease: asyncio.Future[Lease] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ReplicaPool:
    """`build` creates a backend from settings."""

    def __init__(
        self,
        name: str,
        config: BackendConfig,
        build: Callable[[object], Backend],
        hooks: RoutingHooks = RoutingHooks(),
    ) -> None:
        self.name = name
        self.config = config
        self.hooks = hooks
        self.replicas = [
            Replica((name, str(number)), settings.url, build(settings), Circuit(config.max_failures, config.recovery))
            for number, settings in enumerate(config.each(), 1)
        ]
        self.backend = self.replicas[0].backend  # for questions that all servers answer alike
        # Without its own `max_failures`, a single server is never paused if no other backend remains.
        self.never_paused_alone = len(self.replicas) == 1 and "max_failures" not in config.explicit
        self._waiters: deque[_Waiter] = deque()
        self._failure: BackendError | None = None  # most recent
        self._pause_end: asyncio.TimerHandle | None = None  # when a server's circuit pause ends
        self._mean_duration = 1.0  # seconds per request; an exponential moving average
        self._watching: asyncio.Task[None] | None = None
        self.users = 0  # requests that may use this pool: `drain` waits until each calls `end_use`
        self._unused: asyncio.Event | None = None  # set while draining

    def has_other(self, exclude: Collection[Replica]) -> bool:
        return any(replica.circuit.ready for replica in self.replicas if replica not in exclude)

    def answered(self, lease: Lease) -> None:
        """An answer has begun; after a trial, serve waiting requests."""
        if lease.replica.circuit.open:
            lease.replica.circuit.answered()
            self._grant_waiting()

    def release(self, lease: Lease, error: BaseException | None) -> None:
        replica = lease.replica
        if error is None:
            self._set_health(replica, True)
            replica.circuit.succeeded()
        elif isinstance(error, BackendError):
            self._attribute(error, replica)
            if not lease.only_candidate:
                self._record_error(replica, error)
        self._mean_duration += 0.1 * (time.monotonic() - lease.since - self._mean_duration)
        self._release(lease)

    async def models(self, caller_key: str | None) -> list[dict[str, object]]:
        """The first available list; raises `BackendError` without any."""
        replicas = sorted(self.replicas, key=lambda replica: replica.circuit.open)
        for replica in replicas[:-1]:
            with suppress(BackendError):
                return await self._models(replica, caller_key)
        return await self._models(replicas[-1], caller_key)

    async def _models(self, replica: Replica, caller_key: str | None) -> list[dict[str, object]]:
        with self._attributing_errors(replica):
            try:
                async with asyncio.timeout(_LISTING_TIMEOUT):
                    return await replica.backend.models(caller_key)
            except TimeoutError:
                message = "The backend did not list its models in time."
                raise BackendError(message, status=504, code="timeout") from None

    async def check(self, replica: Replica) -> None:
        """Raises `BackendError`."""
        with self._attributing_errors(replica):
            await replica.backend.check()

    async def aclose(self) -> None:
        await end(self._watching)
        if self._pause_end:
            self._pause_end.cancel()
        for replica in self.replicas:
            await replica.backend.aclose()

    def end_use(self) -> None:
        self.users -= 1
        if self._unused and not self.users:
            self._unused.set()

    async def drain(self) -> None:
        """Close the servers once unused; no new use may begin."""
        if self.users:
            self._unused = asyncio.Event()
            await self._unused.wait()
        await self.aclose()

    @contextmanager
    def _attributing_errors(self, replica: Replica) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            self._attribute(error, replica)
            raise
        self._set_health(replica, True)

    def _attribute(self, error: BackendError, replica: Replica) -> None:
        """Add the server's URL (for operators) and backend name (for callers)."""
        error.server = f"{self.name} {replica.redacted_url}".rstrip()
        error.name_backend(self.name)
        self._set_health(replica, not is_server_failure(error))

    def _set_health(self, replica: Replica, up: bool) -> None:
        if replica.up != up:
            replica.up = up
            self.hooks.health(*replica.server, up)

    def announce(self) -> None:
        for replica in self.replicas:
            self.hooks.health(*replica.server, replica.up)

    def state(self) -> JSONObject:
        return {
            "name": self.name,
            "max_concurrency": self.config.max_concurrency,
            "queued": len(self._waiters),
            "replicas": [
                {
                    "url": replica.redacted_url or None,
                    "state": "paused" if replica.circuit.open else "up" if replica.up else "down",
                    "in_flight": replica.load,
                }
                for replica in self.replicas
            ],
        }

    # Selection and queue.

    def acquire(
        self, conversation: Callable[[], str], exclude: Collection[Replica], *, only_candidate: bool = False
    ) -> Lease | None:
        """
        Return a lease for the best server outside `exclude`; None if all are busy: see `queue`.

        Failing servers are paused, except an `only_candidate`: its own error is more useful than ours. Raises
        `BackendError` if no server is ready.
        """
        free = self._free(exclude, only_candidate)  # waiting requests cannot use these
        if not free:
            return None
        return self._grant(free[0] if len(free) == 1 else preferred(conversation, free), only_candidate)

    async def queue(self, exclude: Collection[Replica], *, only_candidate: bool = False) -> Lease:
        """Wait for a lease; raises `BackendError` if the queue is full, or the wait times out."""
        if len(self._waiters) >= (limit := self.config.max_queue):
            raise self._busy(f"and its queue is full ({limit} requests)")
        waiter = _Waiter(exclude, only_candidate)
        self._waiters.append(waiter)
        self.hooks.queued(self.name, 1)
        self._grant_waiting()
        try:
            async with asyncio.timeout(self.config.queue_timeout):
                return await waiter.lease
        except (TimeoutError, asyncio.CancelledError) as error:
            lease = waiter.lease
            if lease.done() and not lease.cancelled() and not lease.exception():
                self._release(lease.result())  # granted too late
            if isinstance(error, TimeoutError):
                raise self._busy("and this request timed out in its queue") from None
            raise
        finally:
            self._waiters.remove(waiter)
            self.hooks.queued(self.name, -1)

    def _free(self, exclude: Collection[Replica], only_candidate: bool) -> list[Replica]:
        """Ready servers below the limit; raises `BackendError` if no server is ready."""
        ready = [
            replica for replica in self.replicas if (only_candidate or replica.circuit.ready) and replica not in exclude
        ]
        if not ready:
            raise self._unavailable()
        limit = self.config.max_concurrency
        return ready if limit is None else [replica for replica in ready if replica.load < limit]

    def _unavailable(self) -> BackendError:
        wait = min(replica.circuit.wait for replica in self.replicas)
        last = self._failure
        error = BackendError(
            f"Backend '{self.name}' is temporarily unavailable after repeated failures: {last.reason if last else ''}",
            status=503,
            retry_after=max(1, min(wait, self.config.check_interval or wait)),
        )
        error.server = last.server if last else self.name
        if last and last.detail:
            error.add_note(last.detail)
        return error

    def _grant(self, replica: Replica, only_candidate: bool) -> Lease:
        lease = Lease(self, replica, only_candidate, time.monotonic())
        replica.load += 1
        if replica.circuit.open:
            replica.circuit.sent(lease)
        return lease

    def _release(self, lease: Lease) -> None:
        lease.replica.load -= 1
        if lease.replica.circuit.open:
            lease.replica.circuit.released(lease)
        if self._waiters:
            self._grant_waiting()

    def _grant_waiting(self) -> None:
        """Assign free slots in order of arrival, low priority last."""
        for waiter in sorted(self._waiters, key=lambda waiter: waiter.low_priority):
            if waiter.lease.done():
                continue
            try:
                free = self._free(waiter.exclude, waiter.only_candidate)
            except BackendError as error:
                waiter.lease.set_exception(error)
                continue
            if free:
                waiter.lease.set_result(self._grant(least_loaded(free), waiter.only_candidate))
        if self._waiters:
            self._grant_after_pause()

    def _grant_after_pause(self) -> None:
        if self._pause_end:
            self._pause_end.cancel()
            self._pause_end = None
        pauses = [wait for replica in self.replicas if (wait := replica.circuit.wait)]
        if pauses and not all(waiter.lease.done() for waiter in self._waiters):
            self._pause_end = asyncio.get_running_loop().call_later(min(pauses), self._grant_waiting)

    def _busy(self, why: str) -> BackendError:
        slots = len(self.replicas) * (self.config.max_concurrency or 1)
        wait = min(max(1, math.ceil(self._mean_duration * (len(self._waiters) + 1) / slots)), _MAX_RETRY_AFTER)
        message = f"Backend '{self.name}' is at its concurrency limit, {why}."
        return BackendBusy(try_again_in(message, wait), retry_after=wait)

    # Health.

    def _record_error(self, replica: Replica, error: BackendError) -> None:
        if not is_server_failure(error):
            replica.circuit.succeeded()
            return
        self._failure = error
        was_open = replica.circuit.open
        replica.circuit.failed()
        if replica.circuit.open and not was_open:
            extra = {"backend": self.name, "server": replica.redacted_url, "reason": error.explanation}
            logger.warning("backend server paused after failures", extra=extra)
        if replica.circuit.open and self.config.check_interval and self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            while failing := [replica for replica in self.replicas if replica.circuit.open]:
                await asyncio.sleep(self.config.check_interval)
                await asyncio.gather(*map(self._recheck, failing))
                self._grant_waiting()
        finally:
            self._watching = None

    async def _recheck(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT):
                await self.check(replica)
        except (BackendError, TimeoutError):
            return
        logger.info("backend server recovered", extra={"backend": self.name, "server": replica.redacted_url})
        replica.circuit.checked()


def preferred(conversation: Callable[[], str], free: Sequence[Replica]) -> Replica:
    """
    The first server by rank that is not much busier than others.

    With rendezvous hashing, processes agree, and only an added or removed server's conversations move.
    """
    if not (key := conversation()):
        return least_loaded(free)
    bound = _LOAD_FACTOR * sum(replica.load for replica in free) / len(free) + _LOAD_MARGIN

    def rank(replica: Replica) -> bytes:
        return blake2b(f"{key}\n{replica.url}".encode(errors="replace"), digest_size=8).digest()

    return max((replica for replica in free if replica.load + 1 <= bound), key=rank)


def least_loaded(free: Sequence[Replica]) -> Replica:
    return min(free, key=lambda replica: replica.load)


async def first_success(attempts: Iterable[Any]) -> None:
    """Return once an attempt succeeds; raise the first attempt's error if all fail."""
    tasks = [asyncio.ensure_future(attempt) for attempt in attempts]
    try:
        for completed in asyncio.as_completed(tasks):
            with suppress(Exception):
                await completed
                return
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Circuit:
    """`limit` consecutive failures open the circuit for `pause` seconds."""

    def __init__(self, limit: int, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._pause = pause
        self._clock = clock
        self._failures = 0  # consecutive
        self.open = False  # whether only a trial request is allowed
        self._until = 0.0  # while open: clock time from which a trial is allowed
        self._trial: object | None = None

    @property
    def ready(self) -> bool:
        """Whether a request is allowed now."""
        return not self.open or (self._trial is None and self._clock() >= self._until)

    @property
    def wait(self) -> float:
        """Seconds until a trial request is allowed."""
        return max(0.0, self._until - self._clock()) if self.open else 0.0

    def sent(self, request: object) -> None:
        """While the circuit is open, the first request is the trial."""
        if self.open and self._trial is None:
            self._trial = request

    def answered(self) -> None:
        """The answer has begun, but may still fail."""
        if self.open:
            self._failures = self._limit - 1  # one more failure opens the circuit again
        self.open, self._trial = False, None

    def succeeded(self) -> None:
        """The answer is complete, or the request caused an error."""
        self._failures, self.open, self._trial = 0, False, None

    def failed(self) -> None:
        """The answer is missing or interrupted."""
        self._failures += 1
        if self._failures >= self._limit:
            self.open, self._until = True, self._clock() + self._pause

    def released(self, request: object) -> None:
        """After a failed trial, allow another."""
        if self._trial is request:
            self._trial = None

    def checked(self) -> None:
        """A health check has passed: allow a trial."""
        if self.open:
            self._until = self._clock()


def is_server_failure(error: BackendError) -> bool:
    """Whether the server caused the error."""
    return error.status >= 500 and error.type != "model_error"


def may_fail_over(error: BackendError) -> bool:
    """Whether another server may succeed."""
    return is_server_failure(error) or error.status == 429
