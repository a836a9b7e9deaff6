"""
Usage and cost by API key: recorded in the store, limited by budgets.

    state = await accounting.check(access)          # raises TooManyRequests, a 429 with `Retry-After`
    ...
    cost = accounting.record(access, "gpt-5", "openai", usage)  # at the end of each round and of the response

Usage is summed in memory and written in batches. Keys with a budget are written at once, and their next request waits,
so only responses in progress can exceed a budget. The store deduplicates repeated batches.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from app.api.accounting.journal import UsageJournal
from app.core.access import BudgetLimit, KeyAccess
from app.core.prices import PriceList, format_money
from app.core.types import Usage
from app.core.usage import counts_of
from app.errors import StoreUnavailable, TooManyRequests, UnstorableValue
from app.observability.labels import BoundedLabels
from app.runtime.tasks import wait_for_event
from app.stores import Spending, UsageLedger, UsageRow

if TYPE_CHECKING:
    from app.observability.metrics import Metrics

logger = logging.getLogger(__name__)

WRITE_INTERVAL = 0.25  # seconds
RETRY_INTERVAL = 2.0  # seconds
BUDGET_TIMEOUT = 1.0  # seconds to wait for the store
LAST_WRITE_TIMEOUT = 5.0  # seconds at shutdown
DELETION_INTERVAL = 3600.0  # seconds
_MODELS = 200  # per key and process, then `other`, because callers can invent names


class BudgetState(NamedTuple):
    limit: BudgetLimit
    used: int
    resets: datetime

    @property
    def remaining(self) -> int:
        return self.limit.amount - self.used

    def format(self, amount: int) -> str:
        return format_money(amount) if self.limit.name.startswith("money") else str(amount)


class Accounting:
    def __init__(
        self,
        ledger: UsageLedger,
        prices: PriceList | None = None,
        *,
        days: int = 400,
        metrics: Metrics | None = None,
        journal: UsageJournal | None = None,
        clock: Callable[[], float] = time.time,
        reported_costs: bool = True,
    ) -> None:
        """
        `days` is the rows' retention; `clock` returns Unix time. With `reported_costs`, a backend's cost replaces
        prices.
        """
        self._reported_costs = reported_costs
        self.ledger = ledger
        self._prices = prices or None
        self._days = days
        self.metrics = metrics
        self._clock = clock
        self._journal = journal
        self._day, self._date = -1.0, ""  # days since 1970, and the same as a date
        self._models: defaultdict[str, BoundedLabels] = defaultdict(lambda: BoundedLabels(_MODELS))  # by key
        self._unpriced = BoundedLabels(_MODELS)
        # Unwritten `UsageRow` counts, by day, key, model and backend.
        self._pending: dict[tuple[str, str, str, str], tuple[int, ...]] = {}
        self._accesses: dict[str, KeyAccess] = {}  # by name
        self._spent: dict[str, tuple[str, Spending]] = {}  # spending and its day, for keys with budgets
        self._batch = 1
        self._batch_id = secrets.token_hex(16)
        self._batches: dict[str, int] = {}  # last batch by key
        self._written = 0  # number of the last written batch
        self._progress = asyncio.Event()
        self._flush = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._next_write = 0.0  # loop time
        self._last_deletion = -DELETION_INTERVAL
        self._closing = False

    @property
    def has_prices(self) -> bool:
        return self._prices is not None

    def replace_prices(self, prices: PriceList) -> None:
        self._prices = prices or None

    # Recording.

    def record(
        self,
        access: KeyAccess,
        model: str,
        backend: str,
        usage: Usage,
        *,
        requests: int = 1,
        batch: bool = False,
        reported: int | None = None,
    ) -> int | None:
        """
        Return the cost in nano-dollars; None for a model without a price.

        A response can be recorded in parts: `requests` is 1 for the first, 0 for the others. `reported` is the
        backend's cost in nano-dollars.
        """
        backend = backend or "default"
        counts = counts_of(usage)
        input_tokens, output_tokens, cached, _, reasoning = counts
        cost = reported if self._reported_costs else None
        if cost is None and self._prices is not None:
            cost = self._prices.cost(model, counts, backend=backend, batch=batch)
        if cost is None and access.budget and any(limit.name.startswith("money") for limit in access.budget):
            label = self._unpriced(model, confirmed=False)
            if label == BoundedLabels.OTHER and self._unpriced(model) == model:
                extra = {"model": model, "key": access.name}
                logger.warning("model has no price; not charged to the budget", extra=extra)
        name = access.name
        row = (self.today(), name, self._models[name](model), backend)
        added = requests, input_tokens, cached, output_tokens, reasoning, cost or 0
        before = self._pending.get(row)
        self._pending[row] = tuple(map(operator.add, before, added)) if before else added
        if self._journal:
            self._journal.append(self._batch_id, row, added)
        self._accesses[name] = access
        self._batches[name] = self._batch
        if access.budget:
            day, spending = self._spent.get(name, (row[0], Spending()))
            spent = input_tokens + output_tokens, cost or 0
            amounts = zip(_on_day(spending, day, row[0]), (*spent, *spent), strict=True)
            self._spent[name] = row[0], Spending(*map(sum, amounts))
            self._flush.set()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return cost

    def today(self) -> str:
        """UTC date, for example `2026-11-22`."""
        day = self._clock() // 86_400
        if day != self._day:
            self._day, self._date = day, datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
        return self._date

    # Writing.

    async def _write(self) -> None:
        try:
            while self._pending:
                wait = self._next_write - asyncio.get_running_loop().time()
                if wait > 0 and not self._closing:
                    await wait_for_event(self._flush, wait)
                self._flush.clear()
                self._next_write = asyncio.get_running_loop().time() + WRITE_INTERVAL
                next_batch = await self._new_batch()
                rows = [UsageRow(*names, *counts) for names, counts in self._pending.items()]
                self._pending = {}
                if self.metrics:
                    for row in rows:
                        self.metrics.used(self._accesses[row.key], row)
                number, self._batch = self._batch, self._batch + 1
                batch, self._batch_id = self._batch_id, next_batch
                await self._write_batch(batch, rows)
                self._written = number
                progress, self._progress = self._progress, asyncio.Event()
                progress.set()
                await self._delete_old_rows()
        finally:
            self._writing = None

    async def _write_batch(self, batch: str, rows: list[UsageRow]) -> None:
        """If the store rejects the batch, write its rows individually."""
        try:
            written = await self._add(batch, rows)
        except Exception as error:
            written = True
            if not isinstance(error, UnstorableValue):
                logger.exception("usage batch not stored; retrying its rows one by one")
            for number, row in enumerate(rows):
                try:
                    written &= await self._add(f"{batch}-{number}", [row])
                except Exception:
                    logger.error("usage not stored: rejected by the store", extra=row._asdict())
        if written and self._journal:
            await asyncio.to_thread(self._journal.delete, batch)

    async def _new_batch(self) -> str:
        """The new batch has a journal file, unless the server is stopping."""
        batch = secrets.token_hex(16)
        if self._journal and not self._closing:
            await asyncio.to_thread(self._journal.prepare, batch)
        return batch

    async def _add(self, batch: str, rows: Sequence[UsageRow]) -> bool:
        """Return False if the store is unavailable at shutdown."""
        failed = False
        while True:
            try:
                await self.ledger.add(batch, rows)
                break
            except StoreUnavailable:
                if self._closing:
                    requests = sum(row.requests for row in rows)
                    extra = {"requests": requests, "journaled": self._journal is not None}
                    logger.error("usage not stored: store unavailable at shutdown", extra=extra)
                    return False
                if not failed:
                    logger.warning("usage storage delayed: store unavailable")
                failed = True
                self._progress.set()  # budget checks use the last spending
                await asyncio.sleep(RETRY_INTERVAL)
                self._progress.clear()
        if failed:
            logger.info("usage storage resumed")
        return True

    async def _delete_old_rows(self) -> None:
        if (now := time.monotonic()) - self._last_deletion < DELETION_INTERVAL:
            return
        self._last_deletion = now
        before = datetime.fromtimestamp(self._clock(), UTC).date() - timedelta(days=self._days)
        with suppress(StoreUnavailable):
            await self.ledger.delete_before(before.isoformat())

    def start(self) -> None:
        """Also recovers usage from dead processes' journals."""
        if self._journal:
            self._recovery = asyncio.get_running_loop().create_task(self._recover(self._journal))

    async def _recover(self, journal: UsageJournal) -> None:
        batch = await self._new_batch()
        if not self._pending and self._writing is None:
            self._batch_id = batch  # otherwise a write is in progress
        abandoned = journal.abandoned()
        while found := await asyncio.to_thread(next, abandoned, None):
            batch, rows = found
            if rows:
                await self._write_batch(batch, rows)
                requests = sum(row.requests for row in rows)
                logger.info("usage of a dead process recovered", extra={"requests": requests})
            else:
                await asyncio.to_thread(journal.delete, batch)

    async def wait_until_stored(self) -> None:
        """Wait up to `BUDGET_TIMEOUT` for this process's usage."""
        self._flush.set()
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(BUDGET_TIMEOUT):
                await self._until_written(self._batch if self._pending else self._batch - 1)

    async def aclose(self) -> None:
        self._closing = True
        self._flush.set()
        if tasks := {task for task in (self._writing, self._recovery) if task}:
            await asyncio.wait(tasks, timeout=LAST_WRITE_TIMEOUT)
        if self._journal:
            await asyncio.to_thread(self._journal.close)

    # Budgets.

    async def check(self, access: KeyAccess) -> list[BudgetState]:
        """Return all budget states; raises `TooManyRequests`."""
        if not access.budget:
            return []
        states = self._states(access, await self._spending(access.name, self.today()))
        exceeded = [state for state in states if state.remaining <= 0]
        if exceeded:
            state = max(exceeded, key=lambda state: state.resets)
            if self.metrics:
                self.metrics.limited(f"budget_{state.limit.name}")
            raise _budget_exceeded(access.name, state, self._clock())
        return states

    def _states(self, access: KeyAccess, spending: Spending) -> list[BudgetState]:
        midnight = datetime.fromtimestamp(self._clock(), UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        tomorrow = midnight + timedelta(days=1)
        next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        return [
            BudgetState(
                limit, getattr(spending, limit.name), tomorrow if limit.name.endswith("_per_day") else next_month
            )
            for limit in access.budget
        ]

    async def names_of_month(self) -> set[str]:
        """Names with usage in this month; raises `StoreUnavailable`."""
        today = self.today()
        return {row.key for row in await self.ledger.rows(f"{today[:7]}-01", today)}

    async def budgets(self, accesses: Sequence[KeyAccess]) -> list[tuple[KeyAccess, list[BudgetState]]]:
        """Budget states by key; raises `StoreUnavailable`."""
        limited = [access for access in accesses if access.budget]
        spent = await asyncio.gather(*(self.ledger.spending(access.name, self.today()) for access in limited))
        return [(access, self._states(access, spending)) for access, spending in zip(limited, spent, strict=True)]

    async def _spending(self, key: str, day: str) -> Spending:
        """All processes' spending, or this process's last value if the store is unavailable."""
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(BUDGET_TIMEOUT):
                await self._until_written(self._batches.get(key, 0))
                spending = await self.ledger.spending(key, day)
            self._spent[key] = day, spending
            return spending
        last_day, last = self._spent.get(key, (day, Spending()))
        return _on_day(last, last_day, day)

    async def _until_written(self, batch: int) -> None:
        """Raises `StoreUnavailable` if the batch cannot be written."""
        while self._written < batch and self._writing:
            progress = self._progress
            await progress.wait()
            if progress is self._progress:  # the write failed
                raise StoreUnavailable


def _on_day(spending: Spending, day: str, today: str) -> Spending:
    if day == today:
        return spending
    if day[:7] != today[:7]:
        return Spending()
    return spending._replace(tokens_per_day=0, money_per_day=0)


def _budget_exceeded(key: str, state: BudgetState, now: float) -> TooManyRequests:
    """`x-should-retry` stops automatic retries in OpenAI's clients."""
    unit, _, period = state.limit.name.partition("_per_")
    resets = state.resets.isoformat(timespec="seconds").replace("+00:00", "Z")
    amount, used = state.format(state.limit.amount), state.format(state.used)
    message = f"The key '{key}' has used its budget: {used} of {amount} {unit} per {period}. It resets at {resets}."
    headers = {"x-should-retry": "false", "x-antiphon-budget-reset": resets}
    wait = state.resets.timestamp() - now
    return TooManyRequests(message, code="insufficient_quota", retry_after=wait, headers=headers)


def budget_headers(states: Sequence[BudgetState]) -> dict[str, str]:
    """For example `x-antiphon-budget-remaining-money-per-month`."""
    return {
        f"x-antiphon-budget-remaining-{state.limit.name.replace('_', '-')}": state.format(max(0, state.remaining))
        for state in states
    }
