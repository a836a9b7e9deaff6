"""
A store in Redis (or Valkey, or whatever speaks as they do), shared by any number of replicas of this server.

    redis://[[user]:password@]host[:6379][/database]           rediss:// for TLS
    redis+cluster://[[user]:password@]host[:6379][,host:port]  rediss+cluster:// for TLS

A bucket is one hash, `antiphon:{owner:chain}` or `antiphon:{owner:chain}:conversation`: the braces keep all buckets of
a chain in one slot of a cluster. Each method is one round trip, but in a cluster also one to the list of the owner,
where that changes: see `app.stores.redis.listing`. Redis forgets expired buckets itself; give it a `maxmemory-policy`
of `noeviction` or `volatile-*`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from app.stores import Change
from app.stores.outage import Outage
from app.stores.redis import listing
from app.stores.redis.connection import RedisClient, make_servers, read_address
from app.stores.redis.counters import HASTE, RedisCounters
from app.stores.redis.event_log import BLOCK, FOLLOWERS, RedisLog
from app.stores.redis.listing import ENTRY, Command
from app.stores.redis.usage import RedisUsage

CONNECT_TIMEOUT = 2.0
READ_TIMEOUT = 5.0
MAX_CONNECTIONS = 50

# The keys are those of the buckets. The arguments are the time to live; then for each bucket the given record (or '')
# and how many records are put and deleted; then their names, with what is put.
# The first command changes nothing, and fails on what is no string, but a replica or a full server refuses it before.
# Servers before 7 bury READONLY in the middle of a script's error: dig it out, because the client then tries again on a
# new connection.
_APPLY = """
local ready = redis.pcall('SETRANGE', KEYS[1], 0, '')
if type(ready) == 'table' and ready.err and not ready.err:find('WRONGTYPE', 1, true) then
  return redis.error_reply(ready.err:match('READONLY.*') or ready.err)
end
for i = 1, #KEYS do
  local given = ARGV[3 * i - 1]
  if given ~= '' and redis.call('HEXISTS', KEYS[i], given) == 0 then return 0 end
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
    """Buckets as hashes of one Redis server or cluster."""

    def __init__(
        self, client: RedisClient, waiting: Callable[[], RedisClient], fast: Callable[[], RedisClient], *, ttl: float
    ) -> None:
        """`waiting` makes the client for calls whose answer may take longer, `fast` for those that must not."""
        self._client = client
        self._waiting = waiting
        self._fast = fast
        self._ttl = max(1, round(ttl * 1000))  # milliseconds

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
        """
        Make the store of a `redis://` URL or its like, whose options win over the arguments; timeouts are in seconds.

        The first use connects. A bad URL raises ValueError, whose message quotes nothing that could be a secret.
        """
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
            waiting=lambda: client(FOLLOWERS, timeout + BLOCK),
            fast=lambda: client(limit, HASTE, HASTE),
            ttl=ttl,
        )

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Keep a record and renew its bucket, at once."""
        await self.apply(Change(bucket, {name: record}))

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        """Store a record if there is none of that name; return whether it was stored."""
        key = _key(bucket)
        stored, _ = await self._client.ask(key, ("HSETNX", key, name, record), ("PEXPIRE", key, self._ttl))
        return bool(stored)

    async def apply(self, *changes: Change) -> bool:
        """Make changes at once, by one script; make none, and return False, where a given record is missing."""
        keys = [_key(change.bucket) for change in changes]
        heads: list[str | int | bytes] = []
        records: list[str | int | bytes] = []
        for _, put, delete, given, entries in changes:
            fields = {**put, **{f"{ENTRY}{name}": entry for name, entry in entries.items()}}
            heads += [given or "", len(fields), 2 * len(delete)]
            records += [part for name, value in fields.items() for part in (name, value)]
            records += [part for name in delete for part in (name, f"{ENTRY}{name}")]
        apply: Command = ("EVAL", _APPLY, len(keys), *keys, self._ttl, *heads, *records)
        made = await self._ask_beside(keys[0], apply, [listing.update(change, self._ttl) for change in changes])
        return bool(made)

    async def _ask_beside(self, key: str, command: Command, lists: Sequence[tuple[str, list[Command]]]) -> object:
        """Send what changes lists of owners, then a command about a key; return the answer to that one."""
        if not self._client.slots:
            answers = await self._client.ask(key, *(one for _, commands in lists for one in commands), command)
            return answers[-1]
        for place, commands in lists:
            if commands:
                await self._client.ask(place, *commands)
        return (await self._client.ask(key, command))[0]

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return one record, and renew its bucket."""
        key = _key(bucket)
        record: bytes | None
        record, _ = await self._client.ask(key, ("HGET", key, name), ("PEXPIRE", key, self._ttl))
        return record

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return a bucket's records by name, and renew it."""
        key = _key(bucket)
        fields, _ = await self._client.ask(key, ("HGETALL", key), ("PEXPIRE", key, self._ttl))
        return {name.decode(): value for name, value in fields.items() if not name.startswith(ENTRY.encode())}

    async def names(self, bucket: str) -> set[str]:
        """Return the names of a bucket's records, and renew it."""
        key = _key(bucket)
        fields, _ = await self._client.ask(key, ("HKEYS", key), ("PEXPIRE", key, self._ttl))
        return {name.decode() for name in fields if not name.startswith(ENTRY.encode())}

    async def delete(self, bucket: str, name: str) -> bool:
        """Forget one record; tell whether it was there (no longer, if the connection broke after Redis did it)."""
        unlist = listing.update(Change(bucket, {}, [name]), self._ttl)
        return bool(await self._ask_beside(_key(bucket), ("HDEL", _key(bucket), name, f"{ENTRY}{name}"), [unlist]))

    async def drop(self, bucket: str) -> bool:
        """Forget a bucket; tell whether it was there (no longer, if the connection broke after Redis did it)."""
        [dropped] = await self._client.ask(_key(bucket), ("DEL", _key(bucket)))
        return bool(dropped)

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """Return the entries of an owner's records, the newest first."""
        return await listing.recent(self._client, _key, owner, limit, after)

    async def purge(self) -> None:
        """Redis does so itself."""

    async def check(self) -> None:
        """Write nothing behind what is not there: a replica refuses that, and so does a server that is full."""
        await self._client.ask(_key(""), ("SETRANGE", _key(""), 0, ""))

    def log(self, *, ttl: float, lease: float) -> RedisLog:
        """Return an event log in the same place."""
        return RedisLog(self._client, self._waiting, ttl=ttl, lease=lease)

    def counters(self) -> RedisCounters:
        """Return counts in the same place."""
        return RedisCounters(self._fast())

    def usage(self, *, days: int) -> RedisUsage:
        """Return the usage of keys in the same place."""
        return RedisUsage(self._client, days=days)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _key(bucket: str) -> str:
    """Return the key of a bucket. Its chain is the tag that decides on the slot."""
    chain = ":".join(bucket.split(":", 2)[:2])
    return f"antiphon:{{{chain}}}{bucket.removeprefix(chain)}"
