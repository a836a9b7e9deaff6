"""A Redis Cluster with real local nodes: three primaries and optionally a replica of the first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import redis

from tests.support.redis_server import PATIENCE, RedisServer, join

LOST = 3000  # milliseconds until nodes declare a silent node dead, in tests with a failure
BUSY = 60_000  # for tests without a failure: nodes on a busy machine are late
AGREED = 120.0  # seconds for the nodes to agree on something


class Cluster:
    """Running nodes with all slots."""

    def __init__(self, primaries: Sequence[RedisServer]) -> None:
        self.primaries = primaries
        self._clients = [server.client() for server in primaries]
        self._ids = [client.execute_command("CLUSTER MYID").decode() for client in self._clients]

    @property
    def url(self) -> str:
        """A store URL with all nodes, because any can fail."""
        nodes = ",".join(f"127.0.0.1:{server.port}" for server in self.primaries)
        return f"redis+cluster://{nodes}?{PATIENCE}"

    def slot(self, bucket: str) -> int:
        """Return a bucket's slot."""
        slot: int = self._clients[-1].execute_command("CLUSTER KEYSLOT", f"antiphon:{{{bucket}}}")
        return slot

    def knows(self, server: RedisServer) -> bool:
        """Tell whether all other primaries agree that a node, and not the first primary, holds slots."""
        for client in self._clients[1:]:
            ports = {primary[1] for _, _, primary, *_ in client.execute_command(b"CLUSTER SLOTS")}
            if server.port not in ports or self.primaries[0].port in ports:
                return False
            if client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                return False
        return True

    def port(self, slot: int) -> int:
        """Return the port of a slot's node."""
        for first, last, (_, port, *_), *_ in self._clients[-1].execute_command(b"CLUSTER SLOTS"):
            if first <= slot <= last:
                return int(port)
        raise LookupError(slot)

    def holder(self, slot: int) -> int:
        """Return the number of a slot's primary."""
        return [server.port for server in self.primaries].index(self.port(slot))

    def used(self) -> list[int]:
        """Return the slots in which there is anything."""
        keys = [key for client in self._clients for key in client.scan_iter("*", count=1000)]
        return sorted({self._clients[-1].execute_command("CLUSTER KEYSLOT", key) for key in keys})

    def begin_to_move(self, slot: int, target: int) -> None:
        """Start a slot's migration: missing keys are requested from the target."""
        source = self.holder(slot)
        self._on(target, "CLUSTER SETSLOT", slot, "IMPORTING", self._ids[source])
        self._on(source, "CLUSTER SETSLOT", slot, "MIGRATING", self._ids[target])

    def move_keys(self, slot: int, target: int, count: int = 1000) -> int:
        """Move some keys in a migrating slot, and return their number."""
        source = self.holder(slot)
        keys = self._on(source, "CLUSTER GETKEYSINSLOT", slot, count)
        if keys:
            self._on(source, "MIGRATE", "127.0.0.1", self.primaries[target].port, "", 0, 30_000, "KEYS", *keys)
        return len(keys)

    def end_to_move(self, slot: int, target: int) -> None:
        """Tell all nodes where the slot is now."""
        for number in sorted(range(len(self.primaries)), key=lambda number: number != target):
            self._on(number, "CLUSTER SETSLOT", slot, "NODE", self._ids[target])

    async def move(self, slot: int, pause: float) -> None:
        """Move a slot to the next node key by key, with a pause before each."""
        target = (self.holder(slot) + 1) % len(self.primaries)
        self.begin_to_move(slot, target)
        while True:
            await asyncio.sleep(pause)
            if not self.move_keys(slot, target, count=1):
                break
        self.end_to_move(slot, target)

    def _on(self, number: int, *command: Any) -> Any:
        return self._clients[number].execute_command(*command)

    def close(self) -> None:
        for client in self._clients:
            client.close()


@contextlib.contextmanager
def cluster(timeout: int = BUSY) -> Iterator[Cluster]:
    """Three primaries."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(_node(timeout)) for _ in range(3)]
        join(nodes)
        made = Cluster(nodes)
        stack.callback(made.close)
        yield made


@contextlib.contextmanager
def replicated() -> Iterator[tuple[Cluster, RedisServer]]:
    """Three primaries, and the first one's replica."""
    with contextlib.ExitStack() as stack:
        made, replica = stack.enter_context(cluster(LOST)), stack.enter_context(_node(LOST))
        primary, client = stack.enter_context(made.primaries[0].client()), stack.enter_context(replica.client())
        client.execute_command("CLUSTER MEET", "127.0.0.1", made.primaries[0].port)
        id = primary.execute_command("CLUSTER MYID").decode()
        _until(lambda: id in str(client.execute_command(b"CLUSTER NODES")))
        client.execute_command("CLUSTER REPLICATE", id)
        _until(lambda: client.info("replication").get("master_link_status") == "up")
        # The others have to know of it, or they could not vote for it.
        for server in made.primaries:
            with server.client() as other:
                _until(lambda other=other: b" slave " in other.execute_command(b"CLUSTER NODES"))
        yield made, replica


def _node(timeout: int) -> RedisServer:
    return RedisServer(cluster=True, options=("--cluster-node-timeout", str(timeout), "--repl-diskless-sync", "yes"))


def caught_up(primary: RedisServer, replica: RedisServer) -> None:
    """Return when the replica has caught up: later writes are lost with the primary."""
    with primary.client() as client:
        assert client.execute_command("WAIT", 1, 30_000) == 1
    with primary.client() as one, replica.client() as other:
        _until(lambda: one.info("replication")["master_repl_offset"] == other.info("replication")["slave_repl_offset"])


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(AGREED):
        while not await condition():
            await asyncio.sleep(0.05)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + AGREED
    while True:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        assert time.monotonic() < deadline, "the nodes do not agree"
        time.sleep(0.02)
