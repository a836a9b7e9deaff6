"""
Managed keys: loaded from the store for authentication, changed through the API.

    keys = ManagedKeys(StoredKeys(store.lasting()), auth)
    await keys.start()
    key = await keys.create(access, CreateKey(name="alice"))

Each process polls the store for changes. During an outage, the last known keys remain valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from app.api.auth import Auth
from app.core.access import KeyAccess, digest_of
from app.core.prices import NANO
from app.core.types import JSONObject
from app.core.types.request import WITHOUT_NUL
from app.errors import InvalidRequest, NotFound, PermissionDenied, StoreBusy, StoreUnavailable
from app.runtime.tasks import end
from app.settings.keys import ID_PREFIX, BudgetSettings, KeyName, generate_key
from app.stores.keys import KeyChange, KeySnapshot, Secret, StoredKey, StoredKeys

MAX_GRACE = 30 * 86_400  # seconds

_Glob = Annotated[str, StringConstraints(min_length=1, max_length=512), WITHOUT_NUL]
_Globs = Annotated[list[_Glob], Field(max_length=1000)]
_Limit = Annotated[int, Field(ge=0, le=10**15, strict=True)]


class UpdateKey(BaseModel):
    """`null` resets a field to its default; absent fields stay unchanged."""

    # A misspelled field would leave a key without its restriction.
    model_config = ConfigDict(extra="forbid")

    owner: Annotated[str, StringConstraints(min_length=1, max_length=200), WITHOUT_NUL] | None = None
    """Owner of objects stored with the key; by default the key's name."""
    models: _Globs | None = None
    """Globs for allowed models; by default all."""
    tools: _Globs | None = None
    """Globs for allowed hosted tools, for example `web_search` or `mcp:LABEL`; by default all."""
    admin: Annotated[bool, Field(strict=True)] | None = None
    """Whether the key can manage keys and read all keys' usage and activity."""
    requests_per_minute: _Limit | None = None
    """0: no limit. null, here and below: the server's default limit."""
    tokens_per_minute: _Limit | None = None
    max_concurrent: _Limit | None = None
    """Concurrent responses."""
    budgets: BudgetSettings | None = None
    """`tokens_per_day`, `tokens_per_month`, `money_per_day`, `money_per_month`, in UTC; by default none."""
    max_stored_bytes: _Limit | None = None
    """Maximum bytes in the owner's stored responses and conversations."""
    expires_at: _Limit | None = None
    """Unix time when the key expires; by default never."""

    @field_validator("expires_at")
    @classmethod
    def _is_later(cls, expires_at: int | None) -> int | None:
        if expires_at is not None and not time.time() < expires_at < 10**11:
            raise ValueError(f"must be a Unix time in seconds, in the future, not {expires_at}")
        return expires_at


class CreateKey(UpdateKey):
    name: KeyName
    """Identifies the key in logs and usage: up to 64 letters, digits and any of `_ . @ -`."""


class RotateKey(BaseModel):
    """The current secret works until the grace period ends."""

    model_config = ConfigDict(extra="forbid")

    grace_period: Annotated[int, Field(ge=0, le=MAX_GRACE, strict=True)] = 86_400
    """Seconds until the current secret stops working; 0: at once."""


logger = logging.getLogger(__name__)

KEY_POLL_INTERVAL = 1.0  # seconds
USES_INTERVAL = 60.0  # seconds between writes of last uses
FIRST_READ_TIMEOUT = 2.0  # seconds to wait for the store at start; then unknown keys get a 503
MAX_MANAGED_KEYS = 5000  # excluding revoked keys
_ATTEMPTS = 20


class ManagedKeys:
    """Keys in the store, and read-only keys from the settings."""

    def __init__(
        self,
        stored: StoredKeys,
        auth: Auth,
        *,
        has_prices: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`has_prices`: models have prices, which money budgets require; `clock` returns Unix time."""
        self._stored = stored
        self._auth = auth
        self._has_prices = has_prices
        self._clock = clock
        self._snapshot = KeySnapshot()
        self._stale = True  # a change may have been missed
        self._failing = False  # the last attempt failed unexpectedly; logged once
        self._stored_uses: dict[str, float] = {}  # by name
        self._reading = asyncio.Lock()  # earlier results must not replace later ones
        self._polling: asyncio.Task[None] | None = None

    # Reading.

    async def start(self) -> None:
        self._auth.reading = True
        self._stored_uses = dict(self._auth.uses)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_READ_TIMEOUT):
                await self._poll()
        self._polling = asyncio.create_task(self._keep_polling())

    async def aclose(self) -> None:
        await end(self._polling)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_READ_TIMEOUT):
                await self._attempt(self._store_uses())

    async def _keep_polling(self) -> None:
        stored_at = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(KEY_POLL_INTERVAL)
            await self._poll()
            if asyncio.get_running_loop().time() > stored_at + USES_INTERVAL:
                stored_at = asyncio.get_running_loop().time()
                await self._attempt(self._store_uses())
                self._stale = True  # the store may have been restored from a backup

    async def _poll(self) -> None:
        async def read_changes() -> None:
            if self._stale or await self._stored.has_changed(self._snapshot.revision):
                await self._read()

        self._stale = not await self._attempt(read_changes())

    async def _attempt(self, work: Coroutine[object, object, None]) -> bool:
        """Log failures of periodic work; return whether it succeeded."""
        try:
            await work
        except StoreUnavailable:  # logged by the store
            return False
        except Exception:
            if not self._failing:
                logger.exception("key synchronization failed")
            self._failing = True
            return False
        self._failing = False
        return True

    async def _read(self) -> KeySnapshot:
        async with self._reading:
            snapshot = await self._stored.read()
            if self._stale or snapshot.revision != self._snapshot.revision:
                self._snapshot = snapshot
                self._stale = False
                self._auth.replace_stored(snapshot.current())
            return snapshot

    async def _store_uses(self) -> None:
        uses = {name: time for name, time in self._auth.uses.items() if self._stored_uses.get(name) != time}
        if uses:
            await self._stored.record_uses(uses)
            self._stored_uses.update(uses)

    async def listed(self, *, revoked: bool) -> list[JSONObject]:
        """By name."""
        listed = [key for key in await self._all() if key["revoked"] == revoked]
        return sorted(listed, key=itemgetter("name", "id"))

    async def retrieve(self, key_id: str) -> JSONObject:
        """Raises `NotFound`."""
        for key in await self._all():
            if key["id"] == key_id:
                return key
        raise _not_found(key_id)

    async def _all(self) -> list[JSONObject]:
        snapshot, uses = await self._read(), await self._uses()
        of_settings = [_resource(key, uses.get(key.name), "settings") for key in self._of_settings()]
        return of_settings + [_resource(key, uses.get(key.name), "store") for key in snapshot.current()]

    async def changes(self) -> list[KeyChange]:
        return [*reversed((await self._read()).changes)]

    async def _uses(self) -> dict[str, int]:
        uses = await self._stored.uses()
        own = {name: int(time) for name, time in self._auth.uses.items()}
        return {name: max(uses.get(name, 0), own.get(name, 0)) for name in {*uses, *own}}

    def _of_settings(self) -> list[StoredKey]:
        plain, tables = self._auth.settings_keys()
        keys = [StoredKey(f"{ID_PREFIX}{name}", name, name) for name in plain]
        return keys + [table.as_stored(name) for name, table in tables.items()]

    # Changing.

    async def create(self, actor: KeyAccess, body: CreateKey) -> JSONObject:
        """Return the new key with its `secret`; raises `InvalidRequest`."""
        secret, now = generate_key(), int(self._clock())
        key = StoredKey(f"key_{secrets.token_hex(12)}", body.name, body.name, created_at=now)
        key = self._updated(replace(key, secrets=[Secret(digest_of(secret))]), body)

        def change(snapshot: KeySnapshot) -> tuple[StoredKey | None, StoredKey]:
            names = [other.name for other in snapshot.current() if not other.revoked]
            if body.name in (*names, *(other.name for other in self._of_settings())):
                message = f"Invalid 'name': a key named '{body.name}' exists already."
                raise InvalidRequest(message, param="name", code="key_exists", status=409)
            if len(names) >= MAX_MANAGED_KEYS:
                message = f"Limit of {MAX_MANAGED_KEYS} keys reached. Revoke keys that you no longer need."
                raise InvalidRequest(message, code="too_many_keys", status=409)
            return None, key

        return {**await self._change(actor, "create", change), "secret": secret}

    async def update(self, actor: KeyAccess, key_id: str, body: UpdateKey) -> JSONObject:
        """Raises `NotFound`, `InvalidRequest` and `PermissionDenied`."""

        def change(snapshot: KeySnapshot) -> tuple[StoredKey, StoredKey]:
            key = self._changeable(snapshot, key_id, actor)
            return key, self._updated(key, body)

        return await self._change(actor, "update", change)

    async def rotate(self, actor: KeyAccess, key_id: str, body: RotateKey) -> JSONObject:
        """The current secret works until the grace period ends; earlier secrets stop working."""
        secret = generate_key()

        def change(snapshot: KeySnapshot) -> tuple[StoredKey, StoredKey]:
            key = self._changeable(snapshot, key_id, None)
            until = int(self._clock()) + body.grace_period
            kept = [Secret(key.secrets[0].digest, until)] if body.grace_period else []
            return key, replace(key, secrets=[Secret(digest_of(secret)), *kept])

        return {**await self._change(actor, "rotate", change), "secret": secret}

    async def revoke(self, actor: KeyAccess, key_id: str) -> JSONObject:
        """Permanent; the secrets are deleted."""

        def change(snapshot: KeySnapshot) -> tuple[StoredKey, StoredKey]:
            key = self._changeable(snapshot, key_id, actor)
            return key, replace(key, revoked=True, secrets=[])

        return await self._change(actor, "revoke", change)

    def _changeable(self, snapshot: KeySnapshot, key_id: str, actor: KeyAccess | None) -> StoredKey:
        """Raises like `update`, also if `actor` is the key itself."""
        for key in self._of_settings():
            if key.id == key_id:
                message = f"The key '{key.name}' is in the settings file and can be changed only there."
                raise PermissionDenied(message, code="key_in_settings")
        if (change := snapshot.last_changes().get(key_id)) is None:
            raise _not_found(key_id)
        if change.key.revoked:
            raise InvalidRequest(f"The key '{change.key.name}' was revoked.", code="key_revoked", status=409)
        if actor and change.key.name in (actor.name, actor.table):
            message = "A key cannot change or revoke itself. Use another admin key."
            raise PermissionDenied(message, code="insufficient_permissions")
        return change.key

    def _updated(self, key: StoredKey, body: UpdateKey) -> StoredKey:
        default = StoredKey(key.id, key.name, key.name)
        values: dict[str, object] = {}
        for name in body.model_fields_set - {"name"}:
            value = getattr(body, name)
            values[name] = getattr(default, name) if value is None else value
        if "budgets" in values and body.budgets:
            if body.budgets.needs_prices and not self._has_prices():
                message = "Invalid 'budgets': money requires prices, in tables [prices.\"GLOB\"] of the settings."
                raise InvalidRequest(message, param="budgets", code="invalid_value")
            values["budgets"] = {limit.name: limit.amount for limit in body.budgets.limits()}
        return replace(key, **values)  # type: ignore[arg-type]

    async def _change(
        self, actor: KeyAccess, action: str, change: Callable[[KeySnapshot], tuple[StoredKey | None, StoredKey]]
    ) -> JSONObject:
        """Apply `change` to the current keys; retried after a concurrent change."""
        change_id = secrets.token_hex(8)
        for _ in range(_ATTEMPTS):
            snapshot = await self._read()
            before, after = change(snapshot)
            shown = [_resource(key, None, "store") if key else None for key in (before, after)]
            for resource in filter(None, shown):
                for name in ("object", "last_used_at", "source"):
                    del resource[name]
            made = KeyChange(change_id, self._clock(), actor.name, action, after, shown[0], shown[1])
            if await self._stored.add(snapshot, made):
                logger.info("key changed", extra={"actor": actor.name, "action": action, "key": after.name})
                await self._read()
                last_used = (await self._uses()).get(after.name)
                return _resource(after, last_used, "store")
        raise StoreBusy


def _not_found(key_id: str) -> NotFound:
    return NotFound(f"Key with id '{key_id}' not found.")


def _resource(key: StoredKey, last_used: int | None, source: str) -> JSONObject:
    previous: Sequence[Secret] = key.secrets[1:]
    return {
        "id": key.id,
        "object": "antiphon.key",
        "name": key.name,
        "source": source,
        "owner": key.owner,
        "models": key.models,
        "tools": key.tools,
        "admin": key.admin,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "max_concurrent": key.max_concurrent,
        "budgets": {
            name: amount / NANO if name.startswith("money") else amount for name, amount in key.budgets.items()
        },
        "max_stored_bytes": key.max_stored_bytes,
        "expires_at": key.expires_at,
        "created_at": key.created_at or None,
        "last_used_at": last_used,
        "previous_secret_expires_at": previous[0].expires_at if previous else None,
        "revoked": key.revoked,
    }
