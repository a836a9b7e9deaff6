"""
The lists of owners in Redis: for each a sorted set of names, and a hash that says where their records are.

    antiphon:{owner}:listed    names of records, by the time at which they were first put
    antiphon:{owner}:buckets   by name, the bucket of the record

Both are in one slot of a cluster, but not in that of the records. So a name is written before its record, and one
without a record is passed over. The entry is kept beside its record: it comes, goes and expires with that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from app.stores import LISTED, Change, owner_of

Command: TypeAlias = tuple[str | int | bytes, ...]

_SPARE = 20  # entries that are read beyond those that are wanted, since the records of some may have expired

# The clock of the server gives an entry its place, behind all that are there.
_LIST = """
local held = redis.pcall('HSET', KEYS[2], ARGV[1], ARGV[2])
if type(held) == 'table' and held.err then return redis.error_reply(held.err:match('READONLY.*') or held.err) end
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


class _Client(Protocol):
    """Where commands are sent."""

    slots: bool

    async def ask(self, key: str, *commands: Command) -> list[Any]: ...


ENTRY = "\0"  # before the name of a record, that of its entry in the hash of the bucket


def update(change: Change, ttl: int) -> tuple[str, list[Command]]:
    """
    Return the commands after which what a change says is listed, for `ttl` milliseconds at least, and a key of their
    slot.
    """
    listed, buckets = _keys(owner_of(change.bucket))
    commands: list[Command] = []
    for name in change.entries:
        commands.append(("EVAL", _LIST, 2, listed, buckets, name, change.bucket, ttl, LISTED))
    if change.delete:
        commands += [("ZREM", listed, *change.delete), ("HDEL", buckets, *change.delete)]
    return listed, commands


async def recent(
    client: _Client, key_of: Callable[[str], str], owner: str, limit: int, after: str | None
) -> list[bytes] | None:
    """Return the entries of an owner's records: see `Store.recent`. `key_of` says where a bucket is."""
    found: list[bytes] = []
    page = await _page(client, owner, limit + _SPARE, after or "")
    if page is None:
        return None
    while page:
        entries = await _entries(client, [(key_of(bucket), name) for name, bucket in page])
        found += [entry for entry in entries if entry is not None]
        if len(found) >= limit or len(page) < limit + _SPARE:
            break
        page = await _page(client, owner, limit + _SPARE, page[-1][0])
    return found[:limit]


async def _page(client: _Client, owner: str, size: int, after: str) -> list[tuple[str, str]] | None:
    """Return names and buckets, the newest first; None if there is nothing of the name `after`."""
    listed, buckets = _keys(owner)
    [page] = await client.ask(listed, ("EVAL", _RECENT, 2, listed, buckets, after, size))
    if page is None:
        return None
    return [(name.decode(), (bucket or b"").decode()) for name, bucket in zip(*page, strict=True)]


async def _entries(client: _Client, records: Sequence[tuple[str, str]]) -> list[bytes | None]:
    """Return the entry of each record, which is given by its key and name, or None where there is no such record."""
    lookups: list[tuple[str, Command]] = [(key, ("HGET", key, f"{ENTRY}{name}")) for key, name in records]
    if client.slots:
        return [entry for [entry] in await asyncio.gather(*(client.ask(key, command) for key, command in lookups))]
    return await client.ask(lookups[0][0], *(command for _, command in lookups))


def _keys(owner: str) -> tuple[str, str]:
    return f"antiphon:{{{owner}}}:listed", f"antiphon:{{{owner}}}:buckets"
