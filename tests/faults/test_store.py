"""Store faults: the caller's outcome and the stored record."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.faults import faulty_stores
from tests.faults.callers import COMPLETED, FOREGROUND, HELLO, WAYS, Ended, Outcome, Refused, Seen, calling
from tests.faults.servers import server
from tests.responses.test_background import until
from tests.support.sockets import listening
from tests.support.upstream import DONE, Upstream, chunk, finish, sse
from tests.support.upstream import upstream as upstream

AWAY = Refused(503, "store_unavailable")
LOST = Ended("failed", "store_unavailable", "Hello")
NOTHING, AS_SENT, COMPLETE = "nothing", "as sent", "as `completed`"
# A hanging server may still apply earlier requests when it continues.
PERHAPS = frozenset({NOTHING, AS_SENT, COMPLETE})


class Fault(NamedTuple):
    """
    A row: the store's fault, and the outcomes if it occurs before the request or during the answer. A background
    response waits for the store, and completes.
    """

    name: str
    store: type[faulty_stores.FaultyStore]
    before: Outcome = COMPLETED
    during: Outcome = COMPLETED
    first: Outcome | None = None  # the first request's outcome, while nobody knows about the fault
    kept: frozenset[str] = frozenset({NOTHING})  # possible states of an answer during the fault

    @property
    def row(self) -> str:
        """The line in docs/faults.md."""
        before = f"the first: {self.first}; then {self.before}" if self.first else self.before
        kept = ", or ".join(sorted(self.kept, key=(NOTHING, AS_SENT, COMPLETE).index))
        test = f"test_store.py::test_store_fault_ends_as_documented[{self.name}]"
        return f"| {self.name} | {before} | {self.during} | {kept} | `{test}` |"


FAULTS = [
    Fault("Redis: killed", faulty_stores.Killed, AWAY, LOST),
    Fault("Redis: restarted", faulty_stores.Restarted, kept=frozenset({AS_SENT})),
    Fault("Redis: slow", faulty_stores.Slow, kept=frozenset({AS_SENT})),
    Fault("Redis: hung", faulty_stores.Hung, AWAY, LOST, kept=PERHAPS),
    Fault("Redis: full", faulty_stores.Full, AWAY, LOST),
    Fault("Redis: during a failover", faulty_stores.Leaderless, AWAY, LOST),
    Fault("Redis: after a failover", faulty_stores.FailedOver, kept=frozenset({AS_SENT})),
    Fault("PostgreSQL: killed", faulty_stores.PostgresKilled, AWAY, LOST),
    Fault("PostgreSQL: restarted", faulty_stores.PostgresRestarted, kept=frozenset({AS_SENT})),
    Fault("PostgreSQL: hung", faulty_stores.PostgresHung, AWAY, LOST, kept=PERHAPS),
    Fault("SQLite: locked", faulty_stores.Locked, AWAY, LOST),
    Fault("SQLite: briefly locked", faulty_stores.LockedForAMoment, kept=frozenset({AS_SENT})),
    Fault("SQLite: disk full", faulty_stores.DiskFull, AWAY, LOST, first=LOST),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_store_fault_ends_as_documented(fault: Fault, upstream: Upstream, tmp_path: Path) -> None:
    if fault.store.alone and sys.platform != "linux":
        pytest.skip("limits another process")
    async with AsyncExitStack() as stack:
        store = fault.store()
        await store.open(stack, tmp_path)
        settings = {"store_url": store.url, "backend_url": upstream.url}
        if fault.store.alone:
            served = stack.enter_context(server(**settings))
            url, store.pid = served.url, served.pid
        else:
            url = await stack.enter_async_context(listening(None, **settings))
        caller = await stack.enter_async_context(calling(url))
        upstream.always(HELLO)
        first = (await caller.ask("json")).response

        # Before the question.
        await store.harm()
        if fault.first:
            # Or the earlier request's usage was written late, and this write found the outage.
            assert (await caller.ask("json")).outcome in (fault.first, fault.before)
        count = len(upstream.requests)
        outcomes = [seen.outcome for seen in (await caller.ask_all()).values()]
        unstored = [(await caller.ask(way, store=False)).outcome for way in FOREGROUND]
        assert outcomes == [fault.before] * len(WAYS)
        assert unstored == [COMPLETED] * 3
        assert len(upstream.requests) - count == (3 if fault.before == AWAY else 3 + len(WAYS)), (
            "asked for what cannot be kept"
        )
        ready = [(await caller.http.get(f"{url}/{path}")).status_code for path in ("healthz", "readyz")]
        assert ready == [200, 503 if fault.before == AWAY else 200]
        await store.heal()
        continued = await caller.ask_all(previous_response_id=first["id"])
        assert [seen.outcome for seen in continued.values()] == [COMPLETED] * len(WAYS)

        # During the answer.
        go = asyncio.Event()
        begun = len(upstream.requests)
        upstream.always(sse(chunk("Hel"), go, chunk("lo"), finish(), DONE))
        background = [asyncio.create_task(caller.ask(way)) for way in ("background", "followed")]
        foreground = [asyncio.create_task(caller.ask(way)) for way in FOREGROUND]
        await until(lambda: sum(request.sent > 2 for request in upstream.requests[begun:]) == len(WAYS))
        await asyncio.sleep(0.1)
        await store.harm()
        go.set()
        seen = [await each for each in foreground]
        assert [each.outcome for each in seen] == [fault.during] * 3
        await store.heal()
        assert [(await each).outcome for each in background] == [COMPLETED] * 2
        assert {await kept(caller.http, each) for each in seen} <= fault.kept

        upstream.always(HELLO)
        assert [seen.outcome for seen in (await caller.ask_all()).values()] == [COMPLETED] * len(WAYS)


async def kept(http: httpx.AsyncClient, seen: Seen) -> str:
    """Return the stored state of a received response."""
    received: Any = seen.response
    answer = await http.get(f"/responses/{received['id']}")
    if answer.status_code == 404:
        return NOTHING
    stored = answer.json()
    if stored == received:
        return AS_SENT
    assert (stored["status"], stored["output"]) == ("completed", received["output"])
    return COMPLETE
