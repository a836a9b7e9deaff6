"""Background responses with several processes: real servers, one store, and crashes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.assembly.parts import build_store
from app.core.history.turns import Turn
from app.core.types.request import Event
from app.stores import RunKey
from tests.faults.servers import stop_between_transactions
from tests.responses.test_background import ASK, events_of, until, until_ended
from tests.support import laws
from tests.support.build import story
from tests.support.fork_server import Process, start
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.serving import settings
from tests.support.upstream import DONE, Upstream, call, chunk, finish, sse, upstream, usage

__all__ = ["upstream"]  # a fixture

LEASE = 2.0  # for a crashing process; others have a lease long enough for slow machines

TOOLS = [{"type": "function", "name": "f"}]


class Replica:
    """A server in a separate process."""

    def __init__(self, process: Process, http: httpx.AsyncClient) -> None:
        self.process = process
        self.http = http

    async def post(self, **more: Any) -> str:
        answer = await self.http.post("/responses", json={**ASK, **more})
        assert answer.status_code == 200, answer.text
        id: str = answer.json()["id"]
        return id

    async def get(self, id: str) -> dict[str, Any]:
        response: dict[str, Any] = (await self.http.get(f"/responses/{id}")).json()
        return response

    async def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        await asyncio.to_thread(self.process.wait, 60)


@pytest.fixture(params=["redis", "postgres", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/antiphon.db"
    server: RedisServer | PostgresServer = request.getfixturevalue(f"{request.param}_server")
    return server.patient_url


@contextlib.asynccontextmanager
async def replicas(number: int, store_url: str, backend: Upstream, **variables: object) -> AsyncIterator[list[Replica]]:
    """Start servers, and yield them when all answer."""
    async with contextlib.AsyncExitStack() as stack:
        started = [stack.enter_context(process(store_url, backend, variables)) for _ in range(number)]
        servers = []
        for running, url in started:
            http = httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False)
            servers.append(Replica(running, await stack.enter_async_context(http)))
            async with asyncio.timeout(60):
                while not await _answers(f"{url}/healthz"):
                    assert running.poll() is None
                    await asyncio.sleep(0.05)
        yield servers


@contextlib.contextmanager
def process(store_url: str, backend: Upstream, variables: dict[str, object]) -> Any:
    port = free_port()
    given = {
        "PORT": port,
        "STORE_URL": store_url,
        "BACKEND_URL": backend.url,
        "BACKGROUND_LEASE": LEASE,
        "SHUTDOWN_GRACE": 0,
        "LOG_LEVEL": "warning",
        **{name.upper(): value for name, value in variables.items()},
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    environment |= {f"ANTIPHON_{name}": str(value) for name, value in given.items()}
    running = start("serve", env=environment)
    try:
        yield running, f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()


async def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            return (await http.get(url)).is_success
    return False


def followers(replica: Replica, id: str, points: range) -> list[asyncio.Task[list[Event]]]:
    return [asyncio.create_task(events_of(replica.http, id, starting_after=point)) for point in points]


async def test_response_is_followed_from_another_replica(store_url: str, upstream: Upstream) -> None:
    go = asyncio.Event()
    upstream.say(sse(chunk("Hel"), 0.02, chunk("lo"), go, chunk(", "), 0.02, chunk("world"), finish(), usage(), DONE))
    async with replicas(2, store_url, upstream, background_lease=60) as (one, other):
        id = await one.post()
        running = followers(other, id, range(12))
        watching = asyncio.create_task(events_of(other.http, id))
        await until(lambda: upstream.requests)
        await asyncio.sleep(0.3)
        assert (await other.get(id))["status"] == "in_progress"
        assert not any(task.done() for task in running)
        go.set()
        events = await watching
        parts = [await task for task in running]
        afterwards = [await events_of(other.http, id, starting_after=point) for point in range(12)]

        laws.check(events)
        assert events == await events_of(one.http, id)
        assert parts == afterwards == [events[point + 1 :] for point in range(12)]
        assert await other.get(id) == await one.get(id) == events[-1]["response"]
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello, world"


async def test_response_is_cancelled_from_another_replica(store_url: str, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), asyncio.Event()))
    upstream.say(sse(asyncio.Event()))
    async with replicas(2, store_url, upstream, background_lease=60) as (one, other):
        for _ in range(2):  # with something said, and with nothing
            id = await one.post()
            following = asyncio.create_task(events_of(other.http, id))
            await until(lambda: upstream.requests and not upstream.requests[-1].gone.is_set())
            cancelled = (await other.http.post(f"/responses/{id}/cancel")).json()
            async with asyncio.timeout(60):
                await upstream.requests[-1].gone.wait()
            events = await following

            laws.check(events)
            assert cancelled["status"] == "cancelled"
            assert cancelled == await one.get(id) == events[-1]["response"]


async def test_response_of_a_killed_process_ends_failed(store_url: str, upstream: Upstream) -> None:
    upstream.say(
        sse(chunk(reasoning_content="Hm."), chunk("Hel"), call(id="c", name="f", arguments='{"a'), asyncio.Event())
    )
    async with replicas(2, store_url, upstream) as (one, other):
        id = await one.post(tools=TOOLS)
        following = asyncio.create_task(events_of(other.http, id))
        before = await events_until(one, id, "response.function_call_arguments.delta")
        await one.end(signal.SIGKILL)

        events = await following
        response = await other.get(id)
        late = await events_of(other.http, id, starting_after=before[-1]["sequence_number"])

    laws.check(events)
    assert events == [*before, *late]
    assert story(late) == "function_call_arguments.done output_item.done error failed"
    assert response == events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "incomplete"]
    assert response["output"][1]["content"][0]["text"] == "Hel"


async def events_until(replica: Replica, id: str, type: str) -> list[Event]:
    """Follow a response until an event with this type."""
    import json

    events = []
    async with replica.http.stream("GET", f"/responses/{id}?stream=true") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if events[-1]["type"] == type:
                    break
    return events


async def test_polled_response_of_a_killed_process_fails(store_url: str, upstream: Upstream) -> None:
    upstream.say(sse(asyncio.Event()))
    async with replicas(2, store_url, upstream) as (one, other):
        id = await one.post()
        await until(lambda: upstream.requests)
        assert (await other.get(id))["status"] == "in_progress"
        await one.end(signal.SIGKILL)

        assert (await until_ended(other.http, id))["status"] == "failed"


async def test_killed_response_fails_without_a_request_for_it(store_url: str, upstream: Upstream) -> None:
    upstream.say(sse(asyncio.Event()))
    async with replicas(1, store_url, upstream) as (one,):
        id = await one.post()
        await until(lambda: upstream.requests)
        await one.end(signal.SIGKILL)

    store = build_store(settings(store_url=store_url))
    run = RunKey(f"anonymous:{id[-24:]}", id)

    async def status() -> str:
        record = await store.get(*run)
        assert record is not None
        return str(Turn.of(record).response["status"])

    assert await status() == "in_progress"
    async with replicas(1, store_url, upstream), asyncio.timeout(60):
        while await status() == "in_progress":
            await asyncio.sleep(0.05)
    assert await status() == "failed"
    await store.aclose()


async def test_process_that_slept_too_long_does_not_undo_the_end(store_url: str, upstream: Upstream) -> None:
    go = asyncio.Event()
    upstream.say(sse(chunk("Hel"), go, chunk("lo"), finish(), DONE))
    async with replicas(2, store_url, upstream) as (one, other):
        id = await one.post()
        await until(lambda: upstream.requests)
        await events_until(one, id, "response.output_text.delta")
        stop_between_transactions(one.process.pid, store_url)
        failed = await until_ended(other.http, id)
        events = await events_of(other.http, id)
        go.set()
        one.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            await upstream.requests[0].answered.wait()
        await asyncio.sleep(0.5)

        assert failed["status"] == "failed"
        assert failed == await one.get(id) == await other.get(id)
        assert events == await events_of(one.http, id)
        laws.check(events)


async def test_process_at_sigterm_lets_its_responses_end(store_url: str, upstream: Upstream) -> None:
    go = asyncio.Event()
    upstream.say(sse(chunk("Hel"), go, chunk("lo"), finish(), DONE))
    async with replicas(2, store_url, upstream, shutdown_grace=60, background_lease=60) as (one, other):
        id = await one.post()
        await until(lambda: upstream.requests)
        ending = asyncio.create_task(one.end(signal.SIGTERM))
        await asyncio.sleep(0.3)
        go.set()
        await ending

        response = await until_ended(other.http, id)
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["text"] == "Hello"


async def test_process_at_sigterm_fails_responses_that_do_not_end(store_url: str, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), asyncio.Event()))
    async with replicas(2, store_url, upstream, background_lease=600) as (one, other):
        id = await one.post()
        following = asyncio.create_task(events_of(other.http, id))
        await until(lambda: upstream.requests)
        await one.end(signal.SIGTERM)

        response = await other.get(id)
        events = await following
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert "shut down" in response["error"]["message"]
        assert events[-1]["response"] == response
        laws.check(events)
