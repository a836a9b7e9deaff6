"""Callers authenticated by an identity provider or a reverse proxy: `[auth.jwt]`, `[auth.proxy]`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from contextvars import ContextVar

from app.core.types.frozen import frozen
from app.errors import APIError, InvalidToken, PermissionDenied

NO_TABLE = "_user"  # for identities without a table; not a valid table name
MAX_NAME = 200  # characters in an owner or a name

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@frozen
class Identity:
    """
    An authenticated caller, with the key `table` of its permissions, if any.

    `owner` is the owner id of stored objects. After `expires` (Unix time) the identity must be proved again.
    """

    table: str | None
    name: str
    owner: str
    expires: float = math.inf

    @property
    def usage_name(self) -> str:
        """Distinct from key names, which contain no colon."""
        return f"{self.table or NO_TABLE}:{self.name}"


# The current request's identity or error; set by the middleware `IdentityCheck`.
IDENTIFIED: ContextVar[Identity | APIError | None] = ContextVar("identified", default=None)


def checked_name(value: object, field: str) -> str:
    """Raises `InvalidToken` unless the value is printable text up to `MAX_NAME` characters."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME or _UNPRINTABLE.search(value):
        raise InvalidToken(f"Invalid '{field}' in the identity: must be printable text of 1 to {MAX_NAME} characters.")
    return value


def namespaced_owner(namespace: str, name: str) -> str:
    """Without a `namespace`, equals the owner id of a key with `owner = name`."""
    owner = f"{namespace}:{name}" if namespace else name
    return hashlib.sha256(f"owner:{owner}".encode()).hexdigest()[:32]


def table_of(
    groups: Mapping[str, str], found: Collection[object], default: str | None, *, restricts: bool
) -> str | None:
    """
    The first table in `groups` for the caller's groups `found`.

    With `restricts`, raises `PermissionDenied` without a table.
    """
    for group, table in groups.items():
        if group in found:
            return table
    if default:
        return default
    if restricts:
        raise PermissionDenied("Your identity is valid, but no key of this server is assigned to it.")
    return None
