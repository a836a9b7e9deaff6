"""Stopped and killed processes: the caller's outcome and the stored record."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.faults.callers import ASK, COMPLETED, FOREGROUND, HELLO, WAYS, Ended, Refused, calling, outcomes
from tests.faults.faulty_stores import kept
from tests.faults.servers import LINUX, Server, server, stop_between_transactions, until_refused
from tests.faults.test_client import FLOOD, connected
from tests.responses.test_background import until, until_ended
from tests.support.sockets import dial, hear, send
from tests.support.upstream import DONE, HANG, Upstream, chunk, finish, sse
from tests.support.upstream import upstream as upstream

LOAD = 6  # callers, each with an answer in every way


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/antiphon.db"


@asynccontextmanager
async def load(served: Server, upstream: Upstream) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Answers under way: when this begins, the backend has said something for each."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(calling(served.url)) for _ in range(LOAD)]
        asking = [asyncio.create_task(caller.ask(way)) for caller in callers for way in FOREGROUND]
        for caller in callers:
            queued = await caller.http.post("/responses", json={**ASK, "background": True})
            assert queued.json()["status"] == "queued"
        await until(lambda: sum(request.sent > 2 for request in upstream.requests) == LOAD * 4)
        yield asking


async def ended(served: Server) -> int:
    return await asyncio.to_thread(served.process.wait, 60)


@pytest.mark.parametrize("workers", [1, 2])
async def test_sigterm_lets_answers_end(workers: int, upstream: Upstream, store_url: str, tmp_path: Path) -> None:
    go = asyncio.Event()
    upstream.always(sse(chunk("Hel"), go, chunk("lo"), finish(), DONE))
    settings = {"store_url": store_url, "backend_url": upstream.url, "workers": workers, "shutdown_grace": 60}
    with server(**settings) as served:
        async with load(served, upstream) as asking:
            served.process.send_signal(signal.SIGTERM)
            await until_refused(served.url)
            go.set()
            seen = [await each for each in asking]
        assert await ended(served) == 0
    assert [each.outcome for each in seen] == [COMPLETED] * LOAD * 3
    stored = kept(tmp_path)
    assert [response["status"] for response in stored] == ["completed"] * LOAD * 4
    assert all(each.response in stored for each in seen)


async def test_sigterm_ends_answers_that_do_not_end(upstream: Upstream, store_url: str, tmp_path: Path) -> None:
    upstream.always(sse(chunk("Hel"), HANG))
    with server(store_url=store_url, backend_url=upstream.url, shutdown_grace=1) as served:
        async with AsyncExitStack() as stack:
            caller = await stack.enter_async_context(calling(served.url))
            asking = {way: asyncio.create_task(caller.ask(way)) for way in ("json", "sse")}
            talking = await stack.enter_async_context(dial(served.url))
            await send(talking)
            background = (await caller.http.post("/responses", json={**ASK, "background": True})).json()
            await until(lambda: sum(request.sent > 2 for request in upstream.requests) == 4)
            upstream.always(FLOOD, HANG)
            reads_nothing = stack.enter_context(connected(served.url, receives=65536))
            await reads_nothing.ask(stream=True)
            await until(lambda: len(upstream.requests) == 5)

            served.process.send_signal(signal.SIGTERM)
            json_seen, sse_seen = [await each for each in asking.values()]
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await hear(talking)
            assert await ended(served) == 0
    assert json_seen.outcome == Refused(503, "server_error")
    assert sse_seen.outcome == Ended("failed", "server_error", "Hel")
    assert closed.value.rcvd and closed.value.rcvd.code == 1012
    stored = {response["id"]: response for response in kept(tmp_path)}
    assert stored.pop(background["id"])["status"] == "failed"
    assert stored.pop(sse_seen.response["id"]) == sse_seen.response
    assert [response["status"] for response in stored.values()] == ["failed"], "of whoever did not read"


async def test_sigkill_loses_no_completed_response(upstream: Upstream, store_url: str) -> None:
    upstream.always(HELLO)
    with server(store_url=store_url, backend_url=upstream.url) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=60, trust_env=False) as http:
            async with http.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {") and (event := json.loads(line[6:]))["type"] == "response.completed":
                        served.process.send_signal(signal.SIGKILL)
                        break
        await ended(served)
    with server(store_url=store_url, backend_url=upstream.url) as served:
        async with calling(served.url) as caller:
            assert (await caller.http.get(f"/responses/{event['response']['id']}")).json() == event["response"]
            seen = await caller.ask("json", previous_response_id=event["response"]["id"])
    assert seen.outcome == COMPLETED
    assert [message["role"] for message in upstream.requests[-1].json["messages"]] == ["user", "assistant", "user"]


@LINUX
async def test_sigkill_of_a_worker_ends_its_answers_alone(upstream: Upstream, store_url: str, tmp_path: Path) -> None:
    upstream.always(HELLO)
    with server(store_url=store_url, backend_url=upstream.url, workers=2, background_lease=3) as served:
        await until_both_serve(served.url)
        one, other = served.workers()
        async with AsyncExitStack() as stack:
            with stopped(other, store_url):
                caller = await stack.enter_async_context(calling(served.url))
                before = (await caller.ask("json")).response
                upstream.always(sse(chunk("Hel"), HANG))
                streamed = asyncio.create_task(caller.ask("sse"))
                unstreamed = asyncio.create_task(caller.ask("json"))
                queued = (await caller.http.post("/responses", json={**ASK, "background": True})).json()
                await until(lambda: [request.sent > 2 for request in upstream.requests] == [True] * 4)
            os.kill(one, signal.SIGKILL)
            for broken in (streamed, unstreamed):
                with pytest.raises(httpx.TransportError):
                    await broken

        upstream.always(HELLO)
        async with calling(served.url) as caller:
            assert (await caller.http.get(f"/responses/{before['id']}")).json() == before
            assert outcomes(await caller.ask_all()) == dict.fromkeys(WAYS, COMPLETED)
            lost = await until_ended(caller.http, queued["id"])
        assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")
        assert len(kept(tmp_path)) == 2 + len(WAYS), "of what was broken off nothing is kept"
        await until(lambda: len(served.workers()) == 2)
        assert one not in served.workers()


async def until_both_serve(url: str) -> None:
    """Wait until two workers have read their settings: a sleeping worker might be replaced."""
    async with asyncio.timeout(120), httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        while not re.search(r"^antiphon_build_info{.*} 2\.0$", (await http.get("/metrics")).text, re.MULTILINE):
            await asyncio.sleep(0.05)


@LINUX
async def test_sigkill_of_the_parent_stops_its_workers(upstream: Upstream, store_url: str) -> None:
    go = asyncio.Event()
    upstream.always(sse(chunk("Hel"), go, chunk("lo"), finish(), DONE))
    settings = {"store_url": store_url, "backend_url": upstream.url, "shutdown_grace": 60}
    with server(workers=2, **settings) as served:
        await until_both_serve(served.url)
        with killing(served.workers()) as orphans:
            async with calling(served.url) as caller:
                asking = [asyncio.create_task(caller.ask(way)) for way in FOREGROUND]
                await until(lambda: sum(request.sent > 2 for request in upstream.requests) == len(FOREGROUND))
                served.process.send_signal(signal.SIGKILL)
                await until_refused(served.url)
                go.set()
                assert [(await each).outcome for each in asking] == [COMPLETED] * len(FOREGROUND)
            await until(lambda: not any(map(lives, orphans)))
    with server(port=int(served.url.rpartition(":")[2]), **settings) as served:
        async with calling(served.url) as caller:
            assert outcomes(await caller.ask_all()) == dict.fromkeys(WAYS, COMPLETED)


def lives(pid: int) -> bool:
    """Tell whether a process runs: nobody may have asked yet for how it ended, and then it has nothing else left."""
    with suppress(OSError):
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


@contextmanager
def killing(pids: list[int]) -> Iterator[list[int]]:
    """Kill these processes at the end."""
    try:
        yield pids
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def stopped(pid: int, store_url: str) -> Iterator[None]:
    """Stop a process, so that requests reach another."""
    stop_between_transactions(pid, store_url)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
