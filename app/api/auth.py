"""Callers' keys: who may ask, and whose are the things that are stored."""

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
    Makes a `Caller` of a request's headers.

    With no keys configured the server is open; what is stored belongs to the caller's key all the same.
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
        """Whether callers have to show a key."""
        return bool(self._digests)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return who asks; raises `Unauthorized`."""
        key = _shown(headers)
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
        """Raise `Unauthorized` if the key of a caller is not accepted any more."""
        if self._digests and not _contains(self._digests, _digest(caller.key or "")):
            raise Unauthorized("This API key is not accepted any more.")


def key_alias(caller: Caller) -> str:
    """Return what the log calls the key of a caller: `key_` and the first digits of its SHA-256; "" without a key."""
    return f"key_{caller.owner[:8]}" if caller.key else ""


def _shown(headers: Mapping[str, str]) -> str:
    """Return the key that a caller shows, in OpenAI's way or in Azure's; an empty string for none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("api-key", "").strip()


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _contains(digests: list[str], digest: str) -> bool:
    """Compare with every key, in constant time each."""
    return sum(hmac.compare_digest(known, digest) for known in digests) > 0
