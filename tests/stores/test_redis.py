"""The Redis store: failures, recovery, and errors without secrets."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from app.errors import StoreBusy, StoreUnavailable
from app.stores.redis import RedisStore
from tests.support.logs import all_text, records_of
from tests.support.redis_server import RedisServer
from tests.support.store_locations import redis_store

CHAIN = "2f1c9a:c0ffee"
RECORD = b"a private record"
SECRET = "pass:w/rd@#"
QUOTED = "pass%3Aw%2Frd%40%23"


@pytest.fixture
def private() -> Iterator[RedisServer]:
    """A server to stop, to pause and to limit."""
    with RedisServer(persistent=True) as server:
        yield server


@pytest.fixture
async def store(private: RedisServer) -> AsyncIterator[RedisStore]:
    store = redis_store(private.url)
    yield store
    await store.aclose()


async def eventually(call: Callable[[], Awaitable[None]]) -> None:
    """Call until the store is available."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def test_bucket_is_one_hash_with_an_expiry(redis_server: RedisServer) -> None:
    store = RedisStore.from_url(redis_server.url, ttl=12.5)
    await store.put("a:hash", "resp_1", b"1")
    await store.put("a:hash", "resp_2", b"2")

    with redis_server.client() as client:
        assert client.hgetall("antiphon:{a:hash}") == {b"resp_1": b"1", b"resp_2": b"2"}
        assert 0 < client.pttl("antiphon:{a:hash}") <= 12_500
    await store.aclose()


async def test_redis_expires_records_by_itself(redis_server: RedisServer) -> None:
    store = RedisStore.from_url(redis_server.url, ttl=0.05)
    await store.put("a:short", "resp_1", b"1")
    with redis_server.client() as client:
        async with asyncio.timeout(30):
            while client.exists("antiphon:{a:short}"):
                await asyncio.sleep(0.01)

    assert await store.all("a:short") == {}
    await store.aclose()


async def test_restart_between_two_calls_goes_unnoticed(private: RedisServer, store: RedisStore) -> None:
    records = {f"resp_{number}": b"%d" % number for number in range(50)}
    await asyncio.gather(*(store.put(CHAIN, name, record) for name, record in records.items()))
    private.restart()

    # Enough to use every pool connection, all of which are dead.
    found = await asyncio.gather(*(store.get(CHAIN, name) for name in records))
    assert found == list(records.values())
    private.restart()
    await store.put(CHAIN, "resp_50", b"50")
    private.restart()
    assert await store.delete(CHAIN, "resp_50") is True
    private.restart()
    assert await store.all(CHAIN) == records
    private.restart()
    await store.check()


async def test_outage_ends_when_redis_is_back(private: RedisServer, store: RedisStore) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    private.stop(signal.SIGKILL)
    for call in (store.put(CHAIN, "resp_2", b"2"), store.get(CHAIN, "resp_1"), store.all(CHAIN), store.check()):
        with pytest.raises(StoreUnavailable) as unavailable:
            await call
        assert unavailable.value.__notes__[0].startswith(f"Redis at 127.0.0.1:{private.port}: ConnectionError: ")
    with pytest.raises(StoreUnavailable):
        await store.delete(CHAIN, "resp_1")

    private.start()
    assert await store.all(CHAIN) == {"resp_1": b"1"}


async def test_store_may_be_made_before_its_server() -> None:
    with RedisServer() as server:
        server.stop()
        store = redis_store(server.url)
        with pytest.raises(StoreUnavailable):
            await store.check()
        server.start()
        await store.check()
        await store.aclose()


async def test_server_that_hangs_is_an_outage_and_its_late_answers_reach_nobody(private: RedisServer) -> None:
    store = redis_store(f"{private.url}?socket_timeout=2&socket_connect_timeout=2")
    buckets = [f"a:{number}" for number in range(20)]
    await asyncio.gather(*(store.put(bucket, "resp_1", bucket.encode()) for bucket in buckets))
    private.pause()
    try:
        late = await asyncio.gather(*(store.get(bucket, "resp_1") for bucket in buckets), return_exceptions=True)
    finally:
        private.resume()

    assert [type(answer) for answer in late] == [StoreUnavailable] * 20
    await eventually(store.check)
    found = await asyncio.gather(*(store.get(bucket, "resp_1") for bucket in reversed(buckets)))
    assert found == [bucket.encode() for bucket in reversed(buckets)]
    await store.aclose()


async def converse(store: RedisStore, bucket: str) -> bool:
    for turn in range(30):
        await store.put(bucket, f"resp_{turn}", f"{bucket} {turn}".encode())
        if await store.get(bucket, f"resp_{turn}") != f"{bucket} {turn}".encode():
            return False
    return await store.all(bucket) == {f"resp_{turn}": f"{bucket} {turn}".encode() for turn in range(30)}


@pytest.mark.parametrize("nodes", ["one server", "a cluster"])
async def test_connections_may_break_while_they_are_used(nodes: str, request: pytest.FixtureRequest) -> None:
    if nodes == "one server":
        servers = [request.getfixturevalue("private")]
    else:
        servers = request.getfixturevalue("redis_cluster")
    store = redis_store(servers[0].url)

    async def break_connections() -> None:
        for server in servers:
            await asyncio.sleep(0.03)
            with server.client() as client:
                client.execute_command("CLIENT KILL TYPE normal SKIPME yes")

    right, _ = await asyncio.gather(
        asyncio.gather(*(converse(store, f"break:{number}") for number in range(40))), break_connections()
    )

    assert right == [True] * 40
    await store.aclose()


async def test_calls_beyond_the_connections_wait(private: RedisServer) -> None:
    store = redis_store(f"{private.url}?max_connections=3&client_name=antiphon")
    await asyncio.gather(*(store.put(CHAIN, f"resp_{number}", b"") for number in range(100)))

    with private.client() as client:
        assert 1 <= sum(line["name"] == "antiphon" for line in client.client_list()) <= 3
    assert len(await store.all(CHAIN)) == 100
    await store.aclose()


async def test_call_without_a_free_connection_is_busy_and_not_an_outage(
    private: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = redis_store(f"{private.url}?max_connections=1")
    await store.check()
    store._client._timeout = 0.1
    async with store._client._free:
        with pytest.raises(StoreBusy):
            await store.get(CHAIN, "resp_1")
    (record,) = records_of(caplog, "app.storage")
    assert (record.message, record.__dict__["reason"]) == ("store busy", "all 1 connections are in use")
    await store.aclose()


async def test_redis_that_is_full_is_an_outage_of_writing(private: RedisServer, store: RedisStore) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    with private.client() as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable) as unavailable:
            await store.put(CHAIN, "resp_2", b"2")
        assert "OOM" in unavailable.value.__notes__[0] or "OutOfMemory" in unavailable.value.__notes__[0]
        assert await store.all(CHAIN) == {"resp_1": b"1"}
        client.config_set("maxmemory", "0")

    await store.put(CHAIN, "resp_2", b"2")
    assert await store.all(CHAIN) == {"resp_1": b"1", "resp_2": b"2"}


async def test_replica_cannot_be_written_to_until_promoted(private: RedisServer, store: RedisStore) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    with private.client() as client, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        client.replicaof("127.0.0.1", nobody.getsockname()[1])
        for call in (store.put(CHAIN, "resp_2", b"2"), store.check()):
            with pytest.raises(StoreUnavailable) as unavailable:
                await call
            assert "ReadOnlyError" in unavailable.value.__notes__[0]
        client.replicaof("NO", "ONE")

    await store.put(CHAIN, "resp_2", b"2")
    assert await store.all(CHAIN) == {"resp_1": b"1", "resp_2": b"2"}


@asynccontextmanager
async def one_address(lead_to: list[RedisServer]) -> AsyncIterator[int]:
    """Yield a port that forwards new connections to the listed server; open connections stay with theirs."""
    piping: set[asyncio.Task[None]] = set()

    async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", lead_to[0].port)
        pipes = [asyncio.create_task(pipe(reader, there[1])), asyncio.create_task(pipe(there[0], writer))]
        piping.update(pipes)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*piping, return_exceptions=True)


@pytest.mark.parametrize("call", ["put", "all"])
async def test_failover_behind_one_address_goes_unnoticed(private: RedisServer, call: str) -> None:
    with RedisServer() as successor:
        lead_to = [private]
        async with one_address(lead_to) as port:
            store = redis_store(f"redis://127.0.0.1:{port}")
            await asyncio.gather(*(store.put(CHAIN, f"resp_{number}", b"") for number in range(20)))
            with private.client() as demoted:
                demoted.replicaof("127.0.0.1", successor.port)
                lead_to[:] = [successor]
                if call == "put":
                    await asyncio.gather(*(store.put(CHAIN, f"resp_{number}", b"new") for number in range(20)))
                else:
                    await asyncio.gather(*(store.all(CHAIN) for _ in range(20)))
                demoted.replicaof("NO", "ONE")
            await store.aclose()

        with successor.client() as client:
            kept = client.hgetall(f"antiphon:{{{CHAIN}}}")
    assert kept == ({b"resp_%d" % number: b"new" for number in range(20)} if call == "put" else {})


async def test_slot_may_move_while_it_is_used(redis_cluster: list[RedisServer]) -> None:
    store = redis_store(redis_cluster[0].url)
    bucket = "a:moving"
    await store.put(bucket, "resp_1", b"1")
    clients = [server.client() for server in redis_cluster]
    slot = clients[0].cluster("KEYSLOT", f"antiphon:{{{bucket}}}")
    ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    source, target = (0, 1) if clients[0].cluster("COUNTKEYSINSLOT", slot) else (1, 0)

    clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    assert await store.all(bucket) == {"resp_1": b"1"}
    await store.put(bucket, "resp_2", b"2")

    key = f"antiphon:{{{bucket}}}"
    clients[source].execute_command("MIGRATE", "127.0.0.1", redis_cluster[target].port, key, 0, 5000)
    assert await store.all(bucket) == {"resp_1": b"1", "resp_2": b"2"}
    await store.put(bucket, "resp_3", b"3")
    assert await store.delete(bucket, "resp_1") is True

    for client in clients:
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    assert await store.all(bucket) == {"resp_2": b"2", "resp_3": b"3"}
    await store.put(bucket, "resp_4", b"4")
    assert clients[target].hgetall(key) == {b"resp_2": b"2", b"resp_3": b"3", b"resp_4": b"4"}
    assert 0 < clients[target].pttl(key) <= 1_000_000
    for client in clients:
        client.close()
    await store.aclose()


async def test_cluster_recovers_from_the_loss_of_a_node(redis_cluster: list[RedisServer]) -> None:
    first, second = redis_cluster
    store = redis_store(f"redis+cluster://127.0.0.1:{first.port},127.0.0.1:{second.port}")
    buckets = [f"lost:{number}" for number in range(20)]
    await asyncio.gather(*(store.put(bucket, "resp_1", b"1") for bucket in buckets))
    with first.client() as client, second.client() as successor:
        slots = {bucket: client.cluster("KEYSLOT", f"antiphon:{{{bucket}}}") for bucket in buckets}
        lost = [bucket for bucket in buckets if client.cluster("COUNTKEYSINSLOT", slots[bucket])]
        # The second node takes over a slot from the first, without its data.
        client.delete(f"antiphon:{{{lost[0]}}}")
        for node in (successor, client):
            node.execute_command("CLUSTER SETSLOT", slots[lost[0]], "NODE", successor.execute_command("CLUSTER MYID"))
    first.stop(signal.SIGKILL)

    await store.put(lost[0], "resp_2", b"the store finds the node that took over")
    found = await asyncio.gather(*(store.get(bucket, "resp_1") for bucket in buckets), return_exceptions=True)
    kinds = [
        bytes if bucket not in lost else type(None) if bucket == lost[0] else StoreUnavailable for bucket in buckets
    ]
    assert [type(answer) for answer in found] == kinds

    first.start()
    for bucket in buckets:
        await eventually(lambda bucket=bucket: store.put(bucket, "resp_2", b"2"))
    found = await asyncio.gather(*(store.get(bucket, "resp_2") for bucket in buckets))
    assert found == [b"2"] * 20
    await store.aclose()


async def test_cluster_and_single_server_are_distinguished(
    private: RedisServer, redis_cluster: list[RedisServer]
) -> None:
    reasons = []
    for url in (redis_cluster[0].url.replace("+cluster", ""), private.url.replace("redis:", "redis+cluster:")):
        store = redis_store(url)
        for number in range(20):
            try:
                await store.put(f"a:{number}", "resp_1", b"1")
            except StoreUnavailable as unavailable:
                reasons += unavailable.__notes__
                break
        await store.aclose()

    assert reasons == [
        f"Redis at 127.0.0.1:{redis_cluster[0].port}: "
        "it is a node of a cluster: write redis+cluster:// in the store URL",
        f"Redis at 127.0.0.1:{private.port}: ResponseError: This instance has cluster support disabled",
    ]


# Servers without AUTH repeat the whole command in their error, with the password.
@pytest.mark.parametrize("options", [("--requirepass", "another"), ("--rename-command", "AUTH", "")])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_password_that_is_refused_is_in_no_message(
    options: tuple[str, ...], scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(options=options, password=None if options[0] != "--requirepass" else "another") as server:
        caplog.set_level(logging.DEBUG)
        store = redis_store(f"{scheme}://user-name:{QUOTED}@127.0.0.1:{server.port}")
        with pytest.raises(StoreUnavailable) as unavailable:
            await store.put(CHAIN, "resp_1", RECORD)
        output = "".join(traceback.format_exception(unavailable.value)) + all_text(caplog) + repr(store)
        await store.aclose()

    assert f"Redis at 127.0.0.1:{server.port}" in output
    for secret in (SECRET, QUOTED, "user-name", RECORD.decode()):
        assert secret not in output


async def test_password_with_special_characters_is_quoted_in_the_url() -> None:
    with RedisServer(password=SECRET) as server:
        store = redis_store(f"redis://:{QUOTED}@127.0.0.1:{server.port}/3")
        await store.put(CHAIN, "resp_1", b"1")
        assert await store.get(CHAIN, "resp_1") == b"1"
        with server.client() as client:
            assert client.info("keyspace").keys() == {"db3"}
        await store.aclose()


async def test_outage_and_its_end_are_logged_once_each(
    private: RedisServer, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="app.storage")
    private.stop()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.check()
    private.start()
    for _ in range(3):
        await store.check()

    records = records_of(caplog, "app.storage")
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("WARNING", "store unavailable"),
        ("INFO", "store recovered"),
    ]
    assert {record.__dict__["store"] for record in records} == {f"Redis at 127.0.0.1:{private.port}"}


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://", "malformed"),
        ("redis:///0", "malformed"),
        ("redis://localhost:redis", "malformed"),
        ("redis://localhost:99999", "malformed"),
        ("redis://localhost/zero", "malformed"),
        ("redis://:s3cr/t@localhost", "malformed"),
        ("redis://:s3cr#t@localhost", "malformed"),
        ("redis://user:s3cr\u2100t@localhost", "malformed"),
        ("redis://[::1", "malformed"),
        ("redis://localhost,other", "redis+cluster://, can name several hosts"),
        ("redis+cluster://localhost,,other", "malformed"),
        ("redis+cluster://localhost/3", "has no databases"),
        ("redis://localhost?decode_responses=true", "unknown option 'decode_responses'"),
        ("redis://localhost?ssl_ca_certs=/ca.pem", "unknown option 'ssl_ca_certs'"),
        ("rediss://localhost?ssl_cert_reqs=maybe", "expected one of required, optional, none"),
        ("redis://localhost?socket_timeout=0", "expected a positive number of seconds"),
        ("redis://localhost?max_connections=s3cret", "expected a positive whole number"),
        ("redis://localhost?protocol=4", "expected one of 2, 3"),
    ],
)
def test_url_that_is_invalid_is_refused_and_not_quoted(url: str, complaint: str) -> None:
    with pytest.raises(ValueError) as refused:
        RedisStore.from_url(url, ttl=1000)

    assert complaint in str(refused.value)
    assert "s3cr" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://[::1]:7000/2?protocol=3&health_check_interval=30",
        "rediss://user:password@localhost?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_ca_certs=/ca.pem",
        "redis+cluster://one:7000,two,[::1]:7002",
        "rediss+cluster://user:password@one:7000,two",
    ],
)
async def test_url_that_is_valid_is_accepted_without_connecting(url: str) -> None:
    await RedisStore.from_url(url, ttl=1000).aclose()
