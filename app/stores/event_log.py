"""
The protocol of event logs: the events of background runs, and the worker of each.

A store may have an event log beside its records.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable


class RunKey(NamedTuple):
    """A background run: the bucket of its chain, and the id of its response."""

    bucket: str
    id: str


class Batch(NamedTuple):
    """Events that were emitted together, encoded."""

    first: int  # sequence number of the first of them
    last: int  # and of the last
    data: bytes
    ends: bool = False  # the last of them is the terminal event


# The state of a worker's lease: held, held with a request to cancel the run, or lost to another worker.
LeaseState: TypeAlias = Literal["held", "cancelled", "lost"]

# The state of a run. `orphaned`: not ended, and its lease has expired. `absent`: it has no log (any more).
RunState: TypeAlias = Literal["running", "orphaned", "ended", "absent"]


class EventLog(Protocol):
    """
    The events of background runs, and the worker of each; every method may raise `StoreUnavailable`.

    One worker at a time holds the lease of a run, and only its batches are stored. The lease expires `lease` seconds
    after its last renewal; then one other worker can claim it. A log is deleted `ttl` seconds after its last use. A
    worker's name is a string that is unique to a process.
    """

    async def begin(self, run: RunKey, worker: str) -> None:
        """Create the log of a new run, whose lease the worker holds."""
        ...

    async def append(self, run: RunKey, worker: str, batch: Batch) -> LeaseState:
        """
        Append a batch, and renew the lease.

        A batch is ignored if the worker has lost the lease, or if its first event does not follow the last one stored.
        So a call whose result is unknown can be repeated.
        """
        ...

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]:
        """Renew the leases of runs, and return the state of each."""
        ...

    async def claim(self, run: RunKey, worker: str) -> bool:
        """Claim a run that is orphaned or absent; return whether the worker holds its lease now."""
        ...

    async def cancel(self, run: RunKey) -> None:
        """Request the cancellation of a run; its worker's next call returns `cancelled`."""
        ...

    async def state(self, run: RunKey) -> RunState:
        """Return the state of a run."""
        ...

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[Batch]:
        """
        Return the next batches, perhaps not all, with events after the sequence number `after`, oldest first.

        If there is none yet, wait up to `wait` seconds for it.
        """
        ...

    async def orphans(self) -> list[RunKey]:
        """Return runs, perhaps not all, that may be orphaned."""
        ...

    async def delete(self, run: RunKey) -> None:
        """Delete a run's log; if it is running, its worker loses the lease."""
        ...

    async def aclose(self) -> None:
        """Release the log's own resources; the store is closed after it."""
        ...


@runtime_checkable
class LoggingStore(Protocol):
    """A store that also has an event log."""

    def log(self, *, ttl: float, lease: float) -> EventLog:
        """Return the log; it does no I/O until it is used. `ttl` and `lease` are in seconds."""
        ...
