"""`GET /metrics` after activity on a running server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from app import __version__
from app.core.profile import Profile
from app.core.types.deltas import DONE
from app.errors import BackendError, StoreUnavailable
from app.observability.labels import BoundedLabels
from app.observability.lifecycle import ResponseLifecycle
from app.observability.metrics import Metrics
from app.stores import Change
from app.stores.memory import MemoryStore
from tests.support import sockets
from tests.support.build import call, delta, finish, reported
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.upstream import DONE as END
from tests.support.upstream import Upstream, chunk, sse, status
from tests.support.upstream import finish as stop

ROOT = Path(__file__).parents[2]
USAGE = reported(100, 11, cached=64, reasoning=3)
HELLO: list[Any] = [
    delta(content="Hel"),
    0.05,
    delta(content="lo"),
    finish("stop"),
    {"choices": [], "usage": USAGE},
    DONE,
]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """One scrape, to be asked for samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples.get((f"antiphon_{name}", frozenset(labels.items())), 0.0)

    def labels(self, label: str) -> set[str]:
        return {value for _, labels in self.samples for name, value in labels if name == label}


async def scrape(http: httpx.AsyncClient, **headers: str) -> Scrape:
    answer = await http.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return Scrape(answer.text)


@contextlib.asynccontextmanager
async def served(backend: Any = None, **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(backend, **values) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        yield http


async def ask(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post("/v1/responses", json={"model": "m", "input": "Hi", **fields})


async def test_metrics_count_responses_by_delivery_and_status() -> None:
    async with served(Scripted(HELLO)) as http:
        for stream in (False, True, True):
            await ask(http, stream=stream)
        metrics = await scrape(http)
    assert metrics("responses_total", model="m", delivery="json", status="completed") == 1
    assert metrics("responses_total", model="m", delivery="sse", status="completed") == 2
    assert metrics("response_seconds_count", model="m", delivery="sse") == 2
    assert metrics("responses_open", delivery="sse") == metrics("responses_open", delivery="json") == 0
    assert metrics("http_requests_total", method="POST", route="/responses", status="200") == 3


async def test_metrics_count_tokens_as_the_backend_did() -> None:
    async with served(Scripted(HELLO)) as http:
        await ask(http)
        await ask(http, stream=True)
        metrics = await scrape(http)
    counted = {kind: metrics("tokens_total", model="m", kind=kind) for kind in sorted(metrics.labels("kind"))}
    assert counted == {"cached_input": 128, "input": 200, "output": 22, "reasoning": 6}


async def test_metrics_time_per_token_is_between_first_and_last() -> None:
    async with served(Scripted([0.1, *HELLO])) as http:
        await ask(http, stream=True)
        metrics = await scrape(http)
    first, each = (
        metrics(f"{name}_seconds_sum", model="m") for name in ("time_to_first_token", "time_per_output_token")
    )
    whole = metrics("response_seconds_sum", model="m", delivery="sse")
    # 0.1 seconds to the first token, and 0.05 for the next ten.
    assert first >= 0.1
    assert each >= 0.005
    assert first + 10 * each <= whole


async def test_metrics_count_failures_by_kind() -> None:
    refusal = BackendError("Slow down.", status=429, code="rate_limit_exceeded")
    broken = [delta(content="Hel"), BackendError("The connection broke.", code="server_error")]
    async with served(Scripted([refusal], broken, [delta(content="Hel"), finish("length"), DONE])) as http:
        assert (await ask(http)).status_code == 429
        await ask(http, stream=True)
        await ask(http, stream=True)
        metrics = await scrape(http)
    assert metrics("backend_errors_total", backend="default", replica="1", kind="rate_limit_exceeded") == 1
    assert metrics("backend_errors_total", backend="default", replica="1", kind="server_error") == 1
    assert metrics("response_failures_total", kind="rate_limit_exceeded") == 1
    assert metrics("responses_total", model="m", delivery="sse", status="incomplete") == 1
    assert metrics("responses_total", model="m", delivery="json", status="failed") == 1
    assert metrics("http_requests_total", method="POST", route="/responses", status="429") == 1
    assert metrics("backend_answer_seconds_count", backend="default", replica="1") == 2


async def test_metrics_count_a_stream_without_an_end_as_a_failure() -> None:
    profile = Profile().override({"response.finish_required": True})
    async with served(Scripted([delta(content="Hel"), DONE], profile=profile)) as http:
        assert (await ask(http)).json()["status"] == "failed"
        metrics = await scrape(http)
    assert metrics("response_failures_total", kind="server_error") == 1


async def test_metrics_gauge_what_is_open() -> None:
    go = asyncio.Event()
    backend = Scripted([go, *HELLO])
    async with served(backend) as http:
        asking = asyncio.ensure_future(ask(http))
        while not backend.received:
            await asyncio.sleep(0.01)
        metrics = await scrape(http)
        assert (
            metrics("responses_open", delivery="json"),
            metrics("backend_waiting", backend="default", replica="1"),
        ) == (
            1,
            1,
        )
        go.set()
        await asking
        metrics = await scrape(http)
        assert (
            metrics("responses_open", delivery="json"),
            metrics("backend_waiting", backend="default", replica="1"),
        ) == (
            0,
            0,
        )


async def test_metrics_gauge_the_queue_of_a_backend() -> None:
    go = asyncio.Event()
    async with Upstream() as upstream:
        upstream.always(go, sse(chunk("Hi"), stop(), END))
        async with served(backends={"local": {"url": upstream.url, "max_concurrency": 1}}) as http:
            asking = [asyncio.ensure_future(ask(http)) for _ in range(3)]
            while (metrics := await scrape(http))("backend_queue", backend="local") != 2:
                await asyncio.sleep(0.01)
            assert metrics("backend_waiting", backend="local", replica="1") == 1
            go.set()
            assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * 3
            assert (await scrape(http))("backend_queue", backend="local") == 0


async def test_metrics_of_a_client_that_disconnects_count_an_interrupted_response() -> None:
    backend = Scripted([*HELLO[:1], 60.0])
    async with served(backend) as http:
        asking = asyncio.ensure_future(ask(http, stream=True))
        while not backend.opened:
            await asyncio.sleep(0.01)
        asking.cancel()
        while backend.opened:
            await asyncio.sleep(0.01)
        metrics = await scrape(http)
    assert metrics("responses_total", model="m", delivery="sse", status="interrupted") == 1
    assert metrics("responses_open", delivery="sse") == 0
    # Usage was not reported, so it was estimated.
    assert metrics("tokens_total", model="m", kind="input") > 0


@pytest.mark.parametrize("chunks", [[], HELLO[:1]], ids=["before its first word", "in the middle"])
async def test_metrics_of_a_cancelled_background_response_count_it_as_cancelled(chunks: list[Any]) -> None:
    async with served(Scripted([*chunks, 60.0])) as http:
        id = (await ask(http, background=True)).json()["id"]
        assert (await http.post(f"/v1/responses/{id}/cancel")).json()["status"] == "cancelled"
        metrics = await scrape(http)
    assert metrics("responses_total", model="m", delivery="background", status="cancelled") == 1
    assert metrics("response_seconds_count", model="m", delivery="background") == 1
    assert metrics("tokens_total", model="m", kind="input") > 0


async def test_metrics_of_a_refused_background_response_count_a_failure_without_tokens() -> None:
    refusal = BackendError("Slow down.", status=429, code="rate_limit_exceeded")
    async with served(Scripted([refusal])) as http:
        id = (await ask(http, background=True)).json()["id"]
        while (await http.get(f"/v1/responses/{id}")).json()["status"] != "failed":
            await asyncio.sleep(0.01)
        metrics = await scrape(http)
    assert metrics("responses_total", model="m", delivery="background", status="failed") == 1
    assert metrics("response_failures_total", kind="rate_limit_exceeded") == 1
    assert not metrics.labels("kind") & {"input", "output"}


class FullStore(MemoryStore):
    """A full store."""

    async def apply(self, *changes: Change) -> bool:
        raise StoreUnavailable("There is no room.")


async def test_metrics_of_a_response_that_cannot_be_stored_count_the_failure() -> None:
    async with served(Scripted(HELLO), store=FullStore(ttl=60)) as http:
        await ask(http, stream=True)
        metrics = await scrape(http)
    assert metrics("responses_total", model="m", delivery="sse", status="failed") == 1
    assert metrics("response_failures_total", kind="store_unavailable") == 1


async def test_metrics_count_background_responses_separately() -> None:
    async with served(Scripted(HELLO)) as http:
        id = (await ask(http, background=True)).json()["id"]
        while (await http.get(f"/v1/responses/{id}")).json()["status"] != "completed":
            await asyncio.sleep(0.01)
        metrics = await scrape(http)
    assert metrics("responses_total", model="m", delivery="background", status="completed") == 1
    assert metrics("http_requests_total", method="GET", route="/responses/{response_id}", status="200") >= 1


async def gone_in_the_middle(http: httpx.AsyncClient, backend: Scripted, **fields: Any) -> None:
    """Ask, and go when the answer has begun."""
    asking = asyncio.ensure_future(ask(http, **fields))
    while not backend.opened:
        await asyncio.sleep(0.01)
    asking.cancel()
    while backend.opened:
        await asyncio.sleep(0.01)


async def test_metrics_after_any_responses_gauge_nothing_open() -> None:
    refusal, broken = BackendError("Busy.", status=503), BackendError("The connection broke.")
    endless = [*HELLO[:1], 60.0]
    scripts = [HELLO, HELLO, [refusal], [refusal], [broken], [*HELLO[:1], broken], endless, endless]
    backend = Scripted(*scripts, endless, endless, HELLO)
    async with sockets.listening(backend) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            for stream in (False, True, False, True, True, True):
                await ask(http, stream=stream)
            for stream in (False, True):
                await gone_in_the_middle(http, backend, stream=stream)
            id = (await ask(http, background=True)).json()["id"]
            while not backend.opened:
                await asyncio.sleep(0.01)
            await http.delete(f"/v1/responses/{id}")
            while backend.opened:
                await asyncio.sleep(0.01)
            async with sockets.dial(url) as socket:
                await sockets.send(socket)
                while not backend.opened:
                    await asyncio.sleep(0.01)
            async with sockets.dial(url) as socket:
                await sockets.ask(socket)
                await sockets.ask(socket, model=7)
            while (metrics := await scrape(http))("websockets_open"):
                await asyncio.sleep(0.01)
    gauges = {"responses_open", "backend_waiting", "websockets_open"}
    values = {name: value for (name, _), value in metrics.samples.items() if name.removeprefix("antiphon_") in gauges}
    assert values.keys() == {f"antiphon_{name}" for name in gauges}
    assert set(values.values()) == {0}
    ended = sum(value for (name, _), value in metrics.samples.items() if name == "antiphon_responses_total")
    assert ended == sum(
        value for (name, _), value in metrics.samples.items() if name == "antiphon_response_seconds_count"
    )
    assert ended == len(backend.received) == 11


async def test_metrics_of_a_cancelled_waiter_leave_the_queue() -> None:
    go = asyncio.Event()
    async with Upstream() as upstream:
        upstream.always(go, sse(chunk("Hi"), stop(), END))
        async with served(backends={"local": {"url": upstream.url, "max_concurrency": 1}}) as http:
            first, *others = [asyncio.ensure_future(ask(http, stream=stream)) for stream in (True, True, False)]
            while (await scrape(http))("backend_queue", backend="local") != 2:
                await asyncio.sleep(0.01)
            for one in others:
                one.cancel()
            while (await scrape(http))("backend_queue", backend="local"):
                await asyncio.sleep(0.01)
            go.set()
            assert (await first).status_code == 200


async def test_metrics_gauge_open_websockets() -> None:
    async with (
        sockets.listening(Scripted(HELLO)) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        async with sockets.dial(url) as socket:
            await sockets.ask(socket)
            metrics = await scrape(http)
        assert metrics("websockets_open") == 1
        assert metrics("responses_total", model="m", delivery="websocket", status="completed") == 1
        while (await scrape(http))("websockets_open"):
            await asyncio.sleep(0.01)


async def test_metrics_measure_the_store() -> None:
    class Away(MemoryStore):
        async def all(self, bucket: str) -> dict[str, bytes]:
            raise StoreUnavailable

    async with (
        antiphon(Scripted(HELLO), Away(ttl=60)) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        first = (await ask(http)).json()["id"]
        assert (await ask(http, previous_response_id=first)).status_code == 503
        metrics = await scrape(http)
    assert metrics("store_seconds_count", operation="put") == 1
    assert metrics("store_errors_total", operation="put") == 0
    assert metrics("store_seconds_count", operation="all") == metrics("store_errors_total", operation="all") == 1


async def test_metrics_have_no_labels_of_names_that_callers_make_up() -> None:
    refusal = BackendError("No such model.", status=404, code="model_not_found")
    async with served(Scripted([refusal])) as http:
        for number in range(3):
            await ask(http, model=f"made-up-{number}")
            await http.get(f"/v1/made-up/{number}")
        metrics = await scrape(http)
    assert metrics("responses_total", model="other", delivery="json", status="failed") == 3
    assert "made-up" not in metrics.text


async def test_metrics_of_a_turn_without_a_backend_confirm_no_model() -> None:
    async with (
        sockets.listening(Scripted(HELLO)) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        async with sockets.dial(url) as socket:
            await sockets.ask(socket, model="made-up", generate=False)
            metrics = await scrape(http)
    assert metrics("responses_total", model="other", delivery="websocket", status="completed") == 1
    assert "made-up" not in metrics.text


def test_metrics_labels_are_bounded() -> None:
    labels = BoundedLabels(100)
    assert labels("early", confirmed=False) == "other"
    known = [labels(f"label-{number}") for number in range(100)]
    assert known == [f"label-{number}" for number in range(100)]
    assert labels("one-too-many") == "other"
    assert labels("label-0", confirmed=False) == "label-0"


async def test_metrics_model_labels_are_of_backends_and_settings_alone() -> None:
    async with Upstream() as upstream:
        upstream.always(sse(chunk("Hi"), stop(), END))
        upstream.models = [{"id": "qwen3-8b"}, {"id": "listed"}]
        served_by = {
            "globs": {"url": upstream.url, "models": ["qwen*"], "aliases": {"fast": "qwen3-8b"}},
            "all": {"url": upstream.url},
        }
        async with served(backends=served_by) as http:
            for model in ("made-up-1", "qwen3-8b", "qwen-made-up", "fast", "listed", *(f"m{n}" for n in range(120))):
                assert (await ask(http, model=model)).json()["status"] == "completed"
            metrics = await scrape(http)
    assert metrics.labels("model") == {"qwen3-8b", "qwen*", "fast", "listed", "other"}
    assert metrics("responses_total", model="other", delivery="json", status="completed") == 121


async def test_metrics_model_labels_without_a_backends_list_are_of_the_settings() -> None:
    async with Upstream() as upstream:
        upstream.models = None
        upstream.always(sse(chunk("Hi"), stop(), END))
        async with served(backends={"local": {"url": upstream.url, "models": ["spelled-out", "*"]}}) as http:
            for model in ("spelled-out", "made-up"):
                await ask(http, model=model)
            metrics = await scrape(http)
    assert metrics.labels("model") == {"spelled-out", "other"}


async def test_metrics_tell_servers_apart_and_which_are_up() -> None:
    async with Upstream() as good, Upstream() as bad:
        good.always(sse(chunk("Hi"), stop(), END))
        bad.always(status(503))
        local = {"url": good.url, "replicas": [bad.url], "max_failures": 1, "check_interval": 0}
        async with served(backends={"local": local, "spare": {"url": good.url}}) as http:
            for number in range(40):  # conversations; some belong to the second replica
                await ask(http, input=f"Hi, {number}")
            metrics = await scrape(http)
    up = {server: metrics("backend_up", backend=server[0], replica=server[1]) for server in ALL_SERVERS}
    assert up == {("local", "1"): 1, ("local", "2"): 0, ("spare", "1"): 1}
    failed = metrics("backend_errors_total", backend="local", replica="2", kind="server_is_overloaded")
    assert failed == len(bad.requests) >= 1
    assert metrics("backend_answer_seconds_count", backend="local", replica="1") == 40
    assert "127.0.0.1" not in metrics.text


ALL_SERVERS = (("local", "1"), ("local", "2"), ("spare", "1"))


async def test_metrics_in_other_formats_are_returned_on_request() -> None:
    async with served(Scripted(HELLO)) as http:
        await ask(http)
        answer = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    families = {family.name for family in openmetrics.text_string_to_metric_families(answer.text)}
    assert {name.removesuffix("_total") for name in known()} <= families


async def test_openapi_says_that_metrics_are_text() -> None:
    async with served(Scripted(HELLO)) as http:
        described = (await http.get("/openapi.json")).json()["paths"]["/metrics"]["get"]["responses"]["200"]
    assert described["content"].keys() == {"text/plain"}


async def test_metrics_can_be_switched_off() -> None:
    async with served(Scripted(HELLO), metrics=False) as http:
        assert (await ask(http)).status_code == 200
        assert (await http.get("/metrics")).status_code == 404


# Documents about metrics.


def known() -> set[str]:
    """All metric names in a scrape."""
    text, _ = Metrics().expose()
    return set(re.findall(r"^# TYPE (antiphon_\w+) ", text.decode(), re.MULTILINE))


def documented() -> dict[str, set[str]]:
    """Each metric's labels in the table."""
    table = (ROOT / "docs" / "operation.md").read_text().partition("## Metrics")[2].partition("`way` is")[0]
    rows = re.findall(r"^\| `(antiphon_\w+)` \|([^|]*)\|", table, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def test_metrics_docs_have_every_metric_and_no_other() -> None:
    assert documented().keys() == known()


async def test_metrics_docs_have_the_labels_of_the_samples() -> None:
    refusal = BackendError("Slow down.", status=429, code="rate_limit_exceeded")
    async with served(Scripted([refusal], HELLO), limit_requests_per_minute=2) as http:
        for _ in range(3):
            await ask(http)
        metrics = await scrape(http)
    samples = [(sample, labels) for sample, labels in metrics.samples if sample.startswith("antiphon_")]
    assert len(samples) > 50
    for sample, labels in samples:
        name = re.sub(r"_(bucket|count|sum)$", "", sample)
        assert {label for label, _ in labels} - {"le"} == documented()[name]


CHART = ROOT / "docker" / "helm" / "antiphon"
DASHBOARD = json.loads((CHART / "dashboards" / "antiphon.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
ALERTS = yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
RULES = [rule["expr"] for group in ALERTS for rule in group["rules"]]


@pytest.mark.parametrize("query", [*QUERIES, *RULES])
def test_metrics_queries_use_metrics_and_labels_that_exist(query: str) -> None:
    names = {re.sub(r"_bucket$", "", name) for name in re.findall(r"antiphon_\w+", query)}
    assert names <= known()
    there = set.union({"job", "instance", "le"}, *(documented()[name] for name in names))
    by = {label.strip() for labels in re.findall(r"by \((.*?)\)", query) for label in labels.split(",")}
    selected = {label for labels in re.findall(r"{(.*?)}", query) for label in re.findall(r"(\w+)\s*=", labels)}
    assert by | selected <= there


def test_metrics_of_responses_are_on_the_dashboard() -> None:
    assert not {name for name in known() if not any(name in query for query in QUERIES)}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


# Several processes.


class Workers:
    """`antiphon serve --workers`, as a user starts it."""

    def __init__(self, folder: Path, count: int) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "PROM"))}
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve", "--port", "0", "--workers", str(count)],
                cwd=folder,
                env=inherited | {"ANTIPHON_STORE_URL": f"sqlite:///{folder}/store.db", "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    def wait_for(self, pattern: str, count: int = 1) -> list[str]:
        """Return matching log lines once there are this many."""
        while len(found := re.findall(pattern, self._log.read_text())) < count:
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        return found

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path, 2)
    try:
        yield started
    finally:
        started.stop()


async def test_metrics_of_any_worker_are_those_of_all_living(workers: Workers) -> None:
    [url] = workers.wait_for(r" on (http://[^,\s]+), backend")
    workers.wait_for("startup complete", 2)
    each_anew = httpx.Limits(max_keepalive_connections=0)  # to reach both
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=each_anew) as http:
        for _ in range(20):
            (await ask(http, model="demo")).raise_for_status()
        seen = [await scrape(http) for _ in range(8)]
        assert {metrics("responses_total", model="demo", delivery="json", status="completed") for metrics in seen} == {
            20
        }
        assert {metrics("build_info", version=__version__) for metrics in seen} == {2}

        first, *_ = workers.wait_for(r"Started server process \[(\d+)\]", 2)
        os.kill(int(first), signal.SIGKILL)
        workers.wait_for("startup complete", 3)  # a replacement starts
        metrics = await scrape(http)
        assert metrics("build_info", version=__version__) == 2
        assert metrics("responses_total", model="demo", delivery="json", status="completed") == 20


@pytest.mark.parametrize(("tokens", "seconds"), [(5, 0.5), (2, 2.0), (1, None), (0, None)])
def test_metrics_token_time_is_from_one_to_the_next(tokens: int, seconds: float | None) -> None:
    course = ResponseLifecycle({}, "sse", began=0.0, seconds_to_first=1.0, last=3.0, usage={"output_tokens": tokens})
    assert course.seconds_per_token == seconds


async def test_metrics_count_hosted_calls_by_tool_and_status() -> None:
    calls = [call(0, "a", "demo__add", '{"a": 1, "b": 2}'), call(1, "b", "demo__fail", '{"message": "No."}')]
    backend = Scripted([*calls, finish("tool_calls")], [delta(content="Hi")])
    async with served(backend, tools={"demo": {}}) as http:
        assert (await ask(http, tools=[{"type": "mcp", "server_label": "demo"}])).status_code == 200
        seen = await scrape(http)
    assert seen("tool_calls_total", tool="demo", status="completed") == 1
    assert seen("tool_calls_total", tool="demo", status="failed") == 1
    assert seen("tool_call_seconds_count", tool="demo") == 2
