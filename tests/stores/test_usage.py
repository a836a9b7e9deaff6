"""One contract for the usage of keys, over all stores: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UnstorableValue
from app.stores import Spending, UsageLedger, UsageRow
from app.stores.memory import MemoryUsage
from tests.support.store_locations import SHARED, StoreLocation, location_of

DAY = "2026-11-22"


def row(day: str = DAY, key: str = "alice", model: str = "qwen3", backend: str = "local", **counts: int) -> UsageRow:
    counted = {
        "requests": 1,
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "reasoning_tokens": 2,
        "cost": 7,
    }
    return UsageRow(day, key, model, backend, **{**counted, **counts})


def total(*rows: UsageRow) -> UsageRow:
    return UsageRow(*rows[0][:4], *map(sum, zip(*(row[4:] for row in rows), strict=True)))


@contextlib.asynccontextmanager
async def ledger_at(location: StoreLocation) -> AsyncIterator[UsageLedger]:
    store = location.open()
    yield store.usage(days=400)
    await store.aclose()


@pytest.fixture
async def ledger(location: StoreLocation) -> AsyncIterator[UsageLedger]:
    async with ledger_at(location) as ledger:
        yield ledger


async def test_rows_of_the_same_day_key_model_and_backend_add_up(ledger: UsageLedger) -> None:
    others = [row(day="2026-11-23"), row(key="bob"), row(model="gpt-5"), row(backend="cloud")]
    await ledger.add("one", [row(), *others])
    await ledger.add("two", [row(requests=2, cost=10**12)])
    found = await ledger.rows("2026-11-01", "2026-11-30")
    assert sorted(found) == sorted([total(row(), row(requests=2, cost=10**12)), *others])


async def test_batch_that_is_repeated_counts_once(ledger: UsageLedger) -> None:
    for _ in range(3):
        await ledger.add("one", [row(), row(key="bob")])
    assert sorted(await ledger.rows(DAY, DAY)) == [row(), row(key="bob")]


async def test_days_and_keys_can_be_chosen(ledger: UsageLedger) -> None:
    days = ["2025-12-31", "2026-01-01", "2026-01-31", "2026-02-01"]
    await ledger.add("one", [row(day=day, key=key) for day in days for key in ("alice", "bob")])
    assert {one.day for one in await ledger.rows("2026-01-01", "2026-01-31")} == {"2026-01-01", "2026-01-31"}
    assert {one.day for one in await ledger.rows("2025-12-31", "2026-02-01", "bob")} == {*days}
    assert {one.key for one in await ledger.rows("2025-01-01", "2027-01-01", "bob")} == {"bob"}
    assert await ledger.rows("2026-03-01", "2026-04-01") == []
    assert await ledger.rows("2026-01-01", "2026-01-31", "nobody") == []


async def test_spending_is_that_of_the_day_and_of_its_month(ledger: UsageLedger) -> None:
    assert await ledger.spending("alice", DAY) == Spending()
    await ledger.add("one", [row(), row(model="gpt-5", cost=100), row(day="2026-11-01"), row(day="2026-10-31")])
    await ledger.add("two", [row(key="bob", cost=9999)])
    assert await ledger.spending("alice", DAY) == Spending(30, 107, 45, 114)
    assert await ledger.spending("alice", "2026-11-30") == Spending(0, 0, 45, 114)


async def test_names_of_any_characters_are_stored(ledger: UsageLedger) -> None:
    names = ["a/b:c|d", "模型", "'; DROP TABLE usage; --", "x" * 200]
    await ledger.add("one", [row(key="alice@example.org", model=name) for name in names])
    assert {one.model for one in await ledger.rows(DAY, DAY)} == {*names}


@pytest.mark.parametrize(
    "refused",
    [row(model="a\0b"), row(model="a\ud800"), row(cost=2**63), row(input_tokens=2**70), row(cost=2**63 - 1)],
    ids=["NUL", "half a character", "a cost of 64 bits", "tokens of 71 bits", "a sum of 64 bits"],
)
async def test_row_that_cannot_be_stored_is_no_outage(ledger: UsageLedger, refused: UsageRow) -> None:
    """Some stores accept such a row, others refuse it and blame it. Later rows are stored."""
    await ledger.add("before", [row(), row(model="other")])
    with contextlib.suppress(UnstorableValue):
        await ledger.add("refused", [refused])
    await ledger.add("after", [row(model="other")])
    assert total(row(model="other"), row(model="other")) in await ledger.rows(DAY, DAY)


async def test_rows_that_are_old_are_forgotten(ledger: UsageLedger) -> None:
    await ledger.add("one", [row(), row(day="2020-01-01")])
    await ledger.delete_before("2026-01-01")
    assert row() in await ledger.rows("2000-01-01", DAY)
    assert await ledger.spending("alice", DAY) == Spending(15, 7, 15, 7)


async def test_spending_in_memory_reads_no_rows() -> None:
    ledger = MemoryUsage()
    await ledger.add("one", [row(model=f"model-{number}") for number in range(100)])
    ledger._rows.clear()  # the totals are kept apart from them, for budgets are checked with each request
    assert await ledger.spending("alice", DAY) == Spending(1500, 700, 1500, 700)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Any) -> StoreLocation:
    return location_of(request, tmp_path)


async def test_concurrent_workers_lose_nothing(shared: StoreLocation) -> None:
    async with ledger_at(shared) as one, ledger_at(shared) as other:
        models = ["qwen3", "gpt-5", "llama"]
        # In different orders, to lock rows in different orders.
        adds = [
            ledger.add(f"{name}-{n}", [row(model=model) for model in (models if n % 2 else models[::-1])])
            for name, ledger in (("one", one), ("other", other))
            for n in range(10)
        ]
        await asyncio.gather(*adds)
        counted = {found.model: found.requests for found in await one.rows(DAY, DAY)}
        assert counted == dict.fromkeys(models, 20)
        assert await one.spending("alice", DAY) == await other.spending("alice", DAY) == Spending(900, 420, 900, 420)


ROWS = st.builds(
    row,
    day=st.sampled_from(["2026-10-31", "2026-11-01", DAY]),
    key=st.sampled_from(["alice", "bob"]),
    model=st.sampled_from(["a", "b"]),
    cost=st.integers(0, 10**15),
)


@given(batches=st.lists(st.lists(ROWS, max_size=5), max_size=5))
async def test_batches_of_any_cut_give_the_same_sum(batches: list[list[UsageRow]]) -> None:
    cut, whole = MemoryUsage(), MemoryUsage()
    for number, batch in enumerate(batches):
        await cut.add(str(number), batch)
    await whole.add("all", [one for batch in batches for one in batch])
    assert sorted(await cut.rows("", "9")) == sorted(await whole.rows("", "9"))
    costs: Counter[str] = Counter()
    for batch in batches:
        for one in batch:
            costs[one.key] += one.cost * one.day.startswith("2026-11")
    for key in ("alice", "bob"):
        assert (await cut.spending(key, DAY)).money_per_month == costs[key]
