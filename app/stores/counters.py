"""The protocol of counters: token buckets and slots, of one process or of all that share a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

# Seconds after which the slots of a dead process are free again.
LEASE = 30.0


class TokenTake(NamedTuple):
    """Tokens to take from one bucket."""

    bucket: str
    capacity: int  # tokens of a full bucket, which refills within a minute
    amount: int  # tokens to take; the bucket may go below zero
    needs: int = 0  # tokens that the bucket must have, or nothing is taken from any bucket


class TokenResult(NamedTuple):
    """The result of taking tokens."""

    granted: bool
    missing: Sequence[float]  # tokens that each bucket lacks to be full


class Counters(Protocol):
    """
    Token buckets, several for each owner, and pools of slots. Every method may raise `StoreUnavailable`.

    A bucket refills steadily. A slot is held until it is released, or until its lease expires.
    """

    async def take(self, owner: str, takes: Sequence[TokenTake]) -> TokenResult:
        """Take tokens from an owner's buckets, all of them or none. A new bucket is full."""
        ...

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        """Acquire one of the `limit` slots of a pool for `LEASE` seconds; return False if all are held."""
        ...

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Renew slots, as pairs of pool and holder, for another `LEASE` seconds; return those that were not held."""
        ...

    async def release(self, pool: str, holder: str) -> None:
        """Release a slot."""
        ...

    async def aclose(self) -> None:
        """Close connections; closing twice is fine."""
        ...


@runtime_checkable
class CountingStore(Protocol):
    """A store with counters that all processes share."""

    def counters(self) -> Counters:
        """Return the counters; they do no I/O before they are used, and are to be closed separately."""
        ...
