"""
Counts in Redis, for all processes that share it.

    antiphon:{limit:owner}   when each of the owner's buckets will be full again, in seconds by Redis's clock
    antiphon:{room:name}     who has a place in a room, by the milliseconds at which the place is free again
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby

from app.stores.counters import LEASE, TokenResult, TokenTake
from app.stores.redis.event_log import CommandRunner

HASTE = 0.5  # seconds for a connection, and for an answer: nobody is to wait for what only holds others back

# As in the event log, the first command tells whether this server can be written to.
_READY = """
if type(ready) == 'table' and ready.err then
  return redis.error_reply(ready.err:match('READONLY.*') or ready.err)
end
local time = redis.call('TIME')
"""
_DRAW = f"""
local ready = redis.pcall('HDEL', KEYS[1], '')
{_READY}
local now = time[1] + time[2] / 1000000
local missing, told, granted = {{}}, {{}}, 1
for i = 1, #ARGV, 4 do
  local full = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or now)
  missing[i] = math.max(0, full - now) * ARGV[i + 1] / 60
  if ARGV[i + 3] ~= '0' and missing[i] + ARGV[i + 3] > tonumber(ARGV[i + 1]) then granted = 0 end
end
for i = 1, #ARGV, 4 do
  if granted == 1 then
    missing[i] = missing[i] + ARGV[i + 2]
    local seconds = missing[i] * 60 / ARGV[i + 1]
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.6f', now + seconds))
    local milliseconds = math.ceil(seconds * 1000) + 1
    if milliseconds > redis.call('PTTL', KEYS[1]) then redis.call('PEXPIRE', KEYS[1], milliseconds) end
  end
  table.insert(told, string.format('%.6f', missing[i]))
end
return {{granted, unpack(told)}}
"""
_ROOM = f"""
local ready = redis.pcall('ZREM', KEYS[1], '')
{_READY}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_ENTER = f"""{_ROOM}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
# Only who is there stays: a place that has been given back must not be taken again by a renewal that comes late.
_STAY = f"""{_ROOM}
local gone = {{}}
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i])
  else
    table.insert(gone, ARGV[i])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return gone
"""


class RedisCounters:
    """Buckets as one hash for each owner, rooms as sorted sets."""

    def __init__(self, server: CommandRunner) -> None:
        self._server = server

    async def take(self, owner: str, draws: Sequence[TokenTake]) -> TokenResult:
        """Take from an owner's buckets what is wanted, all of it or nothing."""
        key = f"antiphon:{{limit:{owner}}}"
        arguments = [value for take in draws for value in (take.bucket, take.most, take.amount, take.needs)]
        [[granted, *missing]] = await self._server.ask(key, ("EVAL", _DRAW, 1, key, *arguments))
        return TokenResult(bool(granted), [float(gone) for gone in missing])

    async def acquire(self, room: str, guest: str, most: int) -> bool:
        """Take one of the places of a room; tell whether there was one."""
        [entered] = await self._server.ask(_room(room), ("EVAL", _ENTER, 1, _room(room), _LEASE, most, guest))
        return bool(entered)

    async def renew(self, guests: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Keep places; return those that were not there any more."""
        rooms = groupby(sorted(guests), lambda guest: guest[0])
        gone = await asyncio.gather(*(self._renew(room, [name for _, name in group]) for room, group in rooms))
        return [place for places in gone for place in places]

    async def release(self, room: str, guest: str) -> None:
        """Give a place back."""
        await self._server.ask(_room(room), ("ZREM", _room(room), guest))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._server.aclose()

    async def _renew(self, room: str, guests: list[str]) -> list[tuple[str, str]]:
        key = _room(room)
        [gone] = await self._server.ask(key, ("EVAL", _STAY, 1, key, _LEASE, *guests))
        return [(room, guest.decode()) for guest in gone]


_LEASE = round(LEASE * 1000)  # milliseconds


def _room(name: str) -> str:
    return f"antiphon:{{room:{name}}}"
