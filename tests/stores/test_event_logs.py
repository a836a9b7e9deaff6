"""The event log contract: memory, SQLite, Redis and Redis Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.stores import EventLog, EventSegment, RunKey
from app.stores.memory import MemoryLog
from tests.support.store_locations import Memory, Redis, StoreLocation

LEASE = 20.0
TTL = 1000.0
RUN = RunKey("2f1c9a:c0ffee", "resp_1")

HELLO = [
    EventSegment(0, 1, b"a"),
    EventSegment(2, 2, b"b"),
    EventSegment(3, 6, b"c"),
    EventSegment(7, 8, b"d", ends=True),
]


@pytest.fixture
async def log(location: StoreLocation) -> AsyncIterator[EventLog]:
    store = location.open()
    log = store.log(ttl=TTL, lease=LEASE)
    yield log
    await log.aclose()
    await store.aclose()


@pytest.fixture
async def another(location: StoreLocation, log: EventLog) -> AsyncIterator[EventLog]:
    """The same log, as another process has it; memory is not shared."""
    if isinstance(location, Memory):
        yield log
        return
    store = location.open()
    log = store.log(ttl=TTL, lease=LEASE)
    yield log
    await log.aclose()
    await store.aclose()


def advance(location: StoreLocation, seconds: float) -> None:
    """Let time pass, for leases too."""
    if not isinstance(location, Redis):
        location.advance(seconds)
        return
    milliseconds = round(seconds * 1000)
    for server in location.servers:
        with server.client() as client:
            for key in client.scan_iter("antiphon:*", count=1000):
                if key == b"antiphon:runs":
                    for member in client.zrange(key, 0, -1):
                        client.zincrby(key, -milliseconds, member)
                    continue
                if b":run:" in key:
                    client.hincrby(key, "leased", -milliseconds)
                client.pexpire(key, client.pttl(key) - milliseconds)


async def written(log: EventLog, run: RunKey = RUN, worker: str = "w1", batches: list[EventSegment] = HELLO) -> None:
    await log.begin(run, worker)
    for batch in batches:
        assert await log.append(run, worker, batch) == "held"


async def test_log_can_be_read_from_any_point(log: EventLog) -> None:
    await written(log)

    first = {-1: 0, 0: 0, 1: 1, 2: 2, 3: 2, 5: 2, 6: 3, 7: 3, 8: 4, 9: 4, 10**15: 4}
    assert {after: await log.read(RUN, after) for after in first} == {after: HELLO[at:] for after, at in first.items()}


async def test_log_batches_come_back_byte_for_byte(log: EventLog) -> None:
    data = bytes(range(256)) * 1000
    await log.begin(RUN, "w1")
    await log.append(RUN, "w1", EventSegment(0, 0, data))

    assert await log.read(RUN, -1) == [EventSegment(0, 0, data)]


async def test_log_that_is_long_is_read_in_parts(log: EventLog) -> None:
    batches = [EventSegment(number, number, b"%d" % number) for number in range(1100)]
    await log.begin(RUN, "w1")
    for batch in batches:
        await log.append(RUN, "w1", batch)

    read: list[EventSegment] = []
    while part := await log.read(RUN, read[-1].last if read else -1):
        read += part
    assert read == batches


async def test_logs_of_runs_never_mix(log: EventLog) -> None:
    runs = [
        RunKey(*run) for run in (("a:b", "1"), ("a:b", "2"), ("a", "b:1"), ("a:b ", "1"), ("{a}:b", "1"), ("%", "_"))
    ]
    for run in runs:
        await log.begin(run, "w1")
        await log.append(run, "w1", EventSegment(0, 0, repr(run).encode()))
    await log.delete(RunKey("%", "_"))

    kept = {run: await log.read(run, -1) for run in runs}
    assert kept == {run: [] if run.id == "_" else [EventSegment(0, 0, repr(run).encode())] for run in runs}


async def test_log_is_no_record_of_its_bucket(location: StoreLocation) -> None:
    store = location.open()
    log = store.log(ttl=TTL, lease=LEASE)
    await store.put(RUN.partition, RUN.id, b"record")
    await written(log)

    assert await store.all(RUN.partition) == {RUN.id: b"record"}
    await log.delete(RUN)
    assert await store.all(RUN.partition) == {RUN.id: b"record"}
    await log.aclose()
    await store.aclose()


async def test_batch_added_again_adds_nothing(log: EventLog) -> None:
    await log.begin(RUN, "w1")
    for batch in HELLO:
        await log.append(RUN, "w1", batch)
        assert await log.append(RUN, "w1", batch) == "held"

    assert await log.read(RUN, -1) == HELLO


@pytest.mark.parametrize(
    "overlapping", [EventSegment(1, 3, b"x"), EventSegment(2, 4, b"x"), EventSegment(0, 9, b"x", ends=True)]
)
async def test_batch_that_does_not_follow_is_not_added(log: EventLog, overlapping: EventSegment) -> None:
    await written(log, batches=HELLO[:2])
    assert await log.append(RUN, "w1", overlapping) == "held"
    assert await log.read(RUN, -1) == HELLO[:2]
    assert await log.state(RUN) == "running"

    for batch in HELLO[2:]:
        await log.append(RUN, "w1", batch)
    assert await log.read(RUN, -1) == HELLO
    assert await log.state(RUN) == "ended"


async def test_batch_after_the_end_is_not_added(log: EventLog) -> None:
    await written(log)
    await log.append(RUN, "w1", EventSegment(9, 9, b"e"))

    assert await log.read(RUN, -1) == HELLO


# Waiting.


async def test_reader_waits_for_the_next_batch(log: EventLog) -> None:
    await log.begin(RUN, "w1")
    reading = asyncio.create_task(log.read(RUN, -1, wait=60))
    await asyncio.sleep(0.05)
    assert not reading.done()
    await log.append(RUN, "w1", HELLO[0])

    assert await _until_read(reading, log) == [HELLO[0]]


async def test_reader_gets_the_events_of_another_process(log: EventLog, another: EventLog) -> None:
    await log.begin(RUN, "w1")
    read: list[EventSegment] = []

    async def follow() -> None:
        while not read or not read[-1].ends:
            read.extend(await another.read(RUN, read[-1].last if read else -1, wait=60))

    following = asyncio.create_task(follow())
    for batch in HELLO:
        await asyncio.sleep(0.03)
        await log.append(RUN, "w1", batch)
    await following
    assert read == HELLO


async def test_reader_waits_no_longer_than_its_timeout(log: EventLog) -> None:
    await log.begin(RUN, "w1")

    assert await log.read(RUN, -1, wait=0.05) == []
    assert await log.read(RunKey("no", "run"), -1, wait=0.05) == []


async def test_many_readers_wait_at_once(log: EventLog) -> None:
    await log.begin(RUN, "w1")
    readings = [asyncio.create_task(log.read(RUN, -1, wait=60)) for _ in range(60)]
    await asyncio.sleep(0.1)
    await log.append(RUN, "w1", HELLO[0])

    assert [await _until_read(reading, log) for reading in readings] == [[HELLO[0]]] * 60


async def test_reader_that_is_cancelled_harms_nobody(log: EventLog) -> None:
    await log.begin(RUN, "w1")
    readings = [asyncio.create_task(log.read(RUN, -1, wait=60)) for _ in range(5)]
    await asyncio.sleep(0.05)
    for reading in readings:
        reading.cancel()
    await asyncio.wait(readings)

    await log.append(RUN, "w1", HELLO[0])
    assert await log.read(RUN, -1, wait=60) == [HELLO[0]]


async def _until_read(reading: asyncio.Task[list[EventSegment]], log: EventLog) -> list[EventSegment]:
    """A log may return with nothing before the time is over; readers ask again."""
    return await reading or await log.read(RUN, -1, wait=60)


# Leases.


async def test_run_goes_from_begin_to_end(log: EventLog, location: StoreLocation) -> None:
    assert await log.state(RUN) == "absent"
    await log.begin(RUN, "w1")
    assert await log.state(RUN) == "running"
    advance(location, LEASE + 1)
    assert await log.state(RUN) == "orphaned"
    assert await log.renew("w1", [RUN]) == {RUN: "held"}
    assert await log.state(RUN) == "running"
    await log.append(RUN, "w1", EventSegment(0, 0, b"a", ends=True))
    assert await log.state(RUN) == "ended"
    advance(location, LEASE + 1)
    assert await log.state(RUN) == "ended"


async def test_log_of_an_ended_run_is_not_kept_for_its_lease(location: StoreLocation) -> None:
    store = location.open()
    log = store.log(ttl=2, lease=60)
    running = RunKey(RUN.partition, "resp_2")
    for run in (RUN, running):
        await log.begin(run, "one")
        await log.append(run, "one", EventSegment(0, 0, b"a", ends=run == RUN))
    advance(location, 3)
    assert [await log.state(run) for run in (RUN, running)] == ["absent", "running"]
    await store.delete_expired()
    assert len(await log.read(running, -1)) == 1
    await log.aclose()
    await store.aclose()


async def test_appending_renews_the_lease(log: EventLog, location: StoreLocation) -> None:
    await log.begin(RUN, "w1")
    for number in range(4):
        advance(location, 0.7 * LEASE)
        assert await log.append(RUN, "w1", EventSegment(number, number, b"")) == "held"

    assert await log.state(RUN) == "running"


async def test_run_of_a_living_worker_is_not_claimed(log: EventLog) -> None:
    await log.begin(RUN, "w1")

    assert await log.claim(RUN, "w2") is False
    assert await log.append(RUN, "w1", HELLO[0]) == "held"


async def test_orphan_is_claimed_once(log: EventLog, location: StoreLocation) -> None:
    await written(log, batches=HELLO[:2])
    advance(location, LEASE + 1)

    claims = await asyncio.gather(*(log.claim(RUN, f"w{number}") for number in range(2, 12)))
    assert sorted(claims) == [False] * 9 + [True]
    winner = f"w{2 + claims.index(True)}"

    assert await log.append(RUN, "w1", HELLO[2]) == "lost"
    assert await log.renew("w1", [RUN]) == {RUN: "lost"}
    assert await log.append(RUN, winner, HELLO[2]) == "held"
    assert await log.read(RUN, -1) == HELLO[:3]


async def test_concurrent_claims_of_a_run_succeed_once(
    log: EventLog, another: EventLog, location: StoreLocation
) -> None:
    await log.begin(RUN, "w1")
    advance(location, LEASE + 1)

    assert sorted(await asyncio.gather(log.claim(RUN, "w2"), another.claim(RUN, "w3"))) == [False, True]


async def test_claimed_run_may_be_lost_too(log: EventLog, location: StoreLocation) -> None:
    await log.begin(RUN, "w1")
    advance(location, LEASE + 1)
    assert await log.claim(RUN, "w2") is True
    advance(location, LEASE + 1)

    assert await log.claim(RUN, "w3") is True
    assert await log.append(RUN, "w2", HELLO[0]) == "lost"


async def test_run_that_has_ended_is_not_claimed(log: EventLog, location: StoreLocation) -> None:
    await written(log)
    advance(location, LEASE + 1)

    assert await log.claim(RUN, "w2") is False


async def test_run_without_a_log_is_claimed_once(log: EventLog) -> None:
    assert await log.append(RUN, "w1", HELLO[0]) == "lost"
    assert await log.claim(RUN, "w2") is True
    assert await log.claim(RUN, "w3") is False
    assert await log.append(RUN, "w2", HELLO[0]) == "held"
    assert await log.read(RUN, -1) == [HELLO[0]]


async def test_many_leases_are_renewed_at_once(log: EventLog, location: StoreLocation) -> None:
    runs = [RunKey(f"2f1c9a:{number}", f"resp_{number}") for number in range(40)]
    for run in runs[:30]:
        await log.begin(run, "w1")
    await log.cancel(runs[7])
    advance(location, 0.7 * LEASE)
    claims = await log.renew("w1", runs)
    advance(location, 0.7 * LEASE)

    assert claims == {run: "cancelled" if n == 7 else "held" if n < 30 else "lost" for n, run in enumerate(runs)}
    assert {await log.state(run) for run in runs[:30]} == {"running"}
    assert await log.renew("w1", []) == {}


# Cancelling, forgetting.


async def test_worker_learns_that_its_run_is_to_be_cancelled(log: EventLog) -> None:
    await log.begin(RUN, "w1")
    await log.cancel(RUN)

    assert await log.renew("w1", [RUN]) == {RUN: "cancelled"}
    assert await log.append(RUN, "w1", HELLO[0]) == "cancelled"
    assert await log.read(RUN, -1) == [HELLO[0]]
    assert await log.state(RUN) == "running"


async def test_cancelling_a_missing_run_does_nothing(log: EventLog) -> None:
    await log.cancel(RUN)

    assert await log.state(RUN) == "absent"


async def test_run_that_is_deleted_is_lost_to_its_worker(log: EventLog) -> None:
    await written(log, batches=HELLO[:2])
    await log.delete(RUN)
    await log.delete(RUN)

    assert await log.append(RUN, "w1", HELLO[2]) == "lost"
    assert await log.state(RUN) == "absent"
    assert await log.read(RUN, -1) == []


async def test_log_expires(log: EventLog, location: StoreLocation) -> None:
    await written(log)
    advance(location, 0.9 * TTL)
    assert await log.read(RUN, 6) == HELLO[3:]
    advance(location, 0.2 * TTL)

    assert await log.read(RUN, -1) == []
    assert await log.state(RUN) == "absent"


async def test_log_that_is_written_to_does_not_expire(log: EventLog, location: StoreLocation) -> None:
    await log.begin(RUN, "w1")
    for number in range(4):
        advance(location, 0.6 * TTL)
        assert await log.renew("w1", [RUN]) == {RUN: "held"}
        await log.append(RUN, "w1", EventSegment(number, number, b""))

    assert len(await log.read(RUN, -1)) == 4


async def test_orphans_are_found(log: EventLog, location: StoreLocation) -> None:
    orphan, alive, over = (RunKey(f"2f1c9a:{name}", f"resp_{name}") for name in ("orphan", "alive", "over"))
    await written(log, orphan, batches=HELLO[:2])
    await written(log, alive, batches=HELLO[:2])
    await written(log, over)
    assert await log.orphans() == []
    advance(location, LEASE + 1)
    await log.renew("w1", [alive])

    assert await log.orphans() == [orphan]
    assert await log.claim(orphan, "w2")
    assert await log.orphans() == []
    await log.append(orphan, "w2", EventSegment(3, 3, b"", ends=True))
    advance(location, LEASE + 1)
    assert await log.orphans() == [alive]


async def test_orphans_of_another_process_are_found(log: EventLog, another: EventLog, location: StoreLocation) -> None:
    await log.begin(RUN, "w1")
    advance(location, LEASE + 1)

    assert await another.orphans() == [RUN]


async def test_memory_is_bounded_by_evicting_ended_logs() -> None:
    log = MemoryLog(ttl=TTL, lease=LEASE, max_bytes=3000)
    old, new, running = (RunKey("b", name) for name in ("old", "new", "running"))
    await written(log, running, batches=[EventSegment(0, 0, b"x" * 1000)])
    await written(log, old, batches=[EventSegment(0, 0, b"x" * 1000, ends=True)])
    await written(log, new, batches=[EventSegment(0, 0, b"x" * 1000, ends=True)])

    assert [await log.state(run) for run in (old, new, running)] == ["absent", "ended", "running"]


async def test_log_of_an_ended_run_expires_though_its_worker_still_polls(
    log: EventLog, location: StoreLocation
) -> None:
    await written(log)
    advance(location, 0.9 * TTL)
    assert await log.renew("w1", [RUN]) == {RUN: "held"}
    advance(location, 0.2 * TTL)

    assert await log.state(RUN) == "absent"
