"""
Event logs in Redis: per run a hash with its worker and state, and a stream with its segments.

    antiphon:{partition}:run:resp_...     worker, leased (until when, by Redis's clock), last (number), cancelled, ended
    antiphon:{partition}:events:resp_...  an entry per segment; its id is the last event's number plus one
    antiphon:runs                         runs that have not ended, by the end of their lease

A run's keys are in its partition's slot. The sorted set is not, so it can be outdated: its runs are only candidates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from app.stores import EventSegment, LeaseState, RunKey, RunState
from app.stores.redis.connection import RedisClient, lua_write_guard

BLOCK = 2.0  # seconds that a call can wait for a segment
MAX_WAITERS = 500  # concurrent blocking calls, each with a connection; further calls poll
_PAUSE = 0.25  # seconds between polls
_SEGMENTS = 16  # per read; a segment can have a megabyte

_INDEX = "antiphon:runs"

_HEAD = f"""{lua_write_guard("'HDEL', KEYS[1], ''")}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function renew(run, events)
  redis.call('HSET', run, 'worker', ARGV[1], 'leased', now + ARGV[2])
  redis.call('PEXPIRE', run, ARGV[3])
  redis.call('PEXPIRE', events, ARGV[3])
end
"""
_BEGIN = f"""{_HEAD}
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], 'last', -1)
renew(KEYS[1], KEYS[2])
"""
_APPEND = f"""{_HEAD}
local run = redis.call('HMGET', KEYS[1], 'worker', 'cancelled', 'ended', 'last')
if run[1] ~= ARGV[1] then return 'lost' end
if not run[3] then
  if tonumber(ARGV[4]) > tonumber(run[4]) then
    redis.call('XADD', KEYS[2], ARGV[5] + 1 .. '-0', 'first', ARGV[4], 'ends', ARGV[6], 'data', ARGV[7])
    redis.call('HSET', KEYS[1], 'last', ARGV[5])
    if ARGV[6] == '1' then redis.call('HSET', KEYS[1], 'ended', 1) end
  end
  renew(KEYS[1], KEYS[2])
end
return run[2] and 'cancelled' or 'held'
"""
_RENEW = f"""{_HEAD}
local claims = {{}}
for i = 1, #KEYS, 2 do
  local run = redis.call('HMGET', KEYS[i], 'worker', 'cancelled', 'ended')
  if run[1] ~= ARGV[1] then
    table.insert(claims, 'lost')
  else
    if not run[3] then renew(KEYS[i], KEYS[i + 1]) end
    table.insert(claims, run[2] and 'cancelled' or 'held')
  end
end
return claims
"""
_CLAIM = f"""{_HEAD}
local run = redis.call('HMGET', KEYS[1], 'leased', 'ended')
if run[2] or run[1] and now < tonumber(run[1]) then return 0 end
if not run[1] then
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[1], 'last', -1)
end
renew(KEYS[1], KEYS[2])
return 1
"""
_CANCEL = f"""{_HEAD}
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'cancelled', 1) end
"""
_STATE = f"""{_HEAD}
local run = redis.call('HMGET', KEYS[1], 'leased', 'ended')
if not run[1] then return 'absent' end
if run[2] then return 'ended' end
return now < tonumber(run[1]) and 'running' or 'orphaned'
"""


class RedisLog:
    def __init__(self, store: RedisClient, blocking: Callable[[], RedisClient], *, ttl: float, lease: float) -> None:
        """`blocking` creates a client for calls that block up to `BLOCK` seconds."""
        self._store = store
        self._connect = blocking
        self._blocking: RedisClient | None = None
        self._waiters = 0
        self._ttl = round(max(ttl, lease) * 1000)  # milliseconds, like all times in Redis
        self._ttl_once_ended = max(1, round(ttl * 1000))
        self._lease = round(lease * 1000)

    async def begin(self, run: RunKey, worker: str) -> None:
        await self._index_runs([run])
        await self._eval(_BEGIN, [run], worker, self._lease, self._ttl)

    async def append(self, run: RunKey, worker: str, segment: EventSegment) -> LeaseState:
        first, last, data, ends = segment
        ttl = self._ttl_once_ended if ends else self._ttl
        claim = await self._eval(_APPEND, [run], worker, self._lease, ttl, first, last, int(ends), data)
        if ends:
            await self._store.execute(_INDEX, ("ZREM", _INDEX, _member(run)))
        return _claim(claim)

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]:
        """Renew leases together if all are on one server."""
        if not runs:
            return {}
        groups = [[run] for run in runs] if self._store.slots else [[*runs]]
        answers = await asyncio.gather(
            self._index_runs(runs), *(self._eval(_RENEW, group, worker, self._lease, self._ttl) for group in groups)
        )
        return dict(zip(runs, [_claim(claim) for claims in answers[1:] for claim in claims], strict=True))

    async def claim(self, run: RunKey, worker: str) -> bool:
        claimed = bool(await self._eval(_CLAIM, [run], worker, self._lease, self._ttl))
        if claimed:
            await self._index_runs([run])
        return claimed

    async def cancel(self, run: RunKey) -> None:
        await self._eval(_CANCEL, [run])

    async def state(self, run: RunKey) -> RunState:
        state: RunState = (await self._eval(_STATE, [run])).decode()
        return state

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        """Waits at most `BLOCK` seconds."""
        if wait <= 0 or self._waiters >= MAX_WAITERS:
            await asyncio.sleep(min(wait, _PAUSE))
            return await self._read(self._store, run, after)
        self._blocking = self._blocking or self._connect()
        self._waiters += 1
        try:
            milliseconds = max(1, round(min(wait, BLOCK) * 1000))  # 0 would block forever
            return await self._read(self._blocking, run, after, "BLOCK", milliseconds)
        finally:
            self._waiters -= 1

    async def _read(self, server: RedisClient, run: RunKey, after: int, *block: str | int) -> list[EventSegment]:
        events = _keys(run)[1]
        # XREAD returns entries after an id; every relevant segment's id is at least `after` plus two.
        cursor = f"{after + 1}-18446744073709551615"
        # As bytes, because redis-py parses the reply to "XREAD", with differences between versions.
        [answer] = await server.execute(events, (b"XREAD", "COUNT", _SEGMENTS, *block, "STREAMS", events, cursor))
        if not answer:
            return []
        [entries] = answer.values() if isinstance(answer, dict) else [answer[0][1]]
        segments = []
        for entry_id, values in entries:
            fields = dict(zip(values[::2], values[1::2], strict=True))
            last = int(entry_id.partition(b"-")[0]) - 1
            segments.append(EventSegment(int(fields[b"first"]), last, fields[b"data"], fields[b"ends"] == b"1"))
        return segments

    async def orphans(self) -> list[RunKey]:
        """Up to 100 runs with an expired lease or without a log."""
        [members] = await self._store.execute(_INDEX, ("ZRANGEBYSCORE", _INDEX, "-inf", _now(), "LIMIT", 0, 100))
        orphans = []
        for member in members:
            run_id, _, partition = member.decode().partition(" ")
            run = RunKey(partition, run_id)
            match await self.state(run):
                case "running":  # its worker's clock is slow
                    await self._index_runs([run])
                case "ended":
                    await self._store.execute(_INDEX, ("ZREM", _INDEX, _member(run)))
                case _:
                    orphans.append(run)
        return orphans

    async def delete(self, run: RunKey) -> None:
        await self._store.execute(_keys(run)[0], ("DEL", *_keys(run)))
        await self._store.execute(_INDEX, ("ZREM", _INDEX, _member(run)))

    async def aclose(self) -> None:
        if self._blocking:
            await self._blocking.aclose()

    async def _eval(self, script: str, runs: Collection[RunKey], *arguments: str | int | bytes) -> Any:
        keys = [key for run in runs for key in _keys(run)]
        [answer] = await self._store.execute(keys[0], ("EVAL", script, len(keys), *keys, *arguments))
        return answer

    async def _index_runs(self, runs: Collection[RunKey]) -> None:
        """Add candidates for orphans, by the end of a lease that starts now."""
        until = _now() + self._lease
        scores = [part for run in runs for part in (until, _member(run))]
        await self._store.execute(_INDEX, ("ZADD", _INDEX, *scores))


def _now() -> int:
    return round(time.time() * 1000)


def _keys(run: RunKey) -> tuple[str, str]:
    head = f"antiphon:{{{run.partition}}}"
    return f"{head}:run:{run.id}", f"{head}:events:{run.id}"


def _member(run: RunKey) -> str:
    return f"{run.id} {run.partition}"


def _claim(answer: bytes) -> LeaseState:
    claim: LeaseState = answer.decode()  # type: ignore[assignment]
    return claim
