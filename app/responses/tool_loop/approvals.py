"""Make sure that each approval is used only once."""

from __future__ import annotations

import hashlib

from app.stores import Store

_USED = "used"


class Approvals:
    """
    Claims approvals, each only once across all processes.

    The store has a record for each approval that was used, even if the request for it was not stored. The record
    contains nothing of the request but a hash of its id.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def claim(self, owner: str, request_id: str) -> bool:
        """Claim an approval; returns False if it was claimed before. Raises `StoreUnavailable`."""
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]
        return await self._store.add(f"{owner}:{name}:approval", _USED, b"1")
