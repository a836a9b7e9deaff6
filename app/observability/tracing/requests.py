"""Spans for client requests."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Tracer, set_span_in_context
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.observability import log_context
from app.observability.tracing.spans import PROPAGATOR, conversation_attribute, harmless, mark_failed

_UNTRACED = frozenset({"/healthz", "/health", "/readyz", "/metrics"})  # polled every few seconds


class TracedRequests:
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
            mark_failed(span, type(error).__name__)
            raise
        finally:
            detach(token)
            _ended(span, scope, method)

    @harmless
    def _begun(self, scope: Scope, method: str) -> Span:
        return self._tracer.start_span(
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


@harmless
def _answered(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        mark_failed(span, str(status))


@harmless
def _ended(span: Span, scope: Scope, method: str) -> None:
    if route := getattr(scope.get("route"), "path", "").removeprefix(
        "/v1"
    ):  # the same route, with and without the prefix
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    if value := log_context.fields().get("response_id"):
        span.set_attributes({"gen_ai.response.id": value, **conversation_attribute()})
    span.end()
