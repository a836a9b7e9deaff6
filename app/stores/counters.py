"""Token buckets and slots, for a process or for all processes that share a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

# Seconds until a dead process's slots are free again.
LEASE = 30.0


class TokenCharge(NamedTuple):
    bucket: str
    capacity: int  # tokens; a bucket refills within a minute
    amount: int  # to consume; the bucket can become negative
    needs: int = 0  # tokens that must be in the bucket, otherwise nothing is consumed from any bucket


class TokenResult(NamedTuple):
    granted: bool
    missing: Sequence[float]  # tokens per bucket until it is full


class Counters(Protocol):
    """
    Every method can raise `StoreUnavailable`.

    Buckets refill steadily. A slot is held until its release, or the end of its lease.
    """

    async def consume(self, owner: str, charges: Sequence[TokenCharge]) -> TokenResult:
        """Consume tokens from all given buckets, or from none. A new bucket is full."""
        ...

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        """Acquire a slot in a pool of `limit` for `LEASE` seconds; return False if none is free."""
        ...

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Renew slots (pool, holder) for another `LEASE` seconds; return slots that were not held."""
        ...

    async def release(self, pool: str, holder: str) -> None: ...

    async def aclose(self) -> None:
        """Repeated calls are allowed."""
        ...


@runtime_checkable
class CountingStore(Protocol):
    def counters(self) -> Counters:
        """No I/O before first use. The caller closes them separately."""
        ...
