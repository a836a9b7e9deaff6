"""
Keys that people manage, as a log of changes in a store.

    keys = StoredKeys(store.lasting())
    snapshot = await keys.read()
    changed = await keys.add(snapshot, KeyChange(...))   # None: somebody else made a change first

The log has one record per change: who made it, when, and the key afterwards. A key's last record is its current state;
all records are the audit log. Only one process can add a record under the next number, so no change is made to a state
that another process has changed meanwhile.

Records contain the SHA-256 of secrets, never secrets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import NamedTuple, Protocol, runtime_checkable

import orjson

from app.core.access import BudgetLimit, KeyAccess, KeyLimits, owner_id
from app.stores import Change, Store

FOREVER = 100 * 365 * 86_400.0  # seconds
AUDITED = 1000  # changes that are kept in the log, beside the last one of each key
_LOG, _USES = "server:keys", "server:keys:uses"  # no owner of a caller has these names


@runtime_checkable
class LastingStore(Protocol):
    """A store that can keep records for as long as it exists."""

    def lasting(self) -> Store:
        """Return a store with the same connections whose buckets do not expire; it is not closed by itself."""
        ...


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret of a key."""

    digest: str  # its SHA-256 as hexadecimal digits
    expires_at: int | None = None  # Unix time; None: with the key


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key in the store. `None` in a limit applies the default limit; times are Unix times in seconds."""

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
    secrets: list[Secret] = field(default_factory=list)  # the newest one first

    def access(self) -> KeyAccess:
        """Return the permissions of the key."""
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
    """A change of one key: `before` and `after` are its fields, without secrets, as the API shows them."""

    id: str  # random, to recognise a change whose write was not confirmed
    at: float  # Unix time
    actor: str  # the name of the key that made the change
    action: str  # `create`, `update`, `rotate` or `revoke`
    key: StoredKey  # afterwards
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None
    number: int = 0  # its place in the log, from 1

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, number: int, record: bytes) -> KeyChange:
        values = orjson.loads(record)
        known = {name.name for name in fields(StoredKey)}  # a later version may add fields
        key = {name: value for name, value in values["key"].items() if name in known}
        key["secrets"] = [Secret(**secret) for secret in key["secrets"]]
        names = ("id", "at", "actor", "action", "before", "after")
        return cls(**{name: values[name] for name in names}, key=StoredKey(**key), number=number)


class KeySnapshot(NamedTuple):
    """The state after a number of changes."""

    changes: Sequence[KeyChange] = ()  # in their order, without old ones that others have replaced

    @property
    def revision(self) -> int:
        """The number of the last change; 0 without one."""
        return self.changes[-1].number if self.changes else 0

    def last_changes(self) -> dict[str, KeyChange]:
        """Return the last change of each key by the key's id, which has the key as it is now."""
        return {change.key.id: change for change in self.changes}

    def current(self) -> list[StoredKey]:
        """Return all keys as they are now, revoked ones too."""
        return [change.key for change in self.last_changes().values()]

    def superseded(self) -> list[int]:
        """Return the numbers of changes that are too old for the audit log, and of no key as it is now."""
        current = {change.number for change in self.last_changes().values() if not change.key.revoked}
        return [change.number for change in self.changes[:-AUDITED] if change.number not in current]


class StoredKeys:
    """The log of changes, and the times of the keys' last uses; every method may raise `StoreUnavailable`."""

    def __init__(self, store: Store) -> None:
        """`store` is one whose buckets do not expire."""
        self._store = store

    async def read(self) -> KeySnapshot:
        """Return the current state."""
        records = await self._store.all(_LOG)
        return KeySnapshot([KeyChange.decode(int(name), records[name]) for name in sorted(records)])

    async def has_changed(self, revision: int) -> bool:
        """Return whether there is a change after this revision; costs little."""
        return await self._store.get(_LOG, _name(revision + 1)) is not None

    async def add(self, snapshot: KeySnapshot, change: KeyChange) -> bool:
        """Make a change of the state in `snapshot`; return False, without any change, if that is not current."""
        name = _name(snapshot.revision + 1)
        record = change.encode()
        if not await self._store.add(_LOG, name, record) and await self._store.get(_LOG, name) != record:
            return False
        for number in snapshot.superseded():
            await self._store.delete(_LOG, _name(number))
        return True

    async def note_uses(self, times: Mapping[str, float]) -> None:
        """Store when keys were last used, by name."""
        await self._store.apply(Change(_USES, {name: str(int(time)).encode() for name, time in times.items()}))

    async def uses(self) -> dict[str, int]:
        """Return when keys were last used, by name, as far as that is stored."""
        return {name: int(time) for name, time in (await self._store.all(_USES)).items()}


def _name(number: int) -> str:
    return f"{number:012d}"
