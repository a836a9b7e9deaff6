"""Each approval is good once: where that is written down."""

from __future__ import annotations

from collections import OrderedDict

from app.core.history.approvals import APPROVAL_REQUEST
from app.core.history.turns import Turn
from app.core.types.ids import bucket_of
from app.stores import Change, Store

MOST_REMEMBERED = 10_000  # approvals of requests that are stored nowhere

_USED = "used "
_PART = "approvals"  # of the bucket of a chain


class Approvals:
    """
    Takes approvals, each once, whichever process hears of it first.

    A stored request for approval has a record of its own beside its response, which whoever takes the approval
    replaces by another. For requests that are not stored this process remembers which were taken.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._taken: OrderedDict[tuple[str, str], None] = OrderedDict()

    def offered(self, turn: Turn, owner: str) -> list[Change]:
        """Return what is to be stored with a turn, for the requests for approval in its output."""
        ids = [item["id"] for item in turn.response["output"] if item["type"] == APPROVAL_REQUEST]
        if not ids or not turn.response.get("store"):
            return []
        bucket = bucket_of(owner, ids[0], _PART)
        assert bucket
        return [Change(bucket, dict.fromkeys(ids, b"1"))]

    async def claim(self, owner: str, request_id: str) -> bool:
        """Take an approval; returns False where it was taken before. Raises `StoreUnavailable`."""
        if bucket := bucket_of(owner, request_id, _PART):
            used = f"{_USED}{request_id}"
            if await self._store.apply(Change(bucket, {used: b"1"}, delete=[request_id], given=request_id)):
                return True
            if await self._store.get(bucket, used) is not None:
                return False
        if (owner, request_id) in self._taken:
            return False
        self._taken[owner, request_id] = None
        if len(self._taken) > MOST_REMEMBERED:
            self._taken.popitem(last=False)
        return True
