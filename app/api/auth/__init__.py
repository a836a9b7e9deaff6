"""API keys: authentication, what a key may do, and the owner to whom stored objects belong."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from starlette.types import Scope

from app.core.access import UNRESTRICTED, KeyAccess, digest_of
from app.core.dialects import dialect_of
from app.errors import Unauthorized
from app.observability import log_context
from app.responses import Caller
from app.settings.keys import KeySettings


class Auth:
    """
    Authenticates requests by their headers.

    A server without keys accepts every request. All its callers are one owner, whatever they send as a key.
    """

    def __init__(
        self,
        keys: Iterable[str] = (),
        dialect: str = "auto",
        named: Mapping[str, KeySettings] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`keys` may do everything; `named` are the tables `[keys.NAME]`; `clock` gives the Unix time."""
        self._dialect = dialect
        self._clock = clock
        self.replace_keys(keys, named)

    def replace_keys(self, keys: Iterable[str], named: Mapping[str, KeySettings] | None = None) -> None:
        """Accept these keys from now on, and no others."""
        accesses = {digest: _plain_access(digest) for digest in map(digest_of, keys)}
        for name, settings in (named or {}).items():
            accesses |= dict.fromkeys(settings.digests, settings.access(name))
        # With the digest itself, to be compared in constant time. (A caller cannot choose the digest of what it sends,
        # so the time that the lookup takes tells nothing of a key.)
        self._accesses = {digest: (digest, access) for digest, access in accesses.items()}

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._accesses)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller that sent these headers; raises `Unauthorized`."""
        key = _key(headers)
        if not self._accesses:
            return Caller(key=key or None, dialect=dialect_of(headers, self._dialect))
        access = self._access(digest_of(key))
        if access is None:
            raise Unauthorized(
                "Incorrect API key provided."
                if key
                else "Send your API key as `Authorization: Bearer <key>`, or in `x-api-key`."
            )
        log_context.bind(caller=access.name)
        return Caller(access.owner, key, dialect_of(headers, self._dialect), access)

    def verify(self, caller: Caller) -> Caller:
        """Return a caller with what its key may do now; raises `Unauthorized` if it has been revoked or has expired."""
        if not self._accesses:
            return caller
        access = self._access(digest_of(caller.key or ""))
        if access is None:
            raise Unauthorized("This API key is no longer accepted.")
        return caller if access is caller.access else replace(caller, access=access, owner=access.owner)

    def access_of(self, name: str) -> KeyAccess:
        """Return what the key with a name in usage may do; a key that is gone has no limits, and may be charged."""
        if not self._accesses:
            return UNRESTRICTED
        accesses = (access for _, access in self._accesses.values() if access.name == name)
        return next(accesses, KeyAccess(name, counted_as=name))

    def accepted_access(self, name: str) -> KeyAccess | None:
        """Return what the key with a name in usage may do now; None if it is gone or has expired."""
        if not self._accesses:
            return UNRESTRICTED
        accesses = (access for _, access in self._accesses.values() if access.name == name)
        return next((access for access in accesses if access.expires > self._clock()), None)

    def accesses(self) -> list[KeyAccess]:
        """Return what each key may do, each name once."""
        return [*{access.name: access for _, access in self._accesses.values()}.values()]

    def _access(self, digest: str) -> KeyAccess | None:
        """Return what the key with a digest may do; None if there is none. Raises `Unauthorized` if it has expired."""
        known, access = self._accesses.get(digest, ("", UNRESTRICTED))
        if not hmac.compare_digest(known, digest):
            return None
        if access.expires <= self._clock():
            expired = datetime.fromtimestamp(access.expires, UTC).isoformat(timespec="seconds")
            message = f"The API key '{access.name}' expired at {expired.replace('+00:00', 'Z')}. Ask for a new one."
            raise Unauthorized(message, code="expired_api_key")
        return access


def _plain_access(digest: str) -> KeyAccess:
    """Return what a key without a table may do: everything, but see the usage of others."""
    return KeyAccess(name=_alias(digest), owner=digest[:32], counted_as=digest[:32])


def _alias(digest: str) -> str:
    """Return the name under which a key without a table is logged: `key_` and eight digits of its SHA-256."""
    return f"key_{digest[:8]}"


def header_values(scope: Scope) -> dict[str, str]:
    """Return the first value of each header of a request; one pass over them takes less than a few look-ups."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


def _key(headers: Mapping[str, str]) -> str:
    """Return the key of `Authorization: Bearer`, Anthropic's `x-api-key` or Azure's `api-key`; "" without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip() or headers.get("api-key", "").strip()
