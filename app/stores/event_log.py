"""
The protocol of event logs: the events of background runs, and who works on each.

A store may keep them in the same place as its records.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable


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
    seconds after it was last renewed; then any other worker may claim it, once. A log is deleted `ttl` seconds after
    its last use. Names of workers are strings that are unique to a process.
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
        """Request the cancellation of a run: its worker learns of it at its next call."""
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
