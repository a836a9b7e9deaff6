"""What callers see, and what is kept, when the store or the process goes away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.core.build import delta
from tests.redis_server import RedisServer
from tests.scripted import Scripted
from tests.serving import antiphon

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def process(store_url: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """`antiphon serve` with the demo, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "app", "serve", "--port", str(port), "--store-url", store_url, *options]
    environment = {**os.environ, "ANTIPHON_BACKEND": "demo", "ANTIPHON_SECRET_KEY": "of the tests"}
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as http:
        try:
            until = time.monotonic() + 30
            while True:
                try:
                    http.get("/healthz").raise_for_status()
                    break
                except httpx.TransportError:
                    assert time.monotonic() < until and running.poll() is None, "the server does not start"
                    time.sleep(0.05)
            yield running, http
        finally:
            running.terminate()  # workers end with the process that started them only if it can tell them
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def test_a_killed_process_loses_nothing_that_was_told_complete(tmp_path: Path) -> None:
    store_url = f"sqlite:///{tmp_path}/antiphon.db"
    with process(store_url) as (running, http):
        body = {"model": "demo", "input": "My name is Alice.", "stream": True}
        with http.stream("POST", "/v1/responses", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {") and (event := json.loads(line[6:]))["type"] == "response.completed":
                    running.send_signal(signal.SIGKILL)
                    break
        running.wait()
    with process(store_url) as (_, http):
        kept = http.get(f"/v1/responses/{event['response']['id']}").json()
        assert kept == event["response"]
        body = {"model": "demo", "input": "What is my name?", "previous_response_id": kept["id"]}
        answer = http.post("/v1/responses", json=body).json()
        assert "Alice" in answer["output"][0]["content"][0]["text"]


def test_workers_share_their_conversations(tmp_path: Path) -> None:
    with process(f"sqlite:///{tmp_path}/antiphon.db", "--workers", "2") as (_, http):
        previous = None
        for turn in range(12):
            http.headers["connection"] = "close"  # the next one goes to whichever worker is there
            body = {"model": "demo", "input": str(turn), "previous_response_id": previous}
            answer = http.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            previous = answer.json()["id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_redis_may_go_and_come_back(stream: bool) -> None:
    backend = Scripted([delta(content="Hello")])
    with RedisServer(persistent=True) as server:
        async with antiphon(backend, store_url=server.url) as url:
            async with httpx.AsyncClient(base_url=url, timeout=15, trust_env=False) as http:
                body = {"model": "m", "input": "a"}
                first = (await http.post("/v1/responses", json=body)).json()["id"]
                await asyncio.to_thread(server.stop)

                for stateful in ({**body, "stream": stream}, {**body, "store": False, "previous_response_id": first}):
                    asked = len(backend.asked)
                    answer = await http.post("/v1/responses", json=stateful)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
                    assert answer.headers["retry-after"]
                    assert len(backend.asked) == asked, "no model is asked for what cannot be kept"
                assert (await http.get(f"/v1/responses/{first}")).status_code == 503
                assert (await http.get("/readyz")).status_code == 503
                assert (await http.get("/healthz")).status_code == 200
                stateless = await http.post("/v1/responses", json={**body, "store": False, "stream": stream})
                assert stateless.status_code == 200

                await asyncio.to_thread(server.start)
                again = await http.post("/v1/responses", json={**body, "previous_response_id": first})
                assert again.status_code == 200, again.text


async def test_a_response_that_cannot_be_stored_any_more_fails() -> None:
    go = asyncio.Event()
    with RedisServer() as server:
        async with antiphon(Scripted([delta(content="Hello"), go]), store_url=server.url) as url:
            async with httpx.AsyncClient(base_url=url, timeout=15, trust_env=False) as http:
                asking = asyncio.ensure_future(
                    http.post("/v1/responses", json={"model": "m", "input": "a", "stream": True})
                )
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.stop)
                go.set()
                text = (await asking).text
                assert "event: response.completed" not in text
                failed = json.loads(text.split("event: response.failed\ndata: ")[1].split("\n")[0])
                assert failed["response"]["error"]["code"] == "store_unavailable"
                assert failed["response"]["output"][0]["content"][0]["text"] == "Hello"
