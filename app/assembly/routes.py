"""Adds the configured endpoints, pages and middleware."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from app import __version__
from app.api import errors
from app.api.activity import activity_routes
from app.api.auth import identifying, requiring_key
from app.api.dependencies import APIDependencies
from app.api.keys import key_routes
from app.api.keys.managed_keys import ManagedKeys
from app.api.middleware.origins import AllowedHosts, Cors, checking_origin
from app.api.middleware.request_id import RequestId, path_normalizer
from app.api.openapi import Documented
from app.api.passthrough import ENDPOINTS, passthrough_operations, passthrough_routes, served_endpoints
from app.api.routes import conversations, health, studio, websocket
from app.api.routes import responses as response_routes
from app.api.routes.inspection import inspection_routes
from app.backends.routing.router import Router
from app.backends.server.local_servers import find_local_servers
from app.core.types.hosted import needs_table
from app.loading import import_object
from app.observability.metrics import Metrics
from app.responses import Caller, Responses
from app.responses.inspection import offered_prompts, offered_tools, offers_file_search
from app.settings import Settings
from app.settings.validation import PageAccess
from app.stores.memory import MemoryStore
from app.tools import HostedTool, resources_of

if TYPE_CHECKING:
    from app.observability.tracing import Tracing

# By `HostedTool.resources`; imported on use, because their packages are extras.
RESOURCES = {
    "files": "app.api.routes.files:routes",
    "uploads": "app.api.routes.files:upload_routes",
    "batches": "app.api.routes.files:batch_routes",
    "vector_stores": "app.api.routes.vector_stores:routes",
    "containers": "app.api.routes.containers:container_routes",
    "search": "app.api.routes.search:search_routes",
}


def add_routes(
    app: Documented,
    settings: Settings,
    api: APIDependencies,
    keys: ManagedKeys,
    metrics: Metrics | None,
    backends: Router,
) -> Sequence[Route]:
    """Return the backend endpoint routes for `add_middleware`."""
    _add_endpoints(app, settings, api, keys, backends)
    _add_pages(app, api.responses, settings, metrics)
    forwarded = passthrough_routes(api, passthrough=settings.passthrough)
    app.router.routes.extend(forwarded)
    app.more_paths = passthrough_operations(served_endpoints(passthrough=settings.passthrough))
    errors.install(app, _absent(settings, api.responses.tools))
    return forwarded


def _add_endpoints(
    app: Documented, settings: Settings, api: APIDependencies, keys: ManagedKeys, backends: Router
) -> None:
    routers = [response_routes.routes(api), conversations.routes(api)]
    resources = resources_of(api.responses.tools)
    for name, path in RESOURCES.items():
        if name in resources and (name != "batches" or settings.batch_concurrency):
            routers.append(import_object(path)(api, resources[name]))
    connections = websocket.ConnectionLimits(
        settings.websocket_lifetime, settings.shutdown_grace, settings.websocket_queue
    )
    memory = partial(MemoryStore, ttl=math.inf, max_bytes=settings.websocket_memory)
    routers.append(websocket.routes(api, connections, memory))
    routers += [activity_routes(api), key_routes(api, keys)]
    local = partial(find_local_servers, settings.port) if settings.is_local and not settings.has_keys else None
    routers.append(inspection_routes(api, partial(about, settings, api, backends), local))
    for router in routers:
        app.router.routes.extend(router.routes)


def _add_pages(app: FastAPI, responses: Responses, settings: Settings, metrics: Metrics | None) -> None:
    app.router.routes.extend(health.routes(responses).routes)
    if metrics:
        app.router.routes.extend(health.metrics_routes(metrics).routes)
    if settings.docs != "off":
        app.router.routes.extend(studio.docs_routes().routes)
    if settings.studio:
        app.router.routes.extend(studio.studio_routes().routes)


def pages_of(settings: Settings) -> dict[str, PageAccess]:
    return {"/metrics": settings.metrics, "/docs": settings.docs, "/openapi.json": settings.docs}


def _absent(settings: Settings, tools: Mapping[str, HostedTool]) -> dict[str, str]:
    """Reasons for missing endpoints, by path prefix."""
    absent: dict[str, str] = {}
    served = resources_of(tools)
    if "files" not in served:
        paths = ("/files", "/uploads", "/batches", "/vector_stores")
        absent |= dict.fromkeys(paths, f"files {needs_table('tools.file_search')}")
    elif not settings.batch_concurrency:
        absent["/batches"] = "batches are off (ANTIPHON_BATCH_CONCURRENCY)"
    if "containers" not in served:
        provider = "with the provider bubblewrap"
        absent["/containers"] = f"containers {needs_table('tools.code_interpreter')}, {provider}"
    if "search" not in served:
        absent["/alpha/search"] = f"the search of Codex {needs_table('tools.web_search')}"
    served_paths = served_endpoints(passthrough=settings.passthrough)
    off = [endpoint.path for endpoint in ENDPOINTS if endpoint.summary and endpoint not in served_paths]
    absent |= dict.fromkeys(off, "passthrough is off (ANTIPHON_PASSTHROUGH)")
    absent = {f"/v1{path}": reason for path, reason in absent.items()}
    if not settings.studio:
        absent["/studio"] = "the studio is off (ANTIPHON_STUDIO)"
    for path, access in pages_of(settings).items():
        if access == "off":
            absent[path] = f"it is off (ANTIPHON_{'METRICS' if path == '/metrics' else 'DOCS'})"
    return absent


def add_middleware(
    app: Documented,
    settings: Settings,
    api: APIDependencies,
    metrics: Metrics | None,
    tracing: Tracing | None,
    forwarded: Sequence[Route],
) -> None:
    """
    Add the middleware, outermost last. `forwarded` are the backend endpoint routes.

    `FastPath` and further layers wrap FastAPI's own stack, because most requests do not need it.
    """
    behind_key = [path for path, access in pages_of(settings).items() if access == "key"]
    if behind_key:
        app.add_middleware(requiring_key, auth=api.auth, paths=behind_key)
    hosts = None if settings.has_keys else AllowedHosts([settings.host.lower(), *settings.allowed_hosts])
    if hosts:
        app.add_middleware(checking_origin, hosts=hosts, allowed=frozenset(settings.cors_origins))
    app.add_middleware(
        Cors,
        allow_origins=settings.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    outermost: ASGIApp = response_routes.FastPath(app.outermost, api, forwarded)
    if tracing:
        outermost = tracing.middleware(outermost)
    if api.auth.has_identities:
        outermost = identifying(outermost, api.auth)
    paths = [route.path for route in app.router.routes if isinstance(route, Route | WebSocketRoute)]
    normalize = path_normalizer([*paths, *_absent(settings, api.responses.tools)])
    app.outermost = RequestId(
        outermost, metrics, api.request_refused, hosts, normalize, trusted_proxies=settings.trusted_proxies
    )


def about(settings: Settings, api: APIDependencies, backends: Router, caller: Caller) -> dict[str, object]:
    """The configuration without secrets for `GET /v1/antiphon/about`."""
    responses = api.responses
    return {
        "object": "antiphon.about",
        "version": __version__,
        "backends": backends.describe(),
        "store": {"kind": settings.store_url.partition("://")[0], "ttl": settings.store_ttl},
        "tools": offered_tools(responses.tools, caller),
        "file_search": offers_file_search(responses.tools, caller),
        "prompts": offered_prompts(responses.options.prompts),
        "background": True,
        "key_required": api.auth.required,
        "metrics": settings.metrics != "off",
        "currency": settings.currency,
        "admin": caller.access.admin,
    }
