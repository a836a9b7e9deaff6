"""
Callers' rate limits: requests per minute, tokens per minute, concurrent responses.

    admission = Admission(limits, access)
    if admission.key_limits.charges:
        await limits.admit(admission)
    with admission:
        await admission.acquire_slots()
        run = await responses.create(request, caller, account=admission)

Requests and tokens are token buckets. Tokens are consumed after each model answer, so a response may exceed the limit.
While a bucket is negative, requests are rejected, and responses with hosted tools fail before their next round. Limits
are not enforced while the counters are unavailable.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

from app.api.accounting import Accounting, BudgetState, budget_headers
from app.core.access import KeyAccess, KeyLimits
from app.core.prices import format_money
from app.core.types import Usage
from app.core.usage import usage_since
from app.errors import StoreBusy, StoreUnavailable, TooManyRequests, try_again_in
from app.observability.lifecycle import ResponseAccount, ResponseLifecycle
from app.runtime.tasks import end
from app.stores import SLOT_LEASE, Counters, TokenCharge

T = TypeVar("T")

logger = logging.getLogger(__name__)

MINUTE = 60.0
BACKOFF = 5.0  # seconds without queries after a failure


class Allowance(NamedTuple):
    name: str  # requests, tokens
    limit: int  # per minute
    missing: float  # until the bucket is full

    def wait(self, needs: int) -> float:
        """Seconds until the bucket contains `needs`."""
        return max(0.0, self.missing + needs - self.limit) * MINUTE / self.limit

    def headers(self) -> dict[str, str]:
        return {
            f"x-ratelimit-limit-{self.name}": str(self.limit),
            f"x-ratelimit-remaining-{self.name}": str(max(0, math.floor(self.limit - self.missing))),
            f"x-ratelimit-reset-{self.name}": format_duration(self.missing * MINUTE / self.limit),
        }


class _KeyLimits(NamedTuple):
    charges: Sequence[TokenCharge]  # per request
    tokens: int
    streams: int
    needs_slots: bool  # whether this or the common limit of concurrent responses applies

    @classmethod
    def of(cls, own: KeyLimits, defaults: KeyLimits, all_streams: int) -> _KeyLimits:
        requests, tokens, streams = (
            (default if limit is None else limit) or 0 for limit, default in zip(own, defaults, strict=True)
        )
        # A response needs at least one token; the rest is charged at its end.
        charges = [TokenCharge("requests", requests, 1, 1), TokenCharge("tokens", tokens, 0, 1)]
        needs_slots = bool(streams or all_streams)
        return cls([charge for charge in charges if charge.capacity], tokens, streams, needs_slots)


_UNLIMITED = _KeyLimits((), tokens=0, streams=0, needs_slots=False)


class Limits:
    """
    0 means unlimited.

    `requests` and `tokens` are per key and minute; `streams_per_key` and `streams` limit concurrent responses. A key's
    own limits override these.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        requests: int = 0,
        tokens: int = 0,
        streams: int = 0,
        streams_per_key: int = 0,
        on_refusal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._counters = counters
        self._on_refusal = on_refusal
        self.replace(requests=requests, tokens=tokens, streams=streams, streams_per_key=streams_per_key)
        self._slots: dict[tuple[str, str], None] = {}  # held by this process (pool, holder); an ordered set
        self._tasks: set[asyncio.Task[object]] = set()
        self._renewal: asyncio.Task[None] | None = None
        # Unused slots that may still be held, with lease expiry in loop time.
        self._unreleased: dict[tuple[str, str], float] = {}
        self._late_releases: asyncio.Task[None] | None = None
        self._retry_at = 0.0  # loop time of the next query after a failure

    def replace(self, *, requests: int, tokens: int, streams: int, streams_per_key: int) -> None:
        """Replace the limits. Admitted requests are not affected."""
        self._streams = streams
        self._defaults = KeyLimits(requests, tokens, streams_per_key)
        self._of_keys: dict[KeyLimits, _KeyLimits] = {}

    def of(self, access: KeyAccess) -> _KeyLimits:
        """Return a key's limits."""
        if (limits := self._of_keys.get(access.limits)) is None:
            limits = self._of_keys[access.limits] = _KeyLimits.of(access.limits, self._defaults, self._streams)
        return limits

    async def admit(self, admission: Admission) -> None:
        """Count a request of a limited key, without acquiring a slot; raises `TooManyRequests`."""
        charges = admission.key_limits.charges
        result = await self._query(self._counters.consume(admission.access.counted_as, charges), admits=True)
        if result is None:
            return
        admission.allowances = [
            Allowance(charge.bucket, charge.capacity, missing)
            for charge, missing in zip(charges, result.missing, strict=True)
        ]
        if result.granted:
            return
        waits = [allowance.wait(charge.needs) for allowance, charge in zip(admission.allowances, charges, strict=True)]
        wait, longest = max(zip(waits, admission.allowances, strict=True))
        raise self._bucket_empty(longest, wait, admission.headers())

    async def acquire_slots(self, admission: Admission) -> None:
        access = admission.access
        pools = (
            (f"key:{access.counted_as}", "streams_per_key", admission.key_limits.streams, "Your key has"),
            ("all", "streams", self._streams, "This server has"),
        )
        for pool, name, limit, subject in pools:
            if not limit or self._is_backing_off:
                continue
            slot = (pool, secrets.token_hex(8))
            admission.slots = [*admission.slots, slot]  # first, because a cancelled query may have acquired it
            acquired = await self._query(self._counters.acquire(*slot, limit), admits=True)
            if acquired is False and self._unreleased:
                await self._release_again()
                acquired = await self._query(self._counters.acquire(*slot, limit), admits=True)
            if not acquired:
                admission.slots = admission.slots[:-1]
            if acquired is None:  # possibly acquired
                self.release([slot])
            if acquired is False:
                message = f"{subject} reached the limit of {limit} concurrent responses."
                raise self._refusal(name, message, 1, admission.headers())
            if acquired:
                self._slots[slot] = None
                if self._renewal is None or self._renewal.done():
                    self._renewal = asyncio.create_task(self._keep_renewing())

    def _bucket_empty(self, allowance: Allowance, wait: float, headers: Mapping[str, str]) -> TooManyRequests:
        message = f"Rate limit reached: {allowance.limit} {allowance.name} per minute."
        return self._refusal(allowance.name, message, wait, headers)

    def _refusal(self, limit: str, message: str, wait: float, headers: Mapping[str, str]) -> TooManyRequests:
        self._on_refusal(limit)
        return TooManyRequests(try_again_in(message, wait), retry_after=wait, headers=headers)

    async def aclose(self) -> None:
        """Waits for pending charges and releases."""
        await end(self._renewal, self._late_releases)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=BACKOFF)
        await self._counters.aclose()

    async def _keep_renewing(self) -> None:
        while self._slots:
            await asyncio.sleep(SLOT_LEASE / 3)
            await self.renew()

    async def renew(self) -> None:
        """Renew this process's slots; acquire expired slots again."""
        for slot in await self._query(self._counters.renew([*self._slots])) or ():
            if slot in self._slots:
                await self._query(self._counters.acquire(*slot, sys.maxsize))
                if slot not in self._slots:  # released meanwhile, perhaps before acquisition
                    self.release([slot])

    @property
    def _is_backing_off(self) -> bool:
        return asyncio.get_running_loop().time() < self._retry_at

    async def _query(self, query: Coroutine[object, object, T], *, admits: bool = False) -> T | None:
        """
        Query the counters; None if they are unavailable. A query that `admits` a request raises `StoreBusy`: a busy
        store must not lift the limits.
        """
        if self._is_backing_off:
            query.close()
            return None
        try:
            result = await query
        except StoreBusy:
            if admits:
                raise
            return None
        except StoreUnavailable:
            if not self._retry_at:
                logger.warning("rate limits not enforced: counters unavailable")
            self._retry_at = asyncio.get_running_loop().time() + BACKOFF
            return None
        if self._retry_at:
            logger.info("rate limits enforced again")
            self._retry_at = 0.0
        return result

    def charge(self, access: KeyAccess, limit: int, tokens: int) -> asyncio.Task[object]:
        """Charge tokens to a bucket of `limit` tokens per minute."""
        return self._start(
            self._query(self._counters.consume(access.counted_as, [TokenCharge("tokens", limit, tokens)]))
        )

    async def check_tokens(self, access: KeyAccess, limit: int) -> None:
        """Raises `TooManyRequests` while the bucket has no tokens."""
        charge = TokenCharge("tokens", limit, 0, 1)
        result = await self._query(self._counters.consume(access.counted_as, [charge]), admits=True)
        if result is None or result.granted:
            return
        allowance = Allowance("tokens", limit, result.missing[0])
        raise self._bucket_empty(allowance, allowance.wait(1), allowance.headers())

    def release(self, slots: Sequence[tuple[str, str]]) -> None:
        """Release a slot. Retries while the counters are unavailable."""
        for slot in slots:
            self._slots.pop(slot, None)
            self._unreleased[slot] = asyncio.get_running_loop().time() + SLOT_LEASE
            self._start(self._release(slot))

    async def _release(self, slot: tuple[str, str]) -> None:
        async def release() -> bool:
            await self._counters.release(*slot)
            return True

        if await self._query(release()):
            self._unreleased.pop(slot, None)
        elif self._late_releases is None or self._late_releases.done():
            self._late_releases = asyncio.create_task(self._keep_releasing())

    async def _keep_releasing(self) -> None:
        while self._unreleased:
            await asyncio.sleep(BACKOFF)
            await self._release_again()

    async def _release_again(self) -> None:
        now = asyncio.get_running_loop().time()
        self._unreleased = {slot: expiry for slot, expiry in self._unreleased.items() if expiry > now}
        await asyncio.gather(*map(self._release, [*self._unreleased]))

    def _start(self, query: Coroutine[object, object, object]) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.create_task(query)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Admission(ResponseAccount):
    """
    An admitted request, which charges its key. As a response's account, it also releases the slots.

    Hosted tools charge backend requests outside of a response to an admission of their own.
    """

    def __init__(
        self, limits: Limits, access: KeyAccess, accounting: Accounting | None = None, *, batch: bool = False
    ) -> None:
        """`accounting`: None to record nothing; `batch`: at the batch price, without rate limits."""
        self.access = access
        self.allowances: Sequence[Allowance] = ()
        self.slots: Sequence[tuple[str, str]] = ()  # pools and holders
        self.budget: Sequence[BudgetState] = ()  # the key's state before the request
        self.key_limits = _UNLIMITED if batch else limits.of(access)
        self._batch = batch
        self._limits = limits
        self._accounting = accounting
        self._cost: int | None = None  # so far, in nano-dollars
        self._charged: Usage | None = None  # response usage charged so far
        self._costs = 0  # reported costs charged so far
        self._headers: dict[str, str] | None = None
        self._charging: set[asyncio.Task[object]] = set()

    def charge_request(self, model: str, backend: str, usage: Usage, cost: int | None = None) -> None:
        """Charge a hosted tool's backend request; `cost` is reported by the backend, in nano-dollars."""
        if self._accounting and self._accounting.metrics:
            self._accounting.metrics.tool_request(model, usage)
        self._charge(model, backend, usage, requests=1, reported=cost)

    def _charge(self, model: str, backend: str, usage: Usage, requests: int, reported: int | None) -> None:
        if self._accounting:
            cost = self._accounting.record(
                self.access, model, backend, usage, requests=requests, batch=self._batch, reported=reported
            )
            if cost is not None:
                self._cost = cost + (self._cost or 0)
                if self._headers is not None:
                    self._headers["x-antiphon-cost"] = format_money(self._cost)
        if (limit := self.key_limits.tokens) and (tokens := usage["total_tokens"]):
            self._charging.add(task := self._limits.charge(self.access, limit, tokens))
            task.add_done_callback(self._charging.discard)

    async def check_limits(self) -> None:
        """Raises `TooManyRequests`."""
        if self._charging:
            await asyncio.wait([*self._charging])
        if limit := self.key_limits.tokens:
            await self._limits.check_tokens(self.access, limit)
        if self._accounting:
            await self._accounting.check(self.access)

    def headers(self) -> dict[str, str]:
        """
        Response headers for limits, budget and cost.

        The cost is added when charged. Responses that begin before their end do not contain it.
        """
        if self._headers is None:
            self._headers = {}
            for allowance in self.allowances:
                self._headers |= allowance.headers()
            if self.budget:
                self._headers |= budget_headers(self.budget)
        return self._headers

    async def acquire_slots(self) -> None:
        """Acquire slots for a concurrent response; raises `TooManyRequests`."""
        if self.key_limits.needs_slots:
            await self._limits.acquire_slots(self)

    def __enter__(self) -> Self:
        """An exception releases the slots; otherwise, the response's end does."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.close()

    def settle(self, lifecycle: ResponseLifecycle) -> None:
        """Charges the remaining usage, reports the cost, releases the slots."""
        if lifecycle.usage:
            self.charge(lifecycle, lifecycle.usage)
        lifecycle.cost = self._cost
        self.close()

    def charge(self, lifecycle: ResponseLifecycle, usage: Usage) -> None:
        """Charges usage since the last charge."""
        if usage is not self._charged and (used := usage_since(self._charged, usage))["total_tokens"]:
            requests, self._charged = 0 if self._charged else 1, usage
            costs = lifecycle.attempts.costs[self._costs :]
            self._costs += len(costs)
            reported = sum(costs) if costs else None
            self._charge(str(lifecycle.response["model"]), lifecycle.backend, used, requests, reported)
        lifecycle.cost = self._cost

    def close(self) -> None:
        """Idempotent."""
        if self.slots:
            slots, self.slots = self.slots, ()
            self._limits.release(slots)


def format_duration(seconds: float) -> str:
    """In Go's format, like OpenAI: `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000) / 1000, 60)
    hours, minutes = divmod(int(minutes), 60)
    formatted = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{formatted}"
    return f"{minutes}m{formatted}" if minutes else formatted
