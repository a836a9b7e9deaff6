"""An identity header that a reverse proxy sets, such as oauth2-proxy; trusted from listed addresses only."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import Scope

from app.api.auth.identity import Identity, checked_name, namespaced_owner, table_of
from app.api.uvicorn.peer import PEER_KEY
from app.errors import InvalidToken
from app.settings.auth import ProxySettings


class ProxyIdentity:
    """Identifies callers by the header of a proxy."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._networks = [ip_network(address) for address in settings.addresses]
        self._header = settings.header.encode()
        self._groups_header = settings.groups_header.encode()

    def identify(self, scope: Scope) -> Identity | None:
        """
        Return the identity in the header of a request; None without the header, or if it does not come from the proxy.

        Raises `InvalidToken` for a header that is repeated or invalid, and `PermissionDenied` if no key is assigned.
        """
        if not self._is_trusted(scope):
            return None
        settings = self._settings
        name = _single(scope, self._header, settings.header)
        if name is None:
            return None
        if "," in name:  # repeated headers may have been joined on the way
            raise InvalidToken(f"The header '{settings.header}' must contain one identity.")
        name = checked_name(name.strip(), settings.header)
        groups = (_single(scope, self._groups_header, settings.groups_header) or "") if settings.groups else ""
        found = [group.strip() for group in groups.split(",")]
        table = table_of(settings.groups, found, settings.key, restricts=bool(settings.groups))
        return Identity(table, name, namespaced_owner(settings.namespace, name))

    def _is_trusted(self, scope: Scope) -> bool:
        """
        Return whether the other end of the connection is the proxy.

        `scope["client"]` does not count: uvicorn replaces it by `X-Forwarded-For` (`ANTIPHON_TRUSTED_PROXIES`).
        """
        peer = scope.get("state", {}).get(PEER_KEY)
        if not peer:
            return False
        address = ip_address(peer[0].partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _single(scope: Scope, name: bytes, shown: str) -> str | None:
    values = [value for header, value in scope["headers"] if header == name]
    if len(values) > 1:
        raise InvalidToken(f"The header '{shown}' must be sent once.")
    try:
        return values[0].decode("utf-8") if values else None
    except UnicodeDecodeError:
        raise InvalidToken(f"The header '{shown}' must be UTF-8.") from None
