"""Make sure that each approval request is answered once, and the call of each approval begun once."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from app.stores import Store

_USED, _RELEASED = "used", "released"
_APPROVED, _DENIED = b"1", b"denied"


class ApprovalClaim(NamedTuple):
    """The right to run an approved call once."""

    bucket: str
    attempt: int  # from 0: how often the approval was claimed and released before

    @property
    def record(self) -> str:
        """The name of its record."""
        return f"{_USED}{self.attempt or ''}"


class Approvals:
    """
    Claims the approvals of one owner, each by one request at a time across all processes.

    The store has two kinds of records for an approval: one for each claim, and one for each claim that was released,
    since the call was not begun. Nothing is deleted, so a repeated write does not release the claim of another request.
    A denial is a claim that is never released.
    The records are stored even if the request for approval was not, and contain nothing of it but a hash of its id.
    """

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def claim(self, request_id: str) -> ApprovalClaim | None:
        """Claim an approval; returns None if it is used or denied. Raises `StoreUnavailable`."""
        claim = await self._next(request_id)
        return claim if await self._store.add(claim.bucket, claim.record, _APPROVED) else None

    async def deny(self, request_id: str) -> bool:
        """Deny a call; returns False if its approval is used. Raises `StoreUnavailable`."""
        claim = await self._next(request_id)
        return await self._store.add(claim.bucket, claim.record, _DENIED) or await self._is_denied(claim)

    async def is_denied(self, request_id: str) -> bool:
        """Return whether a call was denied. Raises `StoreUnavailable`."""
        return await self._is_denied(await self._next(request_id))

    async def _next(self, request_id: str) -> ApprovalClaim:
        """Return the claim that is to be made next, or that was made and not released."""
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]
        bucket = f"{self._owner}:{name}:approval"
        names = await self._store.names(bucket)
        return ApprovalClaim(bucket, sum(name.startswith(_RELEASED) for name in names))

    async def _is_denied(self, claim: ApprovalClaim) -> bool:
        return await self._store.get(claim.bucket, claim.record) == _DENIED

    async def release(self, claim: ApprovalClaim) -> None:
        """Make an approval available again, since its call was not begun. Raises `StoreUnavailable`."""
        await self._store.put(claim.bucket, f"{_RELEASED}{claim.attempt or ''}", _APPROVED)
