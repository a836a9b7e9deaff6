"""
The lists of owners in Redis: for each a sorted set of names, and a hash of their entries.

    antiphon:{owner}:listed    names of records, by the time at which they were first put
    antiphon:{owner}:entries   by name, the bucket of the record and its entry

Both are in one slot of a cluster, but not in that of the records. So an entry is written before its record, and one
without a record is passed over.
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


def update(change: Change, ttl: int) -> tuple[str, list[Command]]:
    """
    Return the commands after which what a change says is listed, for `ttl` milliseconds at least, and a key of their
    slot.
    """
    listed, entries = _keys(owner_of(change.bucket))
    commands: list[Command] = []
    for name, entry in change.entries.items():
        value = change.bucket.encode() + b"\n" + entry
        commands.append(("EVAL", _LIST, 2, listed, entries, name, value, ttl, LISTED))
    if change.delete:
        commands += [("ZREM", listed, *change.delete), ("HDEL", entries, *change.delete)]
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
        alive = await _exist(client, [(key_of(bucket), name) for name, bucket, _ in page])
        found += [entry for (_, _, entry), exists in zip(page, alive, strict=True) if exists]
        if len(found) >= limit or len(page) < limit + _SPARE:
            break
        page = await _page(client, owner, limit + _SPARE, page[-1][0])
    return found[:limit]


async def _page(client: _Client, owner: str, size: int, after: str) -> list[tuple[str, str, bytes]] | None:
    """Return names, buckets and entries, the newest first; None if there is nothing of the name `after`."""
    listed, entries = _keys(owner)
    [page] = await client.ask(listed, ("EVAL", _RECENT, 2, listed, entries, after, size))
    if page is None:
        return None
    split = ((name.decode(), *(value or b"\n").split(b"\n", 1)) for name, value in zip(*page, strict=True))
    return [(name, bucket.decode(), entry) for name, bucket, entry in split]


async def _exist(client: _Client, records: Sequence[tuple[str, str]]) -> list[bool]:
    """Tell of each record, which is given by its key and name, whether it is there."""
    asked: list[tuple[str, Command]] = [(key, ("HEXISTS", key, name)) for key, name in records]
    if client.slots:
        answers = await asyncio.gather(*(client.ask(key, command) for key, command in asked))
        return [bool(there) for [there] in answers]
    return [bool(there) for there in await client.ask(asked[0][0], *(command for _, command in asked))]


def _keys(owner: str) -> tuple[str, str]:
    return f"antiphon:{{{owner}}}:listed", f"antiphon:{{{owner}}}:entries"
