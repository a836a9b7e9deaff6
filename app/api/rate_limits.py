"""
How much a caller may ask for: requests and tokens a minute, and responses in the making at once.

    grant = await limits.draw(owner)   # or LimitReached, a 429 that says when to come back
    request = ...                      # which may take its time to arrive
    async with grant.entered():        # or LimitReached
        run = await responses.create(request, caller, observers=[grant])

What may be used in a minute is a bucket that fills up steadily. A request takes one from the one; tokens are taken
from the other when they are known, at the end, so a response may go beyond the limit: the bucket is then in debt, and
the next request waits until it is paid back. Where the counts cannot be reached, everybody is let in.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

from app.errors import StoreUnavailable, TooManyRequests
from app.observability.lifecycle import ResponseLifecycle
from app.stores.counters import LEASE, Counters, TokenTake

T = TypeVar("T")

logger = logging.getLogger(__name__)

MINUTE = 60.0
BACKOFF = 5.0  # seconds in which counts that failed are not asked again


class Allowance(NamedTuple):
    """What is left of one bucket."""

    what: str  # requests, tokens
    most: int
    missing: float

    def wait(self, needs: int) -> float:
        """Return in how many seconds there will be that much."""
        return max(0.0, self.missing + needs - self.most) * MINUTE / self.most

    def headers(self) -> dict[str, str]:
        """Return the headers in which OpenAI tells this."""
        return {
            f"x-ratelimit-limit-{self.what}": str(self.most),
            f"x-ratelimit-remaining-{self.what}": str(max(0, math.floor(self.most - self.missing))),
            f"x-ratelimit-reset-{self.what}": duration(self.missing * MINUTE / self.most),
        }


class LimitReached(TooManyRequests):
    """A limit of this server's, not of the backend's; the `Retry-After` is when it makes sense to come back."""

    def __init__(self, limit: str, message: str, wait: float, told: Mapping[str, str]) -> None:
        # Codex reads the number from the words, where it gets them in a stream.
        super().__init__(f"{message} Please try again in {max(1, math.ceil(wait))}s.", retry_after=wait)
        self.limit = limit
        self._told = told

    def headers(self) -> dict[str, str]:
        """The headers of an HTTP answer: those of any 429, and what is left of the limits."""
        return {**super().headers(), **self._told}


class Limits:
    """
    The limits of all callers, each of which has as much as any other. A limit of 0 is none.

    `requests` and `tokens` are for each owner and minute, `streams_per_key` and `streams` the responses in the making
    of one owner and of all; `refused` hears of each refusal, by the limit's name.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        requests: int = 0,
        tokens: int = 0,
        streams: int = 0,
        streams_per_key: int = 0,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._counts = counters
        self._refused = refused
        self.replace(requests=requests, tokens=tokens, streams=streams, streams_per_key=streams_per_key)
        self._held: dict[tuple[str, str], None] = {}  # places, by room and guest
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing = asyncio.Lock()
        self._pulse: asyncio.Task[None] | None = None
        self._away_until = 0.0  # by the loop's clock

    def replace(self, *, requests: int, tokens: int, streams: int, streams_per_key: int) -> None:
        """Set other limits from now on; what was granted stays granted."""
        # A response needs one token at least; how many it takes is not known before it has ended.
        draws = [TokenTake("requests", requests, 1, 1), TokenTake("tokens", tokens, 0, 1)]
        self._draws = [take for take in draws if take.most]
        self._tokens = tokens
        self._streams, self._streams_per_key = streams, streams_per_key

    async def take(self, owner: str) -> Admission:
        """
        Let a request be read for which a response is to be made; raises `LimitReached`.

        What it is given has no place among the responses in the making yet: see `Grant.entered`.
        """
        grant = Admission(self, owner)
        with self._counted():
            await self._take(grant)
        return grant

    async def acquire(self, grant: Admission) -> None:
        """Give a place to what was granted, which is to give it back; raises `LimitReached`."""
        with self._counted():
            await self._acquire(grant)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except LimitReached as error:
            self._refused(error.limit)
            raise

    async def aclose(self) -> None:
        """Write down what is still to be written down, and close the counts."""
        if self._pulse:
            self._pulse.cancel()
            await asyncio.wait({self._pulse})
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=BACKOFF)
        await self._counts.aclose()

    async def _take(self, grant: Admission) -> None:
        if not self._draws:
            return
        drawn = await self._reached(self._counts.take(grant.owner, self._draws))
        if drawn is None:
            return
        grant.allowances = [
            Allowance(take.bucket, take.most, gone) for take, gone in zip(self._draws, drawn.missing, strict=True)
        ]
        if drawn.granted:
            return
        waits = [allowance.wait(take.needs) for allowance, take in zip(grant.allowances, self._draws, strict=True)]
        wait, reached = max(zip(waits, grant.allowances, strict=True))
        message = f"Rate limit reached: {reached.most} {reached.what} per minute."
        raise LimitReached(reached.what, message, wait, grant.headers())

    async def _acquire(self, grant: Admission) -> None:
        rooms = (
            (f"key:{grant.owner}", "streams_per_key", self._streams_per_key, "Your key has"),
            ("all", "streams", self._streams, "This server has"),
        )
        for room, limit, most, who in rooms:
            if not most:
                continue
            guest = secrets.token_hex(8)
            slot = await self._reached(self._counts.acquire(room, guest, most))
            if slot is False:
                message = f"{who} {most} responses in the making, which is the limit."
                raise LimitReached(limit, message, 1, grant.headers())
            if slot:
                grant.places.append((room, guest))
                self._held[room, guest] = None
                if self._pulse is None or self._pulse.done():
                    self._pulse = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        """Keep the places of this process, for as long as it has any."""
        while self._held:
            await asyncio.sleep(LEASE / 3)
            await self.renew()

    async def renew(self) -> None:
        """Keep the places of this process, and take those again that were lost though they are still in use."""
        async with self._renewing:
            gone = await self._reached(self._counts.renew([*self._held]))
            for room, guest in gone or ():
                if (room, guest) in self._held:
                    await self._reached(self._counts.acquire(room, guest, sys.maxsize))

    async def _reached(self, question: Coroutine[Any, Any, T]) -> T | None:
        """Return what the counts say; None if they cannot be reached, or could not a moment ago."""
        now = asyncio.get_running_loop().time()
        if now < self._away_until:
            question.close()
            return None
        try:
            answer = await question
        except StoreUnavailable:
            if not self._away_until:
                logger.warning("the limits cannot be counted, and hold nobody back")
            self._away_until = now + BACKOFF
            return None
        if self._away_until:
            logger.info("the limits are counted again")
            self._away_until = 0.0
        return answer

    def charge(self, owner: str, tokens: int) -> None:
        """Take the tokens of a response that has ended."""
        if self._tokens and tokens:
            self._later(self._counts.take(owner, [TokenTake("tokens", self._tokens, tokens)]))

    def give_back(self, places: Sequence[tuple[str, str]]) -> None:
        """Give places back."""
        for room, guest in places:
            self._held.pop((room, guest), None)
            self._later(self._leave(room, guest))

    async def _leave(self, room: str, guest: str) -> None:
        async with self._renewing:  # which may be about to renew this very place
            await self._counts.release(room, guest)

    def _later(self, question: Coroutine[Any, Any, object]) -> None:
        async def ask() -> None:
            await self._reached(question)

        task = asyncio.create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Admission:
    """What one request was granted."""

    def __init__(self, limits: Limits, owner: str) -> None:
        self.owner = owner
        self.allowances: list[Allowance] = []
        self.places: list[tuple[str, str]] = []
        self._limits = limits

    def headers(self) -> dict[str, str]:
        """Return what the caller is told of its limits."""
        return {name: value for allowance in self.allowances for name, value in allowance.headers().items()}

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Admission]:
        """
        Let a response be made; raises `LimitReached`.

        The grant is to be told of the response's lifecycle, if there comes to be one. It ends with it; or with the
        context, where that is left by an exception.
        """
        try:
            await self._limits.acquire(self)
            yield self
        except BaseException:
            self.close()
            raise

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        """The response is being made."""

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """It is over: this is what it has used."""
        self._limits.charge(self.owner, lifecycle.usage.get("total_tokens", 0))
        self.close()

    def close(self) -> None:
        """Give back what was only lent."""
        places, self.places = self.places, []
        self._limits.give_back(places)


def duration(seconds: float) -> str:
    """Write a duration as OpenAI does, who write it as Go does: `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
    hours, minutes = divmod(int(minutes), 60)
    written = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{written}"
    return f"{minutes}m{written}" if minutes else written
