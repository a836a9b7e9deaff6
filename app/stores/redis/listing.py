"""
Owners' lists in Redis.

    antiphon:{owner}:listed    record names, by the time of the first put: a sorted set
    antiphon:{owner}:buckets   the record's partition, by record name: a hash
    antiphon:{owner}:stored    all partitions of the owner, on servers with quotas: a set

The records have other cluster slots, so a name is written before its record, and names without a record are skipped. An
entry is stored in its record's partition, and deleted and expired with the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from app.stores import LISTED, Change, owner_of
from app.stores.redis.connection import Command, RedisClient, lua_write_guard

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


ENTRY = "\0"  # before a record's name: the hash field with its entry


def update(change: Change, ttl: int, *, all_partitions: bool = False) -> tuple[str, list[Command]]:
    """
    A key in the owner's slot, and commands that list a change's entries for at least `ttl` milliseconds.

    With `all_partitions`, they also add the change's partition to the set of all partitions.
    """
    owner = owner_of(change.partition)
    listed, partitions = _keys(owner)
    commands: list[Command] = []
    if all_partitions and change.put:
        commands += [("SADD", _stored(owner), change.partition), ("PEXPIRE", _stored(owner), ttl)]
    for name in change.entries:
        commands.append(("EVAL", _LIST, 2, listed, partitions, name, change.partition, ttl, LISTED))
    if change.delete:
        commands += [("ZREM", listed, *change.delete), ("HDEL", partitions, *change.delete)]
    return listed, commands


async def recent(
    client: RedisClient, key_of: Callable[[str], str], owner: str, limit: int, after: str | None
) -> list[bytes] | None:
    """See `Store.recent`. `key_of` returns a partition's key."""
    result: list[bytes] = []
    page = await _page(client, owner, limit + _EXTRA, after or "")
    if page is None:
        return None
    while page:
        keys = [(key_of(partition), name) for name, partition in page]
        entries = await _each(client, [(key, ("HGET", key, f"{ENTRY}{name}")) for key, name in keys])
        result += [entry for entry in entries if entry is not None]
        if len(result) >= limit or len(page) < limit + _EXTRA:
            break
        page = await _page(client, owner, limit + _EXTRA, page[-1][0])
    return result[:limit]


async def _page(client: RedisClient, owner: str, size: int, after: str) -> list[tuple[str, str]] | None:
    """Names and partitions, newest first; None if the name `after` is missing."""
    listed, partitions = _keys(owner)
    [page] = await client.execute(listed, ("EVAL", _RECENT, 2, listed, partitions, after, size))
    if page is None:
        return None
    return [(name.decode(), (partition or b"").decode()) for name, partition in zip(*page, strict=True)]


async def stored_bytes(client: RedisClient, key_of: Callable[[str], str], owner: str, ttl: int) -> int:
    """The memory of an owner's partitions. Missing partitions are removed from the set."""
    stored = _stored(owner)
    names, _ = await client.execute(stored, ("SMEMBERS", stored), ("PEXPIRE", stored, ttl))
    partitions = [name.decode() for name in names]
    total = 0
    for at in range(0, len(partitions), _MEASURED):
        part = partitions[at : at + _MEASURED]
        measures: list[tuple[str, Command]] = [
            (key_of(partition), ("MEMORY", "USAGE", key_of(partition), "SAMPLES", 0)) for partition in part
        ]
        sizes = await _each(client, measures)
        total += sum(size or 0 for size in sizes)
        if missing := [partition for partition, size in zip(part, sizes, strict=True) if size is None]:
            await client.execute(stored, ("SREM", stored, *missing))
    return total


async def _each(client: RedisClient, commands: Sequence[tuple[str, Command]]) -> list[Any]:
    if client.slots:
        return [reply for [reply] in await asyncio.gather(*(client.execute(key, one) for key, one in commands))]
    return await client.execute(commands[0][0], *(command for _, command in commands))


def _stored(owner: str) -> str:
    return f"antiphon:{{{owner}}}:stored"


def _keys(owner: str) -> tuple[str, str]:
    return f"antiphon:{{{owner}}}:listed", f"antiphon:{{{owner}}}:buckets"
