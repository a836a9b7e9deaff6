"""
A store in Redis or a compatible server, shared by any number of replicas of this server.

    redis://[[user]:password@]host[:6379][/database]           rediss:// for TLS
    redis+cluster://[[user]:password@]host[:6379][,host:port]  rediss+cluster:// for TLS

A partition is a hash, `antiphon:{owner:chain}` or `antiphon:{owner:chain}:conversation`: the braces keep a chain's
partitions in the same cluster slot. Redis deletes expired partitions itself; its `maxmemory-policy` must be
`noeviction` or `volatile-*`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from app.storage.outage import Outage
from app.stores import Change, images_partition
from app.stores.keys import FOREVER
from app.stores.redis import listing
from app.stores.redis.connection import Command, RedisClient, make_servers, read_address
from app.stores.redis.counters import FAST_TIMEOUT, RedisCounters
from app.stores.redis.event_log import BLOCK, MAX_WAITERS, RedisLog
from app.stores.redis.listing import ENTRY
from app.stores.redis.usage import RedisUsage

CONNECT_TIMEOUT = 2.0
READ_TIMEOUT = 5.0
MAX_CONNECTIONS = 50

# KEYS: the partitions. ARGV: the TTL; per partition the required record (or '') and the numbers of records to store and
# to delete; then their names, with the records to store. The first command changes nothing; errors other than WRONGTYPE
# mean that the server does not accept writes.
_APPLY = """
local ready = redis.pcall('SETRANGE', KEYS[1], 0, '')
if type(ready) == 'table' and ready.err and not ready.err:find('WRONGTYPE', 1, true) then
  return redis.error_reply(ready.err:match('READONLY.*') or ready.err)
end
for i = 1, #KEYS do
  local required = ARGV[3 * i - 1]
  if required ~= '' and redis.call('HEXISTS', KEYS[i], required) == 0 then return 0 end
end
local at = 3 * #KEYS + 2
for i = 1, #KEYS do
  for _ = 1, tonumber(ARGV[3 * i]) do
    redis.call('HSET', KEYS[i], ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  for _ = 1, tonumber(ARGV[3 * i + 1]) do
    redis.call('HDEL', KEYS[i], ARGV[at])
    at = at + 1
  end
  redis.call('PEXPIRE', KEYS[i], ARGV[1])
end
return 1
"""


class RedisStore:
    def __init__(
        self, client: RedisClient, blocking: Callable[[], RedisClient], fast: Callable[[], RedisClient], *, ttl: float
    ) -> None:
        """`blocking` creates a client for blocking calls, `fast` a client with a short timeout."""
        self._client = client
        self._blocking = blocking
        self._fast = fast
        self._ttl = max(1, round(ttl * 1000))  # milliseconds
        self._measures = False  # whether owners' partitions are listed, to be measured

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        ttl: float,
        socket_connect_timeout: float = CONNECT_TIMEOUT,
        socket_timeout: float = READ_TIMEOUT,
        max_connections: int = MAX_CONNECTIONS,
    ) -> RedisStore:
        """URL options override the arguments; timeouts are in seconds. Raises ValueError, without secrets."""
        address = read_address(url)
        options: dict[str, Any] = {
            "socket_connect_timeout": socket_connect_timeout,
            "socket_timeout": socket_timeout,
            "max_connections": max_connections,
            **address.options(),
        }
        limit, timeout = options.pop("max_connections"), options.pop("socket_timeout")
        outage = Outage("Redis at " + ", ".join(f"{host}:{port}" for host, port in address.hosts))

        def client(limit: int, timeout: float, connecting: float = math.inf) -> RedisClient:
            connecting = min(connecting, options["socket_connect_timeout"])
            servers = make_servers(
                address, {**options, "socket_timeout": timeout, "socket_connect_timeout": connecting}
            )
            return RedisClient(servers, limit, connecting + timeout, outage)

        return cls(
            client(limit, timeout),
            blocking=lambda: client(MAX_WAITERS, timeout + BLOCK),
            fast=lambda: client(limit, FAST_TIMEOUT, FAST_TIMEOUT),
            ttl=ttl,
        )

    async def put(self, partition: str, name: str, record: bytes) -> None:
        await self.apply(Change(partition, {name: record}))

    async def add(self, partition: str, name: str, record: bytes) -> bool:
        return bool(await self._use(partition, ("HSETNX", _key(partition), name, record)))

    async def apply(self, *changes: Change) -> bool:
        keys = [_key(change.partition) for change in changes]
        heads: list[str | int | bytes] = []
        records: list[str | int | bytes] = []
        for _, put, delete, required, entries in changes:
            fields = {**put, **{f"{ENTRY}{name}": entry for name, entry in entries.items()}}
            heads += [required or "", len(fields), 2 * len(delete)]
            records += [part for name, value in fields.items() for part in (name, value)]
            records += [part for name in delete for part in (name, f"{ENTRY}{name}")]
        apply: Command = ("EVAL", _APPLY, len(keys), *keys, self._ttl, *heads, *records)
        lists = [listing.update(change, self._ttl, all_partitions=self._measures) for change in changes]
        images = [(name, [self._renewal(name)]) for name in map(images_partition, keys) if name not in keys]
        return bool(await self._after(lists + images, keys[0], apply))

    async def _after(self, others: Sequence[tuple[str, list[Command]]], key: str, command: Command) -> object:
        """Send commands for other keys, then a command for a key; return its reply."""
        if not self._client.slots:
            answers = await self._client.execute(key, *(other for _, commands in others for other in commands), command)
            return answers[-1]
        for other, commands in others:
            if commands:
                await self._client.execute(other, *commands)
        return (await self._client.execute(key, command))[0]

    async def _use(self, partition: str, command: Command) -> Any:
        key = _key(partition)
        images = images_partition(key)
        if not self._client.slots:
            return (await self._client.execute(key, command, self._renewal(key), self._renewal(images)))[0]
        # Separately: together, they would be redirected if any key is missing here during a slot move.
        replies = await asyncio.gather(
            self._client.execute(key, command, self._renewal(key)),
            self._client.execute(images, self._renewal(images)),
        )
        return replies[0][0]

    def _renewal(self, key: str) -> Command:
        return ("PEXPIRE", key, self._ttl)

    async def get(self, partition: str, name: str) -> bytes | None:
        record: bytes | None = await self._use(partition, ("HGET", _key(partition), name))
        return record

    async def all(self, partition: str) -> dict[str, bytes]:
        fields = await self._use(partition, ("HGETALL", _key(partition)))
        return {name.decode(): value for name, value in fields.items() if not name.startswith(ENTRY.encode())}

    async def exists(self, partition: str, name: str) -> bool:
        [exists] = await self._client.execute(_key(partition), ("HEXISTS", _key(partition), name))
        return bool(exists)

    async def names(self, partition: str) -> set[str]:
        fields = await self._use(partition, ("HKEYS", _key(partition)))
        return {name.decode() for name in fields if not name.startswith(ENTRY.encode())}

    async def delete(self, partition: str, name: str) -> bool:
        """Return False also if the connection broke after deletion."""
        unlist = listing.update(Change(partition, {}, [name]), self._ttl)
        return bool(await self._after([unlist], _key(partition), ("HDEL", _key(partition), name, f"{ENTRY}{name}")))

    async def delete_partition(self, partition: str) -> bool:
        """Return False also if the connection broke after deletion."""
        [dropped] = await self._client.execute(_key(partition), ("DEL", _key(partition)))
        return bool(dropped)

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        return await listing.recent(self._client, _key, owner, limit, after)

    async def stored_bytes(self, owner: str) -> int:
        """Measures partitions written after each process's first call."""
        self._measures = True
        return await listing.stored_bytes(self._client, _key, owner, self._ttl)

    async def delete_expired(self) -> None:
        """Redis deletes expired keys itself."""

    async def check(self) -> None:
        """Append nothing to a missing key, which replicas and full servers reject."""
        await self._client.execute(_key(""), ("SETRANGE", _key(""), 0, ""))

    def log(self, *, ttl: float, lease: float) -> RedisLog:
        return RedisLog(self._client, self._blocking, ttl=ttl, lease=lease)

    def counters(self) -> RedisCounters:
        return RedisCounters(self._fast())

    def lasting(self) -> RedisStore:
        lasting = copy(self)
        lasting._ttl = round(FOREVER * 1000)
        return lasting

    def usage(self, *, days: int) -> RedisUsage:
        return RedisUsage(self._client, days=days)

    async def aclose(self) -> None:
        await self._client.aclose()


def _key(partition: str) -> str:
    """The partition's chain is the hash tag, which determines the slot."""
    chain = ":".join(partition.split(":", 2)[:2])
    return f"antiphon:{{{chain}}}{partition.removeprefix(chain)}"
