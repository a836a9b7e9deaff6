"""API keys: authentication, permissions, and owners of stored objects."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth.identity import IDENTIFIED, NO_TABLE, Identity, identify_by_proxy
from app.api.auth.tokens import TokenVerifier, is_token
from app.api.errors import refuse
from app.core.access import UNRESTRICTED, KeyAccess, digest_of
from app.core.dialects import dialect_of
from app.errors import APIError, InvalidToken, PermissionDenied, StoreUnavailable, Unauthorized
from app.observability import log_context
from app.observability.lifecycle import ResponseLifecycle
from app.responses import Caller
from app.settings.auth import ProxySettings
from app.settings.keys import KeySettings
from app.stores.keys import StoredKey

SUBPROTOCOL_KEY = "openai-insecure-api-key."  # followed by the key


class Auth:
    """Without configured keys, every request is accepted, and all callers share an owner."""

    def __init__(
        self,
        keys: Iterable[str] = (),
        dialect: str = "auto",
        named: Mapping[str, KeySettings] | None = None,
        clock: Callable[[], float] = time.time,
        tokens: TokenVerifier | None = None,
        proxy: ProxySettings | None = None,
    ) -> None:
        """`keys` have all permissions; `named` are tables `[keys.NAME]`; `clock` returns Unix time."""
        self.tokens = tokens
        self._proxy = proxy
        self._dialect = dialect
        self._clock = clock
        self.reading = False  # the stored keys are still unknown
        self.uses: dict[str, float] = {}  # Unix time by key name
        self._stored: Sequence[StoredKey] = ()
        self.required = tokens is not None or proxy is not None
        self.on_change: Callable[[], None] = lambda: None
        self.replace_keys(keys, named)

    def replace_keys(self, keys: Iterable[str], named: Mapping[str, KeySettings] | None = None) -> None:
        self._plain = [digest_of(key) for key in keys]
        self._named = dict(named or {})
        self._renew()

    def replace_stored(self, keys: Sequence[StoredKey]) -> None:
        self._stored = keys
        self.reading = False
        self._renew()

    def _renew(self) -> None:
        accesses = {
            digest: KeyAccess(name=_alias(digest), owner=digest[:32], counted_as=digest[:32]) for digest in self._plain
        }
        self._tables = {name: settings.as_stored(name).access() for name, settings in self._named.items()}
        for name, settings in self._named.items():
            accesses |= dict.fromkeys(settings.digests, self._tables[name])
        for key in self._stored:
            if not (key.revoked or key.name in self._named):
                self._tables[key.name] = access = key.access()
                for secret in key.secrets:
                    expires = math.inf if secret.expires_at is None else secret.expires_at
                    until = replace(access, expires=expires) if expires < access.expires else access
                    accesses.setdefault(secret.digest, until)
        # The digest is for constant-time comparison. The lookup's timing reveals nothing: callers cannot choose a
        # digest.
        self._accesses = {digest: (digest, access) for digest, access in accesses.items()}
        # Removing the last key must not open the server.
        self.required = self.required or bool(self._accesses)
        self.on_change()

    def is_known(self, name: str, owner: str) -> bool:
        return not self.required or self._by_name(name, owner) is not None

    def settings_keys(self) -> tuple[list[str], dict[str, KeySettings]]:
        """Names of keys without a table, and tables."""
        return [*map(_alias, self._plain)], self._named

    @property
    def has_identities(self) -> bool:
        return self.tokens is not None or self._proxy is not None

    async def identified(self, scope: Scope) -> Identity | APIError | None:
        """
        Identify a caller without a known key; None without any identity. A credential in the request must be valid: a
        proxy's header does not replace it.
        """
        key = _key(handshake_headers(scope))
        try:
            if not key:
                return identify_by_proxy(self._proxy, scope) if self._proxy else None
            if self.tokens and digest_of(key) not in self._accesses and is_token(key):
                return await self.tokens.identify(key)
        except APIError as error:
            return error
        return None

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Raises `Unauthorized`, and `PermissionDenied` for an identity."""
        key = _key(headers)
        if not self.required:
            if self.reading:
                raise StoreUnavailable(_READING)
            return Caller(key=key or None, dialect=dialect_of(headers, self._dialect))
        access = self._access(digest_of(key))
        if access is None and self.has_identities and (found := IDENTIFIED.get()):
            if isinstance(found, APIError):
                raise found
            access, key = self._access_of(found), ""  # tokens are never forwarded to a backend
            self.uses[access.table] = self._clock()
        if access is None:
            raise Unauthorized(
                "Incorrect API key provided."
                if key
                else "Send your API key as `Authorization: Bearer <key>`, or in `x-api-key`."
            )
        log_context.bind(caller=access.name)
        return Caller(access.owner, key or None, dialect_of(headers, self._dialect), access)

    def verify(self, caller: Caller) -> Caller:
        """The caller with current permissions; raises `Unauthorized` if its key was revoked or expired."""
        if not self.required:
            return caller
        if caller.access.table:
            known = caller.access
            if known.expires <= self._clock():
                raise InvalidToken("The token has expired.", code="expired_token")
            return replace(caller, access=self._access_of(identity_of(known.name, known.owner, known.expires)))
        access = self._access(digest_of(caller.key or ""))
        if access is None:
            raise Unauthorized("This API key is no longer accepted.")
        return caller if access is caller.access else replace(caller, access=access, owner=access.owner)

    def _access_of(self, identity: Identity) -> KeyAccess:
        """An identity's name and owner, with its table's permissions; raises `PermissionDenied` without the table."""
        table = _WITHOUT_TABLE if identity.table is None else self._tables.get(identity.table)
        if table is None:
            raise PermissionDenied("Your identity is valid, but its assigned key was not found.")
        self._check_expiry(table)
        return replace(
            table,
            name=identity.usage_name,
            owner=identity.owner,
            counted_as=f"key:{identity.usage_name}",
            expires=min(identity.expires, table.expires),
            table=identity.table or NO_TABLE,
        )

    def access_of(self, name: str) -> KeyAccess:
        """A usage name's access. Removed keys have no limits but can be charged."""
        if not self.required:
            return UNRESTRICTED
        return self._by_name(name, "") or KeyAccess(name, counted_as=name)

    def accepted_access(self, name: str, owner: str) -> KeyAccess | None:
        """
        A usage name's current access; None if the key was removed or expired.

        `owner` is the owner at acceptance. Raises `StoreUnavailable` for an unknown key until the stored keys have been
        read.
        """
        if not self.required:
            return UNRESTRICTED
        access = self._by_name(name, owner)
        if access is None and self.reading:
            raise StoreUnavailable(_READING)
        return access if access and access.expires > self._clock() else None

    def _by_name(self, name: str, owner: str) -> KeyAccess | None:
        if ":" not in name:
            accesses = (access for _, access in self._accesses.values() if access.name == name)
            return next(accesses, None)
        try:
            return self._access_of(identity_of(name, owner)) if self.has_identities else None
        except APIError:
            return None

    def accesses(self) -> list[KeyAccess]:
        return [*{access.name: access for _, access in self._accesses.values()}.values()]

    def _access(self, digest: str) -> KeyAccess | None:
        """Raises `Unauthorized` if the key has expired."""
        known, access = self._accesses.get(digest, ("", UNRESTRICTED))
        if not hmac.compare_digest(known, digest):
            if self.reading:
                raise StoreUnavailable(_READING)
            return None
        self._check_expiry(access)
        self.uses[access.name] = self._clock()
        return access

    def _check_expiry(self, access: KeyAccess) -> None:
        if access.expires <= self._clock():
            expired = datetime.fromtimestamp(access.expires, UTC).isoformat(timespec="seconds")
            message = f"The API key '{access.name}' expired at {expired.replace('+00:00', 'Z')}. Ask for a new one."
            raise Unauthorized(message, code="expired_api_key")

    async def aclose(self) -> None:
        if self.tokens:
            await self.tokens.keys.aclose()


_WITHOUT_TABLE = KeyAccess(configured=True)  # all models and tools, no admin rights


def identity_of(usage_name: str, owner: str, expires: float = math.inf) -> Identity:
    table, _, name = usage_name.partition(":")
    return Identity(None if table == NO_TABLE else table, name, owner, expires)


_READING = "The server cannot read its API keys yet. Try again."


def _alias(digest: str) -> str:
    return f"key_{digest[:8]}"


def header_values(scope: Scope) -> dict[str, str]:
    """The first value of each header."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def handshake_headers(scope: Scope) -> dict[str, str]:
    """
    Move a key from WebSocket subprotocols to `Authorization`.

    OpenAI accepts such keys, because browsers cannot set headers on a WebSocket.
    """
    headers = header_values(scope)
    keys = [
        name.removeprefix(SUBPROTOCOL_KEY) for name in scope.get("subprotocols", []) if name.startswith(SUBPROTOCOL_KEY)
    ]
    return {"authorization": f"Bearer {keys[0]}", **headers} if keys else headers


def _key(headers: Mapping[str, str]) -> str:
    """The key in `Authorization: Bearer`, Anthropic's `x-api-key` or Azure's `api-key`."""
    if authorization := headers.get("authorization"):
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() == "bearer" and (key := key.strip()):
            return key
    return headers.get("x-api-key", "").strip() or headers.get("api-key", "").strip()


def cancel_revoked_responses(auth: Auth, running: Callable[[], Iterable[ResponseLifecycle]]) -> None:
    """From now on, end `running` responses of revoked keys, for `ANTIPHON_REVOKED_RESPONSES=cancel`."""

    def cancel() -> None:
        for lifecycle in running():
            if not auth.is_known(lifecycle.key, lifecycle.owner):
                lifecycle.stop(Unauthorized("This API key was revoked.", code="revoked_api_key"))

    auth.on_change = cancel


def identifying(app: ASGIApp, auth: Auth) -> ASGIApp:
    """
    Middleware that identifies the caller for `Auth.caller`.

    Rejects nothing: routes without authentication, for example `/healthz`, work with any credentials.
    """

    async def identify(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            IDENTIFIED.set(await auth.identified(scope))
        await app(scope, receive, send)

    return identify


def requiring_key(app: ASGIApp, auth: Auth, paths: Collection[str]) -> ASGIApp:
    """Middleware that guards `paths` and below; at `/metrics`, keys with a table must be admin keys."""
    prefixes = tuple(f"{path}/" for path in paths)

    async def check_key(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path in paths or path.startswith(prefixes):
            try:
                access = auth.caller(Headers(scope=scope)).access
                if path.rstrip("/") == "/metrics":
                    access.check_admin()
            except (Unauthorized, PermissionDenied) as error:
                await refuse(error, scope, receive, send)
                return
        await app(scope, receive, send)

    return check_key
