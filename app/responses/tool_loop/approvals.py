"""Approvals: each is answered once and starts its call once."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from app.core.history.approvals import Decisions, answered_before
from app.stores import Store

_USED, _RELEASED = "used", "released"
_APPROVED, _DENIED = b"1", b"denied"


class ApprovalClaim(NamedTuple):
    partition: str
    attempt: int  # number of released claims before it

    @property
    def record(self) -> str:
        return f"{_USED}{self.attempt or ''}"


class Approvals:
    """
    Claims an owner's approvals, each for a single request across all processes.

    An approval has a record per claim and per released claim (the call was not started). Records are never deleted, so
    a repeated write cannot release another request's claim. A denial is a claim that is never released. Records contain
    a hash of the request's id: the request itself may be unstored.
    """

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def claim(self, request_id: str) -> ApprovalClaim | None:
        """None if the approval is used or denied. Raises `StoreUnavailable`."""
        claim = await self._next(request_id)
        return claim if await self._store.add(claim.partition, claim.record, _APPROVED) else None

    async def _next(self, request_id: str) -> ApprovalClaim:
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]
        partition = f"{self._owner}:{name}:approval"
        names = await self._store.names(partition)
        return ApprovalClaim(partition, sum(name.startswith(_RELEASED) for name in names))

    async def _is_denied(self, claim: ApprovalClaim) -> bool:
        return await self._store.get(claim.partition, claim.record) == _DENIED

    async def decide(self, decisions: Decisions) -> None:
        """
        Store a request's denials, so that the calls cannot be approved later.

        Raises `InvalidRequest` for contradictory answers, and `StoreUnavailable`.
        """
        for call in decisions.approved:
            if await self._is_denied(await self._next(call.request["id"])):
                raise answered_before(call.path, denied=True)
        for request_id, path in decisions.denied.items():
            claim = await self._next(request_id)
            denied = await self._store.add(claim.partition, claim.record, _DENIED) or await self._is_denied(claim)
            if not denied:
                raise answered_before(path, denied=False)

    async def release(self, claim: ApprovalClaim) -> None:
        """Release the claim of a call that was not started. Raises `StoreUnavailable`."""
        await self._store.put(claim.partition, f"{_RELEASED}{claim.attempt or ''}", _APPROVED)
