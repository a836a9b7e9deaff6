"""
Event logs in Redis: for each run a stream of batches and a hash that says who works on it.

    antiphon:{bucket}:run:resp_...      worker, leased (until when, in milliseconds of Redis's clock), cancelled, ended, last
    antiphon:{bucket}:events:resp_...   a stream, whose entry ids are the sequence numbers of the last events, plus one
    antiphon:runs                       a sorted set of the runs that have not ended, by the end of their lease

Each run is in the slot of its bucket. The sorted set may be behind: it only says where to look for orphans.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from app.stores import Batch, Claim, RunKey, Standing

# Sends commands about one key in one round trip, and returns the answers; raises `StoreUnavailable`.
Ask: TypeAlias = Callable[..., Awaitable[list[Any]]]

_INDEX = "antiphon:runs"
_READ_AT_ONCE = 500

# A script writes something first of all, by this: servers before 7 bury READONLY in the middle of a script's error,
# and the client reconnects, which leads to the new primary, only if it is told.
_WRITE = """
local function write(...)
  local done = redis.pcall(...)
  if type(done) == 'table' and done.err then error(done.err:match('READONLY.*') or done.err, 0) end
  return done
end
"""
