"""The checks of the `Host` header that RFC 9112, section 3.2, requires."""

from __future__ import annotations

import re

from starlette.types import Scope

from app.errors import InvalidRequest

# An IPv6 address in brackets, or any other host, and an optional port (RFC 3986, 3.2.2).
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.%~_-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]*)?")


def host_error(scope: Scope) -> InvalidRequest | None:
    """Return the error of a `Host` header, which HTTP/1.1 requires exactly once; None if it is valid."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) == 1 and _HOST.fullmatch(hosts[0]):
        return None
    if not hosts and scope.get("http_version") != "1.1":
        return None
    problem = "is missing" if not hosts else "is there more than once" if len(hosts) > 1 else "is not valid"
    return InvalidRequest(f"The header 'Host' {problem}.", code="invalid_host")
