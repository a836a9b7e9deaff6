"""Builds the application's parts (model servers, store, limits, observers, tools), and applies changed settings."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.api.accounting import Accounting
from app.api.accounting.journal import UsageJournal, default_directory
from app.api.auth import Auth
from app.api.auth.tokens import MAX_KEY_SET_BYTES, SigningKeys, TokenVerifier, key_file, key_url
from app.api.batches import BatchWorker
from app.api.dependencies import APIDependencies
from app.api.idempotency import Idempotency
from app.api.rate_limits import Limits
from app.api.request_body import BodyLimits
from app.backends import BACKENDS, Backend
from app.backends.routing.replicas import RoutingHooks
from app.backends.routing.router import Router
from app.loading import import_object
from app.observability import logging as logs
from app.observability.activity import Activity
from app.observability.metrics import MULTIPROCESS, Metrics
from app.responses import GenerationOptions, Responses
from app.responses.background import Background
from app.responses.background.webhooks import WebhookEndpoint, Webhooks
from app.responses.images.descriptions import Vision
from app.responses.policy import MAX_DECISION_BYTES, Direction, PolicyHooks
from app.settings import BackendSettings, Settings
from app.settings.auth import JWTSettings
from app.settings.loading import WORKERS_DIRECTORY, SettingsError, environment
from app.settings.prompts import read_prompts
from app.settings.reloading import ReloadReport, compare_settings
from app.settings.webhooks import HookSettings
from app.stores import STORES, ServerStore, Store
from app.stores.memory import MemoryCounters
from app.tools import TOOLS, HostedTool, PlainTool, ToolHost, resources_of
from app.tools.files.batches import Batches
from app.tools.search import ToolSearch

if TYPE_CHECKING:
    from app.observability.tracing import Tracing

logger = logging.getLogger(__name__)


def generation_options(settings: Settings) -> GenerationOptions:
    """Raises `SettingsError` for unreadable prompts."""
    return GenerationOptions(
        prompts=read_prompts(settings.prompts),
        compaction_prompt=settings.compaction_prompt,
        compact_threshold=settings.compact_threshold,
        reasoning=settings.reasoning,
        strict=settings.strict,
        default_model=settings.default_model,
        history_cache=settings.history_cache,
        max_stored_bytes=settings.max_stored_bytes,
        max_input_tokens=settings.max_input_tokens,
        max_output_seconds=settings.max_output_seconds,
        tool_limits=settings.tool_limits(),
    )


def build_metrics(settings: Settings) -> Metrics | None:
    return Metrics(environment().get(MULTIPROCESS)) if settings.metrics != "off" else None


def build_tracing(settings: Settings) -> Tracing | None:
    if not settings.otel:
        return None
    from app.observability.tracing import Tracing  # imports an extra

    return Tracing.from_environment(content=settings.otel_content)


def build_backend(
    settings: Settings,
    hooks: RoutingHooks = RoutingHooks(),  # noqa: B008 (frozen)
    backend: Backend | None = None,
) -> Router:
    """`backend` replaces each configured backend."""
    return Router(settings.served(), (lambda _: backend) if backend else _backend, hooks)


def _backend(settings: BackendSettings) -> Backend:
    factory = import_object(settings.backend, BACKENDS)
    backend: Backend = factory.from_settings(settings) if hasattr(factory, "from_settings") else factory()
    return backend


def build_store(settings: Settings) -> ServerStore:
    """Does not connect. Raises `SettingsError` for a store, named by its import path, that lacks a method."""
    scheme = settings.store_url.partition("://")[0]
    store = import_object(scheme, STORES).from_url(settings.store_url, ttl=settings.store_ttl)
    if not isinstance(store, ServerStore):
        raise SettingsError(["ANTIPHON_STORE_URL: the store must have all members of `app.stores.ServerStore`"])
    return store


def build_vision(settings: Settings, router: Router, store: Store) -> Vision | None:
    if settings.vision is None:
        return None
    return Vision(router, store, **settings.vision.model_dump())


def build_background(settings: Settings, store: ServerStore, instrumented: Store) -> Background:
    """`instrumented` is the store with metrics."""
    lease = settings.background_lease
    return Background(
        instrumented,
        # A response's events must not outlive it.
        store.log(ttl=min(settings.background_log_ttl, settings.store_ttl), lease=lease),
        lease=lease,
        ttl=settings.store_ttl,
        limit=settings.background_runs,
        webhooks=build_webhooks(settings, instrumented),
    )


def build_webhooks(settings: Settings, store: Store) -> Webhooks | None:
    if not settings.webhooks:
        return None
    endpoints = {
        name: WebhookEndpoint(name, webhook.url, webhook.key, frozenset(webhook.events))
        for name, webhook in settings.webhooks.items()
    }
    from app.tools.guard import GuardedTransport  # imports httpx

    return Webhooks(endpoints, store, GuardedTransport("any"))


def build_policy(settings: HookSettings | None) -> PolicyHooks | None:
    if not settings:
        return None
    from app.tools.guard import GuardedTransport  # imports httpx

    urls: dict[Direction, str] = {}
    if settings.input_url:
        urls["input"] = settings.input_url
    if settings.output_url:
        urls["output"] = settings.output_url
    return PolicyHooks(
        urls,
        GuardedTransport("any", max_bytes=MAX_DECISION_BYTES),
        blocks=settings.mode == "block",
        timeout=settings.timeout,
        fails_open=settings.fail == "open",
    )


def build_limits(settings: Settings, metrics: Metrics | None) -> Limits:
    """The store counts if all processes share it."""
    url = settings.limit_store_url or settings.store_url
    store: ServerStore = import_object(url.partition("://")[0], STORES).from_url(url, ttl=settings.store_ttl)
    return Limits(
        store.counters() or MemoryCounters(),
        requests=settings.limit_requests_per_minute,
        tokens=settings.limit_tokens_per_minute,
        streams=settings.limit_streams,
        streams_per_key=settings.limit_streams_per_key,
        on_refusal=metrics.limited if metrics else lambda _: None,
    )


def build_accounting(settings: Settings, store: ServerStore, metrics: Metrics | None) -> Accounting:
    directory = settings.usage_journal
    if directory == "auto":
        directory = default_directory(settings.store_url) or "off"
    return Accounting(
        store.usage(days=settings.usage_days),
        settings.price_list(),
        days=settings.usage_days,
        journal=UsageJournal(directory.expanduser()) if isinstance(directory, Path) else None,
        reported_costs=settings.uses_reported_costs,
        metrics=metrics,
    )


def build_auth(settings: Settings) -> Auth:
    keys = (key.get_secret_value() for key in settings.api_keys)
    jwt, proxy = (settings.auth.jwt, settings.auth.proxy) if settings.auth else (None, None)
    tokens = TokenVerifier(jwt, build_signing_keys(jwt)) if jwt else None
    return Auth(keys, settings.dialect, settings.keys, tokens=tokens, proxy=proxy)


def build_signing_keys(settings: JWTSettings) -> SigningKeys:
    if settings.jwks_file:
        return SigningKeys(key_file(settings.jwks_file))
    from app.tools.guard import GuardedTransport  # imports httpx

    http = GuardedTransport("any", max_bytes=MAX_KEY_SET_BYTES)
    return SigningKeys(key_url(settings.jwks_url or "", http), close=http.aclose)


def build_api(
    settings: Settings, responses: Responses, limits: Limits, accounting: Accounting, activity: Activity
) -> APIDependencies:
    return APIDependencies(
        responses,
        build_auth(settings),
        settings.open_after,
        settings.heartbeat,
        settings.json_heartbeat,
        BodyLimits(settings.max_body_bytes, settings.max_body_values, strict=lambda: responses.options.strict),
        limits,
        accounting,
        Idempotency(responses.store, settings.idempotency_ttl),
        activity,
    )


def build_batch_worker(
    settings: Settings, api: APIDependencies, background: Background, stopping: Callable[[], bool]
) -> BatchWorker | None:
    """Claims no requests while `stopping`; None without batches."""
    batches: Batches | None = resources_of(api.responses.tools).get("batches")
    if not settings.batch_concurrency or batches is None:
        return None
    webhooks = background.webhooks
    return BatchWorker(
        batches,
        api,
        max_concurrency=settings.batch_concurrency,
        lease=settings.background_lease,
        announce=webhooks.announce_event if webhooks else None,
        stopping=stopping,
    )


def build_tools(settings: Settings) -> dict[str, HostedTool]:
    """Raises `SettingsError` with every problem."""
    tools, problems = try_to_build_tools(settings)
    if problems:
        raise SettingsError(problems)
    return tools


def try_to_build_tools(settings: Settings) -> tuple[dict[str, HostedTool], list[str]]:
    """Return the valid tools by table name, and the problems in other tables."""
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
    problems: list[str] = []
    for name, table in settings.tool_tables().items():
        table = dict(table)
        path = table.pop("tool", TOOLS.get(name))
        if not isinstance(path, str):
            problems.append(
                f"tools.{name}: must be one of {', '.join(sorted(TOOLS))}, or have an import path in `tool`"
            )
            continue
        try:
            tool = import_object(path).from_settings(table, host)
            tools[name] = tool if isinstance(tool, HostedTool) else PlainTool(tool)
        except (ValueError, ImportError, AttributeError) as error:
            problems.append(f"tools.{name}: {error}")
    tools.setdefault("tool_search", ToolSearch())  # needs no settings
    for tool in tools.values():
        tool.link(tools)
    return tools, problems


async def prepare_tools(settings: Settings) -> list[str]:
    """Check the tools' requirements before the server starts, and return warnings; raises `SettingsError`."""
    warnings: list[str] = []
    for name, tool in build_tools(settings).items():
        async with aclosing(tool):
            try:
                warnings += [f"tools.{name}: {warning}" for warning in await tool.prepare() or ()]
            except ValueError as error:
                raise SettingsError([f"tools.{name}: {error}"]) from None
    return warnings


@dataclass
class SettingsReload:
    """Reads the settings again, applies changes, and logs changes that need a restart."""

    settings: Settings  # in effect
    read: Callable[[], Settings]
    router: Router
    api: APIDependencies

    def __call__(self) -> ReloadReport:
        """Apply changed settings. If they are invalid, log and report the reason, and change nothing."""
        pid, begun = os.getpid(), time.monotonic_ns()
        try:
            read = self.read()
            applied, restart = compare_settings(self.settings, read)
            new = self.settings.model_copy(update={name: getattr(read, name) for name in applied})
            options = generation_options(new)
            self.router.reconfigure(new.served())
        except (SettingsError, ValueError, ImportError, AttributeError) as error:
            logger.error("settings not reloaded", extra={"reason": str(error)})
            return ReloadReport(pid, begun, problems=str(error).splitlines())
        except Exception:
            logger.exception("settings not reloaded")
            return ReloadReport(pid, begun, problems=["The settings could not be read; the log contains the error."])
        self.settings = new
        self.api.auth.replace_keys((key.get_secret_value() for key in new.api_keys), new.keys)
        self.api.accounting.replace_prices(new.price_list())
        self.api.limits.replace(
            requests=new.limit_requests_per_minute,
            tokens=new.limit_tokens_per_minute,
            streams=new.limit_streams,
            streams_per_key=new.limit_streams_per_key,
        )
        self.api.responses.options = options
        self.api.responses.quota.limit = new.max_stored_bytes
        if applied:
            logs.configure(new)  # always, to redact new secrets, too
        if restart:
            logger.warning("changed settings require a restart", extra={"settings": ", ".join(restart)})
        logger.info("settings reloaded", extra={"changed": ", ".join(applied), "backends": ", ".join(new.served())})
        return ReloadReport(pid, begun, applied, restart, [*new.served()])
