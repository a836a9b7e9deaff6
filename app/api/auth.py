"""API keys: authentication, and the owner to whom stored objects belong."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from app.core.dialects import dialect_of
from app.errors import Unauthorized
from app.observability import log_context
from app.responses import Caller


class Auth:
    """
    Authenticates requests by their headers.

    Without configured keys the server is open. A key that is sent anyway still determines the owner of stored objects.
    """

    def __init__(self, keys: Iterable[str] = (), dialect: str = "auto") -> None:
        self._digests: list[str] = []
        self._dialect = dialect
        self.replace_keys(keys)

    def replace_keys(self, keys: Iterable[str]) -> None:
        """Accept these keys from now on, and no others."""
        self._digests = [_digest(key) for key in keys]

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._digests)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller that sent these headers; raises `Unauthorized`."""
        key = _key(headers)
        if not self._digests and not key:
            return Caller(dialect=dialect_of(headers, self._dialect))
        digest = _digest(key)
        if self._digests and not _contains(self._digests, digest):
            raise Unauthorized(
                "Incorrect API key provided." if key else "Send your API key as `Authorization: Bearer <key>`."
            )
        caller = Caller(owner=digest[:32], key=key, dialect=dialect_of(headers, self._dialect))
        log_context.bind(caller=key_alias(caller))
        return caller

    def verify(self, caller: Caller) -> None:
        """Raise `Unauthorized` if the caller's key has been revoked."""
        if self._digests and not _contains(self._digests, _digest(caller.key or "")):
            raise Unauthorized("This API key is no longer accepted.")


def key_alias(caller: Caller) -> str:
    """Return the caller's key as it is logged: `key_` and eight hex digits of its SHA-256; "" without a key."""
    return f"key_{caller.owner[:8]}" if caller.key else ""


def _key(headers: Mapping[str, str]) -> str:
    """Return the key of `Authorization: Bearer` or of Azure's `api-key`; "" without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("api-key", "").strip()


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _contains(digests: list[str], digest: str) -> bool:
    """Compare `digest` with all `digests`, each in constant time."""
    return sum(hmac.compare_digest(accepted, digest) for accepted in digests) > 0
