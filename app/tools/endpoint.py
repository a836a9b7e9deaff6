"""Hosted tools' requests to other endpoints of a backend."""

from __future__ import annotations

import httpx

from app.core.profile import TransportOptions
from app.tools import ToolHost
from app.tools.guard import GuardedTransport


def endpoint_options(host: ToolHost, name: str, field: str, endpoint: str) -> TransportOptions:
    """
    A backend's transport options; raises `ValueError` if tools cannot use it.

    Errors name `field`, the key in the tool's table, and `endpoint`.
    """
    backend = host.backends.get(name)
    if backend is None:
        raise ValueError(f"{field}: backend {name!r} not found; available: {', '.join(host.backends)}")
    if not backend.url:
        raise ValueError(f"{field}: {name!r} has no URL and therefore no {endpoint}")
    if backend.forwards_caller_key:
        raise ValueError(f"{field}: {name!r} uses the callers' own keys, which tools do not have")
    options: TransportOptions = backend.options().transport
    return options


def endpoint_client(options: TransportOptions, *, timeout: httpx.Timeout | float, max_bytes: int) -> httpx.AsyncClient:
    headers = {**options.headers}
    if options.api_key:
        headers[options.auth_header] = f"{options.auth_scheme} {options.api_key}".strip()
    return httpx.AsyncClient(
        base_url=options.base_url or "",
        params=options.query,
        headers=headers,
        timeout=timeout,
        transport=GuardedTransport("any", max_bytes=max_bytes),
        trust_env=False,
    )
