"""Usage when processes are killed: reported usage of complete answers is stored."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.servers import LINUX, Server, server
from tests.faults.test_process import ended, until_both_serve
from tests.support.build import reported
from tests.support.store_locations import StoreLocation, location_of
from tests.support.upstream import DONE, Received, Upstream, chunk, finish, reply, sse
from tests.support.usage_journal import holds_usage

CALLERS = 12
ANSWERS = 60  # complete answers before processes are killed


class Counting(Upstream):
    """A backend with different usage per request; answers name their request."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[str, int] = {}  # answer text: tokens

    def answer_to(self, request: Received) -> list[Any]:
        answer = super().answer_to(request)
        if not self.requests or self.requests[-1] is not request:
            return answer
        number = len(self.requests)
        self.used[f"answer {number}"] = 2 * number + 1
        usage = reported(number, number + 1)
        if not request.json.get("stream"):
            message = {"role": "assistant", "content": f"answer {number}"}
            body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
            return reply(json.dumps(body).encode())
        return sse(chunk(f"answer {number}"), finish(usage=usage), DONE)


class Callers:
    """Continuous callers in every delivery mode; `whole` has the texts of complete answers."""

    def __init__(self, url: str) -> None:
        self.whole: list[str] = []
        self._url = url
        self._enough = asyncio.Event()

    async def run(self, number: int) -> None:
        """Ask until the server is gone."""
        async with httpx.AsyncClient(base_url=self._url, timeout=60, trust_env=False) as http:
            ways = itertools.cycle([self._json, self._sse, self._unstored, self._passed_through][number % 4 :])
            refused = 0
            while refused < 20:
                try:
                    self.whole.append(await next(ways)(http))
                    refused = 0
                except httpx.TransportError:
                    refused += 1
                    await asyncio.sleep(0.05)
                if len(self.whole) >= ANSWERS:
                    self._enough.set()

    async def until_enough(self) -> None:
        async with asyncio.timeout(120):
            await self._enough.wait()

    async def _json(self, http: httpx.AsyncClient, **fields: Any) -> str:
        response = (await http.post("/v1/responses", json={"model": "m", "input": "Hi", **fields})).json()
        text: str = response["output"][0]["content"][0]["text"]
        return text

    async def _unstored(self, http: httpx.AsyncClient) -> str:
        return await self._json(http, store=False)

    async def _sse(self, http: httpx.AsyncClient) -> str:
        body = {"model": "m", "input": "Hi", "stream": True}
        async with http.stream("POST", "/v1/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and (event := json.loads(line[6:]))["type"] == "response.completed":
                    text: str = event["response"]["output"][0]["content"][0]["text"]
                    return text
        raise httpx.ReadError("the stream ended early")

    async def _passed_through(self, http: httpx.AsyncClient) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        text: str = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["content"]
        return text


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


@LINUX
async def test_usage_after_sigkill_is_what_backends_reported(location: StoreLocation, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    settings = {"store_url": location.url, "workers": 2, "usage_journal": journal}
    async with Counting() as upstream:
        with server(backend_url=upstream.url, **settings) as served:
            before = (await usage(served))["total_tokens"]
            await until_both_serve(served.url)
            callers = Callers(served.url)
            asking = [asyncio.create_task(callers.run(number)) for number in range(CALLERS)]
            await callers.until_enough()
            killed = served.workers()
            os.kill(killed[0], signal.SIGKILL)  # the replacement worker reads its journal
            await replaced(served, killed[0], callers)
            for pid in (served.pid, *served.workers()):
                os.kill(pid, signal.SIGKILL)
            await ended(served)
            await asyncio.gather(*asking)
            whole = callers.whole
        with server(backend_url=upstream.url, **settings) as served:
            async with asyncio.timeout(60):
                while holds_usage(journal):
                    await asyncio.sleep(0.05)
            total = (await usage(served))["total_tokens"] - before
    assert len(set(whole)) == len(whole) >= ANSWERS
    seen = sum(upstream.used[text] for text in whole)
    assert seen <= total <= sum(upstream.used.values())


async def replaced(served: Server, worker: int, callers: Callers) -> None:
    """Wait until a worker is replaced, and for some more answers."""
    async with asyncio.timeout(120):
        while worker in served.workers() or len(served.workers()) < 2:
            await asyncio.sleep(0.05)
        count = len(callers.whole)
        while len(callers.whole) < count + ANSWERS:
            await asyncio.sleep(0.01)


async def usage(served: Server) -> Any:
    async with httpx.AsyncClient(base_url=served.url, timeout=60, trust_env=False) as http:
        return (await http.get("/v1/antiphon/usage")).json()["total"]
