"""An identity header set by a reverse proxy, for example oauth2-proxy; trusted only from listed addresses."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

from starlette.types import Scope

from app.api.auth.identity import Identity, checked_name, namespaced_owner, table_of
from app.api.uvicorn.peer import PEER_KEY
from app.errors import InvalidToken
from app.settings.auth import ProxySettings


class ProxyIdentity:
    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._networks = [ip_network(address) for address in settings.addresses]
        self._header = settings.header.encode()
        self._groups_header = settings.groups_header.encode()

    def identify(self, scope: Scope) -> Identity | None:
        """
        None without the header, or if the request is not from the proxy.

        Raises `InvalidToken` for a repeated or invalid header, and `PermissionDenied` if no key is assigned.
        """
        if not self._is_trusted(scope):
            return None
        settings = self._settings
        name = _single(scope, self._header, settings.header)
        if name is None:
            return None
        if "," in name:  # intermediaries may have joined repeated headers
            raise InvalidToken(f"The header '{settings.header}' must contain a single identity.")
        name = checked_name(name.strip(), settings.header)
        groups = (_single(scope, self._groups_header, settings.groups_header) or "") if settings.groups else ""
        found = [group.strip() for group in groups.split(",")]
        table = table_of(settings.groups, found, settings.key, restricts=bool(settings.groups))
        return Identity(table, name, namespaced_owner(settings.namespace, name))

    def _is_trusted(self, scope: Scope) -> bool:
        """
        Compare the connection's peer: uvicorn sets `scope["client"]` from `X-Forwarded-For`
        (`ANTIPHON_TRUSTED_PROXIES`).
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
