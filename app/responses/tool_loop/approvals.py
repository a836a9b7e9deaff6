"""Each approval is good once: where that is written down."""

from __future__ import annotations

import hashlib

from app.stores import Store

_USED = "used"


class Approvals:
    """
    Takes approvals, each once, whichever process does it first.

    The store has a record for each approval that was used, also where the request for it was not stored. The record has
    nothing of the request but a hash of its id.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def claim(self, owner: str, request_id: str) -> bool:
        """Take an approval; returns False where it was taken before. Raises `StoreUnavailable`."""
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]
        return await self._store.add(f"{owner}:{name}:approval", _USED, b"1")
