"""What all spans have in common, and the spans of rounds."""

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

# Only the trace context is propagated: the caller's baggage may not be intended for the backend.
PROPAGATOR = TraceContextTextMapPropagator()


def harmless(function: Callable[P, T]) -> Callable[P, T | None]:
    """Log the exceptions of a function and return None, so that tracing never affects a response."""

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
    """Return the attribute for the conversation of this task's response, if it is in one."""
    value = log_context.fields().get("conversation_id")
    return {"gen_ai.conversation.id": value} if value else {}


class RoundSpan:
    """The span of one round of a response with hosted tools."""

    def __init__(self, tracer: Tracer, record: RoundRecord) -> None:
        self._record = record
        self._span = self._begin(tracer) or INVALID_SPAN

    @harmless
    def _begin(self, tracer: Tracer) -> Span:
        response, number = self._record.response, self._record.number
        attributes: dict[str, str | int] = {
            "antiphon.round": number,
            "gen_ai.request.model": str(response["model"]),
            "gen_ai.response.id": str(response["id"]),
            **conversation_attribute(),
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

    @harmless
    def end(self) -> None:
        """End the span with the usage of the question and the number of calls."""
        record, span = self._record, self._span
        span.set_attribute("antiphon.tool_calls", record.calls)
        if usage := record.usage:
            span.set_attribute("gen_ai.usage.input_tokens", usage["input_tokens"])
            span.set_attribute("gen_ai.usage.output_tokens", usage["output_tokens"])
        if record.status not in ("completed", "incomplete"):
            mark_failed(span, record.status)
        span.end()
