from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context

from app.backends import (
    Backend,
    ModelRequest,
    OpenRequest,
    RawAnswer,
    RawRequest,
    Tap,
)
from app.core.profile import Profile
from app.core.types import JSONMapping, JSONObject, Usage
from app.core.types.deltas import AnswerMetadata, Delta, Finished, UsageReported
from app.core.usage import counts_of, usage_of
from app.errors import BackendError
from app.observability.content import OutputMessage, input_messages
from app.observability.lifecycle import clock
from app.observability.tracing.spans import PROPAGATOR, conversation_attribute, harmless, mark_failed

if TYPE_CHECKING:
    from app.observability.tracing import Tracing

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
