"""
OpenTelemetry traces and metrics, by its semantic conventions for HTTP and for generative AI.

A request is a span. Each request to a backend is a child span, whose context is propagated to the backend. With hosted
tools each round is a span, the parent of those of its request to the backend and of its calls. Spans have no prompts or
answers, and a failure of tracing never affects a response. This module needs the extra `otel`, and is
imported only if it is enabled.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import ParamSpec, Self, TypeVar
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
    Tracer,
    TracerProvider,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import __version__
from app.backends import (
    AnswerReceiver,
    Backend,
    BackendExchange,
    BackendWrapper,
    ChunkOrRun,
    ExchangeWrapper,
    Question,
    RawAnswer,
    RawExchange,
    RawRequest,
)
from app.core.profile import Profile
from app.core.types import JSONMapping, JSONObject, Usage
from app.core.types.chunk import ChunkRun
from app.core.types.usage import usage_of
from app.errors import BackendError
from app.observability import log_context
from app.observability.content import OutputMessage, input_messages
from app.observability.labels import ModelLabels
from app.observability.lifecycle import ResponseLifecycle, RoundRecord, ToolCallRecord, clock

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT = 5.0  # seconds to export pending data when the server shuts down

_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})  # requested every few seconds

# Only the trace context is propagated: the caller's baggage may not be intended for the backend.
_PROPAGATOR = TraceContextTextMapPropagator()

# The conventions' names of providers that differ from our profiles' names.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
_OPERATION = {"gen_ai.operation.name": "chat"}
# The conventions' names of endpoints; others have their path.
_OPERATIONS = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}

# Attributes of a span, by the field of the Chat Completions request.
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

# Buckets that the conventions advise, in seconds and in tokens.
_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_TO_FIRST = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_PER_TOKEN = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]


_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode


def _harmless(function: Callable[P, T]) -> Callable[P, T | None]:
    """Log the exceptions of a function and return None, so that tracing never affects a response."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception:
            logger.exception("tracing failed")
            return None

    return wrapper


class Tracing:
    """The traces and metrics of one application, recorded with these providers."""

    def __init__(self, traces: TracerProvider, meters: MeterProvider, *, content: bool = False) -> None:
        """`content`: whether spans have the prompts and answers of responses that are stored."""
        self.content = content
        self._providers = (traces, meters)
        self.tracer = traces.get_tracer("antiphon", __version__)
        self.models = ModelLabels()
        meter = meters.get_meter("antiphon", __version__)

        def seconds(name: str, text: str, advice: list[float]) -> Histogram:
            return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=advice)

        self._request = seconds("gen_ai.server.request.duration", "Time for a response.", _SECONDS)
        self._first = seconds("gen_ai.server.time_to_first_token", "Time to the first token.", _TO_FIRST)
        self._each = seconds(
            "gen_ai.server.time_per_output_token", "Time for each output token after the first.", _PER_TOKEN
        )
        self.operation = seconds("gen_ai.client.operation.duration", "Time for a request to a backend.", _SECONDS)
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens used.", explicit_bucket_boundaries_advisory=_TOKENS
        )

    @classmethod
    def from_environment(cls, *, content: bool = False) -> Tracing:
        """
        Return tracing that exports by OTLP over HTTP, as OpenTelemetry's variables configure it; or with the providers
        that are set already, for example by `opentelemetry-instrument`.
        """
        traces, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        resource = Resource.create({SERVICE_NAME: "antiphon", SERVICE_VERSION: __version__})
        resource = resource.merge(OTELResourceDetector().detect())
        if not isinstance(traces, sdk_trace.TracerProvider):
            traces = sdk_trace.TracerProvider(resource=resource, shutdown_on_exit=False)
            traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if not isinstance(meters, sdk_metrics.MeterProvider):
            reader = PeriodicExportingMetricReader(OTLPMetricExporter())
            meters = sdk_metrics.MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        return cls(traces, meters, content=content)

    def backend(self, backend: Backend, name: str = "default", replica: str = "1") -> Backend:
        """Return a backend that records each request as a span."""
        return _TracedBackend(backend, self, {"antiphon.backend": name, "antiphon.replica": replica})

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return an application that records each request as a span."""
        return _TracedRequests(app, self.tracer)

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        """Prepare the label of the response's model."""
        self.models.expect(str(lifecycle.response["model"]))

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """Record a response that has ended, once its model's label is known."""
        self.models.resolve(str(lifecycle.response["model"]), functools.partial(self._record, lifecycle))

    @_harmless
    def _record(self, lifecycle: ResponseLifecycle, model: str) -> None:
        attributes = {
            **_OPERATION,
            "gen_ai.provider.name": "antiphon",
            "gen_ai.request.model": model,
        }
        failed = {"error.type": lifecycle.failure.code} if lifecycle.failure else {}
        self._request.record(lifecycle.seconds, {**attributes, **failed})
        if (first := lifecycle.seconds_to_first) is not None:
            self._first.record(first, attributes)
        if (each := lifecycle.seconds_per_token) is not None:
            self._each.record(each, attributes)

    def on_round(self, record: RoundRecord) -> _RoundSpan:
        """Record a round of a response with hosted tools as a span, the parent of those of its question and calls."""
        return _RoundSpan(self.tracer, record)

    @contextmanager
    def tool_call(self, call: ToolCallRecord) -> Iterator[None]:
        """Record a hosted tool call as a span, the parent of all spans within this context."""
        span = self._begin_tool(call) or INVALID_SPAN
        token = attach(set_span_in_context(span))
        try:
            yield
        finally:
            detach(token)
            self._end_tool(call, span)

    @_harmless
    def _begin_tool(self, call: ToolCallRecord) -> Span:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.function,
            "gen_ai.tool.type": "extension",  # the conventions' term for a tool that the server runs
            "gen_ai.tool.call.id": call.call_id,
            "antiphon.tool": call.tool,
            **_conversation(),
        }
        return self.tracer.start_span(f"execute_tool {call.function}", kind=SpanKind.INTERNAL, attributes=attributes)

    @_harmless
    def _end_tool(self, call: ToolCallRecord, span: Span) -> None:
        if call.status != "completed":
            _failed(span, call.status)
        span.end()

    async def aclose(self) -> None:
        """Export pending data, for up to `FLUSH_TIMEOUT` seconds."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            for provider in self._providers:
                if shutdown := getattr(provider, "shutdown", None):
                    shutdown()
            with suppress(RuntimeError):  # the loop is closed: the timeout is over
                loop.call_soon_threadsafe(sent.set)

        # A daemon thread, so that an unavailable collector does not delay the end of the process.
        threading.Thread(target=send, daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await sent.wait()


class _RoundSpan:
    """The span of one round of a response with hosted tools."""

    def __init__(self, tracer: Tracer, record: RoundRecord) -> None:
        self._record = record
        self._span = self._begin(tracer) or INVALID_SPAN

    @_harmless
    def _begin(self, tracer: Tracer) -> Span:
        response, number = self._record.response, self._record.number
        attributes: dict[str, str | int] = {
            "antiphon.round": number,
            "gen_ai.request.model": str(response["model"]),
            "gen_ai.response.id": str(response["id"]),
            **_conversation(),
        }
        return tracer.start_span(f"round {number}", kind=SpanKind.INTERNAL, attributes=attributes)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make the spans that are started within this context children of the round's."""
        token = attach(set_span_in_context(self._span))
        try:
            yield
        finally:
            detach(token)

    @_harmless
    def end(self) -> None:
        """End the span with the usage of the question and the number of calls."""
        record, span = self._record, self._span
        span.set_attribute("antiphon.tool_calls", record.calls)
        if usage := record.usage:
            span.set_attribute("gen_ai.usage.input_tokens", usage["input_tokens"])
            span.set_attribute("gen_ai.usage.output_tokens", usage["output_tokens"])
        if record.status not in ("completed", "incomplete"):
            _failed(span, record.status)
        span.end()


class _TracedRequests:
    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        method = scope.get("method", "WEBSOCKET")
        span = self._begun(scope, method) or INVALID_SPAN
        log_context.bind(trace_id=trace.format_trace_id(span.get_span_context().trace_id))

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                _answered(span, message["status"])
            await send(message)

        token = attach(set_span_in_context(span, Context()))
        try:
            await self._app(scope, receive, send_and_record)
        except Exception as error:
            _failed(span, type(error).__name__)
            raise
        finally:
            detach(token)
            _ended(span, scope, method)

    @_harmless
    def _begun(self, scope: Scope, method: str) -> Span:
        return self._tracer.start_span(
            method,
            # Not in this task's context, which may be that of an earlier request on the connection.
            _PROPAGATOR.extract(Headers(scope=scope), Context()),
            SpanKind.SERVER,
            {
                "http.request.method": scope.get("method", "GET"),
                "url.scheme": scope["scheme"],
                "url.path": scope["path"],
            },
        )


@_harmless
def _answered(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        _failed(span, str(status))


@_harmless
def _failed(span: Span, kind: str, *description: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, *description))


@_harmless
def _ended(span: Span, scope: Scope, method: str) -> None:
    if route := getattr(scope.get("route"), "path", "").removeprefix(
        "/v1"
    ):  # the same route with and without the prefix
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    if value := log_context.fields().get("response_id"):
        span.set_attributes({"gen_ai.response.id": value, **_conversation()})
    span.end()


def _conversation() -> dict[str, str]:
    """Return the attribute for the conversation of this task's response, if it is in one."""
    value = log_context.fields().get("conversation_id")
    return {"gen_ai.conversation.id": value} if value else {}


class _TracedBackend(BackendWrapper):
    """Records a span for each exchange."""

    def __init__(self, backend: Backend, tracing: Tracing, server: Mapping[str, str]) -> None:
        super().__init__(backend)
        self._server = server  # attributes of its spans
        self._tracing = tracing

    def open(self, question: Question) -> BackendExchange:
        body, profile = self.encode(question).body, self.profile(question.model)
        span = _BackendSpan(self._tracing, body, profile, self._server)
        if self._tracing.content and question.content_traceable:
            span.record_content(body)
        traced = dataclasses.replace(question, headers={**question.headers, **(span.headers() or {})})
        return _TracedExchange(self._backend.open(traced), span)

    def forward(self, request: RawRequest) -> RawExchange:
        operation = _OPERATIONS.get(request.endpoint, request.endpoint.strip("/"))
        profile = self.profile(request.model)
        span = _BackendSpan(self._tracing, {"model": request.model}, profile, self._server, operation)
        context = [(name.encode(), value.encode()) for name, value in (span.headers() or {}).items()]
        replaced = {name for name, _ in context}
        headers = [field for field in request.headers if field[0] not in replaced] + context
        return _TracedRawExchange(self._backend.forward(dataclasses.replace(request, headers=headers)), span)


class _TracedExchange(ExchangeWrapper):
    def __init__(self, exchange: BackendExchange, span: _BackendSpan) -> None:
        super().__init__(exchange)
        self._span = span

    async def __aenter__(self) -> Self:
        try:
            return await super().__aenter__()
        except BaseException as error:
            self._span.end(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._span.end(error)

    async def receive(self, receiver: AnswerReceiver) -> None:
        receiver.taps.append(self._span.record)
        try:
            await super().receive(receiver)
        finally:
            receiver.taps.remove(self._span.record)


class _TracedRawExchange:
    def __init__(self, exchange: RawExchange, span: _BackendSpan) -> None:
        self._exchange = exchange
        self._span = span
        self._answer: RawAnswer | None = None

    @property
    def answered_by(self) -> Sequence[str]:
        return self._exchange.answered_by

    async def __aenter__(self) -> RawAnswer:
        try:
            self._answer = await self._exchange.__aenter__()
        except BaseException as error:
            self._span.end(error)
            raise
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answer:
            self._span.answered(self._answer)
        try:
            await self._exchange.__aexit__(kind, error, trace)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._span.end(error)


_RECORDED = {"id": str, "model": str, "usage": dict}  # fields of a chunk; backends may send other types


class _BackendSpan:
    """The span of one request to a backend."""

    def __init__(
        self,
        tracing: Tracing,
        body: JSONMapping,
        profile: Profile,
        server: Mapping[str, str],
        operation: str = "chat",
    ) -> None:
        self._tracing = tracing
        self._operation = {"gen_ai.operation.name": operation}
        self._span: Span = INVALID_SPAN
        self._provider = {"gen_ai.provider.name": _PROVIDERS.get(profile.name, profile.name)}
        self._model = str(body["model"])
        self._began = clock()
        self._first: float | None = None
        self._recorded: JSONObject = {}  # the latest fields of the chunks
        self._failure: dict[str, str] = {}
        self._output: OutputMessage | None = None  # if the content is recorded
        self._begin(body, profile, server)

    @_harmless
    def _begin(self, body: JSONMapping, profile: Profile, server: Mapping[str, str]) -> None:
        url = urlsplit(profile.transport.base_url or "")
        address = {"server.address": url.hostname, "server.port": url.port, **server}
        options = {attribute: body.get(field) for field, attribute in _REQUEST_ATTRIBUTES.items()}
        request = {"gen_ai.request.model": self._model, **_conversation(), **options}
        attributes = {**self._operation, **self._provider, **address, **request}
        self._span = self._tracing.tracer.start_span(
            f"{self._operation['gen_ai.operation.name']} {self._model}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes={name: value for name, value in attributes.items() if value is not None},
        )

    @_harmless
    def record_content(self, body: JSONMapping) -> None:
        """Record the messages of the request now, and those of the answer at its end."""
        self._span.set_attribute("gen_ai.input.messages", _to_json(input_messages(body)))
        self._output = OutputMessage()

    @_harmless
    def headers(self) -> dict[str, str]:
        """Return the headers that make the backend's own spans children of this one."""
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, set_span_in_context(self._span))
        return headers

    @_harmless
    def record(self, chunks: Sequence[ChunkOrRun]) -> None:
        """Record the metadata of chunks, and their content if that is enabled."""
        if self._first is None:
            self._first = clock()
        for each in chunks:
            if self._output:
                self._output.feed(each)
            if isinstance(each, ChunkRun):
                continue  # it is like a chunk that was there before
            for name, expected in _RECORDED.items():
                if (value := each.get(name)) and isinstance(value, expected):
                    self._recorded[name] = value
            choices = each.get("choices")
            for choice in choices if isinstance(choices, list) else ():
                if isinstance(choice, dict) and (reason := choice.get("finish_reason")):
                    self._recorded["finish"] = str(reason)

    @_harmless
    def answered(self, answer: RawAnswer) -> None:
        """Record the status and the usage of an answer that was passed on."""
        self._span.set_attribute("http.response.status_code", answer.status)
        if usage := answer.usage():
            self._recorded["usage"] = usage

    def _fail(self, error: BackendError) -> None:
        """Record a refused or interrupted request by its code; the message may quote the prompt."""
        self._failure = {"error.type": error.code}
        _failed(self._span, error.code, error.code)

    @_harmless
    def end(self, error: BaseException | None) -> None:
        """End the span with the metadata of the answer, complete or not, and the error that ended it."""
        if isinstance(error, BackendError):
            self._fail(error)
        recorded, span, tracing = self._recorded, self._span, self._tracing
        usage = usage_of(recorded["usage"], {}, []) if "usage" in recorded else None
        attributes: JSONObject = {
            "gen_ai.response.id": recorded.get("id"),
            "gen_ai.response.model": recorded.get("model"),
            "gen_ai.response.finish_reasons": [recorded["finish"]] if "finish" in recorded else None,
            "gen_ai.response.time_to_first_chunk": self._first and self._first - self._began,
        }
        if usage:
            attributes |= {
                "gen_ai.usage.input_tokens": usage["input_tokens"],
                "gen_ai.usage.output_tokens": usage["output_tokens"],
                "gen_ai.usage.cache_read.input_tokens": usage["input_tokens_details"]["cached_tokens"],
                "gen_ai.usage.cache_creation.input_tokens": usage["input_tokens_details"]["cache_write_tokens"],
                "gen_ai.usage.reasoning.output_tokens": usage["output_tokens_details"]["reasoning_tokens"],
            }
        if self._output and (messages := self._output.messages(recorded.get("finish"))):
            attributes["gen_ai.output.messages"] = _to_json(messages)
        tracing.models.resolve(self._model, functools.partial(self._record, usage, clock() - self._began))
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        span.end()

    @_harmless
    def _record(self, usage: Usage | None, seconds: float, model: str) -> None:
        labels = {**self._operation, **self._provider, "gen_ai.request.model": model}
        counts = {"input": usage["input_tokens"], "output": usage["output_tokens"]} if usage else {}
        for kind, count in counts.items():
            self._tracing.tokens.record(count, {**labels, "gen_ai.token.type": kind})
        self._tracing.operation.record(seconds, {**labels, **self._failure})
