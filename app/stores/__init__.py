"""
Who remembers.

A store keeps *buckets of records*. A record is bytes with a name; a bucket is all the records of one chain of one
caller. It is read in one round trip and expires as a whole, `ttl` seconds after its last use, so a chain in use does
not expire under its user. What a record means is not a store's concern: see `app.core.history.turns`.

A bucket's name begins with its owner: `owner:chain`. Of the records that are put with an entry, which is a short
description of them, a store lists the entries of one owner.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable
from urllib.parse import parse_qsl

from app.errors import StoreUnavailable

logger = logging.getLogger(__name__)

# By the scheme of the store's URL. A scheme that is not here is refused; an import path may be given instead.
# Each class has `from_url(url, *, ttl)`: it does no I/O, and raises ValueError for a URL that cannot be meant.
STORES = {
    "memory": "app.stores.memory:MemoryStore",
    "sqlite": "app.stores.sqlite:SQLiteStore",
    "redis": "app.stores.redis:RedisStore",
    "rediss": "app.stores.redis:RedisStore",
    "redis+cluster": "app.stores.redis:RedisStore",
    "rediss+cluster": "app.stores.redis:RedisStore",
}


class Change(NamedTuple):
    """Records of one bucket that are to be stored and deleted."""

    bucket: str
    put: Mapping[str, bytes]  # by name
    delete: Collection[str] = ()  # other names; where there is no such record, nothing is to be done
    given: str | None = None  # a record that has to be in the bucket, or the change is not to be made
    # Of those records in `put` that are to be listed: see `Store.recent`.
    entries: Mapping[str, bytes] = MappingProxyType({})


class Store(Protocol):
    """
    Buckets of records; every method may raise `StoreUnavailable`, and works again once the trouble is over.

    A write that returned is there for every reader, of this process or another, and survives this process
    (in as far as the store outlives it at all). A write is done or not done, never half: also if its caller is
    cancelled. An expired bucket is gone, whether or not anything has swept it yet.
    """

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Keep a record, replacing the one of that name, and renew the bucket."""
        ...

    async def apply(self, *changes: Change) -> bool:
        """
        Make changes, each to another bucket of one chain, all at once, and renew the buckets.

        Where a `given` record is missing, none of them is made, and False is returned. So nothing is added to what
        another request, in whichever process, deletes at the same time. Buckets are of one chain if their names are
        the same up to the second colon (`owner:chain`, `owner:chain:conversation`).
        """
        ...

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return one record, and renew the bucket."""
        ...

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return every record of a bucket by name, in any order, {} if there is none, and renew the bucket."""
        ...

    async def delete(self, bucket: str, name: str) -> bool:
        """Forget one record; tell whether it was there. The bucket is not renewed."""
        ...

    async def drop(self, bucket: str) -> bool:
        """Forget a bucket with all its records; tell whether it was there."""
        ...

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """
        Return the entries of an owner's records, those that were put first last, at most `limit` of them.

        A record that replaces another keeps its place. With `after`, the name of a record, only the entries behind its
        own are returned; None if it is not listed. No bucket is renewed. At least the newest `LISTED` are listed.
        """
        ...

    async def purge(self) -> None:
        """
        Remove for good what has expired, and what is left of what was deleted, where the store does not do so itself.

        It is called at the start and every few seconds, in each process, also where the store is not used.
        """
        ...

    async def check(self) -> None:
        """Return if the store can be used now, for writing too, at the cost of one round trip at most."""
        ...

    async def aclose(self) -> None:
        """Give back connections, threads and files; the store is not used afterwards. Closing twice is fine."""
        ...


# How many records of an owner a store lists at least, as long as they are there.
LISTED = 1000


def owner_of(bucket: str) -> str:
    """Return whose bucket it is."""
    return bucket.partition(":")[0]


async def apply_with(store: Store, change: Change, more: Sequence[Change]) -> bool:
    """Make a change, with more at once where these can be made; tell whether the change itself was made."""
    return await store.apply(change, *more) or (bool(more) and await store.apply(change))


class RunKey(NamedTuple):
    """A background run: the bucket of its chain, and the id of its response."""

    bucket: str
    id: str


class Batch(NamedTuple):
    """Events that left together, encoded."""

    first: int  # sequence number of the first of them
    last: int  # and of the last
    data: bytes
    ends: bool = False  # the last of them is the terminal event


# What a worker hears of a run it works on: it holds the lease (and the caller wants the run cancelled), or lost it.
LeaseState: TypeAlias = Literal["held", "cancelled", "lost"]

# How a run is doing. `orphaned`: not ended, and nobody has renewed the lease. `absent`: its log is gone, or never was.
RunState: TypeAlias = Literal["running", "orphaned", "ended", "absent"]


class EventLog(Protocol):
    """
    The events of background runs, and who works on each: every method may raise `StoreUnavailable`.

    One worker at a time holds the lease of a run, and only what that one appends is kept. The lease runs out `lease`
    seconds after it was last renewed; then any other worker may claim it, once. A log is forgotten `ttl` seconds after
    its run was last heard of. Workers are named by any string that no two processes share.
    """

    async def begin(self, run: RunKey, worker: str) -> None:
        """Begin the log of a new run, whose lease the worker holds."""
        ...

    async def append(self, run: RunKey, worker: str, batch: Batch) -> LeaseState:
        """
        Add what follows the last batch, and renew the lease.

        Nothing is added by a worker that lost the lease, nor a batch whose first event is not behind the last one that
        there is: to add a batch again, because it was not known whether it had been added, is fine.
        """
        ...

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]:
        """Renew the leases of runs; say for each how that went."""
        ...

    async def claim(self, run: RunKey, worker: str) -> bool:
        """Take over a run that is orphaned or absent; tell whether it is this worker's now."""
        ...

    async def cancel(self, run: RunKey) -> None:
        """Let the worker of a run know, the next time it is heard of, that the caller wants it cancelled."""
        ...

    async def standing(self, run: RunKey) -> RunState:
        """Say how a run is doing."""
        ...

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[Batch]:
        """
        Return batches, oldest first, that reach beyond the sequence number `after`: not always all, but the next ones.

        If there is none yet, wait for one, `wait` seconds at most.
        """
        ...

    async def orphans(self) -> list[RunKey]:
        """Return runs, not always all, that may be orphaned."""
        ...

    async def delete(self, run: RunKey) -> None:
        """Forget a run, also one that is running: its worker has lost it."""
        ...

    async def aclose(self) -> None:
        """Give back what the log has beside its store's; the store itself is closed after it."""
        ...


@runtime_checkable
class LoggingStore(Protocol):
    """A store that can also keep event logs, in the same place."""

    def log(self, *, ttl: float, lease: float) -> EventLog:
        """Return the log; it does no I/O before it is used. `ttl` and `lease` are in seconds."""
        ...


# Seconds after which the places of a process that has died are free again.
LEASE = 30.0


class TokenTake(NamedTuple):
    """What is to be taken from one bucket."""

    bucket: str
    most: int  # that it holds, and that flow into it in a minute
    amount: int  # to take; it may go below zero
    needs: int = 0  # that have to be there, or nothing is taken from any bucket


class TokenResult(NamedTuple):
    """What became of it."""

    granted: bool
    missing: Sequence[float]  # from each bucket to be full


class Counters(Protocol):
    """
    How much callers use, counted by one process or by all: every method may raise `StoreUnavailable`.

    An owner has buckets, each of which fills up steadily. A room has places, of which one is taken as long as it is
    used.
    """

    async def take(self, owner: str, draws: Sequence[TokenTake]) -> TokenResult:
        """Take from an owner's buckets what is wanted, all of it or nothing. Who has none yet has full ones."""
        ...

    async def acquire(self, room: str, guest: str, most: int) -> bool:
        """Take one of the places of a room, for `LEASE` seconds; tell whether there was one."""
        ...

    async def renew(self, guests: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Keep places, of rooms and guests, for another `LEASE` seconds; return those that were not there any more."""
        ...

    async def release(self, room: str, guest: str) -> None:
        """Give a place back."""
        ...

    async def aclose(self) -> None:
        """Give back what the counts have; closing twice is fine."""
        ...


@runtime_checkable
class CountingStore(Protocol):
    """A store that can count for all processes."""

    def counters(self) -> Counters:
        """Return the counts; they do no I/O before they are used, and are closed by themselves."""
        ...


class Outage:
    """
    What the log hears of a store in trouble: one line when it begins, one when it is over.

    The caller of the API is told only that the store is unavailable. The reason is for the operator: it is in the
    log, and a note on the exception (`antiphon check` prints it).
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._reason: str | None = None

    @property
    def lasts(self) -> bool:
        """Did the store refuse what it was asked last?"""
        return self._reason is not None

    def begins(self, reason: str) -> StoreUnavailable:
        """Return what to raise; `reason` must hold no secret and no record."""
        if self._reason is None:
            logger.warning("%s is unavailable: %s", self._store, reason)
        self._reason = reason
        error = StoreUnavailable()
        error.add_note(f"{self._store}: {reason}")
        return error

    def ends(self) -> None:
        """The store has answered."""
        if self._reason is not None:
            logger.info("%s is available again", self._store)
            self._reason = None


def read_options(query: str, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """
    Read the options in the query of a store's URL, each with the function that `known` has for it.

    Raise ValueError for an unknown or a malformed one. No value is quoted in the message: it may be a secret.
    """
    options = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ValueError(f"The store URL has an unknown option '{name}'. Known are: {', '.join(sorted(known))}.")
        try:
            options[name] = known[name](value)
        except ValueError as error:
            raise ValueError(f"The store URL's option '{name}' is malformed: {error}.") from None
    return options


def seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError("expected a positive number of seconds")
    return number


def count(text: str) -> int:
    """Read a positive whole number."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("expected a positive whole number")
    return int(text)


def one_of(*choices: str) -> Callable[[str], str]:
    """Make a reader of one word out of a few."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return read
