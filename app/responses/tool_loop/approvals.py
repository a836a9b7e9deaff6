"""Make sure that the call of each approval is begun only once."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from app.stores import Store

_USED, _RELEASED = "used", "released"


class ApprovalClaim(NamedTuple):
    """The right to run an approved call once."""

    bucket: str
    attempt: int  # from 0: how often the approval was claimed and released before


class Approvals:
    """
    Claims the approvals of one owner, each by one request at a time across all processes.

    The store has two kinds of records for an approval: one for each claim, and one for each claim that was released,
    since the call was not begun. Nothing is deleted, so a repeated write does not release the claim of another request.
    The records are stored even if the request for approval was not, and contain nothing of it but a hash of its id.
    """

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def claim(self, request_id: str) -> ApprovalClaim | None:
        """Claim an approval; returns None if it is used. Raises `StoreUnavailable`."""
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]
        bucket = f"{self._owner}:{name}:approval"
        names = await self._store.names(bucket)
        attempt = sum(name.startswith(_RELEASED) for name in names)
        used = await self._store.add(bucket, f"{_USED}{attempt or ''}", b"1")
        return ApprovalClaim(bucket, attempt) if used else None

    async def release(self, claim: ApprovalClaim) -> None:
        """Make an approval available again, since its call was not begun. Raises `StoreUnavailable`."""
        await self._store.put(claim.bucket, f"{_RELEASED}{claim.attempt or ''}", b"1")
