"""
Managed keys, as a log of changes in a store.

    keys = StoredKeys(store.lasting())
    snapshot = await keys.read()
    added = await keys.add(snapshot, KeyChange(...))   # False: another process made a change first

Each record is a numbered change; together they are the audit log. A key's last record is its current state. Only a
single process can add a record under the next number. Records contain the SHA-256 of secrets, never secrets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import orjson
from pydantic import TypeAdapter

from app.core.access import BudgetLimit, KeyAccess, KeyLimits, owner_id
from app.stores import Change, Store

FOREVER = 100 * 365 * 86_400.0  # seconds
AUDITED = 1000  # changes, in addition to each key's current state
_LOG, _USES = "server:keys", "server:keys:uses"  # a caller's owner never has this name


@dataclass(frozen=True, slots=True)
class Secret:
    digest: str  # SHA-256 in hexadecimal
    expires_at: int | None = None  # Unix time; None: with the key


@dataclass(frozen=True, slots=True)
class StoredKey:
    """Limits of `None` mean the default; times are Unix times in seconds."""

    id: str
    name: str
    owner: str
    models: list[str] = field(default_factory=lambda: ["*"])
    tools: list[str] = field(default_factory=lambda: ["*"])
    admin: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    budgets: Mapping[str, int] = field(default_factory=dict)  # tokens or nanos, by `BudgetLimit.name`
    max_stored_bytes: int | None = None
    expires_at: int | None = None
    created_at: int = 0
    revoked: bool = False
    secrets: list[Secret] = field(default_factory=list)  # newest first

    def access(self) -> KeyAccess:
        return KeyAccess(
            name=self.name,
            owner=owner_id(self.owner),
            counted_as=f"key:{self.name}",
            models=tuple(self.models),
            tools=tuple(self.tools),
            limits=KeyLimits(self.requests_per_minute, self.tokens_per_minute, self.max_concurrent),
            budget=tuple(BudgetLimit(name, amount) for name, amount in self.budgets.items()),
            max_stored_bytes=self.max_stored_bytes,
            expires=math.inf if self.expires_at is None else self.expires_at,
            admin=self.admin,
            configured=True,
        )


@dataclass(frozen=True, slots=True)
class KeyChange:
    """`before` and `after` are API resources, without secrets."""

    id: str  # random; identifies the change if its write was not confirmed
    at: float  # Unix time
    actor: str  # the admin key's name
    action: str  # `create`, `update`, `rotate` or `revoke`
    key: StoredKey
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None
    number: int = 0  # position in the log, from 1


# Later versions can add fields, which are ignored.
_CHANGE = TypeAdapter(KeyChange)


class KeySnapshot(NamedTuple):
    changes: Sequence[KeyChange] = ()  # oldest first, without old superseded changes

    @property
    def revision(self) -> int:
        return self.changes[-1].number if self.changes else 0

    def last_changes(self) -> dict[str, KeyChange]:
        return {change.key.id: change for change in self.changes}

    def current(self) -> list[StoredKey]:
        """Includes revoked keys."""
        return [change.key for change in self.last_changes().values()]

    def superseded(self) -> list[int]:
        """Numbers of changes beyond the audit log's limit, except for current keys."""
        current = {change.number for change in self.last_changes().values() if not change.key.revoked}
        return [change.number for change in self.changes[:-AUDITED] if change.number not in current]


class StoredKeys:
    """Every method can raise `StoreUnavailable`."""

    def __init__(self, store: Store) -> None:
        """`store` must come from `ServerStore.lasting()`."""
        self._store = store

    async def read(self) -> KeySnapshot:
        records = await self._store.all(_LOG)
        changes = ((name, _CHANGE.validate_json(records[name])) for name in sorted(records))
        return KeySnapshot([replace(change, number=int(name)) for name, change in changes])

    async def has_changed(self, revision: int) -> bool:
        """Whether a change follows this revision; reads a single record."""
        return await self._store.get(_LOG, _name(revision + 1)) is not None

    async def add(self, snapshot: KeySnapshot, change: KeyChange) -> bool:
        """Return False, without a change, if the snapshot is outdated."""
        name = _name(snapshot.revision + 1)
        record = orjson.dumps(change)
        if not await self._store.add(_LOG, name, record) and await self._store.get(_LOG, name) != record:
            return False
        for number in snapshot.superseded():
            await self._store.delete(_LOG, _name(number))
        return True

    async def record_uses(self, times: Mapping[str, float]) -> None:
        await self._store.apply(Change(_USES, {name: str(int(time)).encode() for name, time in times.items()}))

    async def uses(self) -> dict[str, int]:
        return {name: int(time) for name, time in (await self._store.all(_USES)).items()}


def _name(number: int) -> str:
    return f"{number:012d}"
