from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable


class RunKey(NamedTuple):
    """A background run: its chain's partition and its response's id."""

    partition: str
    id: str


class EventSegment(NamedTuple):
    """Events emitted together; `first` and `last` are sequence numbers."""

    first: int
    last: int
    data: bytes
    ends: bool = False  # with the terminal event


# Held, held with a request to cancel the run, or lost to another worker.
LeaseState: TypeAlias = Literal["held", "cancelled", "lost"]

# `orphaned`: not ended, and its lease has expired.
RunState: TypeAlias = Literal["running", "orphaned", "ended", "absent"]


class EventLog(Protocol):
    """
    Events and workers of background runs. Every method can raise `StoreUnavailable`.

    One worker at a time holds a run's lease, and only its segments are stored. The lease expires `lease` seconds after
    its last renewal; then another worker can claim it. A log is deleted `ttl` seconds after its last use. A worker's
    name is unique to a process.
    """

    async def begin(self, run: RunKey, worker: str) -> None:
        """The worker holds the lease."""
        ...

    async def append(self, run: RunKey, worker: str, segment: EventSegment) -> LeaseState:
        """
        Append a segment, and renew the lease.

        A segment is ignored if the worker has lost the lease, or if its first event does not follow the last stored
        event, so a call with an unknown result can be repeated.
        """
        ...

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]: ...

    async def claim(self, run: RunKey, worker: str) -> bool:
        """Claim an orphaned or absent run; return whether the worker now holds its lease."""
        ...

    async def cancel(self, run: RunKey) -> None:
        """The worker's next call returns `cancelled`."""
        ...

    async def state(self, run: RunKey) -> RunState: ...

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        """
        Segments (possibly not all) with events after sequence number `after`, oldest first.

        Waits up to `wait` seconds for a segment.
        """
        ...

    async def orphans(self) -> list[RunKey]:
        """Runs (possibly not all) that can be orphaned."""
        ...

    async def delete(self, run: RunKey) -> None:
        """A running run's worker loses the lease."""
        ...

    async def aclose(self) -> None:
        """The store is closed afterwards."""
        ...


@runtime_checkable
class LoggingStore(Protocol):
    def log(self, *, ttl: float, lease: float) -> EventLog:
        """No I/O before first use. `ttl` and `lease` are in seconds."""
        ...
