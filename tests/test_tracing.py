"""What OpenTelemetry hears of a request, from its caller to the backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app.logs import JSONFormatter
from app.main import create_app
from app.tracing import Tracing
from tests.api import sockets
from tests.serving import serving, settings
from tests.upstream import CLOSE, DONE, Upstream, chunk, finish, sse, status, usage

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "the password is xyzzy"


class Telemetry:
    """Tracing that keeps what it hears."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        traces = TracerProvider(shutdown_on_exit=False)
        traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracing = Tracing(traces, MeterProvider([self._metrics], shutdown_on_exit=False))

    @property
    def spans(self) -> list[ReadableSpan]:
        return [*self._spans.get_finished_spans()]

    def span(self, kind: SpanKind) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.kind is kind]
        return found

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """What was recorded, by the metric's name: attributes and sum of each point."""
        data = json.loads(self._metrics.get_metrics_data().to_json())  # type: ignore[union-attr]
        (resource,) = data["resource_metrics"]
        return {
            metric["name"]: [(point["attributes"], point["sum"]) for point in metric["data"]["data_points"]]
            for scope in resource["scope_metrics"]
            for metric in scope["metrics"]
        }


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@contextlib.asynccontextmanager
async def served(upstream: Upstream, telemetry: Telemetry, **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    configured = settings(backend_url=upstream.url, backend_profile="mistral", backend_retries=0, **values)
    async with serving(create_app(configured, tracing=telemetry.tracing)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http:
            yield http


async def ask(http: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"model": "m", "input": SECRET, "instructions": SECRET, "temperature": 0.5, **fields}
    return await http.post("/v1/responses", json=body, headers=headers)
