from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from opentelemetry.context import attach, detach
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.observability import log_context
from app.observability.lifecycle import RoundRecord

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
def round_span(tracer: Tracer, record: RoundRecord) -> Iterator[None]:
    """The span is the parent of all spans within this context."""
    span = _begin_round(tracer, record) or INVALID_SPAN
    token = attach(set_span_in_context(span))
    try:
        yield
    finally:
        detach(token)
        _end_round(span, record)


@harmless
def _begin_round(tracer: Tracer, record: RoundRecord) -> Span:
    attributes: dict[str, str | int] = {
        "antiphon.round": record.number,
        "gen_ai.request.model": str(record.response["model"]),
        "gen_ai.response.id": str(record.response["id"]),
        **conversation_attribute(),
    }
    return tracer.start_span(f"round {record.number}", kind=SpanKind.INTERNAL, attributes=attributes)


@harmless
def _end_round(span: Span, record: RoundRecord) -> None:
    span.set_attribute("antiphon.tool_calls", record.calls)
    if usage := record.usage:
        span.set_attribute("gen_ai.usage.input_tokens", usage["input_tokens"])
        span.set_attribute("gen_ai.usage.output_tokens", usage["output_tokens"])
    if record.status not in ("completed", "incomplete"):
        mark_failed(span, record.status)
    span.end()
