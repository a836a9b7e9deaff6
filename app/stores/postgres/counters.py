"""Counters in PostgreSQL, for all processes that share it. A crash of the server forgets them."""

from __future__ import annotations

from collections.abc import Sequence

from app.stores.counters import LEASE, TokenResult, TokenTake
from app.stores.postgres.connection import PostgresClient

FAST = 0.5  # seconds for a connection, and for an answer: nobody is to wait for what only holds others back

_RENEW = """
UPDATE antiphon_slots SET expires = clock_timestamp() + make_interval(secs => $3)
FROM unnest($1::text[], $2::text[]) AS held (pool, holder)
WHERE antiphon_slots.pool = held.pool AND antiphon_slots.holder = held.holder
RETURNING held.pool, held.holder
"""


class PostgresCounters:
    """Buckets by owner, and who holds a place in which room."""

    def __init__(self, client: PostgresClient) -> None:
        self._client = client

    async def take(self, owner: str, draws: Sequence[TokenTake]) -> TokenResult:
        """Take from an owner's buckets what is wanted, all of it or nothing."""
        columns = [[float(value) for value in column] for column in zip(*(draw[1:] for draw in draws), strict=True)]
        granted, *missing = await self._client.fetchval(
            "SELECT antiphon_take($1, $2, $3, $4, $5)", owner, [draw.bucket for draw in draws], *columns
        )
        return TokenResult(bool(granted), missing)

    async def acquire(self, room: str, guest: str, most: int) -> bool:
        """Take one of the places of a room; tell whether there was one."""
        acquired: bool = await self._client.fetchval(
            "SELECT antiphon_acquire($1, $2, $3, $4)", room, guest, most, LEASE
        )
        return acquired

    async def renew(self, guests: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Keep places; return those that were not there any more."""
        rooms, names = [room for room, _ in guests], [name for _, name in guests]
        renewed = {(room, name) for room, name in await self._client.fetch(_RENEW, rooms, names, LEASE)}
        return [guest for guest in guests if guest not in renewed]

    async def release(self, room: str, guest: str) -> None:
        """Give a place back."""
        await self._client.fetch("DELETE FROM antiphon_slots WHERE pool = $1 AND holder = $2", room, guest)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()
