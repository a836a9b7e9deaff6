"""Builds the application from the parts in `app.assembly`."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from app import __version__
from app.api.auth import cancel_revoked_responses
from app.api.dependencies import APIDependencies
from app.api.keys.managed_keys import ManagedKeys
from app.api.openapi import Documented
from app.api.uvicorn import shutdown
from app.assembly.image_objects import with_image_objects
from app.assembly.parts import (
    SettingsReload,
    build_accounting,
    build_api,
    build_backend,
    build_background,
    build_batch_worker,
    build_limits,
    build_metrics,
    build_policy,
    build_store,
    build_tools,
    build_tracing,
    build_vision,
    generation_options,
)
from app.assembly.routes import add_middleware, add_routes
from app.backends import Backend
from app.backends.routing.replicas import RoutingHooks
from app.errors import StoreUnavailable
from app.observability.activity import Activity
from app.observability.labels import ModelLabels
from app.observability.metrics import Metrics
from app.responses import Responses
from app.responses.background import Background
from app.responses.encryption import ContentCipher
from app.runtime import tasks
from app.settings import Settings
from app.settings.reloading import reload_on_sighup
from app.stores import ServerStore, Store
from app.stores.keys import StoredKeys
from app.tools import resources_of

if TYPE_CHECKING:
    from app.observability.tracing import Tracing


logger = logging.getLogger(__name__)

CANCELLATION = 5.0  # seconds for cancelled requests to end
EXPIRY_INTERVAL = 60.0  # seconds between deletions of expired records, at most

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
    "redirect_slashes": False,  # the redirect's URL would contain the request's `Host`
    "telemetry": {
        "tracing": False,
        "metrics": False,
        "logs": False,
    },  # `app.observability.tracing` records more details
}


def create_app(
    settings: Settings,
    *,
    backend: Backend | None = None,
    store: ServerStore | None = None,
    tracing: Tracing | None = None,
    reload: Callable[[], Settings] | None = None,
) -> Documented:
    """
    Return the application. Tests pass their own store or tracing, or a backend that replaces all others.

    `reload` reads the settings again on SIGHUP: see `SettingsReload`.
    """
    metrics = build_metrics(settings)
    tracing = tracing or build_tracing(settings)
    observers = [observer for observer in (metrics, tracing) if observer]
    exchanges = [observer.exchange for observer in observers]
    hooks = RoutingHooks(exchanges, metrics.queued, metrics.health) if metrics else RoutingHooks(exchanges)
    router = build_backend(settings, hooks, backend)
    labels = ModelLabels(router.models, router.model_label)
    for observer in observers:
        observer.models = labels
    store, tools = store or build_store(settings), build_tools(settings)
    with_images = with_image_objects(store, resources_of(tools).get("attachments"))
    instrumented = metrics.store(with_images) if metrics else with_images
    background = build_background(settings, store, instrumented)
    activity = Activity(store, backends=router.state)
    policy = build_policy(settings.hooks)
    responses = Responses(
        router,
        instrumented,
        background,
        generation_options(settings),
        cipher=ContentCipher([key.get_secret_value() for key in settings.secret_key]),
        observers=[*observers, activity, *([policy] if policy else [])],
        tools=tools,
    )
    responses.policy = policy
    responses.vision = build_vision(settings, router, instrumented)
    accounting = build_accounting(settings, store, metrics)
    api = build_api(settings, responses, build_limits(settings, metrics), accounting, activity)
    keys = ManagedKeys(StoredKeys(store.lasting()), api.auth, has_prices=lambda: accounting.has_prices)
    if settings.revoked_responses == "cancel":
        cancel_revoked_responses(api.auth, activity.running)
    document = None if settings.docs == "off" else "/openapi.json"
    settings_reload = SettingsReload(settings, reload, router, api) if reload else None
    running = partial(_running, settings, api, keys, background, observers, labels, settings_reload)
    app = Documented(**ABOUT, openapi_url=document, lifespan=lambda app: running())
    add_middleware(app, settings, api, metrics, tracing, add_routes(app, settings, api, keys, metrics, router))
    return app


@asynccontextmanager
async def _running(
    settings: Settings,
    api: APIDependencies,
    keys: ManagedKeys,
    background: Background,
    observers: Sequence[Metrics | Tracing],
    labels: ModelLabels,
    settings_reload: SettingsReload | None,
) -> AsyncIterator[dict[str, object]]:
    """Start the application's parts, and close them in the opposite order: dependencies close last."""
    responses, end = api.responses, shutdown.Shutdown()
    async with AsyncExitStack() as stack:
        for observer in observers:
            stack.push_async_callback(observer.aclose)
        stack.push_async_callback(responses.store.aclose)
        if responses.policy:
            stack.push_async_callback(responses.policy.aclose)
        await stack.enter_async_context(expiring(responses.store, responses.delete_expired))
        stack.push_async_callback(api.auth.aclose)
        stack.push_async_callback(keys.aclose)
        await keys.start()
        stack.push_async_callback(api.idempotency.aclose)
        stack.push_async_callback(api.limits.aclose)
        api.accounting.start()
        stack.push_async_callback(api.accounting.aclose)
        api.activity.start()
        stack.push_async_callback(api.activity.aclose)
        stack.push_async_callback(responses.backend.aclose)
        stack.push_async_callback(labels.aclose)
        for tool in responses.tools.values():
            tool.start(api.account_of)
            stack.push_async_callback(tool.aclose)
        if settings_reload:
            stack.enter_context(reload_on_sighup(settings_reload))
        stack.push_async_callback(end.until_idle, CANCELLATION)
        if worker := build_batch_worker(settings, api, background, end.has_begun):
            worker.start()
            stack.push_async_callback(lambda: worker.aclose(end.left(settings.shutdown_grace)))
        background.start()
        stack.push_async_callback(lambda: background.aclose(end.left(settings.shutdown_grace)))
        stack.callback(end.begin)  # without connections, it was not called before
        yield {shutdown.STATE_KEY: end}


@asynccontextmanager
async def expiring(store: Store, *more: Callable[[], None]) -> AsyncIterator[None]:
    """Delete a store's expired records now and regularly. Also call `more`, which must not raise."""
    task = asyncio.create_task(_expire_regularly(store, more))
    try:
        yield
    finally:
        await tasks.end(task)


async def _expire_regularly(store: Store, more: Sequence[Callable[[], None]]) -> None:
    while True:
        for delete_expired in more:
            delete_expired()
        try:
            await store.delete_expired()
        except StoreUnavailable:
            pass  # logged by the store
        except Exception:
            logger.exception("unexpected error")
        await asyncio.sleep(EXPIRY_INTERVAL * random.uniform(0.75, 1))  # spread over processes
