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
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram, MeterProvider
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import __version__
from app.backends import Backend, OpenRequest, RawAnswer, RawRequest
from app.core.profile import Profile
from app.core.request.model_request import ModelRequest
from app.core.types import JSONMapping, JSONObject, Usage
from app.core.types.deltas import AnswerMetadata, Delta, Finished, Tap, UsageReported
from app.core.usage import counts_of, usage_of
from app.errors import APIError, BackendError
from app.observability import log_context
from app.observability.content import OutputMessage, input_messages
from app.observability.labels import ModelLabels
from app.observability.lifecycle import Observer, ResponseLifecycle, RoundRecord, ToolCallRecord, clock
from app.runtime.tasks import wait_for_event

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

# Only the trace context: the caller's baggage might not be meant for the backend.
PROPAGATOR = TraceContextTextMapPropagator()


def harmless(function: Callable[P, T]) -> Callable[P, T | None]:
    """Log exceptions and return None, so that tracing never affects a response."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception:
            logger.exception("tracing failed")
            return None

    return wrapper


@harmless
def mark_failed(span: Span, kind: str, *description: str) -> None:
    """Mark a span as failed, unless it has ended."""
    if not span.is_recording():
        return
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, *description))


def conversation_attribute() -> dict[str, str]:
    value = log_context.fields().get("conversation_id")
    return {"gen_ai.conversation.id": value} if value else {}


@contextmanager
def _parent(started: Span | None, end: Callable[[Span], object]) -> Iterator[None]:
    """The span is the parent of all spans within this context."""
    span = started or INVALID_SPAN
    token = attach(set_span_in_context(span))
    try:
        yield
    finally:
        detach(token)
        end(span)


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
        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan" or scope["path"] in _UNTRACED:
                await app(scope, receive, send)
                return
            method = scope.get("method", "WEBSOCKET")
            span = self._begin_request(scope, method) or INVALID_SPAN
            log_context.bind(trace_id=trace.format_trace_id(span.get_span_context().trace_id))

            async def send_and_record(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _answered(span, message["status"])
                await send(message)

            token = attach(set_span_in_context(span, Context()))
            try:
                await app(scope, receive, send_and_record)
            except Exception as error:
                mark_failed(span, type(error).__name__)
                raise
            finally:
                detach(token)
                _ended(span, scope, method)

        return traced

    @harmless
    def _begin_request(self, scope: Scope, method: str) -> Span:
        return self.tracer.start_span(
            method,
            # This task's context can belong to an earlier request on the connection.
            PROPAGATOR.extract(Headers(scope=scope), Context()),
            SpanKind.SERVER,
            {
                "http.request.method": scope.get("method", "GET"),
                "url.scheme": scope["scheme"],
                "url.path": scope["path"],
            },
        )

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
        return _parent(self._begin_round(record), functools.partial(self._end_round, record))

    def tool_call(self, call: ToolCallRecord) -> AbstractContextManager[None]:
        return _parent(self._begin_tool(call), functools.partial(self._end_tool, call))

    @harmless
    def _begin_round(self, record: RoundRecord) -> Span:
        attributes: dict[str, str | int] = {
            "antiphon.round": record.number,
            "gen_ai.request.model": str(record.response["model"]),
            "gen_ai.response.id": str(record.response["id"]),
            **conversation_attribute(),
        }
        return self.tracer.start_span(f"round {record.number}", kind=SpanKind.INTERNAL, attributes=attributes)

    @harmless
    def _end_round(self, record: RoundRecord, span: Span) -> None:
        span.set_attribute("antiphon.tool_calls", record.calls)
        if usage := record.usage:
            span.set_attribute("gen_ai.usage.input_tokens", usage["input_tokens"])
            span.set_attribute("gen_ai.usage.output_tokens", usage["output_tokens"])
        if record.status not in ("completed", "incomplete"):
            mark_failed(span, record.status)
        span.end()

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


_UNTRACED = frozenset({"/healthz", "/health", "/readyz", "/metrics"})  # polled every few seconds


@harmless
def _answered(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        mark_failed(span, str(status))


@harmless
def _ended(span: Span, scope: Scope, method: str) -> None:
    # The same route, with and without the prefix.
    if route := getattr(scope.get("route"), "path", "").removeprefix("/v1"):
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    if value := log_context.fields().get("response_id"):
        span.set_attributes({"gen_ai.response.id": value, **conversation_attribute()})
    span.end()


# Providers with another name in the conventions than in our profiles.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "gemini-chat": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}

# Endpoints with a name in the conventions; others use their path.
_OPERATIONS = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}

# Span attributes, in the order of `counts_of`.
_USAGE_ATTRIBUTES = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.reasoning.output_tokens",
)

# Span attributes by Chat Completions request field.
_REQUEST_ATTRIBUTES = {
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


_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode


class BackendSpan:
    def __init__(
        self, tracing: Tracing, backend: Backend, request: ModelRequest | RawRequest, server: tuple[str, str]
    ) -> None:
        profile = backend.profile(request.model)
        self._tracing = tracing
        self._attempts = request.attempts
        self._is_raw = isinstance(request, RawRequest)
        body: JSONMapping
        if isinstance(request, RawRequest):
            body, operation = {"model": request.model}, _OPERATIONS.get(request.endpoint, request.endpoint.strip("/"))
        else:
            body, operation = backend.encode(request).body, "chat"
        self._operation = {"gen_ai.operation.name": operation}
        self._span: Span = INVALID_SPAN
        self._provider = {"gen_ai.provider.name": _PROVIDERS.get(profile.name, profile.name)}
        self._model = str(body["model"])
        self._began = clock()
        self._first: float | None = None
        self._recorded: JSONObject = {}  # the answer's latest metadata
        self._failure: dict[str, str] = {}
        self._output: OutputMessage | None = None  # only if content is recorded
        self._answer: RawAnswer | None = None  # the answer of a passthrough request
        self.tap: Tap = self.record
        self._start(body, profile, server)
        self.headers: Mapping[str, str] = self._context() or {}
        if isinstance(request, ModelRequest) and tracing.content and request.may_trace_content:
            self._record_content(body)

    @harmless
    def _start(self, body: JSONMapping, profile: Profile, server: tuple[str, str]) -> None:
        url = urlsplit(profile.transport.base_url or "")
        address = {"server.address": url.hostname, "server.port": url.port}
        where = {"antiphon.backend": server[0], "antiphon.replica": server[1]}
        options = {attribute: body.get(field) for field, attribute in _REQUEST_ATTRIBUTES.items()}
        request = {"gen_ai.request.model": self._model, **conversation_attribute(), **options}
        attributes = {**self._operation, **self._provider, **address, **where, **request}
        self._span = self._tracing.tracer.start_span(
            f"{self._operation['gen_ai.operation.name']} {self._model}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes={name: value for name, value in attributes.items() if value is not None},
        )

    @harmless
    def _record_content(self, body: JSONMapping) -> None:
        """The request's messages now, the answer's at its end."""
        self._span.set_attribute("gen_ai.input.messages", _to_json(input_messages(body)))
        self._output = OutputMessage()

    @harmless
    def _context(self) -> dict[str, str]:
        """Headers that make the backend's spans children of this span."""
        headers: dict[str, str] = {}
        PROPAGATOR.inject(headers, set_span_in_context(self._span))
        return headers

    @harmless
    def record(self, deltas: Sequence[Delta]) -> None:
        """Record the deltas' metadata, and their content if enabled."""
        if self._first is None:
            self._first = clock()
        for delta in deltas:
            if self._output:
                self._output.feed(delta)
            match delta:
                case AnswerMetadata(answer_id, model):
                    named = {"id": answer_id, "model": model}
                    self._recorded |= {name: value for name, value in named.items() if value}
                case UsageReported(usage):
                    self._recorded["usage"] = usage
                case Finished(reason):
                    self._recorded["finish"] = reason

    def accepted(self, answer: OpenRequest | RawAnswer) -> None:
        """A passthrough answer's usage is known at its end."""
        self._answer = cast(RawAnswer, answer) if self._is_raw else None

    def _fail(self, code: str) -> None:
        """Record only the error code: the message can quote the prompt."""
        self._failure = {"error.type": code}
        mark_failed(self._span, code, code)

    @harmless
    def end(self, error: BaseException | None) -> None:
        if answer := self._answer:
            self._span.set_attribute("http.response.status_code", answer.status)
            if reported := answer.usage():
                self._recorded["usage"] = reported
        if isinstance(error, BackendError):
            self._fail(error.code)
        elif error is None and self._attempts.broken_off:
            self._fail(BackendError.code)
        recorded, span, tracing = self._recorded, self._span, self._tracing
        usage = usage_of(recorded["usage"], {}, []) if "usage" in recorded else None
        attributes: JSONObject = {
            "gen_ai.response.id": recorded.get("id"),
            "gen_ai.response.model": recorded.get("model"),
            "gen_ai.response.finish_reasons": [recorded["finish"]] if "finish" in recorded else None,
            "gen_ai.response.time_to_first_chunk": self._first and self._first - self._began,
        }
        if usage:
            attributes |= zip(_USAGE_ATTRIBUTES, counts_of(usage), strict=True)
        if self._output and (messages := self._output.messages(recorded.get("finish"))):
            attributes["gen_ai.output.messages"] = _to_json(messages)
        tracing.models.resolve(self._model, functools.partial(self._record, usage, clock() - self._began))
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        span.end()

    @harmless
    def _record(self, usage: Usage | None, seconds: float, model: str) -> None:
        labels = {**self._operation, **self._provider, "gen_ai.request.model": model}
        counts = {"input": usage["input_tokens"], "output": usage["output_tokens"]} if usage else {}
        for kind, count in counts.items():
            self._tracing.tokens.record(count, {**labels, "gen_ai.token.type": kind})
        self._tracing.operation.record(seconds, {**labels, **self._failure})
