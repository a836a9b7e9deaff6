"""Locations for the contract suite's stores: opening a store, and advancing time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import apsw
import pytest

from app.stores import ServerStore
from app.stores.memory import MemoryStore
from app.stores.postgres import PostgresStore
from app.stores.redis import RedisStore
from app.stores.sqlite import SQLiteStore
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

TTL = 1000.0


def redis_store(url: str, ttl: float = TTL) -> RedisStore:
    """Return a store for which slowness is not an outage."""
    address, _, options = url.partition("?")
    return RedisStore.from_url(f"{address}?socket_timeout=60&socket_connect_timeout=60&{options}", ttl=ttl)


class StoreLocation(Protocol):
    @property
    def url(self) -> str:
        """The URL of the store in the settings."""
        ...

    def open(self, ttl: float = TTL) -> ServerStore:
        """Return a store on this location."""
        ...

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def contents(self) -> bytes:
        """Return everything stored here, as seen in the store itself."""
        ...


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Memory:
    clock: Clock = field(default_factory=Clock)
    stores: list[MemoryStore] = field(default_factory=list)
    url: str = "memory://"

    def open(self, ttl: float = TTL) -> ServerStore:
        self.stores.append(MemoryStore.from_url("memory://", ttl=ttl, clock=self.clock))
        return self.stores[-1]

    def contents(self) -> bytes:
        stores = [each for store in self.stores for each in (store, store._lasting) if each]
        buckets = [bucket for store in stores for bucket in store._partitions.values()]
        return b"".join(
            content for bucket in buckets for content in (*bucket.records.values(), *bucket.entries.values())
        )

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds


@dataclass
class SQLite:
    path: Path
    clock: Clock = field(default_factory=Clock)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def open(self, ttl: float = TTL) -> ServerStore:
        return SQLiteStore.from_url(self.url, ttl=ttl, clock=self.clock)

    def contents(self) -> bytes:
        with contextlib.closing(apsw.Connection(str(self.path))) as db:
            rows: list[Any] = db.execute(
                "SELECT record FROM records UNION ALL SELECT piece FROM pieces"
                " UNION ALL SELECT entry FROM records UNION ALL SELECT data FROM batches"
            ).fetchall()
        return b"".join(content or b"" for (content,) in rows)

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds


@dataclass
class Postgres:
    server: PostgresServer

    @property
    def url(self) -> str:
        return self.server.url

    def open(self, ttl: float = TTL) -> ServerStore:
        return PostgresStore.from_url(self.server.patient_url, ttl=ttl)

    def contents(self) -> bytes:
        records = "SELECT record FROM antiphon_records UNION ALL SELECT entry FROM antiphon_records"
        rows = self.server.sql(f"{records} UNION ALL SELECT data FROM antiphon_batches").split()
        return b"".join(bytes.fromhex(row.removeprefix("\\x")) for row in rows)

    def advance(self, seconds: float) -> None:
        # The server has its own clock: moving expiry times forward equals waiting.
        tables = ("buckets", "expires"), ("runs", "expires"), ("runs", "leased")
        self.server.sql(
            "; ".join(f"UPDATE antiphon_{table} SET {at} = {at} - interval '{seconds} s'" for table, at in tables)
        )


@dataclass
class Redis:
    servers: Sequence[RedisServer]

    @property
    def url(self) -> str:
        return self.servers[0].url

    def open(self, ttl: float = TTL) -> ServerStore:
        return redis_store(self.servers[0].url, ttl)

    def advance(self, seconds: float) -> None:
        # Redis has its own clock: moving expiry times forward equals waiting.
        for server in self.servers:
            with server.client() as client:
                keys = list(client.scan_iter("antiphon:*", count=1000))
                pipeline = client.pipeline(transaction=False)
                for key in keys:
                    pipeline.pttl(key)
                for key, left in zip(keys, pipeline.execute(), strict=True):
                    pipeline.pexpire(key, left - round(seconds * 1000))
                pipeline.execute()

    def contents(self) -> bytes:
        found = b""
        for server in self.servers:
            with server.client() as client:
                for key in client.scan_iter("*", count=1000):
                    match client.type(key):
                        case b"hash":
                            found += repr(client.hgetall(key)).encode()
                        case b"zset":
                            found += repr(client.zrange(key, 0, -1)).encode()
                        case b"stream":
                            found += repr(client.xrange(key)).encode()
        return found

    def clear(self) -> None:
        for server in self.servers:
            with server.client() as client:
                client.flushdb()


STORES = ["memory", "sqlite", "postgres", "redis"]
SHARED = [*STORES[1:], "cluster"]  # by several processes


def location_of(request: pytest.FixtureRequest, directory: Path) -> StoreLocation:
    """Return an empty location for the store kind in a fixture's parameter."""
    match request.param:
        case "memory":
            return Memory()
        case "sqlite":
            return SQLite(directory / "antiphon.db")
        case "postgres":
            server = request.getfixturevalue("postgres_server")
            server.clear()
            return Postgres(server)
        case "redis":
            servers = [request.getfixturevalue("redis_server")]
        case _:
            servers = request.getfixturevalue("redis_cluster")
    redis = Redis(servers)
    redis.clear()
    return redis
