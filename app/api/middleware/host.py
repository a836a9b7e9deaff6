"""
Checks the `Host` header: its syntax (RFC 9112, section 3.2) and, without API keys, its name.

DNS rebinding gives a web page this server's origin. Only the name in `Host` reveals its GET requests, which have no
`Origin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from starlette.types import Scope

from app.core.http import parse_address
from app.errors import InvalidRequest

# An IPv6 address in brackets, or any other host, and an optional port (RFC 3986, 3.2.2).
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.%~_-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_NO_HOST = b"/"  # never accepted
_NAME = re.compile(r"[a-z0-9._-]+")
_PORT = re.compile(r":[0-9]*\Z")


class AllowedHosts:
    """IP addresses, `localhost`, and `names`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names` are lower-case host names, `*.example.com` for subdomains, or `*` for any host."""
        names = frozenset(names)
        self._any = "*" in names
        self._names = names | {"", "localhost"}  # browsers never send an empty host
        self._suffixes = (".localhost", *(name.removeprefix("*") for name in names if name.startswith("*.")))
        self.accept = lru_cache(64)(self._accept)

    def is_own(self, host: str) -> bool:
        """Whether `host` is an IP address or a known name; `*` does not count."""
        name = _PORT.sub("", host.lower(), count=1).removesuffix(".")
        is_subdomain = _NAME.fullmatch(name) is not None and name.endswith(self._suffixes)
        address = parse_address(name.removeprefix("[").removesuffix("]"))
        return name in self._names or is_subdomain or address is not None

    def _accept(self, host: bytes) -> bool:
        return bool(_HOST.fullmatch(host)) and (self._any or self.is_own(host.decode("ascii")))


def host_error(scope: Scope, headers: Mapping[bytes, bytes], allowed: AllowedHosts) -> InvalidRequest | None:
    """
    Require a single valid and allowed `Host` header, optional in HTTP/1.0.

    `headers` are the scope's as a mapping, which is as long as their list unless a header is repeated.
    """
    if len(headers) == len(scope["headers"]) and allowed.accept(headers.get(b"host", _NO_HOST)):
        return None
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) == 1 and allowed.accept(hosts[0]):
        return None
    if not hosts and scope.get("http_version") != "1.1":
        return None
    if len(hosts) == 1 and _HOST.fullmatch(hosts[0]):
        message = (
            "Invalid 'Host': must be an IP address, 'localhost' or a name in ANTIPHON_ALLOWED_HOSTS, not "
            f"'{hosts[0].decode('ascii')[:200]}'. "
            "This protects a server without API keys from web pages (DNS rebinding)."
        )
        return InvalidRequest(message, code="host_not_allowed", status=403)
    rule = "a host name or IP address, with an optional port" if len(hosts) == 1 else "sent exactly once"
    return InvalidRequest(f"Invalid 'Host': must be {rule}.", code="invalid_host")
