"""OpenTelemetry spans of a request, from its caller to the backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.common import http as otlp_http
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import SpanKind, StatusCode

from app.main import create_app
from app.observability import tracing
from app.observability.logging import Formatter
from app.observability.tracing import Tracing
from tests.support import sockets
from tests.support.logs import records_of
from tests.support.serving import serving, settings
from tests.support.upstream import CLOSE, DONE, HANG, Upstream, call, chunk, finish, reply, sse, status, usage

# Exporters retry after a random time, in threads that can outlive their test. Hypothesis would then fail a later test
# for using the global `random`.
otlp_http.random = random.Random()  # type: ignore[attr-defined]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "the password is xyzzy"


class Telemetry:
    """Tracing with recorded output."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        traces = TracerProvider(shutdown_on_exit=False)
        traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracing = tracing or Tracing(traces, MeterProvider([self._metrics], shutdown_on_exit=False))

    @property
    def spans(self) -> list[ReadableSpan]:
        return [*self._spans.get_finished_spans()]

    def span(self, kind: SpanKind) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.kind is kind]
        return found

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Recorded points by metric name: attributes and sum."""
        data = json.loads(self._metrics.get_metrics_data().to_json())  # type: ignore[union-attr]
        (resource,) = data["resource_metrics"]
        return {
            metric["name"]: [(point["attributes"], point["sum"]) for point in metric["data"]["data_points"]]
            for scope in resource["scope_metrics"]
            for metric in scope["metrics"]
        }


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as backend:
        yield backend


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@contextlib.asynccontextmanager
async def served(upstream: Upstream, telemetry: Telemetry, **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    configured = settings(backend_url=upstream.url, backend_profile="mistral", backend_retries=0, **values)
    async with serving(create_app(configured, tracing=telemetry.tracing)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield http


async def ask(http: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"model": "m", "input": SECRET, "instructions": SECRET, "temperature": 0.5, **fields}
    return await http.post("/v1/responses", json=body, headers=headers)


async def test_request_and_question_are_spans_of_the_callers_trace(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(sse(chunk("Hi"), finish(), usage(5, 2), DONE))
    async with served(upstream, telemetry) as http:
        id = (await ask(http, {"traceparent": f"00-{TRACE}-{PARENT}-01"})).json()["id"]

    request, question = telemetry.span(SpanKind.SERVER), telemetry.span(SpanKind.CLIENT)
    assert f"{request.parent.span_id:016x}" == PARENT  # type: ignore[union-attr]
    assert question.parent.span_id == request.context.span_id  # type: ignore[union-attr]
    assert {f"{span.context.trace_id:032x}" for span in (request, question)} == {TRACE}
    assert (request.name, question.name) == ("POST /responses", "chat m")
    assert request.attributes == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/v1/responses",
        "http.response.status_code": 200,
        "http.route": "/responses",
        "gen_ai.response.id": id,
    }
    attributes = dict(question.attributes or {})
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral_ai",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": True,
        "server.address": "127.0.0.1",
        "server.port": upstream.port,
        "antiphon.backend": "default",
        "antiphon.replica": "1",
        "gen_ai.response.id": "c",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
    }


async def test_backend_gets_the_trace_and_nothing_else(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(sse(chunk("Hi"), finish(), DONE))
    async with served(upstream, telemetry) as http:
        await ask(http, {"traceparent": f"00-{TRACE}-{PARENT}-01", "baggage": "user=ada", "tracestate": "a=b"})
    question = telemetry.span(SpanKind.CLIENT)
    headers = upstream.requests[0].headers
    assert headers["traceparent"] == f"00-{TRACE}-{question.context.span_id:016x}-01"
    assert headers["tracestate"] == "a=b"
    assert "baggage" not in headers


async def test_requests_over_one_connection_are_traces_of_their_own(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    async with served(upstream, telemetry) as http:
        for _ in range(3):
            await ask(http, stream=True)
    assert len({span.context.trace_id for span in telemetry.spans}) == 3
    assert [span.parent for span in telemetry.spans if span.kind is SpanKind.SERVER] == [None] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_refusal_is_an_error_of_the_questions_span(
    upstream: Upstream, telemetry: Telemetry, stream: bool
) -> None:
    upstream.say(status(503, {"error": {"message": f"I cannot say {SECRET}"}}))
    async with served(upstream, telemetry) as http:
        assert (await ask(http, stream=stream)).status_code == 503
    request, question = telemetry.span(SpanKind.SERVER), telemetry.span(SpanKind.CLIENT)
    assert (question.status.status_code, question.status.description) == (StatusCode.ERROR, "server_is_overloaded")
    assert (question.attributes or {})["error.type"] == "server_is_overloaded"
    assert (request.attributes or {})["error.type"] == "503"


@pytest.mark.parametrize("way", ["cut", "early", "error"])
async def test_answer_that_breaks_off_is_an_error_of_both_spans(
    upstream: Upstream, telemetry: Telemetry, way: str
) -> None:
    upstream.say(sse(chunk("Hi"), *{"cut": [CLOSE], "early": [], "error": [finish("error"), DONE]}[way]))
    async with served(upstream, telemetry) as http:
        answer = await ask(http, stream=True)
    assert answer.status_code == 200 and "response.failed" in answer.text
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        span = telemetry.span(kind)
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "server_error"
    assert telemetry.points()["gen_ai.client.operation.duration"][0][0]["error.type"] == "server_error"


async def test_request_of_a_callers_fault_is_no_error_of_its_span(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(status(400, {"error": {"message": "No."}}))
    async with served(upstream, telemetry) as http:
        assert (await ask(http)).status_code == 400
    assert telemetry.span(SpanKind.SERVER).status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": [None]},
        {"choices": "x"},
        {"choices": 5},
        {"choices": [], "usage": "none"},
        {"choices": [], "usage": [1]},
        {"choices": [], "id": {"a": 1}, "model": ["m"]},
    ],
)
async def test_odd_chunk_is_answered_as_without_tracing(
    upstream: Upstream, telemetry: Telemetry, odd: dict[str, Any]
) -> None:
    upstream.say(sse(odd, chunk("Hi"), finish(), DONE))
    async with served(upstream, telemetry) as http:
        answer = await ask(http)
    assert (answer.status_code, answer.json()["output"][0]["content"][0]["text"]) == (200, "Hi")
    assert (telemetry.span(SpanKind.CLIENT).attributes or {})["gen_ai.response.finish_reasons"] == ("stop",)


class Failing(SpanProcessor):
    """A failing span processor."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise RuntimeError(SECRET)

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError(SECRET)


class FailingAtTheEnd(Failing):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass


@pytest.mark.parametrize("processor", [Failing(), FailingAtTheEnd()])
@pytest.mark.parametrize("stream", [False, True])
async def test_telemetry_that_fails_changes_no_answer(
    upstream: Upstream, caplog: pytest.LogCaptureFixture, processor: SpanProcessor, stream: bool
) -> None:
    traces, meters = TracerProvider(shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False)
    traces.add_span_processor(processor)
    upstream.say(sse(chunk("Hi"), finish(), usage(5, 2), DONE))
    upstream.say(status(400, {"error": {"message": "No."}}))
    async with served(upstream, Telemetry(Tracing(traces, meters))) as http:
        answer, refused = await ask(http, stream=stream), await ask(http, stream=stream)
    assert (answer.status_code, refused.status_code) == (200, 400)
    assert '"Hi"' in answer.text
    assert "response.failed" not in answer.text
    assert {record.getMessage() for record in records_of(caplog, "app") if record.levelname == "ERROR"} == {
        "tracing failed"
    }


async def test_metrics_that_fail_change_no_answer(
    upstream: Upstream, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError

    for histogram in ("_total", "_to_first", "_per_token", "operation", "tokens"):
        monkeypatch.setattr(getattr(telemetry.tracing, histogram), "record", fail)
    upstream.say(sse(chunk("Hi"), finish(), usage(5, 2), DONE))
    async with served(upstream, telemetry) as http:
        assert (await ask(http)).json()["status"] == "completed"


async def test_spans_have_no_content(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(sse(chunk(SECRET), finish(), DONE))
    upstream.say(status(400, {"error": {"message": SECRET}}))
    async with served(upstream, telemetry) as http:
        await ask(http, user=SECRET, metadata={"a": SECRET}, prompt_cache_key=SECRET)
        await ask(http)
    telemetry_text = "".join(span.to_json() for span in telemetry.spans) + json.dumps(telemetry.points())
    assert SECRET not in telemetry_text
    assert all(span.events == () for span in telemetry.spans)


async def test_background_run_belongs_to_the_request_that_began_it(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(sse(chunk("Hi"), finish(), DONE))
    async with served(upstream, telemetry) as http:
        id = (await ask(http, background=True)).json()["id"]
        while (await http.get(f"/v1/responses/{id}")).json()["status"] != "completed":
            await asyncio.sleep(0.01)
    (began,) = [span for span in telemetry.spans if span.name == "POST /responses"]
    question = telemetry.span(SpanKind.CLIENT)
    assert question.parent and question.parent.span_id == began.context.span_id


async def test_websocket_turns_belong_to_their_connection(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    app = create_app(settings(backend_url=upstream.url), tracing=telemetry.tracing)
    async with serving(app, ws="app.api.uvicorn.websocket:WebSocketProtocol") as url:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        async with sockets.dial(url, additional_headers=headers) as socket:
            await sockets.ask(socket)
            await sockets.ask(socket)
        while not [span for span in telemetry.spans if span.kind is SpanKind.SERVER]:
            await asyncio.sleep(0.01)
    connection = telemetry.span(SpanKind.SERVER)
    turns = [span for span in telemetry.spans if span.kind is SpanKind.CLIENT]
    assert connection.name == "WEBSOCKET /responses"
    assert [turn.parent.span_id for turn in turns if turn.parent] == [connection.context.span_id] * 2


async def test_metrics_have_the_conventions_names(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(sse(chunk("Hi"), chunk(" there"), finish(), usage(5, 2), DONE))
    upstream.say(status(429, {"error": {"message": "Slow down."}}))
    async with served(upstream, telemetry) as http:
        await ask(http)
        await ask(http)
    points = telemetry.points()
    question = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "mistral_ai", "gen_ai.request.model": "m"}
    assert points["gen_ai.client.token.usage"] == [
        ({**question, "gen_ai.token.type": "input"}, 5),
        ({**question, "gen_ai.token.type": "output"}, 2),
    ]
    failed = {**question, "error.type": "rate_limit_exceeded"}
    # Each is recorded when its connection is released, possibly after the next has begun.
    durations = [attributes for attributes, _ in points["gen_ai.client.operation.duration"]]
    assert sorted(durations, key=len) == [question, failed]
    response = {**question, "gen_ai.provider.name": "antiphon"}
    for name in ("time_to_first_token", "time_per_output_token"):
        assert [attributes for attributes, _ in points[f"gen_ai.server.{name}"]] == [response]
    assert len(points["gen_ai.server.request.duration"]) == 2


def test_names_are_those_of_the_conventions() -> None:
    values = [*vars(gen_ai_attributes).values(), *vars(gen_ai_metrics).values()]
    conventional = {value for value in values if isinstance(value, str)}
    source = Path(tracing.__file__).read_text()
    assert set(re.findall(r"gen_ai\.[a-z_.]*[a-z]", source)) <= conventional
    providers = {provider.value for provider in gen_ai_attributes.GenAiProviderNameValues}
    assert set(tracing._PROVIDERS.values()) <= providers


@pytest.mark.parametrize("way", ["json", "sse", "websocket"])
async def test_client_that_disconnects_leaves_no_span_open(upstream: Upstream, telemetry: Telemetry, way: str) -> None:
    upstream.always(sse(chunk("Hi"), HANG))
    app = create_app(settings(backend_url=upstream.url), tracing=telemetry.tracing)
    async with serving(app, ws="app.api.uvicorn.websocket:WebSocketProtocol") as url:
        if way == "websocket":
            async with sockets.dial(url) as socket:
                await sockets.send(socket)
                while not upstream.requests:
                    await asyncio.sleep(0.01)
        else:
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                asking = asyncio.ensure_future(ask(http, stream=way == "sse"))
                while not upstream.requests:
                    await asyncio.sleep(0.01)
                asking.cancel()
        await upstream.requests[0].gone.wait()
        while len(telemetry.spans) < 2:
            await asyncio.sleep(0.01)
    question = telemetry.span(SpanKind.CLIENT)
    assert (question.status.status_code, question.events) == (StatusCode.UNSET, ())


async def test_health_check_has_no_span(upstream: Upstream, telemetry: Telemetry) -> None:
    async with served(upstream, telemetry) as http:
        for path in ("/healthz", "/health", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
    assert telemetry.spans == []


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """The application's log lines as JSON."""
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(Formatter(as_json=True).format(record)))

    handler = Lines()
    caplog.set_level(logging.DEBUG, "app")
    logging.getLogger("app").addHandler(handler)
    yield lines
    logging.getLogger("app").removeHandler(handler)


async def test_log_line_has_its_request_response_and_trace(
    upstream: Upstream, telemetry: Telemetry, log: list[dict[str, Any]]
) -> None:
    upstream.say(sse(chunk("Hi"), finish(), DONE))
    async with served(upstream, telemetry) as http:
        response = await ask(http, {"traceparent": f"00-{TRACE}-{PARENT}-01"}, stream=True)
    lines = {line["message"]: line for line in log if "request_id" in line}
    assert {"response started", "response ended"} <= lines.keys()
    for message in ("response started", "response ended"):
        assert lines[message]["request_id"] == response.headers["x-request-id"]
        assert lines[message]["response_id"].startswith("resp_")
    assert lines["response ended"]["trace_id"] == TRACE


async def test_telemetry_is_exported_to_opentelemetrys_endpoint(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    async with Upstream() as collector:
        collector.always(reply(b"", "application/x-protobuf"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=here")
        async with serving(create_app(settings(backend_url=upstream.url, otel=True))) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                await ask(http)
        sent = {request.path: request.body for request in collector.requests}
    assert sent.keys() == {"/v1/traces", "/v1/metrics"}
    assert all(word in sent["/v1/traces"] for word in (b"antiphon", b"here", b"chat m", b"POST /responses"))
    assert b"gen_ai.client.operation.duration" in sent["/v1/metrics"]
    assert SECRET.encode() not in b"".join(sent.values())


@pytest.mark.parametrize(("variable", "path"), [("TRACES", "/v1/metrics"), ("METRICS", "/v1/traces")])
async def test_telemetry_whose_exporter_is_none_is_not_exported(
    variable: str, path: str, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    async with Upstream() as collector:
        collector.always(reply(b"", "application/x-protobuf"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        monkeypatch.setenv(f"OTEL_{variable}_EXPORTER", "none")
        async with serving(create_app(settings(backend_url=upstream.url, otel=True))) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                await ask(http)
        assert {request.path for request in collector.requests} == {path}
    assert "traceparent" in upstream.requests[0].headers


async def test_collector_that_is_unavailable_delays_nobody(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    async with serving(create_app(settings(backend_url=upstream.url, otel=True))) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await ask(http)).status_code == 200


def test_exporter_of_one_test_does_not_disturb_the_next() -> None:
    state = random.getstate()
    assert OTLPSpanExporter("http://127.0.0.1:1", timeout=0.1).export([]) is SpanExportResult.FAILURE
    assert random.getstate() == state


async def test_round_is_a_span_around_its_question_and_calls(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(sse(call(id="c1", name="demo__echo", arguments=json.dumps({"text": SECRET})), finish(), DONE))
    upstream.say(sse(chunk("Hi"), finish(), DONE))
    async with served(upstream, telemetry, tools={"demo": {}}) as http:
        assert (await ask(http, tools=[{"type": "mcp", "server_label": "demo"}])).status_code == 200

    request = telemetry.span(SpanKind.SERVER)
    rounds = [span for span in telemetry.spans if span.name.startswith("round ")]
    questions = [span for span in telemetry.spans if span.kind is SpanKind.CLIENT]
    (tool,) = (span for span in telemetry.spans if span.name == "execute_tool echo")
    assert [span.name for span in rounds] == ["round 0", "round 1"]
    assert [span.parent for span in rounds] == [request.context] * 2
    assert [span.parent for span in (*questions, tool)] == [rounds[0].context, rounds[1].context, rounds[0].context]
    assert [span.attributes and span.attributes["antiphon.tool_calls"] for span in rounds] == [1, 0]
    assert all(span.attributes and span.attributes["gen_ai.usage.input_tokens"] for span in rounds)
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.call.id": "c1",
        "antiphon.tool": "demo",
    }
    assert SECRET not in "".join(span.to_json() for span in telemetry.spans)


async def test_spans_of_a_response_have_its_conversation_id(upstream: Upstream, telemetry: Telemetry) -> None:
    upstream.say(sse(call(id="c1", name="demo__echo", arguments="{}"), finish(), DONE))
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    async with served(upstream, telemetry, tools={"demo": {}}) as http:
        id = (await http.post("/v1/conversations", json={})).json()["id"]
        tools = [{"type": "mcp", "server_label": "demo"}]
        assert (await ask(http, tools=tools, conversation={"id": id})).status_code == 200
        within = {span.name: span.attributes for span in telemetry.spans if span.name != "POST /conversations"}
        assert (await ask(http)).status_code == 200
    named = ["POST /responses", "chat m", "execute_tool echo", "round 0", "round 1"]
    assert sorted(within) == named
    assert [(within[name] or {}).get("gen_ai.conversation.id") for name in named] == [id] * 5
    without = [span for span in telemetry.spans if "gen_ai.conversation.id" not in (span.attributes or {})]
    assert sorted(span.name for span in without) == ["POST /conversations", "POST /responses", "chat m"]


async def test_websocket_turn_without_a_conversation_has_no_conversation_id(
    upstream: Upstream, telemetry: Telemetry
) -> None:
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    app = create_app(settings(backend_url=upstream.url), tracing=telemetry.tracing)
    async with serving(app, ws="app.api.uvicorn.websocket:WebSocketProtocol") as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            id = (await http.post("/v1/conversations", json={})).json()["id"]
        async with sockets.dial(url) as socket:
            await sockets.ask(socket, conversation=id)
            await sockets.ask(socket)
    turns = [span.attributes or {} for span in telemetry.spans if span.kind is SpanKind.CLIENT]
    assert [turn.get("gen_ai.conversation.id") for turn in turns] == [id, None]


@pytest.mark.parametrize("store", [True, False])
async def test_prompts_and_answers_are_recorded_if_configured(upstream: Upstream, store: bool) -> None:
    spans = InMemorySpanExporter()
    traces = TracerProvider(shutdown_on_exit=False)
    traces.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(Tracing(traces, MeterProvider(shutdown_on_exit=False), content=True))
    arguments = call(name="f", id="c1", arguments='{"a":'), call(arguments="1}")
    thoughts = chunk(reasoning_content="Hm.")
    upstream.say(sse(thoughts, chunk("Hel"), chunk("lo"), *arguments, finish("tool_calls"), DONE))
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": SECRET}, image]},
        {"type": "function_call", "call_id": "c0c0c0c0c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c0c0c0c0c", "output": "done"},
    ]
    async with served(upstream, telemetry) as http:
        tools = [{"type": "function", "name": "f", "parameters": {}}]
        answer = await ask(http, input=items, tools=tools, store=store, instructions=None)
        assert answer.status_code == 200
    (question,) = [span for span in spans.get_finished_spans() if span.kind is SpanKind.CLIENT]
    attributes = dict(question.attributes or {})
    if not store:
        assert not [name for name in attributes if name.endswith(".messages")]
        return
    assert json.loads(str(attributes[gen_ai_attributes.GEN_AI_INPUT_MESSAGES])) == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": SECRET},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": ""},
            ],
        },
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c0c0c0c0c", "name": "f", "arguments": {}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c0c0c0c0c", "response": "done"}]},
    ]
    assert json.loads(str(attributes[gen_ai_attributes.GEN_AI_OUTPUT_MESSAGES])) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Hm."},
                {"type": "text", "content": "Hello"},
                {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": 1}},
            ],
            "finish_reason": "tool_call",
        }
    ]
