"""
Chain names and pins, for the studio's conversation list.

An owner's labels share a partition, so a list of chains costs only one additional read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import orjson

from app.core.access import KeyAccess
from app.core.ids import chain_key
from app.core.types import JSONObject
from app.responses.quota import StorageQuota
from app.stores import Change, Store

MAX_LABELS = 1000  # per owner; the oldest are evicted


class ChainLabels:
    """Labels: `{"name": str | None, "pinned": bool, "changed_at": int}`."""

    def __init__(self, store: Store, quota: StorageQuota) -> None:
        self._store = store
        self._quota = quota

    async def all(self, owner: str) -> dict[str, JSONObject]:
        records = await self._store.all(_partition(owner))
        return {key: orjson.loads(record) for key, record in records.items()}

    async def update(
        self, owner: str, response_id: str, changes: Mapping[str, object], access: KeyAccess
    ) -> JSONObject:
        """Change `name`, `pinned` or both; returns the label. Raises `StorageFull`."""
        key = chain_key(response_id) or ""
        labels = await self.all(owner)
        label = {"name": None, "pinned": False, **labels.get(key, {}), **changes, "changed_at": int(time.time())}
        if not (label["name"] or label["pinned"]):
            await self._store.delete(_partition(owner), key)
            return label
        oldest = sorted(labels, key=lambda each: labels[each]["changed_at"])
        dropped = [each for each in oldest if each != key][: max(0, len({*labels, key}) - MAX_LABELS)]
        await self._quota.apply(access, Change(_partition(owner), {key: orjson.dumps(label)}, dropped))
        return label


def _partition(owner: str) -> str:
    return f"{owner}:chain_labels"
