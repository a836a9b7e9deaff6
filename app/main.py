"""Builds the application from the settings: the only module that knows the concrete backends, stores and tools."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import Route

from app import __version__, process
from app.api import errors
from app.api.accounting import Accounting
from app.api.accounting.journal import UsageJournal, default_directory
from app.api.activity import activity_routes
from app.api.auth import Auth
from app.api.batches import BatchWorker
from app.api.batches.requests import LineRequests
from app.api.context import ApiContext
from app.api.idempotency import Idempotency
from app.api.middleware.cors import Cors
from app.api.middleware.key_required import KeyRequired
from app.api.middleware.origins import Origins
from app.api.middleware.request_id import RequestId
from app.api.openapi import Documented
from app.api.passthrough.operations import passthrough_operations
from app.api.passthrough.routes import passthrough_routes
from app.api.rate_limits import Limits
from app.api.request_body import BodyLimits
from app.api.routes import conversations, health, studio, websocket
from app.api.routes import metrics as operation
from app.api.routes import responses as response_routes
from app.api.routes.inspection import inspection_routes
from app.api.uvicorn import shutdown
from app.api.uvicorn.hangup import reloading_at_hangup
from app.backends import BACKENDS, Backend
from app.backends.routing.replicas import RoutingHooks
from app.backends.routing.router import Router
from app.core.types.hosted import needs_table
from app.importing import import_object
from app.observability import logging as logs
from app.observability.activity import Activity
from app.observability.labels import ModelLabels
from app.observability.metrics import MULTIPROCESS, Metrics
from app.responses import Caller, GenerationOptions, Responses
from app.responses.background import Background
from app.responses.background.webhooks import WebhookEndpoint, Webhooks
from app.responses.encryption import ContentCipher
from app.responses.inspection import offered_prompts, offered_tools, offers_file_search
from app.settings import BackendSettings, Settings, SettingsError, load_settings
from app.settings.loading import WORKERS_DIRECTORY, environment
from app.settings.prompts import read_prompts
from app.settings.reloading import ReloadReport, compare_settings
from app.settings.validation import PageAccess
from app.stores import STORES, Store
from app.stores.counters import CountingStore
from app.stores.event_log import LoggingStore
from app.stores.memory import MemoryStore
from app.stores.memory.counters import MemoryCounters
from app.stores.memory.usage import MemoryUsage
from app.stores.purging import purging
from app.stores.usage import UsageStore
from app.tools import (
    TOOLS,
    AccompaniedTool,
    HostedTool,
    LinkedTool,
    PreparingTool,
    ResourceTool,
    StartingTool,
    ToolHost,
)
from app.tools.files.batches import Batches
from app.tools.guard import GuardedTransport

if TYPE_CHECKING:
    from app.observability.tracing import Tracing

logger = logging.getLogger(__name__)

DESCRIPTION = """
The [Open Responses](https://www.openresponses.org) API, answered by any model server.

Point an OpenAI-compatible client at this server's `/v1`.
"""

ABOUT: dict[str, object] = {
    "title": "Antiphon",
    "version": __version__,
    "description": DESCRIPTION,
    "docs_url": None,  # FastAPI's page loads scripts from a CDN
    "redoc_url": None,
    "telemetry": {
        "tracing": False,
        "metrics": False,
        "logs": False,
    },  # `app.observability.tracing` knows more of a response
}


# The routes of what hosted tools have, by `ResourceTool.resources`; the packages that they need are extras.
RESOURCES = {
    "files": "app.api.routes.files:routes",
    "uploads": "app.api.routes.files.uploads:upload_routes",
    "batches": "app.api.routes.files.batches:batch_routes",
    "vector_stores": "app.api.routes.vector_stores:routes",
    "containers": "app.api.routes.containers:container_routes",
}


def app_factory() -> FastAPI:
    """Return the application for the settings of the environment; uvicorn calls it in each process."""
    settings = load_settings()
    logs.configure(settings)
    process.end_with_parent()
    process.map_large_blocks()
    app = create_app(settings, reload=load_settings)
    process.collect_seldom()
    return app


def create_app(
    settings: Settings,
    *,
    backend: Backend | None = None,
    store: Store | None = None,
    tracing: Tracing | None = None,
    reload: Callable[[], Settings] | None = None,
) -> FastAPI:
    """
    Return the application for `settings`; tests pass a backend, a store or tracing of their own.

    `reload` reads the settings again on SIGHUP: see `SettingsReload`.
    """
    metrics = build_metrics(settings)
    tracing = tracing or build_tracing(settings)
    observers = [observer for observer in (metrics, tracing) if observer]
    hooks = build_hooks(metrics, tracing)
    backend = hooks.wrap(backend, "default", "1") if backend else build_backend(settings, hooks)
    labels = ModelLabels(backend.models, backend.model_label if isinstance(backend, Router) else lambda name: None)
    for observer in observers:
        observer.models = labels
    store = store or build_store(settings)
    unmeasured, measured = store, metrics.store(store) if metrics else store
    background = build_background(settings, store, measured)
    accounting = build_accounting(settings, store, metrics)
    store = measured
    limits = build_limits(settings, metrics)
    tools = build_tools(settings)
    activity = Activity(unmeasured, backends=backend.state if isinstance(backend, Router) else lambda: [])
    responses = Responses(
        backend,
        store,
        generation_options(settings),
        cipher=ContentCipher([key.get_secret_value() for key in settings.secret_key]),
        background=background,
        observers=[*observers, activity],
        tools=tools,
    )
    api = build_context(settings, responses, limits, accounting, activity)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
        end = shutdown.Shutdown()
        async with AsyncExitStack() as stack:
            for observer in observers:
                stack.push_async_callback(observer.aclose)
            stack.push_async_callback(store.aclose)
            await stack.enter_async_context(purging(store, responses.purge))
            stack.push_async_callback(api.idempotency.aclose)
            stack.push_async_callback(limits.aclose)
            accounting.start()
            stack.push_async_callback(accounting.aclose)
            activity.start()
            stack.push_async_callback(activity.aclose)
            stack.push_async_callback(backend.aclose)
            stack.push_async_callback(labels.aclose)
            for tool in tools.values():
                if isinstance(tool, StartingTool):
                    tool.start(api.account_of)
                stack.push_async_callback(tool.aclose)
            if reload and isinstance(backend, Router):
                hangup = SettingsReload(settings, reload, backend, api.auth, limits, responses, accounting)
                stack.enter_context(reloading_at_hangup(hangup))
            if worker := build_batch_worker(settings, api, background):
                worker.start()
                stack.push_async_callback(worker.aclose)
            if background:
                background.start()
                stack.push_async_callback(lambda: background.aclose(end.left(settings.shutdown_grace)))
            yield {shutdown.STATE_KEY: end}

    document = None if settings.docs == "off" else "/openapi.json"
    app = Documented(**ABOUT, openapi_url=document, lifespan=lifespan)
    _add_routes(app, settings, api)
    _add_pages(app, responses, settings, metrics)
    passed = passthrough_routes(api, "/v1", "") if settings.passthrough else []
    app.router.routes.extend(passed)
    app.more_paths = passthrough_operations("/v1") if settings.passthrough else {}
    errors.install(app, _absent(settings, responses.tools))
    _add_middleware(app, settings, api, metrics, tracing, passed)
    return app


def build_batch_worker(settings: Settings, api: ApiContext, background: Background | None) -> BatchWorker | None:
    """Return what runs the batches in this process; None if there are none."""
    resources = [tool.resources for tool in api.responses.tools.values() if isinstance(tool, ResourceTool)]
    batches = next((found["batches"] for found in resources if "batches" in found), None)
    if not settings.batch_concurrency or not isinstance(batches, Batches):
        return None
    webhooks = background.webhooks if background else None
    return BatchWorker(
        batches,
        LineRequests(api),
        max_concurrency=settings.batch_concurrency,
        lease=settings.background_lease,
        announce=webhooks.announce_event if webhooks else None,
    )


def build_context(
    settings: Settings, responses: Responses, limits: Limits, accounting: Accounting, activity: Activity
) -> ApiContext:
    """Return the objects and limits that all routes share."""
    return ApiContext(
        responses,
        Auth((key.get_secret_value() for key in settings.api_keys), settings.dialect, settings.keys),
        settings.open_after,
        settings.heartbeat,
        BodyLimits(settings.max_body_bytes, settings.max_body_values, strict=lambda: responses.options.strict),
        limits,
        accounting,
        Idempotency(responses.store, settings.idempotency_ttl),
        activity,
    )


def _add_routes(app: FastAPI, settings: Settings, api: ApiContext) -> None:
    """Add the endpoints of the API, with and without the prefix `/v1`."""
    router = response_routes.routes(api)
    router.include_router(conversations.routes(api))
    for name, path in RESOURCES.items():
        for tool in api.responses.tools.values():
            if isinstance(tool, ResourceTool) and name in tool.resources and _is_served(name, settings):
                router.include_router(import_object(path)(api, tool.resources[name]))
    connections = websocket.ConnectionLimits(
        settings.websocket_lifetime, settings.shutdown_grace, settings.websocket_queue
    )
    router.include_router(websocket.routes(api, connections, partial(build_memory, settings)))
    router.include_router(activity_routes(api))
    router.include_router(inspection_routes(api, partial(about, settings, api.responses)))
    app.include_router(router, prefix="/v1", tags=["responses"])
    app.include_router(router, include_in_schema=False)


def _is_served(resource: str, settings: Settings) -> bool:
    return resource != "batches" or settings.batch_concurrency > 0


def _absent(settings: Settings, tools: Mapping[str, HostedTool]) -> dict[str, str]:
    """Return why endpoints are not served, by the beginning of their paths."""
    absent: dict[str, str] = {}
    served = {name for tool in tools.values() if isinstance(tool, ResourceTool) for name in tool.resources}
    if "files" not in served:
        paths = ("/files", "/uploads", "/batches", "/vector_stores")
        absent |= dict.fromkeys(paths, f"files {needs_table('tools.file_search')}")
    elif not settings.batch_concurrency:
        absent["/batches"] = "batches are off (ANTIPHON_BATCH_CONCURRENCY)"
    if "containers" not in served:
        provider = "with the provider bubblewrap"
        absent["/containers"] = f"containers {needs_table('tools.code_interpreter')}, {provider}"
    if not settings.passthrough:
        absent |= dict.fromkeys(passthrough_operations(""), "those of backends are off (ANTIPHON_PASSTHROUGH)")
    absent |= {f"/v1{path}": reason for path, reason in absent.items()}
    if not settings.studio:
        absent["/studio"] = "the studio is off (ANTIPHON_STUDIO)"
    for path, access in pages_of(settings).items():
        if access == "off":
            absent[path] = f"it is off (ANTIPHON_{'METRICS' if path == '/metrics' else 'DOCS'})"
    return absent


def generation_options(settings: Settings) -> GenerationOptions:
    """Return the options of responses; raises `SettingsError` for prompts that cannot be read."""
    return GenerationOptions(
        prompts=read_prompts(settings.prompts),
        compaction_prompt=settings.compaction_prompt,
        compact_threshold=settings.compact_threshold,
        reasoning=settings.reasoning,
        strict=settings.strict,
        default_model=settings.default_model,
        history_cache=settings.history_cache,
        max_input_tokens=settings.max_input_tokens,
        max_output_seconds=settings.max_output_seconds,
        tool_limits=settings.tool_limits(),
    )


def _add_pages(app: FastAPI, responses: Responses, settings: Settings, metrics: Metrics | None) -> None:
    """Add the pages outside the API: health, metrics, the API reference and the studio."""
    app.include_router(health.routes(responses))
    if metrics:
        app.include_router(operation.routes(metrics))
    if settings.docs != "off":
        app.include_router(studio.docs_routes())
    if settings.studio:
        app.include_router(studio.studio_routes())


def pages_of(settings: Settings) -> dict[str, PageAccess]:
    """Return the access to the pages outside the API, by path."""
    return {"/metrics": settings.metrics, "/docs": settings.docs, "/openapi.json": settings.docs}


def _add_middleware(
    app: FastAPI,
    settings: Settings,
    api: ApiContext,
    metrics: Metrics | None,
    tracing: Tracing | None,
    passed: Sequence[Route],
) -> None:
    """Add the middleware; the last one added is the outermost. `passed` are the routes of the backend's endpoints."""
    behind_key = [path for path, access in pages_of(settings).items() if access == "key"]
    if behind_key:
        app.add_middleware(KeyRequired, auth=api.auth, paths=behind_key)
    if not settings.has_keys:
        app.add_middleware(Origins, allowed=frozenset(settings.cors_origins))
    app.add_middleware(
        Cors,
        allow_origins=settings.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    app.add_middleware(response_routes.FastPath, api=api, prefixes=["/v1", ""], others=passed)
    if tracing:
        app.add_middleware(tracing.middleware)
    app.add_middleware(RequestId, metrics=metrics, on_refusal=api.request_refused)


def about(settings: Settings, responses: Responses, caller: Caller) -> dict[str, object]:
    """Return the configuration without secrets, as `GET /v1/antiphon/about` returns it to a caller."""
    return {
        "object": "antiphon.about",
        "version": __version__,
        "backends": _describe(responses.backend),
        "store": {"kind": settings.store_url.partition("://")[0], "ttl": settings.store_ttl},
        "tools": offered_tools(responses.tools, caller),
        "file_search": offers_file_search(responses.tools, caller),
        "prompts": offered_prompts(responses.options.prompts),
        "background": responses.has_background,
        "key_required": settings.has_keys,
        "metrics": settings.metrics != "off",
    }


def _describe(backend: Backend) -> list[dict[str, object]]:
    if isinstance(backend, Router):
        return backend.describe()
    return [{"name": "default", "profile": backend.profile("").name, "url": None, "models": ["*"]}]


def build_metrics(settings: Settings) -> Metrics | None:
    """Return the metrics of this process; None if they are off."""
    return Metrics(environment().get(MULTIPROCESS)) if settings.metrics != "off" else None


def build_tracing(settings: Settings) -> Tracing | None:
    """Return the tracing of this process; None if it is off."""
    if not settings.otel:
        return None
    from app.observability.tracing import Tracing  # its packages are an extra

    return Tracing.from_environment(content=settings.otel_content)


def build_hooks(metrics: Metrics | None, tracing: Tracing | None) -> RoutingHooks:
    """Return the hooks that measure and trace the requests to all servers."""

    def wrap(backend: Backend, name: str, number: str) -> Backend:
        for observer in (metrics, tracing):
            backend = observer.backend(backend, name, number) if observer else backend
        return backend

    return RoutingHooks(wrap, metrics.queued, metrics.health) if metrics else RoutingHooks(wrap)


def build_limits(settings: Settings, metrics: Metrics | None) -> Limits:
    """Return the configured rate limits, counted in a store that all processes share, if it can count."""
    url = settings.limit_store_url or settings.store_url
    counting = import_object(url.partition("://")[0], STORES).from_url(url, ttl=settings.store_ttl)
    return Limits(
        counting.counters() if isinstance(counting, CountingStore) else MemoryCounters(),
        requests=settings.limit_requests_per_minute,
        tokens=settings.limit_tokens_per_minute,
        streams=settings.limit_streams,
        streams_per_key=settings.limit_streams_per_key,
        on_refusal=metrics.limited if metrics else lambda _: None,
    )


def build_accounting(settings: Settings, store: Store, metrics: Metrics | None) -> Accounting:
    """Return the usage and budgets of keys, in the store if it stores usage."""
    return Accounting(
        store.usage(days=settings.usage_days) if isinstance(store, UsageStore) else MemoryUsage(),
        settings.price_list(),
        days=settings.usage_days,
        journal=_usage_journal(settings),
        on_usage=metrics.used if metrics else lambda access, row: None,
        on_refusal=metrics.limited if metrics else lambda _: None,
        on_tool_request=metrics.tool_request if metrics else lambda model, usage: None,
    )


def _usage_journal(settings: Settings) -> UsageJournal | None:
    directory = settings.usage_journal
    if directory == "auto":
        directory = default_directory(settings.store_url) or "off"
    return UsageJournal(directory.expanduser()) if isinstance(directory, Path) else None


def build_backend(settings: Settings, hooks: RoutingHooks = RoutingHooks()) -> Router:  # noqa: B008 (frozen)
    """Return a router to the configured backends."""
    return Router(settings.served(), _backend, hooks)


@dataclass
class SettingsReload:
    """Reads the settings again, applies the changes that need no restart, and logs which ones do."""

    settings: Settings  # those in effect
    read: Callable[[], Settings]
    router: Router
    auth: Auth
    limits: Limits
    responses: Responses
    accounting: Accounting

    def __call__(self) -> ReloadReport:
        """Apply changed settings; if they are invalid, log and report why, and change nothing."""
        pid, begun = os.getpid(), time.monotonic_ns()
        try:
            change = compare_settings(self.settings, self.read())
            options = generation_options(change.settings)
            self.router.renew(change.settings.served())
        except (SettingsError, ValueError, ImportError, AttributeError) as error:
            logger.error("settings not reloaded, since they are invalid: %s", error)
            return ReloadReport(pid, begun, problems=str(error).splitlines())
        except Exception:
            logger.exception("settings not reloaded")
            return ReloadReport(pid, begun, problems=["They could not be read, by an error that is in the log."])
        new = self.settings = change.settings
        self.auth.replace_keys((key.get_secret_value() for key in new.api_keys), new.keys)
        self.accounting.replace_prices(new.price_list())
        self.limits.replace(
            requests=new.limit_requests_per_minute,
            tokens=new.limit_tokens_per_minute,
            streams=new.limit_streams,
            streams_per_key=new.limit_streams_per_key,
        )
        self.responses.options = options
        if change.applied:
            logs.configure(new)  # always, since it redacts the new secrets, too
        if change.restart:
            logger.warning("settings that changed, but need a restart: %s", ", ".join(change.restart))
        logger.info(
            "settings reloaded: changed %s; the backends are %s",
            ", ".join(change.applied) or "nothing",
            ", ".join(new.served()),
        )
        return ReloadReport(pid, begun, change.applied, change.restart, [*new.served()])


def _backend(settings: BackendSettings) -> Backend:
    factory = import_object(settings.backend, BACKENDS)
    backend: Backend = factory.from_settings(settings) if hasattr(factory, "from_settings") else factory()
    return backend


def build_store(settings: Settings) -> Store:
    """Return the configured store; it connects when it is first used."""
    scheme = settings.store_url.partition("://")[0]
    store: Store = import_object(scheme, STORES).from_url(settings.store_url, ttl=settings.store_ttl)
    return store


def build_tools(settings: Settings) -> dict[str, HostedTool]:
    """Return the configured hosted tools by the names of their tables; raises `SettingsError`."""
    limits = settings.tool_limits()
    host = ToolHost(
        backends=settings.served(),
        directory=settings.config.expanduser().parent if settings.config else Path(),
        environment=environment(),
        max_result_chars=limits.max_result_chars,
        tables=settings.tool_tables(),
        store_url=settings.store_url,
        workers_directory=Path(directory) if (directory := environment().get(WORKERS_DIRECTORY)) else None,
    )
    tools: dict[str, HostedTool] = {}
    for name, table in settings.tool_tables().items():
        table = dict(table)
        path = table.pop("tool", TOOLS.get(name))
        if not isinstance(path, str):
            raise SettingsError([f"tools.{name}: there is no such tool; known are {', '.join(sorted(TOOLS))}"])
        try:
            tools[name] = import_object(path).from_settings(table, host)
        except (ValueError, ImportError, AttributeError) as error:
            raise SettingsError([f"tools.{name}: {error}"]) from None
    for tool in list(tools.values()):
        if isinstance(tool, AccompaniedTool):
            tools |= {name: other for name, other in tool.companions().items() if name not in tools}
    for tool in tools.values():
        if isinstance(tool, LinkedTool):
            tool.link(tools)
    return tools


async def prepare_tools(settings: Settings) -> list[str]:
    """Check what the tools need before the server starts, and return warnings; raises `SettingsError`."""
    warnings: list[str] = []
    for name, tool in build_tools(settings).items():
        if isinstance(tool, PreparingTool):
            async with aclosing(tool):
                try:
                    warnings += [f"tools.{name}: {warning}" for warning in await tool.prepare() or ()]
                except ValueError as error:
                    raise SettingsError([f"tools.{name}: {error}"]) from None
    return warnings


def build_memory(settings: Settings) -> Store:
    """Return the store of one WebSocket connection for unstored responses."""
    return MemoryStore(ttl=math.inf, max_bytes=settings.websocket_memory)


def build_background(settings: Settings, store: Store, measured: Store | None = None) -> Background | None:
    """Return the background runs; None if the store has no event log. `measured` is the store with its metrics."""
    if not isinstance(store, LoggingStore):
        return None
    lease = settings.background_lease
    # The events of a response must not outlive it.
    log = store.log(ttl=min(settings.background_log_ttl, settings.store_ttl), lease=lease)
    store = measured or store
    return Background(
        store,
        log,
        lease=lease,
        ttl=settings.store_ttl,
        limit=settings.background_runs,
        webhooks=build_webhooks(settings, store),
    )


def build_webhooks(settings: Settings, store: Store) -> Webhooks | None:
    """Return what sends the events of background responses to webhooks; None if the settings name none."""
    if not settings.webhooks:
        return None
    endpoints = {
        name: WebhookEndpoint(name, webhook.url, webhook.key, frozenset(webhook.events))
        for name, webhook in settings.webhooks.items()
    }
    return Webhooks(endpoints, store, GuardedTransport("any"))
