"""
OpenTelemetry traces and metrics, by its semantic conventions for HTTP and generative AI.

Each request has a span. Backend requests are child spans, and propagate their context to the backend. Each round of
hosted tools is a span, the parent of its backend request and calls. By default, spans omit prompts and answers.

Tracing failures never affect a response. This module needs the extra `otel`; import it only if tracing is on.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from opentelemetry import metrics, trace
from opentelemetry.context import attach, detach
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram, MeterProvider
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, TracerProvider, set_span_in_context
from starlette.types import ASGIApp

from app import __version__
from app.backends import Backend, ModelRequest, RawRequest
from app.errors import APIError
from app.observability.labels import ModelLabels
from app.observability.lifecycle import Observer, ResponseLifecycle, RoundRecord, ToolCallRecord
from app.observability.tracing.backends import BackendSpan
from app.observability.tracing.requests import TracedRequests
from app.observability.tracing.spans import conversation_attribute, harmless, mark_failed, round_span
from app.runtime.tasks import wait_for_event

FLUSH_TIMEOUT = 5.0  # seconds for pending data at shutdown

_OPERATION = {"gen_ai.operation.name": "chat"}

# Buckets recommended by the conventions, in seconds and tokens.
_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_TO_FIRST = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_PER_TOKEN = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]


def _is_exported(signal: str) -> bool:
    """Whether `signal` is exported; OpenTelemetry's value `none` turns it off."""
    return os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() != "none"


class Tracing(Observer):
    def __init__(self, traces: TracerProvider, meters: MeterProvider, *, content: bool = False) -> None:
        """`content`: spans include the prompts and answers of stored responses."""
        self.content = content
        self._providers = (traces, meters)
        self.tracer = traces.get_tracer("antiphon", __version__)
        self.models = ModelLabels()
        meter = meters.get_meter("antiphon", __version__)

        def seconds(name: str, text: str, advice: list[float]) -> Histogram:
            return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=advice)

        self._total = seconds("gen_ai.server.request.duration", "Time for a response.", _SECONDS)
        self._to_first = seconds("gen_ai.server.time_to_first_token", "Time to the first token.", _TO_FIRST)
        self._per_token = seconds(
            "gen_ai.server.time_per_output_token", "Time for each output token after the first.", _PER_TOKEN
        )
        self.operation = seconds("gen_ai.client.operation.duration", "Time for a request to a backend.", _SECONDS)
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens used.", explicit_bucket_boundaries_advisory=_TOKENS
        )

    @classmethod
    def from_environment(cls, *, content: bool = False) -> Tracing:
        """
        Export by OTLP over HTTP, configured by OpenTelemetry's environment variables.

        Existing global providers, for example from `opentelemetry-instrument`, are used instead.
        """
        traces, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        resource = Resource.create({SERVICE_NAME: "antiphon", SERVICE_VERSION: __version__})
        resource = resource.merge(OTELResourceDetector().detect())
        if not isinstance(traces, sdk_trace.TracerProvider):
            traces = sdk_trace.TracerProvider(resource=resource, shutdown_on_exit=False)
            if _is_exported("TRACES"):
                traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if not isinstance(meters, sdk_metrics.MeterProvider):
            readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if _is_exported("METRICS") else []
            meters = sdk_metrics.MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        return cls(traces, meters, content=content)

    def exchange(self, backend: Backend, request: ModelRequest | RawRequest, server: tuple[str, str]) -> BackendSpan:
        return BackendSpan(self, backend, request, server)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        return TracedRequests(app, self.tracer)

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        self.models.expect(str(lifecycle.response["model"]))

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """Recorded once the model label is known; a failure marks the request's span."""
        failure = lifecycle.failure
        if lifecycle.status == "failed" and (failure is None or failure.status >= 500):
            mark_failed(trace.get_current_span(), failure.code if failure else APIError.code)
        self.models.resolve(str(lifecycle.response["model"]), functools.partial(self._record, lifecycle))

    @harmless
    def _record(self, lifecycle: ResponseLifecycle, model: str) -> None:
        attributes = {
            **_OPERATION,
            "gen_ai.provider.name": "antiphon",
            "gen_ai.request.model": model,
        }
        failed = {"error.type": lifecycle.failure.code} if lifecycle.failure else {}
        self._total.record(lifecycle.seconds, {**attributes, **failed})
        if (first := lifecycle.seconds_to_first) is not None:
            self._to_first.record(first, attributes)
        if (each := lifecycle.seconds_per_token) is not None:
            self._per_token.record(each, attributes)

    def round(self, record: RoundRecord) -> AbstractContextManager[None]:
        return round_span(self.tracer, record)

    @contextmanager
    def tool_call(self, call: ToolCallRecord) -> Iterator[None]:
        """The span is the parent of all spans within this context."""
        span = self._begin_tool(call) or INVALID_SPAN
        token = attach(set_span_in_context(span))
        try:
            yield
        finally:
            detach(token)
            self._end_tool(call, span)

    @harmless
    def _begin_tool(self, call: ToolCallRecord) -> Span:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.function,
            "gen_ai.tool.type": "extension",  # the conventions' term for a tool run by the server
            "gen_ai.tool.call.id": call.call_id,
            "antiphon.tool": call.tool,
            **conversation_attribute(),
        }
        return self.tracer.start_span(f"execute_tool {call.function}", kind=SpanKind.INTERNAL, attributes=attributes)

    @harmless
    def _end_tool(self, call: ToolCallRecord, span: Span) -> None:
        if call.status != "completed":
            mark_failed(span, call.status)
        span.end()

    async def aclose(self) -> None:
        """Exports pending data, for up to `FLUSH_TIMEOUT` seconds."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            for provider in self._providers:
                if shutdown := getattr(provider, "shutdown", None):
                    shutdown()
            with suppress(RuntimeError):  # the loop was closed after the timeout
                loop.call_soon_threadsafe(sent.set)

        # A daemon thread: an unavailable collector does not delay the exit.
        threading.Thread(target=send, daemon=True).start()
        await wait_for_event(sent, FLUSH_TIMEOUT)
