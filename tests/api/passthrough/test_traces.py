"""Traces and the time limit of passthrough requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from app.main import create_app
from tests.observability.test_tracing import PARENT, TRACE, Telemetry, served
from tests.support.metrics import counted
from tests.support.serving import antiphon, serving, settings
from tests.support.upstream import CLOSE, DONE, HANG, Upstream, chunk, completion, finish, reply, sse, status, usage

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "the password is xyzzy"}]}
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "baggage": "user=ada"}


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


async def test_request_and_backend_are_spans_of_the_callers_trace(telemetry: Telemetry) -> None:
    async with Upstream() as upstream, served(upstream, telemetry) as http:
        upstream.say(sse(chunk("Hi"), finish(), usage(5, 2), DONE))
        await http.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=CALLER)
        port, headers = upstream.port, upstream.requests[0].headers
    request, forwarded = telemetry.span(SpanKind.SERVER), telemetry.span(SpanKind.CLIENT)
    assert f"{request.parent.span_id:016x}" == PARENT  # type: ignore[union-attr]
    assert forwarded.parent.span_id == request.context.span_id  # type: ignore[union-attr]
    assert headers["traceparent"] == f"00-{TRACE}-{forwarded.context.span_id:016x}-01"
    assert (request.name, forwarded.name) == ("POST /chat/completions", "chat m")
    assert request.attributes == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "http.route": "/chat/completions",
    }
    assert forwarded.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mistral_ai",
        "gen_ai.request.model": "m",
        "server.address": "127.0.0.1",
        "server.port": port,
        "antiphon.backend": "default",
        "antiphon.replica": "1",
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
    }
    assert "xyzzy" not in "".join(span.to_json() for span in telemetry.spans)


@pytest.mark.parametrize(
    ("endpoint", "operation"),
    [
        ("completions", "text_completion"),
        ("embeddings", "embeddings"),
        ("rerank", "rerank"),
        ("audio/speech", "audio/speech"),
    ],
)
async def test_endpoint_is_the_operation_of_its_span(telemetry: Telemetry, endpoint: str, operation: str) -> None:
    async with Upstream() as upstream, served(upstream, telemetry) as http:
        upstream.say(completion())
        await http.post(f"/v1/{endpoint}", json={"model": "m"})
    assert telemetry.span(SpanKind.CLIENT).name == f"{operation} m"
    labels = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "mistral_ai", "gen_ai.request.model": "m"}
    points = telemetry.points()
    assert [attributes for attributes, _ in points["gen_ai.client.operation.duration"]] == [labels]
    tokens = {attributes["gen_ai.token.type"]: count for attributes, count in points["gen_ai.client.token.usage"]}
    assert tokens == {"input": 5, "output": 2}


async def test_azure_deployment_is_the_model_of_its_span(telemetry: Telemetry) -> None:
    async with Upstream() as upstream, served(upstream, telemetry) as http:
        upstream.say(completion())
        await http.post("/openai/deployments/m/chat/completions", json={"messages": []})
    assert telemetry.span(SpanKind.CLIENT).name == "chat m"
    assert telemetry.span(SpanKind.SERVER).name == "POST /deployments/{deployment:path}/chat/completions"


async def test_each_server_tried_has_a_span(telemetry: Telemetry) -> None:
    async with Upstream() as one, Upstream() as two, Upstream() as three:
        for server in (one, two):
            server.always(status(503, {"error": {"message": "Loading model"}}))
        three.always(completion())
        backends = {"a": {"url": one.url, "replicas": [two.url], "retries": 0}, "b": {"url": three.url}}
        app = create_app(settings(backends=backends), tracing=telemetry.tracing)
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.post("/v1/embeddings", json={"model": "m"})).status_code == 200
        spans = [span for span in telemetry.spans if span.kind is SpanKind.CLIENT]
        tried = [(attribute(span, "antiphon.backend"), attribute(span, "antiphon.replica")) for span in spans]
        assert {*tried[:2]} == {("a", "1"), ("a", "2")} and tried[2:] == [("b", "1")]
    errors = [attribute(span, "error.type") for span in spans]
    assert errors == ["server_is_overloaded", "server_is_overloaded", None]
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert {span.parent and span.parent.span_id for span in spans} == {telemetry.span(SpanKind.SERVER).context.span_id}


@pytest.mark.parametrize("broken", [False, True], ids=["refused", "broken off"])
async def test_failure_is_an_error_of_the_backends_span(telemetry: Telemetry, broken: bool) -> None:
    async with Upstream() as upstream, served(upstream, telemetry) as http:
        refusal = status(400, {"error": {"message": "Bad size", "type": "invalid_request_error"}})
        upstream.say(sse(chunk("Hel"), CLOSE) if broken else refusal)
        answer = await http.post("/v1/chat/completions", json=CHAT)
    forwarded = telemetry.span(SpanKind.CLIENT)
    assert attribute(forwarded, "error.type") == ("server_error" if broken else "invalid_request")
    assert forwarded.status.status_code is StatusCode.ERROR
    assert attribute(telemetry.span(SpanKind.SERVER), "http.response.status_code") == answer.status_code


async def test_client_that_disconnects_leaves_no_span_open(telemetry: Telemetry) -> None:
    async with Upstream() as upstream, served(upstream, telemetry) as http:
        upstream.say(sse(chunk("Hel"), usage(5, 1), HANG))
        async with http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            async for line in response.aiter_lines():
                if '"usage"' in line:
                    break
        await asyncio.wait_for(upstream.requests[0].gone.wait(), 60)
    assert attribute(telemetry.span(SpanKind.CLIENT), "gen_ai.usage.output_tokens") == 1


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


# The time limit.


async def test_answer_delayed_beyond_the_output_limit_is_complete() -> None:
    """The limit starts with the backend's first byte, as for responses: waiting for it does not count."""
    async with Upstream() as upstream:
        upstream.say(1.5, *reply(b'{"object":"list"}'))
        async with antiphon(backend_url=upstream.url, max_output_seconds=1) as url, httpx.AsyncClient() as http:
            answer = await http.post(f"{url}/v1/embeddings", json={"model": "m", "input": "x"}, timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"object": "list"})


async def test_answer_without_a_first_byte_in_time_is_an_error() -> None:
    async with Upstream() as upstream:
        upstream.say(HANG)
        slow = {"transport.first_byte_timeout": 1}
        async with antiphon(backend_url=upstream.url, backend_overrides=slow) as url, httpx.AsyncClient() as http:
            answer = await http.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        await asyncio.wait_for(upstream.requests[0].gone.wait(), 60)


async def test_stream_that_takes_too_long_ends_with_an_error() -> None:
    async with Upstream() as upstream:
        upstream.say(sse(chunk("Hel"), usage(5, 1), HANG))
        async with antiphon(backend_url=upstream.url, max_output_seconds=1, limit_tokens_per_minute=1000) as url:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) as client:
                stream = await client.chat.completions.create(**CHAT, stream=True)
                texts = []
                with pytest.raises(openai.APIError) as ended:
                    async for part in stream:
                        texts += [choice.delta.content for choice in part.choices]
            async with httpx.AsyncClient() as http:
                await counted(
                    http, 'antiphon_responses_total{delivery="passthrough",model="m",status="failed"} 1.0', url
                )
        assert (texts, ended.value.code) == (["Hel"], "timeout")
        await asyncio.wait_for(upstream.requests[0].gone.wait(), 60)


async def test_document_that_takes_too_long_is_cut_off() -> None:
    async with Upstream() as upstream:
        answer = reply(json.dumps({"text": "x" * 1000}).encode())[0]
        assert isinstance(answer, bytes)
        upstream.say(answer[:-500], HANG)
        async with antiphon(backend_url=upstream.url, max_output_seconds=1) as url, httpx.AsyncClient() as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await http.post(f"{url}/v1/audio/speech", json={"model": "m"}, timeout=60)
        await asyncio.wait_for(upstream.requests[0].gone.wait(), 60)
