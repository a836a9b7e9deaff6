"""The protocol of counters: how much callers use, counted by one process or by all that share a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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
        """Give back what the counters have; closing twice is fine."""
        ...


@runtime_checkable
class CountingStore(Protocol):
    """A store that can count for all processes."""

    def counters(self) -> Counters:
        """Return the counters; they do no I/O before they are used, and are closed by themselves."""
        ...
