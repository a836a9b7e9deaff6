"""Callers authenticated by an identity provider or a reverse proxy: `[auth.jwt]`, `[auth.proxy]`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from starlette.types import Scope

from app.api.uvicorn import PEER_KEY
from app.core.types import frozen
from app.errors import APIError, InvalidToken, PermissionDenied
from app.settings.auth import ProxySettings

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


# The current request's identity or error; set by the middleware `identifying`.
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


def identify_by_proxy(settings: ProxySettings, scope: Scope) -> Identity | None:
    """
    None without the header, or if the request is not from the proxy.

    Raises `InvalidToken` for a repeated or invalid header, and `PermissionDenied` if no key is assigned.
    """
    if not _is_peer_in(settings.addresses, scope):
        return None
    name = _single(scope, settings.header)
    if name is None:
        return None
    if "," in name:  # intermediaries may have joined repeated headers
        raise InvalidToken(f"The header '{settings.header}' must contain a single identity.")
    name = checked_name(name.strip(), settings.header)
    groups = (_single(scope, settings.groups_header) or "") if settings.groups else ""
    found = [group.strip() for group in groups.split(",")]
    table = table_of(settings.groups, found, settings.key, restricts=bool(settings.groups))
    return Identity(table, name, namespaced_owner(settings.namespace, name))


def _is_peer_in(networks: Iterable[IPv4Network | IPv6Network], scope: Scope) -> bool:
    """
    Compare the connection's peer: uvicorn sets `scope["client"]` from `X-Forwarded-For` (`ANTIPHON_TRUSTED_PROXIES`).
    """
    peer = scope.get("state", {}).get(PEER_KEY)
    if not peer:
        return False
    address = ip_address(peer[0].partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def _single(scope: Scope, name: str) -> str | None:
    values = [value for header, value in scope["headers"] if header == name.encode()]
    if len(values) > 1:
        raise InvalidToken(f"The header '{name}' must be sent once.")
    try:
        return values[0].decode("utf-8") if values else None
    except UnicodeDecodeError:
        raise InvalidToken(f"The header '{name}' must be UTF-8.") from None
