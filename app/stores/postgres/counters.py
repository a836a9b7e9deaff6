"""Counters in PostgreSQL. They are lost if the database server crashes."""

from __future__ import annotations

from collections.abc import Sequence

from app.storage.postgres import PostgresClient
from app.stores import SLOT_LEASE, TokenCharge, TokenResult

FAST = 0.5  # seconds to connect, and for a response: limits must not delay a request for long

_RENEW = """
UPDATE antiphon_slots SET expires = clock_timestamp() + make_interval(secs => $3)
FROM unnest($1::text[], $2::text[]) AS held (pool, holder)
WHERE antiphon_slots.pool = held.pool AND antiphon_slots.holder = held.holder
RETURNING held.pool, held.holder
"""


class PostgresCounters:
    def __init__(self, client: PostgresClient) -> None:
        self._client = client

    async def consume(self, owner: str, charges: Sequence[TokenCharge]) -> TokenResult:
        columns = [
            [float(value) for value in column] for column in zip(*(charge[1:] for charge in charges), strict=True)
        ]
        granted, *missing = await self._client.fetchval(
            "SELECT antiphon_take($1, $2, $3, $4, $5)", owner, [charge.bucket for charge in charges], *columns
        )
        return TokenResult(bool(granted), missing)

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        acquired: bool = await self._client.fetchval(
            "SELECT antiphon_acquire($1, $2, $3, $4)", pool, holder, limit, SLOT_LEASE
        )
        return acquired

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        pools, holders = [pool for pool, _ in slots], [holder for _, holder in slots]
        rows = await self._client.fetch(_RENEW, pools, holders, SLOT_LEASE, idempotent=True)
        renewed = {(pool, holder) for pool, holder in rows}
        return [slot for slot in slots if slot not in renewed]

    async def release(self, pool: str, holder: str) -> None:
        release = "DELETE FROM antiphon_slots WHERE pool = $1 AND holder = $2"
        await self._client.fetch(release, pool, holder, idempotent=True)

    async def aclose(self) -> None:
        await self._client.aclose()
