"""The PostgreSQL store: URL, tables, failures and recovery."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from app.errors import StoreBusy, StoreUnavailable
from app.stores import Change, EventSegment, RunKey
from app.stores.postgres import PostgresStore
from tests.support.logs import records_of
from tests.support.postgres_server import PostgresServer

CHAIN = "2f1c9a:c0ffee"
RUN = RunKey(CHAIN, "resp_1")


@pytest.fixture(scope="module")
def private() -> Iterator[PostgresServer]:
    """A server for tests that stop, restart and break it; each leaves it running."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def store(private: PostgresServer) -> AsyncIterator[PostgresStore]:
    private.clear()
    store = PostgresStore.from_url(private.patient_url, ttl=1000)
    yield store
    await store.aclose()


async def test_large_and_small_records_are_stored_together_or_not_at_all(store: PostgresStore) -> None:
    first, second = (random.Random(seed).randbytes(3 * 1024 * 1024 + seed) for seed in (1, 2))
    records = {"resp_1": b"1", "resp_2": first, "resp_3": b"", "resp_4": second}
    assert not await store.apply(Change(CHAIN, records, requires="resp_0"))
    assert await store.all(CHAIN) == {}
    assert await store.apply(Change(CHAIN, {"resp_5": second}), Change("2f1c9a:beef", records))
    assert (await store.all(CHAIN), await store.all("2f1c9a:beef")) == ({"resp_5": second}, records)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@host:port/db",
        "postgresql://ada:s3cret@[::1/db",
        "postgresql://ada:s3cret@host/db#fragment",
        "postgresql://ada:s3cret@host/db/other",
        "postgresql://ada:s3cret@host/db?max_connections=s3cret",
        "postgresql://ada:s3cret@host/db?connect_timeout=0",
        "postgresql://ada:s3cret@host/db?sslmode=s3cret",
        "postgresql://ada:s3cret@host/db?password=s3cret",
    ],
)
def test_url_that_is_invalid_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^The store URL") as refused:
        PostgresStore.from_url(url, ttl=60)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db",
        "postgres://ada:p%40ss@host:6543/db?sslmode=verify-full&sslrootcert=/ca.pem",
        "postgresql://one,two:5433/db?target_session_attrs=read-write",
        "postgresql:///db?host=/var/run/postgresql",
        "postgresql://[::1]:5432/db?max_connections=3&timeout=1.5&connect_timeout=1&statement_cache_size=0",
    ],
)
async def test_url_that_asyncpg_understands_is_accepted(url: str) -> None:
    await PostgresStore.from_url(url, ttl=60).aclose()


async def test_error_of_a_server_that_refuses_has_no_secret(private: PostgresServer) -> None:
    url = private.url.replace("antiphon@", "nobody:s3cret@")
    store = PostgresStore.from_url(f"{url}?connect_timeout=60", ttl=60)
    with pytest.raises(StoreUnavailable) as unavailable:
        await store.check()
    [note] = unavailable.value.__notes__
    assert note.startswith(f"PostgreSQL at 127.0.0.1:{private.port}/antiphon: InvalidAuthorizationSpecificationError")
    assert "s3cret" not in note
    await store.aclose()


async def test_concurrent_starts_make_the_tables_once(private: PostgresServer) -> None:
    for _ in range(3):
        private.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        stores = [PostgresStore.from_url(private.patient_url, ttl=1000) for _ in range(6)]
        await asyncio.gather(*(store.put(CHAIN, f"resp_{n}", b"1") for n, store in enumerate(stores)))
        assert set(await stores[0].all(CHAIN)) == {f"resp_{n}" for n in range(6)}
        await asyncio.gather(*(store.aclose() for store in stores))


async def test_tables_that_are_gone_are_made_again(private: PostgresServer, store: PostgresStore) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    private.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    assert await store.get(CHAIN, "resp_1") is None
    await store.put(CHAIN, "resp_1", b"1")
    assert await store.get(CHAIN, "resp_1") == b"1"


async def test_tables_of_a_later_version_are_left_alone(private: PostgresServer, store: PostgresStore) -> None:
    await store.check()
    private.sql("UPDATE antiphon_schema SET version = 1000")
    later = PostgresStore.from_url(private.patient_url, ttl=1000)
    with pytest.raises(StoreUnavailable) as unavailable:
        await later.check()
    assert "the tables have version 1000, and this server knows 2" in unavailable.value.__notes__[0]
    private.sql("UPDATE antiphon_schema SET version = 2")
    await later.check()
    await later.aclose()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_restart_keeps_records_unnoticed(
    private: PostgresServer, store: PostgresStore, how: signal.Signals
) -> None:
    await asyncio.gather(*(store.put(CHAIN, f"resp_{n}", b"%d" % n) for n in range(10)))  # on several connections
    await asyncio.to_thread(private.stop, how)
    await asyncio.to_thread(private.start)
    assert await store.all(CHAIN) == {f"resp_{n}": b"%d" % n for n in range(10)}
    await store.put(CHAIN, "resp_10", b"10")


async def test_server_that_is_unavailable_is_an_outage_until_it_is_back(
    private: PostgresServer, store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="app.storage")
    await store.put(CHAIN, "resp_1", b"1")
    await asyncio.to_thread(private.stop)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.get(CHAIN, "resp_1")
    await asyncio.to_thread(private.start)
    assert await store.get(CHAIN, "resp_1") == b"1"
    records = records_of(caplog, "app.storage")
    assert [record.message for record in records] == ["store unavailable", "store recovered"]
    assert {record.__dict__["store"] for record in records} == {f"PostgreSQL at 127.0.0.1:{private.port}/antiphon"}
    assert records[0].__dict__["reason"]


async def test_server_that_hangs_is_an_outage(private: PostgresServer) -> None:
    store = PostgresStore.from_url(f"{private.url}?timeout=0.2&connect_timeout=60", ttl=1000)
    await store.check()
    impatient = PostgresStore.from_url(f"{private.url}?timeout=0.1&connect_timeout=0.2", ttl=1000)
    private.pause()
    try:
        with pytest.raises(StoreUnavailable):
            await impatient.check()
    finally:
        private.resume()
    await store.check()
    await asyncio.gather(store.aclose(), impatient.aclose())


async def test_database_that_is_read_only_is_an_outage(private: PostgresServer, store: PostgresStore) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    private.sql("ALTER DATABASE antiphon SET default_transaction_read_only = on")
    replica = PostgresStore.from_url(private.patient_url, ttl=1000)
    try:
        for call in (replica.check(), replica.put(CHAIN, "resp_2", b"2")):
            with pytest.raises(StoreUnavailable):
                await call
    finally:
        private.sql("SET transaction_read_only = off; ALTER DATABASE antiphon RESET default_transaction_read_only")
    await replica.aclose()


async def test_calls_beyond_the_connections_wait(private: PostgresServer) -> None:
    private.clear()
    store = PostgresStore.from_url(f"{private.patient_url}&max_connections=2", ttl=1000)
    await asyncio.gather(*(store.put(f"a:{n}", "resp_1", b"1") for n in range(100)))
    assert 1 <= store._tables._pool.get_size() <= 2
    await store.aclose()


async def test_call_without_a_free_connection_is_busy_and_not_an_outage(
    private: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore.from_url(f"{private.patient_url}&max_connections=1", ttl=1000)
    await store.check()
    store._tables._timeout = 0.1  # after connecting
    connection = await store._tables._pool.acquire()
    with pytest.raises(StoreBusy) as busy:
        await store.get(CHAIN, "resp_1")
    assert busy.value.status == 503
    await store._tables._pool.release(connection)
    (record,) = records_of(caplog, "app.storage")
    assert (record.message, record.__dict__["reason"]) == ("store busy", "all 1 connections are in use")
    await store.aclose()


class LosingProxy:
    """A proxy that forwards a request with `marker`, and breaks the connection before the reply."""

    def __init__(self, port: int, marker: bytes) -> None:
        self._port, self._marker = port, marker
        self._broken: set[StreamWriter] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)

        async def pass_on(source: StreamReader, target: StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if target is writer and writer in self._broken:
                        break
                    if target is to_server and self._marker in data:
                        self._marker = b"\0" * 32  # only once
                        self._broken.add(writer)
                    target.write(data)
            writer.close()
            to_server.close()

        await asyncio.gather(pass_on(reader, to_server), pass_on(from_server, writer))


async def test_added_record_whose_reply_is_lost_is_an_error_and_not_taken_for_present(
    private: PostgresServer, store: PostgresStore
) -> None:
    async with LosingProxy(private.port, b"the record") as address:
        proxied = PostgresStore.from_url(f"postgresql://antiphon@{address}/antiphon?timeout=60", ttl=1000)
        await proxied.put(CHAIN, "resp_1", b"1")  # the connection is open
        with pytest.raises(StoreUnavailable):
            await proxied.add(CHAIN, "resp_2", b"the record")
        await proxied.aclose()
    assert await store.get(CHAIN, "resp_2") == b"the record"


async def test_put_record_whose_reply_is_lost_is_put_again_unnoticed(
    private: PostgresServer, store: PostgresStore
) -> None:
    async with LosingProxy(private.port, b"the record") as address:
        proxied = PostgresStore.from_url(f"postgresql://antiphon@{address}/antiphon?timeout=60", ttl=1000)
        await proxied.put(CHAIN, "resp_1", b"1")
        await proxied.put(CHAIN, "resp_2", b"the record")
        await proxied.aclose()
    assert await store.get(CHAIN, "resp_2") == b"the record"


async def test_call_cancelled_in_any_step_is_cancelled_without_an_outage(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = 0
    for steps in range(300):
        call = asyncio.create_task(store.apply(Change(CHAIN, {"resp_1": b"1"}, requires="resp_1")))
        for _ in range(steps):
            await asyncio.sleep(0)
        if call.cancel():
            with pytest.raises(asyncio.CancelledError):
                await call
            cancelled += 1
    assert cancelled > 10
    assert not records_of(caplog, "app.storage")


async def test_pooler_between_transactions_needs_no_prepared_statements(private: PostgresServer) -> None:
    private.clear()
    store = PostgresStore.from_url(f"{private.patient_url}&statement_cache_size=0", ttl=1000)
    for number in range(3):
        assert await store.apply(Change(CHAIN, {f"resp_{number}": b"1"}, entries={f"resp_{number}": b"entry"}))
    assert len(await store.recent("2f1c9a", limit=10) or []) == 3
    await store.aclose()


async def appended(store: PostgresStore, run: RunKey, number: int) -> None:
    log = store.log(ttl=60, lease=60)
    assert await log.append(run, "worker", EventSegment(number, number, b"%d" % number)) == "held"


async def test_reader_gets_what_another_process_appends(private: PostgresServer, store: PostgresStore) -> None:
    other = PostgresStore.from_url(private.patient_url, ttl=1000)
    log = store.log(ttl=60, lease=60)
    await log.begin(RUN, "worker")
    for number in range(3):
        reading = asyncio.create_task(log.read(RUN, number - 1, wait=60))
        await asyncio.wait([reading], timeout=0.05)
        assert not reading.done()
        await appended(other, RUN, number)
        assert await reading == [EventSegment(number, number, b"%d" % number)]
    await log.aclose()
    await other.aclose()


async def test_readers_go_on_when_the_listening_connection_breaks(
    private: PostgresServer, store: PostgresStore
) -> None:
    log = store.log(ttl=60, lease=60)
    await log.begin(RUN, "worker")
    reading = asyncio.create_task(log.read(RUN, -1, wait=60))
    await _until_listening(private)
    private.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    await _until_listening(private)
    await appended(store, RUN, 0)
    assert len(await reading) == 1
    await log.aclose()


async def test_reader_cancelled_while_it_starts_to_listen_leaves_no_deaf_connection(store: PostgresStore) -> None:
    cancelled = 0
    for steps in range(40):
        log = store.log(ttl=60, lease=60)
        listening = asyncio.create_task(log._listen())
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        if listening.cancel():
            cancelled += 1
        await asyncio.gather(listening, return_exceptions=True)
        assert await log._listen()
        assert await log._connection.fetch("SELECT pg_listening_channels()")
        await log.aclose()
    assert cancelled > 1


async def _until_listening(server: PostgresServer) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(server.sql, query)).strip() == "0":
            await asyncio.sleep(0.01)


async def test_concurrent_turns_in_many_buckets_never_deadlock(store: PostgresStore) -> None:
    """Two transactions with the same buckets in different orders would deadlock."""

    async def change(turn: int) -> Any:
        both = [Change(CHAIN, {f"resp_{turn}": b"1"}), Change(f"{CHAIN}:conversation", {f"added_{turn}": b"1"})]
        return await store.apply(*(both if turn % 2 else reversed(both)))

    assert all(await asyncio.gather(*map(change, range(200))))
    assert len(await store.all(CHAIN)) == len(await store.all(f"{CHAIN}:conversation")) == 200
