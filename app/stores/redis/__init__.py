"""
A store in Redis or a compatible server, shared by any number of replicas of this server.

    redis://[[user]:password@]host[:6379][/database]           rediss:// for TLS
    redis+cluster://[[user]:password@]host[:6379][,host:port]  rediss+cluster:// for TLS

A partition is a hash, `antiphon:{owner:chain}` or `antiphon:{owner:chain}:conversation`: the braces keep a chain's
partitions in the same cluster slot. Redis deletes expired partitions itself; its `maxmemory-policy` must be
`noeviction` or `volatile-*`.

    antiphon:{owner}:listed    record names, by the time of the first put: a sorted set
    antiphon:{owner}:buckets   the record's partition, by record name: a hash
    antiphon:{owner}:stored    all partitions of the owner, on servers with quotas: a set

The owner's lists have other cluster slots than the records, so a name is written before its record, and names without a
record are skipped. An entry is stored in its record's partition, and deleted and expired with the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

from app.storage import Outage
from app.stores import LISTED, Change, ServerStore, images_partition, owner_of
from app.stores.keys import FOREVER
from app.stores.redis.connection import Command, RedisClient, lua_write_guard, make_servers, read_address
from app.stores.redis.counters import FAST_TIMEOUT, RedisCounters
from app.stores.redis.event_log import BLOCK, MAX_WAITERS, RedisLog
from app.stores.redis.usage import RedisUsage

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

ENTRY = "\0"  # before a record's name: the hash field with its entry
_MEASURED = 100  # partitions per round trip
_EXTRA = 20  # additional entries to read, because some records can have expired

# The score is the server's time, and greater than all others.
_LIST = f"""{lua_write_guard("'HSET', KEYS[2], ARGV[1], ARGV[2]")}
local time = redis.call('TIME')
local place = time[1] * 1000000 + time[2]
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if last and tonumber(last) >= place then place = last + 1 end
redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', place), ARGV[1])
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1 - ARGV[4])) do
  redis.call('HDEL', KEYS[2], name)
  redis.call('ZREM', KEYS[1], name)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('PEXPIRE', KEYS[2], ARGV[3])
"""
_RECENT = """
local first = 0
if ARGV[1] ~= '' then
  local rank = redis.call('ZREVRANK', KEYS[1], ARGV[1])
  if not rank then return nil end
  first = rank + 1
end
local names = redis.call('ZREVRANGE', KEYS[1], first, first + ARGV[2] - 1)
if #names == 0 then return {{}, {}} end
return {names, redis.call('HMGET', KEYS[2], unpack(names))}
"""


class RedisStore(ServerStore):
    def __init__(self, url: str, *, ttl: float) -> None:
        """Raises ValueError, without secrets."""
        self._hosts, self._cluster, self._options = read_address(url)
        self._outage = Outage("Redis at " + ", ".join(f"{host}:{port}" for host, port in self._hosts))
        self._client = self._connect()
        self._ttl = max(1, round(ttl * 1000))  # milliseconds
        self._measures = False  # whether owners' partitions are listed, to be measured

    @classmethod
    def from_url(cls, url: str, *, ttl: float) -> RedisStore:
        return cls(url, ttl=ttl)

    def _connect(self, **others: float) -> RedisClient:
        """`others` override the URL's options."""
        options = {**self._options, **others}
        timeout = options["socket_connect_timeout"] + options["socket_timeout"]
        # `RedisClient` limits the connections.
        servers = make_servers(self._hosts, self._cluster, {**options, "max_connections": 2**31 - 1})
        return RedisClient(servers, options["max_connections"], timeout, self._outage)

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
        lists = [self._list(change) for change in changes]
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
        commands = (key, [command, self._renewal(key)]), (images, [self._renewal(images)])
        return (await self._client.execute_each(commands))[0]

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
        unlist = self._list(Change(partition, {}, [name]))
        return bool(await self._after([unlist], _key(partition), ("HDEL", _key(partition), name, f"{ENTRY}{name}")))

    async def delete_partition(self, partition: str) -> bool:
        """Return False also if the connection broke after deletion."""
        [dropped] = await self._client.execute(_key(partition), ("DEL", _key(partition)))
        return bool(dropped)

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        result: list[bytes] = []
        page = await self._page(owner, limit + _EXTRA, after or "")
        if page is None:
            return None
        while page:
            keys = [(_key(partition), name) for name, partition in page]
            entries = await self._client.execute_each([(key, [("HGET", key, f"{ENTRY}{name}")]) for key, name in keys])
            result += [entry for entry in entries if entry is not None]
            if len(result) >= limit or len(page) < limit + _EXTRA:
                break
            page = await self._page(owner, limit + _EXTRA, page[-1][0])
        return result[:limit]

    async def _page(self, owner: str, size: int, after: str) -> list[tuple[str, str]] | None:
        """Names and partitions, newest first; None if the name `after` is missing."""
        listed, partitions = _list_keys(owner)
        [page] = await self._client.execute(listed, ("EVAL", _RECENT, 2, listed, partitions, after, size))
        if page is None:
            return None
        return [(name.decode(), (partition or b"").decode()) for name, partition in zip(*page, strict=True)]

    def _list(self, change: Change) -> tuple[str, list[Command]]:
        """
        A key in the owner's slot, and commands that list a change's entries for at least the TTL.

        On servers with quotas, they also add the change's partition to the set of all partitions.
        """
        owner = owner_of(change.partition)
        listed, partitions = _list_keys(owner)
        commands: list[Command] = []
        if self._measures and change.put:
            commands += [("SADD", _stored_key(owner), change.partition), ("PEXPIRE", _stored_key(owner), self._ttl)]
        for name in change.entries:
            commands.append(("EVAL", _LIST, 2, listed, partitions, name, change.partition, self._ttl, LISTED))
        if change.delete:
            commands += [("ZREM", listed, *change.delete), ("HDEL", partitions, *change.delete)]
        return listed, commands

    async def stored_bytes(self, owner: str) -> int:
        """
        Measure the memory of partitions written after each process's first call.

        Missing partitions are removed from the set.
        """
        self._measures = True
        stored = _stored_key(owner)
        names, _ = await self._client.execute(stored, ("SMEMBERS", stored), ("PEXPIRE", stored, self._ttl))
        partitions = [name.decode() for name in names]
        total = 0
        for at in range(0, len(partitions), _MEASURED):
            part = partitions[at : at + _MEASURED]
            sizes = await self._client.execute_each(
                [(key, [("MEMORY", "USAGE", key, "SAMPLES", 0)]) for key in map(_key, part)]
            )
            total += sum(size or 0 for size in sizes)
            if missing := [partition for partition, size in zip(part, sizes, strict=True) if size is None]:
                await self._client.execute(stored, ("SREM", stored, *missing))
        return total

    async def delete_expired(self) -> None:
        """Redis deletes expired keys itself."""

    async def check(self) -> None:
        """Append nothing to a missing key, which replicas and full servers reject."""
        await self._client.execute(_key(""), ("SETRANGE", _key(""), 0, ""))

    def log(self, *, ttl: float, lease: float) -> RedisLog:
        timeout = self._options["socket_timeout"] + BLOCK
        blocking = partial(self._connect, max_connections=MAX_WAITERS, socket_timeout=timeout)
        return RedisLog(self._client, blocking, ttl=ttl, lease=lease)

    def counters(self) -> RedisCounters:
        connecting = min(FAST_TIMEOUT, self._options["socket_connect_timeout"])
        return RedisCounters(self._connect(socket_timeout=FAST_TIMEOUT, socket_connect_timeout=connecting))

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


def _stored_key(owner: str) -> str:
    return f"antiphon:{{{owner}}}:stored"


def _list_keys(owner: str) -> tuple[str, str]:
    return f"antiphon:{{{owner}}}:listed", f"antiphon:{{{owner}}}:buckets"
