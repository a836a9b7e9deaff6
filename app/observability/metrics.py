"""
Prometheus metrics, for `GET /metrics`.

Metrics change when requests, responses and queries start or end, never per token. Worker processes write separate files
in a directory (`PROMETHEUS_MULTIPROC_DIR`, created by `antiphon serve`), so each worker can return the sum.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import ParamSpec, TypeAlias, TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from app import __version__
from app.backends import Backend, OpenRequest, RawAnswer, RawRequest
from app.core.access import UNRESTRICTED, KeyAccess
from app.core.prices import NANO
from app.core.request.model_request import ModelRequest
from app.core.types import Usage
from app.core.usage import counts_of
from app.errors import BackendError, StoreUnavailable
from app.observability.labels import BoundedLabels, ModelLabels
from app.observability.lifecycle import Observer, ResponseLifecycle, ToolCallRecord
from app.stores import Store, UsageRow

P = ParamSpec("P")
T = TypeVar("T")

# The client library's directory; read when the library is imported.
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

ERROR_LABELS = 50  # error codes used as labels
TOOL_MODELS = 50  # image and embedding models used as labels

# Buckets in seconds. The first three extend OpenTelemetry's conventions for generative AI.
TO_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
TOTAL = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36)
STORE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


_UNFLUSHED = 1000  # observations per flush


class Count:
    """
    A counter or gauge, added to the client library's series before a scrape.

    The library takes a lock and several calls per increment.
    """

    __slots__ = ("_series", "_value")

    def __init__(self, series: Counter | Gauge) -> None:
        self._series = series
        self._value = 0.0

    def inc(self, amount: float = 1) -> None:
        self._value += amount

    def flush(self) -> None:
        amount, self._value = self._value, 0.0
        if amount:
            self._series.inc(amount)


class Times:
    """Durations in seconds, added to the library's histogram before a scrape: see `Count`."""

    __slots__ = ("_seconds", "_series")

    def __init__(self, series: Histogram) -> None:
        self._series = series
        self._seconds: list[float] = []

    def observe(self, amount: float) -> None:
        self._seconds.append(amount)
        if len(self._seconds) >= _UNFLUSHED:
            self.flush()

    def flush(self) -> None:
        seconds, self._seconds = self._seconds, []
        for each in seconds:
            self._series.observe(each)


Counted: TypeAlias = Counter | Gauge | Count
Timed: TypeAlias = Histogram | Times
_Series = TypeVar("_Series", bound=Counter | Gauge | Histogram)
_Buffer = TypeVar("_Buffer", bound=Count | Times)


@dataclass(slots=True)
class EndedResponses:
    """Ended responses of a model, delivery and status, not yet added to the series. Durations are in seconds."""

    total: list[float] = field(default_factory=list)
    to_first: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)  # see `counts_of`


class Metrics(Observer):
    """`directory` is shared by worker processes; None with a single process."""

    def __init__(self, directory: str | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the output
        self._directory = directory
        self._registry = registry = CollectorRegistry()
        self._pending: list[Count | Times] = []
        self._ended: defaultdict[tuple[str, str, str], EndedResponses] = defaultdict(EndedResponses)
        self.models = ModelLabels()
        self._kinds, self._tool_models = BoundedLabels(ERROR_LABELS), BoundedLabels(TOOL_MODELS)
        if directory is None:
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)

        # Cached, because series lookups by label cost more than counting.

        def counter(name: str, text: str, *labels: str) -> Callable[..., Counted]:
            metric = Counter(f"antiphon_{name}", text, labels, registry=registry)
            return cache(lambda *values: self._buffered(metric.labels(*values), Count))

        def gauge(name: str, text: str, *labels: str) -> Callable[..., Counted]:
            metric = Gauge(f"antiphon_{name}", text, labels, registry=registry, multiprocess_mode="livesum")
            return cache(lambda *values: self._buffered(metric.labels(*values) if labels else metric, Count))

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Callable[..., Timed]:
            metric = Histogram(f"antiphon_{name}_seconds", text, labels, buckets=buckets, registry=registry)
            return cache(lambda *values: self._buffered(metric.labels(*values), Times))

        self._requests = counter("http_requests", "HTTP requests that were answered.", "method", "route", "status")
        self._sockets = gauge("websockets_open", "WebSocket connections that are open.")
        self._refused = counter("limited", "Requests that were refused by one of this server's limits.", "limit")

        self._open = gauge("responses_open", "Responses in progress.", "delivery")
        self._responses = counter("responses", "Responses that have ended.", "model", "delivery", "status")
        self._failures = counter("response_failures", "Responses that failed, by error code.", "kind")
        self._total = histogram("response", "Time from a response's beginning to its end.", TOTAL, "model", "delivery")
        self._to_first = histogram("time_to_first_token", "Time to the first token of a response.", TO_FIRST, "model")
        self._per_token = histogram(
            "time_per_output_token", "Time for each output token after the first.", PER_TOKEN, "model"
        )
        self._tokens = counter(
            "tokens", "Tokens: cached ones are part of the input, reasoning is part of the output.", "model", "kind"
        )

        key = ("key", "backend")  # name in the settings
        self._key_responses = counter("key_responses", "Responses by key that used a backend.", *key)
        self._key_tokens = counter("key_tokens", "Tokens by key: those of `tokens`.", *key, "kind")
        self._key_cost = counter("key_cost", "What responses cost by key, in the currency of the prices.", *key)

        self._tool_calls = counter("tool_calls", "Calls of hosted tools that have ended.", "tool", "status")
        self._tool_seconds = histogram("tool_call", "Time for a call of a hosted tool.", TOTAL, "tool")

        server = ("backend", "replica")
        self._queue = gauge("backend_queue", "Requests that wait for a free slot of a backend.", "backend")
        self._waiting = gauge("backend_waiting", "Requests to backends whose answer has not begun.", *server)
        self._until_answer = histogram("backend_answer", "Time until a backend begins its answer.", TO_FIRST, *server)
        self._errors = counter(
            "backend_errors", "Failures and refusals of backends, also those tried again.", *server, "kind"
        )
        self._measures = cache(self._new_measure)
        self._up = Gauge(
            "antiphon_backend_up",
            "Whether a server has not failed in its last request or check.",
            server,
            registry=registry,
            multiprocess_mode="livemin",  # down if any process saw it fail
        )

        self._store = histogram("store", "Time for one operation of the store.", STORE, "operation")
        self._store_errors = counter("store_errors", "Operations of the store that failed.", "operation")
        gauge("build_info", "The version, once for each process.", "version")(__version__).inc()

    # Worker processes share the series in files, so they add to the library's series at once.

    def _buffered(self, series: _Series, buffer: Callable[[_Series], _Buffer]) -> _Series | _Buffer:
        if self._directory is not None:
            return series
        self._pending.append(buffered := buffer(series))
        return buffered

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        self._open(lifecycle.delivery).inc()
        self.models.expect(str(lifecycle.response["model"]))

    @contextmanager
    def tool_call(self, call: ToolCallRecord) -> Iterator[None]:
        try:
            yield
        finally:
            self._tool_calls(call.tool, call.status).inc()
            self._tool_seconds(call.tool).observe(call.age)

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """Recorded once the model label is known."""
        self._open(lifecycle.delivery).inc(-1)
        self.models.resolve(str(lifecycle.response["model"]), self._record, lifecycle, lifecycle.status)

    def _record(self, model: str, lifecycle: ResponseLifecycle, status: str) -> None:
        ended = self._ended[model, lifecycle.delivery, status]
        ended.total.append(lifecycle.seconds)
        if lifecycle.failure:
            self._failures(self._kinds(lifecycle.failure.code)).inc()
        if (first := lifecycle.seconds_to_first) is not None:
            ended.to_first.append(first)
        if (each := lifecycle.seconds_per_token) is not None:
            ended.per_token.append(each)
        if usage := lifecycle.usage:
            ended.tokens.append(counts_of(usage))
        if self._directory is not None or len(ended.total) >= _UNFLUSHED:
            self._flush_ended()

    def _flush_ended(self) -> None:
        """Add ended responses to their series."""
        counted, self._ended = self._ended, defaultdict(EndedResponses)
        for (model, delivery, status), ended in counted.items():
            self._responses(model, delivery, status).inc(len(ended.total))
            for seconds in ended.total:
                self._total(model, delivery).observe(seconds)
            for seconds in ended.to_first:
                self._to_first(model).observe(seconds)
            for seconds in ended.per_token:
                self._per_token(model).observe(seconds)
            if ended.tokens:
                input_tokens, output_tokens, cached, _, reasoning = map(sum, zip(*ended.tokens, strict=True))
                _count_kinds(self._tokens, (model,), (input_tokens, cached, output_tokens, reasoning))

    def tool_request(self, model: str, usage: Usage) -> None:
        """Count the tokens of a hosted tool's backend request."""
        input_tokens, output_tokens, cached, _, reasoning = counts_of(usage)
        _count_kinds(self._tokens, (self._tool_models(model),), (input_tokens, cached, output_tokens, reasoning))

    def used(self, access: KeyAccess, row: UsageRow) -> None:
        """Labels are table names from the settings."""
        key = access.table or (access.name if access.configured or access is UNRESTRICTED else "unnamed")
        labels = (key, row.backend)
        self._key_responses(*labels).inc(row.requests)
        counts = row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens
        _count_kinds(self._key_tokens, labels, counts)
        cost = self._key_cost(*labels)
        if row.cost:
            cost.inc(row.cost / NANO)

    def answered(self, method: str, route: str, status: int) -> None:
        """`route` is the path pattern."""
        self._requests(method, route, status).inc()

    def queued(self, backend: str, change: int) -> None:
        self._queue(backend).inc(change)

    def health(self, backend: str, replica: str, up: bool | None) -> None:
        """None removes the server."""
        if up is None and self._directory is None:
            self._up.remove(backend, replica)
        else:
            self._up.labels(backend, replica).set(_REMOVED if up is None else up)

    @contextmanager
    def socket(self) -> Iterator[None]:
        self._sockets().inc()
        try:
            yield
        finally:
            self._sockets().inc(-1)

    def limited(self, limit: str) -> None:
        self._refused(limit).inc()

    def exchange(self, backend: Backend, request: ModelRequest | RawRequest, server: tuple[str, str]) -> _Measure:
        return self._measures(server)()

    def _new_measure(self, server: tuple[str, str]) -> Callable[[], _Measure]:
        return partial(_Measure, self._waiting(*server), self._until_answer(*server), partial(self._failed, server))

    def flush(self) -> None:
        """Add all pending counts to the library's series, in the event loop's thread, before `expose`."""
        self._flush_ended()
        for pending in self._pending:
            pending.flush()

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics and their content type, negotiated by an `Accept` header."""
        encode, content_type = choose_encoder(accept)
        return encode(self._collected()), content_type

    async def aclose(self) -> None:
        """Clear this process's gauges."""
        if self._directory:
            mark_process_dead(os.getpid(), self._directory)  # type: ignore[no-untyped-call]

    def _collected(self) -> CollectorRegistry:
        if self._directory is None:
            return self._registry
        for path in Path(self._directory).glob("gauge_live*.db"):
            if not _alive(pid := int(path.stem.rpartition("_")[2])):
                mark_process_dead(pid, self._directory)  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        _AllProcesses(registry, self._directory)  # type: ignore[no-untyped-call]
        return registry

    def store(self, store: Store) -> Store:
        """A store with measured operations."""
        methods = {name: self._measured(getattr(store, name), label) for name, label in _STORE_OPERATIONS.items()}
        unmeasured = {name: getattr(store, name) for name in ("stored_bytes", "check", "aclose")}
        return cast(Store, SimpleNamespace(**methods, **unmeasured))

    def _measured(self, method: Callable[P, Awaitable[T]], operation: str) -> Callable[P, Awaitable[T]]:
        async def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.perf_counter()
            try:
                return await method(*args, **kwargs)
            except StoreUnavailable:
                self._store_errors(operation).inc()
                raise
            finally:
                self._store(operation).observe(time.perf_counter() - began)

        return measured

    def _failed(self, server: tuple[str, str], error: BackendError) -> None:
        self._errors(*server, self._kinds(error.code)).inc()


# Labels of the store's methods.
_STORE_OPERATIONS = {
    "put": "put",
    "add": "put",
    "apply": "put",
    "get": "get",
    "all": "all",
    "names": "names",
    "delete": "delete",
    "delete_partition": "delete",
    "delete_expired": "purge",
    "recent": "recent",
}

# A removed server's value, since multiprocess files cannot drop series. The minimum over all processes is shown, so a
# server remains visible while any process uses it.
_REMOVED = math.inf


class _AllProcesses(MultiProcessCollector):
    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():  # type: ignore[no-untyped-call]
            if metric.name == "antiphon_backend_up":
                metric.samples = [sample for sample in metric.samples if sample.value != _REMOVED]
            yield metric


class _Measure:
    """Measures a server's time to accept a request."""

    headers: Mapping[str, str] = MappingProxyType({})
    tap = None

    __slots__ = ("_accepted", "_answer", "_began", "_failed", "_waiting")

    def __init__(self, waiting: Counted, answer: Timed, failed: Callable[[BackendError], None]) -> None:
        self._waiting, self._answer, self._failed = waiting, answer, failed
        self._accepted = False
        self._began = time.perf_counter()
        waiting.inc()

    def accepted(self, answer: OpenRequest | RawAnswer) -> None:
        self._accepted = True
        self._waiting.inc(-1)
        self._answer.observe(time.perf_counter() - self._began)

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, BackendError):
            self._failed(error)
        if not self._accepted:
            self._waiting.inc(-1)


def _count_kinds(series: Callable[..., Counted], labels: Sequence[str], counts: Sequence[int]) -> None:
    """Add token counts. Each kind has a series from the first response on, even at 0."""
    for kind, count in zip(("input", "cached_input", "output", "reasoning"), counts, strict=True):
        tokens = series(*labels, kind)
        if count:
            tokens.inc(count)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
