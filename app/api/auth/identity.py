"""Callers that an identity provider or a reverse proxy has authenticated: `[auth.jwt]` and `[auth.proxy]`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from contextvars import ContextVar

from app.core.types.frozen import frozen
from app.errors import APIError, InvalidToken, PermissionDenied

NO_TABLE = "_user"  # in names, for identities without a key's table; no table can have this name
MAX_NAME = 200  # characters of an owner or a name

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@frozen
class Identity:
    """
    An authenticated caller.

    `table` names the key's table whose rights apply; None: no table does. `owner` is the id of the owner of stored
    objects. `expires` is the Unix time at which the identity has to be proved again.
    """

    table: str | None
    name: str
    owner: str
    expires: float = math.inf

    @property
    def usage_name(self) -> str:
        """The name in logs, usage and limits. No key has it: the names of keys contain no colon."""
        return f"{self.table or NO_TABLE}:{self.name}"


# The identity of the current request, or the error to raise. The middleware `IdentityCheck` sets it.
IDENTIFIED: ContextVar[Identity | APIError | None] = ContextVar("identified", default=None)


def checked_name(value: object, field: str) -> str:
    """Return an owner or a name; raises `InvalidToken` unless it is a printable text of up to `MAX_NAME` characters."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME or _UNPRINTABLE.search(value):
        raise InvalidToken(f"The identity has no valid '{field}'.")
    return value


def namespaced_owner(namespace: str, name: str) -> str:
    """Return the id of an owner. Without a `namespace`, a key whose `owner` is `name` has the same id."""
    owner = f"{namespace}:{name}" if namespace else name
    return hashlib.sha256(f"owner:{owner}".encode()).hexdigest()[:32]


def table_of(
    groups: Mapping[str, str], found: Collection[object], default: str | None, *, restricts: bool
) -> str | None:
    """
    Return the name of the key's table for a caller with the groups `found`: the first match in `groups` applies.

    `restricts`: whether the settings name any table; then a caller without one raises `PermissionDenied`.
    """
    for group, table in groups.items():
        if group in found:
            return table
    if default:
        return default
    if restricts:
        raise PermissionDenied("Your identity is valid, but no key of this server is assigned to it.")
    return None
