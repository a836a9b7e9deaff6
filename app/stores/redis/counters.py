"""
Counters in Redis.

    antiphon:{limit:owner}   hash: when each of the owner's buckets will be full again, in seconds by Redis's clock
    antiphon:{room:pool}     sorted set: the holders of a pool's slots, by lease expiry in milliseconds
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from app.stores import SLOT_LEASE, TokenCharge, TokenResult
from app.stores.redis.connection import RedisClient, lua_write_guard

FAST_TIMEOUT = 0.5  # seconds to connect, and for a response: limits must not delay a request for long

_CONSUME = f"""{lua_write_guard("'HDEL', KEYS[1], ''")}
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local missing, levels, granted = {{}}, {{}}, 1
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
  table.insert(levels, string.format('%.6f', missing[i]))
end
return {{granted, unpack(levels)}}
"""
_POOL = f"""{lua_write_guard("'ZREM', KEYS[1], ''")}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_ACQUIRE = f"""{_POOL}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
# A late renewal must not acquire a released slot again.
_RENEW = f"""{_POOL}
local lost = {{}}
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i])
  else
    table.insert(lost, ARGV[i])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return lost
"""


class RedisCounters:
    def __init__(self, server: RedisClient) -> None:
        self._server = server

    async def consume(self, owner: str, charges: Sequence[TokenCharge]) -> TokenResult:
        key = f"antiphon:{{limit:{owner}}}"
        arguments = [
            value for charge in charges for value in (charge.bucket, charge.capacity, charge.amount, charge.needs)
        ]
        [[granted, *missing]] = await self._server.execute(key, ("EVAL", _CONSUME, 1, key, *arguments))
        return TokenResult(bool(granted), [float(tokens) for tokens in missing])

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        [acquired] = await self._server.execute(_key(pool), ("EVAL", _ACQUIRE, 1, _key(pool), _LEASE, limit, holder))
        return bool(acquired)

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        pools = defaultdict[str, list[str]](list)
        for pool, holder in slots:
            pools[pool].append(holder)
        replies = await asyncio.gather(
            *(
                self._server.execute(_key(pool), ("EVAL", _RENEW, 1, _key(pool), _LEASE, *holders))
                for pool, holders in pools.items()
            )
        )
        return [(pool, holder.decode()) for pool, (lost,) in zip(pools, replies, strict=True) for holder in lost]

    async def release(self, pool: str, holder: str) -> None:
        await self._server.execute(_key(pool), ("ZREM", _key(pool), holder))

    async def aclose(self) -> None:
        await self._server.aclose()


_LEASE = round(SLOT_LEASE * 1000)  # milliseconds


def _key(pool: str) -> str:
    return f"antiphon:{{room:{pool}}}"
