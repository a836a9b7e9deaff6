"""
The servers of one backend, all alike: which of them gets a request, how many each of them gets, and who waits.

A conversation goes to the server that had its last turn, since that has the prompt in its cache; to another only while
that one is down, full, or much busier than the others. Loads are those of this process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from app.backends import Backend
from app.backends.routing.circuit_breaker import Circuit, is_ill
from app.core.profile import Profile
from app.core.redaction import without_password
from app.errors import BackendError

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# A server takes a conversation that it knows as long as it has no more than this many times the mean, and a few.
_BUSIER, _A_FEW = 1.25, 2
_CHECK, _LISTING = 10.0, 8.0  # seconds that a check or a list of models may take
_LONGEST_WAIT = 60  # seconds, in a `Retry-After`


class BackendConfig(Protocol):
    """The settings of one backend: see `BackendSettings`."""

    @property
    def url(self) -> str: ...
    @property
    def replicas(self) -> list[str]: ...
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
    def passes_keys(self) -> bool: ...
    @property
    def given(self) -> frozenset[str]: ...  # the names of the settings that were given, and not left at their defaults

    def each(self) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class RoutingHooks:
    """What others do with the servers of all backends, and hear of them; a server is a backend's name and a number."""

    wrap: Callable[[Backend, str, str], Backend] = lambda backend, name, number: backend
    queued: Callable[[str, int], None] = lambda name, change: None  # a request begins to wait (1), or ends (-1)
    health: Callable[[str, str, bool | None], None] = lambda name, number, up: None  # None: it is not asked any more


@dataclass(eq=False, slots=True)
class Replica:
    """One server."""

    number: str  # from 1, in the order of the settings
    url: str
    backend: Backend
    circuit: Circuit
    load: int = 0  # requests that it is working on
    up: bool = True  # it has not failed in its last request or check

    @property
    def shown(self) -> str:
        """Its URL without credentials; empty where it has none."""
        return without_password(self.url)


@dataclass(eq=False, slots=True)
class _Waiter:
    but: Collection[Replica]
    only_candidate: bool
    place: asyncio.Future[Replica] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ReplicaPool:
    """
    The servers of the backend `name`; `build` makes the backend of the settings of one of them.
    """

    def __init__(
        self,
        name: str,
        served: BackendConfig,
        build: Callable[[object], Backend],
        hooks: RoutingHooks = RoutingHooks(),
    ) -> None:
        self.name = name
        self.served = served
        self._hooks = hooks
        self.replicas = [
            Replica(
                str(number),
                one.url,
                hooks.wrap(build(one), name, str(number)),
                Circuit(served.max_failures, served.recovery),
            )
            for number, one in enumerate(served.each(), 1)
        ]
        self._waiters: deque[_Waiter] = deque()
        self._failure: BackendError | None = None  # the last
        self._mean_duration = 1.0  # seconds that a request takes, as a running mean
        self._watching: asyncio.Task[None] | None = None
        self._users = 0
        self._unused = asyncio.Event()

    def profile(self, model: str) -> Profile:
        """Return what is known of these servers."""
        return self.replicas[0].backend.profile(model)

    def others(self, but: Collection[Replica]) -> bool:
        """Tell if there is a server that can be asked, beside those."""
        return any(replica.circuit.ready for replica in self.replicas if replica not in but)

    def place(self, conversation: str, but: Collection[Replica], *, only_candidate: bool = False) -> Place:
        """
        Return a place at the server that fits best, beside those in `but`.

        A server that failed is left alone for a while, but not an `only_candidate`: there is none to take its place,
        and its own error says more than ours.
        """
        return Place(self, partial(self._take, conversation, but, only_candidate), only_candidate)

    def leave(self, replica: Replica, seconds: float, error: BaseException | None, *, only_candidate: bool) -> None:
        """Give up a place after so many seconds; `error` is how the request failed, if it did."""
        if error is None:
            self._set_up(replica, True)
            replica.circuit.succeeded()
        elif isinstance(error, BackendError):
            self._locate(error, replica)
            if not only_candidate:
                self._note(replica, error)
        self._mean_duration += 0.1 * (seconds - self._mean_duration)
        self._leave(replica)

    async def models(self, caller_key: str | None) -> list[dict[str, object]]:
        """Return the models that the servers have; raise `BackendError` if none of them says."""
        asked = sorted(self.replicas, key=lambda replica: replica.circuit.open)
        for replica in asked[:-1]:
            with suppress(BackendError):
                return await self._models(replica, caller_key)
        return await self._models(asked[-1], caller_key)

    async def _models(self, replica: Replica, caller_key: str | None) -> list[dict[str, object]]:
        with self._located(replica):
            try:
                async with asyncio.timeout(_LISTING):
                    return await replica.backend.models(caller_key)
            except TimeoutError:
                message = "The backend did not list its models in time."
                raise BackendError(message, status=504, code="timeout") from None

    async def check(self) -> None:
        """Return as soon as one of the servers answers; raise `BackendError` if none does."""

        async def check(replica: Replica) -> None:
            with self._located(replica):
                await replica.backend.check()

        await first_good([check(replica) for replica in self.replicas])

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        if self._watching:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        for replica in self.replicas:
            await replica.backend.aclose()

    def begin_use(self) -> None:
        """Keep these servers for a request that may come to need them, until `end_use`: see `drain`."""
        self._users += 1

    def end_use(self) -> None:
        """Note that a request needs these servers no more."""
        self._users -= 1
        if not self._users:
            self._unused.set()

    async def drain(self) -> None:
        """Close once nobody uses these servers any more; nobody may begin to."""
        if self._users:
            self._unused.clear()
            await self._unused.wait()
        await self.aclose()

    @contextmanager
    def _located(self, replica: Replica) -> Iterator[None]:
        """Say in an error that leaves the context which server it is of, for operators; note whether it is up."""
        try:
            yield
        except BackendError as error:
            self._locate(error, replica)
            raise
        self._set_up(replica, True)

    def _locate(self, error: BackendError, replica: Replica) -> None:
        """Name a server in its error, and note whether it is up."""
        error.server = f"{self.name} {replica.shown}".rstrip()
        self._set_up(replica, not is_ill(error))

    def _set_up(self, replica: Replica, up: bool) -> None:
        if replica.up != up:
            replica.up = up
            self._hooks.health(self.name, replica.number, up)

    def announce(self) -> None:
        """Tell of the health of every server."""
        for replica in self.replicas:
            self._hooks.health(self.name, replica.number, replica.up)

    # Who gets what.

    async def _take(self, conversation: str, but: Collection[Replica], only_candidate: bool) -> Replica:
        if (free := self._free(self._ready(but, only_candidate))) and not self._waiters:
            return self._given(preferred(conversation, free))
        if len(self._waiters) >= (most := self.served.max_queue):
            raise self._busy(f"and {most} requests wait already")
        waiter = _Waiter(but, only_candidate)
        self._waiters.append(waiter)
        self._hooks.queued(self.name, 1)
        self._serve()
        try:
            async with asyncio.timeout(self.served.queue_timeout):
                return await waiter.place
        except (TimeoutError, asyncio.CancelledError) as error:
            place = waiter.place
            if place.done() and not place.cancelled() and not place.exception():
                self._leave(place.result())  # it came too late
            if isinstance(error, TimeoutError):
                raise self._busy("and this request has waited for too long") from None
            raise
        finally:
            self._waiters.remove(waiter)
            self._hooks.queued(self.name, -1)

    def _ready(self, but: Collection[Replica], only_candidate: bool) -> list[Replica]:
        """Return the servers that may be asked; raise `BackendError` if there are none."""
        ready = [
            replica for replica in self.replicas if (replica.circuit.ready or only_candidate) and replica not in but
        ]
        if ready:
            return ready
        wait = min(replica.circuit.wait for replica in self.replicas)
        last = self._failure
        error = BackendError(
            f"The backend '{self.name}' is left alone for a moment, since it failed several times: "
            f"{last.reason if last else ''}",
            status=503,
            retry_after=max(1, min(wait, self.served.check_interval or wait)),
        )
        error.server = last.server if last else self.name
        if last and last.detail:
            error.add_note(last.detail)
        raise error

    def _free(self, replicas: Iterable[Replica]) -> list[Replica]:
        most = self.served.max_concurrency
        return [replica for replica in replicas if most is None or replica.load < most]

    def _given(self, replica: Replica) -> Replica:
        replica.load += 1
        replica.circuit.asked()
        return replica

    def _leave(self, replica: Replica) -> None:
        replica.load -= 1
        replica.circuit.given_up()
        self._serve()

    def _serve(self) -> None:
        """Give the places that are free to those who wait, the first of them first."""
        for waiter in [*self._waiters]:
            if waiter.place.done():
                continue
            try:
                free = self._free(self._ready(waiter.but, waiter.only_candidate))
            except BackendError as error:
                waiter.place.set_exception(error)
                continue
            if free:
                waiter.place.set_result(self._given(least_loaded(free)))

    def _busy(self, why: str) -> BackendError:
        places = len(self.replicas) * (self.served.max_concurrency or 1)
        wait = min(max(1, math.ceil(self._mean_duration * (len(self._waiters) + 1) / places)), _LONGEST_WAIT)
        return BackendError(
            # Codex reads the number from the words, where it gets them in a stream.
            f"The backend '{self.name}' does all that it can at once, {why}. Please try again in {wait}s.",
            status=429,
            type="too_many_requests",
            code="rate_limit_exceeded",
            retry_after=wait,
        )

    # Who is well.

    def _note(self, replica: Replica, error: BackendError) -> None:
        if not is_ill(error):
            replica.circuit.succeeded()
            return
        self._failure = error
        was_open = replica.circuit.open
        replica.circuit.failed()
        if replica.circuit.open and not was_open:
            logger.warning("backend %s: %s is left alone: %s", self.name, replica.shown or "it", error.explanation)
        if replica.circuit.open and self.served.check_interval and self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Check the servers that are left alone, until there are none."""
        try:
            while ill := [replica for replica in self.replicas if replica.circuit.open]:
                await asyncio.sleep(self.served.check_interval)
                await asyncio.gather(*map(self._check, ill))
                self._serve()
        finally:
            self._watching = None

    async def _check(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(_CHECK):
                with self._located(replica):
                    await replica.backend.check()
        except (BackendError, TimeoutError):
            return
        logger.info("backend %s: %s answers again", self.name, replica.shown or "it")
        replica.circuit.checked()


class Place:
    """A request's place at a server, with the server's answer: a context manager that gives the server."""

    __slots__ = ("_answer", "_only_candidate", "_pool", "_replica", "_since", "_take")

    def __init__(self, pool: ReplicaPool, take: Callable[[], Awaitable[Replica]], only_candidate: bool) -> None:
        self._pool = pool
        self._take = take
        self._only_candidate = only_candidate
        self._answer: AbstractAsyncContextManager[Any] | None = None

    async def take(self) -> Replica:
        """
        Wait for the place, and return the server.

        Raises `BackendError` if no server is ready, if too many requests wait already, or if the wait is too long.
        """
        self._replica = await self._take()
        self._since = time.monotonic()
        return self._replica

    async def open(self, answer: AbstractAsyncContextManager[Answer]) -> Answer:
        """Enter the context of the server's answer, which `close` leaves."""
        entered = await answer.__aenter__()
        self._answer = answer
        self._replica.circuit.answered()
        return entered

    async def close(self, error: BaseException | None) -> None:
        """Close the answer and give up the place; `error` is how the request failed, if it did."""
        try:
            if self._answer:
                failure = (type(error), error, error.__traceback__) if error else (None, None, None)
                await self._answer.__aexit__(*failure)
        except BaseException as raised:
            error = raised
            raise
        finally:
            seconds = time.monotonic() - self._since
            self._pool.leave(self._replica, seconds, error, only_candidate=self._only_candidate)

    async def __aenter__(self) -> Replica:
        return await self.take()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        await self.close(error)


def preferred(conversation: str, free: Sequence[Replica]) -> Replica:
    """
    Return the server that a conversation goes to: among those that are not much busier than the others, the one that
    ranks first for it. (This is rendezvous hashing: all processes agree on it, and it changes only for the
    conversations of a server that comes or goes.)
    """
    if not conversation or len(free) == 1:
        return least_loaded(free)
    bound = _BUSIER * sum(replica.load for replica in free) / len(free) + _A_FEW
    return max(
        (replica for replica in free if replica.load + 1 <= bound), key=lambda replica: _rank(conversation, replica)
    )


def least_loaded(free: Sequence[Replica]) -> Replica:
    """Return the server that works on the fewest requests."""
    return min(free, key=lambda replica: replica.load)


def _rank(conversation: str, replica: Replica) -> bytes:
    return blake2b(f"{conversation}\n{replica.url}".encode(errors="replace"), digest_size=8).digest()


async def first_good(attempts: Iterable[Any]) -> None:
    """Return when the first of some attempts has succeeded; if all fail, raise the first one's `BackendError`."""
    tasks = [asyncio.ensure_future(attempt) for attempt in attempts]
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() is None for task in done):
                return
        tasks[0].result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
