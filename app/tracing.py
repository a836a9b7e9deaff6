"""
Traces and metrics by OpenTelemetry, in the words of its conventions for HTTP and for generative AI.

A request is a span, and each question to a backend is one within it, whose context the backend is sent. Nothing that
was said is in a span. This module needs the extra `antiphon[otel]`, and is loaded only where it is asked for.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram, MeterProvider
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import __version__, about
from app.backends import Backend, ChatRequest, Chunk, TokenCounter
from app.course import Course, Labels, clock
from app.errors import APIError, BackendError

MODELS = 100  # that are told apart in metrics
PATIENCE = 5.0  # seconds to send what is left when the server stops

# Only the trace's context is taken and passed on: baggage is for whom the caller meant it.
_PROPAGATOR = TraceContextTextMapPropagator()

# The conventions' names of providers, where they are not those of our profiles.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
}
_OPERATION = {"gen_ai.operation.name": "chat"}

# What a span says of a question: the attribute, by the field of the Chat Completions request.
_ASKED = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "stream": "gen_ai.request.stream",
}

# The conventions' advice, in seconds and in tokens.
_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_TO_FIRST = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_PER_TOKEN = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]


class Tracing:
    """The traces and metrics of one application, which go to these providers."""

    def __init__(self, traces: TracerProvider, meters: MeterProvider) -> None:
        self._providers = (traces, meters)
        self.tracer = traces.get_tracer("antiphon", __version__)
        self.labels = Labels(MODELS)
        meter = meters.get_meter("antiphon", __version__)

        def seconds(name: str, text: str, advice: list[float]) -> Histogram:
            return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=advice)

        self._request = seconds("gen_ai.server.request.duration", "Time for a response.", _SECONDS)
        self._first = seconds("gen_ai.server.time_to_first_token", "Time to the first token.", _TO_FIRST)
        self._each = seconds(
            "gen_ai.server.time_per_output_token", "Time for each output token after the first.", _PER_TOKEN
        )
        self.operation = seconds("gen_ai.client.operation.duration", "Time for a question to a backend.", _SECONDS)
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens used.", explicit_bucket_boundaries_advisory=_TOKENS
        )

    @classmethod
    def from_environment(cls) -> Tracing:
        """
        Send by OTLP over HTTP, to where OpenTelemetry's variables say; or let those providers send that somebody, such
        as `opentelemetry-instrument`, has set up already.
        """
        traces, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        named = Resource.create({SERVICE_NAME: "antiphon", SERVICE_VERSION: __version__})
        resource = named.merge(Resource.create())  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
        if not isinstance(traces, sdk_trace.TracerProvider):
            traces = sdk_trace.TracerProvider(resource=resource)
            traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if not isinstance(meters, sdk_metrics.MeterProvider):
            reader = PeriodicExportingMetricReader(OTLPMetricExporter())
            meters = sdk_metrics.MeterProvider([reader], resource=resource)
        return cls(traces, meters)

    def backend(self, backend: Backend) -> Backend:
        """Return a backend each question to which is a span."""
        return _TracedBackend(backend, self)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return an application each request to which is a span."""
        return _TracedRequests(app, self)
