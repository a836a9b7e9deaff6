"""
What is counted and measured, for Prometheus: `GET /metrics`.

Everything is written down when something begins or ends: nothing here runs per token. With several worker processes
each writes into files of its own in one directory (`PROMETHEUS_MULTIPROC_DIR`, which `antiphon serve` makes), and any
of them answers for all.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache, partial
from pathlib import Path

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
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from app import __version__
from app.backends import Backend, BackendWrapper, ChatRequest, Chunk
from app.errors import BackendError, StoreUnavailable
from app.observability.labels import BoundedLabels, ModelLabels
from app.observability.lifecycle import ResponseLifecycle, ToolCallRecord
from app.stores import Change, Store

# The variable in which the client library has the directory; it is read when the library is loaded.
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

ERROR_LABELS = 50  # of errors, likewise

# Seconds. The first three are those that OpenTelemetry's conventions for generative AI advise, and some beyond.
TO_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
WHOLE = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36)
STORE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """
    The metrics of one application.

    `directory` is where the processes of a server with several of them write; None for a server that is one process.
    """

    def __init__(self, directory: str | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # when a series began is as much again
        self._directory = directory
        self._registry = registry = CollectorRegistry()
        self.models = ModelLabels()
        self._kinds = BoundedLabels(ERROR_LABELS)
        if directory is None:
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)

        # To find the series of some labels takes the library longer than to count: `cache` remembers them.

        def counter(name: str, text: str, *labels: str) -> Callable[..., Counter]:
            return cache(Counter(f"antiphon_{name}", text, labels, registry=registry).labels)

        def gauge(name: str, text: str, *labels: str) -> Callable[..., Gauge]:
            made = Gauge(f"antiphon_{name}", text, labels, registry=registry, multiprocess_mode="livesum")
            return cache(made.labels) if labels else lambda: made

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Callable[..., Histogram]:
            made = Histogram(f"antiphon_{name}_seconds", text, labels, buckets=buckets, registry=registry)
            return cache(made.labels) if labels else lambda: made

        self._requests = counter("http_requests", "HTTP requests that were answered.", "method", "route", "status")
        self._sockets = gauge("websockets_open", "WebSocket connections that are open.")
        self._refused = counter("limited", "Requests that were refused by one of this server's limits.", "limit")

        self._open = gauge("responses_open", "Responses in the making.", "way")
        self._responses = counter("responses", "Responses that have ended.", "model", "way", "status")
        self._failures = counter("response_failures", "Responses that failed, by what callers were told.", "kind")
        self._whole = histogram("response", "Time from a response's beginning to its end.", WHOLE, "model", "way")
        self._first = histogram("time_to_first_token", "Time to the first token of a response.", TO_FIRST, "model")
        self._each = histogram(
            "time_per_output_token", "Time for each output token after the first.", PER_TOKEN, "model"
        )
        self._tokens = counter(
            "tokens", "Tokens: cached ones are part of the input, reasoning is part of the output.", "model", "kind"
        )

        self._tool_calls = counter("tool_calls", "Calls of hosted tools that have ended.", "tool", "status")
        self._tool_seconds = histogram("tool_call", "Time for a call of a hosted tool.", WHOLE, "tool")

        server = ("backend", "replica")
        self._queue = gauge("backend_queue", "Requests that wait for a backend with a place for them.", "backend")
        self._waiting = gauge("backend_waiting", "Questions to backends that no answer has begun to.", *server)
        self._status = histogram("backend_answer", "Time until a backend begins its answer.", TO_FIRST, *server)
        self._errors = counter(
            "backend_errors", "Failures and refusals of backends, also those tried again.", *server, "kind"
        )
        # Where a process sees a server fail, it is not up.
        self._up = Gauge(
            "antiphon_backend_up",
            "Whether a server has not failed in its last request or check.",
            server,
            registry=registry,
            multiprocess_mode="livemin",
        )

        self._store = histogram("store", "Time for one operation of the store.", STORE, "operation")
        self._store_errors = counter("store_errors", "Operations that the store failed in.", "operation")
        gauge("build_info", "Which version this is, once for each process.", "version")(__version__).set(1)

    # What is told by others.

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        """A response is being made."""
        self._open(lifecycle.way).inc()
        self.models.expect(str(lifecycle.response["model"]))

    @contextmanager
    def tool_call(self, call: ToolCallRecord) -> Iterator[None]:
        """Count a call of a hosted tool; the label is the name of the tool's table in the settings."""
        try:
            yield
        finally:
            self._tool_calls(call.tool, call.status).inc()
            self._tool_seconds(call.tool).observe(call.age)

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """It is over."""
        self._open(lifecycle.way).dec()
        self.models.resolve(str(lifecycle.response["model"]), partial(self._record, lifecycle, lifecycle.status))

    def _record(self, lifecycle: ResponseLifecycle, status: str, model: str) -> None:
        self._responses(model, lifecycle.way, status).inc()
        self._whole(model, lifecycle.way).observe(lifecycle.seconds)
        if lifecycle.failure:
            self._failures(self._kinds(lifecycle.failure.code)).inc()
        if (first := lifecycle.seconds_to_first) is not None:
            self._first(model).observe(first)
        if (each := lifecycle.seconds_per_token) is not None:
            self._each(model).observe(each)
        if usage := lifecycle.usage:
            for kind, count in (
                ("input", usage["input_tokens"]),
                ("cached_input", usage["input_tokens_details"]["cached_tokens"]),
                ("output", usage["output_tokens"]),
                ("reasoning", usage["output_tokens_details"]["reasoning_tokens"]),
            ):
                self._tokens(model, kind).inc(count)

    def answered(self, method: str, route: str, status: int) -> None:
        """An HTTP request was answered; `route` is the path's pattern."""
        self._requests(method, route, str(status)).inc()

    def queued(self, backend: str, change: int) -> None:
        """So many more requests wait for a backend, or fewer."""
        self._queue(backend).inc(change)

    def health(self, backend: str, replica: str, up: bool | None) -> None:
        """A server has answered, or failed; None: it is not asked any more."""
        if up is None and self._directory is None:
            self._up.remove(backend, replica)
        else:  # the files of several processes have no way to take back what was said
            self._up.labels(backend, replica).set(up is not False)

    @contextmanager
    def socket(self) -> Iterator[None]:
        """A WebSocket connection is open for as long as the context lasts."""
        with self._sockets().track_inprogress():
            yield

    def limited(self, limit: str) -> None:
        """A request was refused by a limit."""
        self._refused(limit).inc()

    # What is told to others.

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics, and the content type that they are in, by what an `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._collected()), content_type

    async def aclose(self) -> None:
        """This process has nothing open any more."""
        if self._directory:
            mark_process_dead(os.getpid(), self._directory)  # type: ignore[no-untyped-call]

    def _collected(self) -> CollectorRegistry:
        if self._directory is None:
            return self._registry
        for path in Path(self._directory).glob("gauge_live*.db"):
            if not _alive(pid := int(path.stem.rpartition("_")[2])):
                mark_process_dead(pid, self._directory)  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._directory)  # type: ignore[no-untyped-call]
        return registry

    # What is measured as it is used.

    def store(self, store: Store) -> Store:
        """Return a store that is measured."""
        return _MeasuredStore(store, self)

    def backend(self, backend: Backend, name: str = "default", replica: str = "1") -> Backend:
        """Return a backend that is measured: one server of the backend `name`, numbered from 1."""
        return _MeasuredBackend(backend, self, (name, replica))

    @contextmanager
    def storing(self, operation: str) -> Iterator[None]:
        """Measure an operation of the store, which the context is around."""
        began = time.perf_counter()
        try:
            yield
        except StoreUnavailable:
            self._store_errors(operation).inc()
            raise
        finally:
            self._store(operation).observe(time.perf_counter() - began)

    @contextmanager
    def asking(self, server: tuple[str, str]) -> Iterator[None]:
        """Measure how long a backend takes to begin its answer, which the context is around."""
        began = time.perf_counter()
        self._waiting(*server).inc()
        try:
            yield
        finally:
            self._waiting(*server).dec()
        self._status(*server).observe(time.perf_counter() - began)

    def failed(self, server: tuple[str, str], error: BackendError) -> None:
        """A backend failed, or refused."""
        self._errors(*server, self._kinds(error.code)).inc()


class _MeasuredStore:
    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._measured = metrics.storing
        self.purge, self.check, self.aclose = store.purge, store.check, store.aclose

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        with self._measured("put"):
            await self._store.put(bucket, name, record)

    async def apply(self, *changes: Change) -> bool:
        with self._measured("put"):
            return await self._store.apply(*changes)

    async def get(self, bucket: str, name: str) -> bytes | None:
        with self._measured("get"):
            return await self._store.get(bucket, name)

    async def all(self, bucket: str) -> dict[str, bytes]:
        with self._measured("all"):
            return await self._store.all(bucket)

    async def delete(self, bucket: str, name: str) -> bool:
        with self._measured("delete"):
            return await self._store.delete(bucket, name)

    async def drop(self, bucket: str) -> bool:
        with self._measured("delete"):
            return await self._store.drop(bucket)

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        with self._measured("recent"):
            return await self._store.recent(owner, limit=limit, after=after)


class _MeasuredBackend(BackendWrapper):
    """Passes the chunks on untouched: what becomes of them is seen where the context ends."""

    def __init__(self, backend: Backend, metrics: Metrics, server: tuple[str, str]) -> None:
        super().__init__(backend)
        self._metrics = metrics
        self._server = server  # its labels

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[list[Chunk]]]:
        """Ask, and answer in chunks: see `Backend.stream`."""
        try:
            with ExitStack() as waiting:
                waiting.enter_context(self._metrics.asking(self._server))
                async with self._backend.stream(request) as chunks:
                    waiting.close()
                    yield chunks
        except BackendError as error:
            self._metrics.failed(self._server, error)
            raise


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
