"""Where a request of a client API goes if its first backend fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.server_apis import SERVER_APIS
from tests.support.serving import antiphon
from tests.support.upstream import Upstream, reply, sse, status

HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
BUSY = status(503, {"error": {"message": "Loading"}})
MESSAGES = SERVER_APIS[2]


@asynccontextmanager
async def client_of(first: dict[str, Any], second: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    backends = {"first": {"retries": 0, **first}, "second": {"retries": 0, **second}}
    async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("passthrough", ["auto", "never"])
async def test_only_a_translated_request_falls_back_to_another_api(passthrough: str) -> None:
    async with Upstream() as one, Upstream() as two:
        one.always(BUSY)
        two.always(sse(*MESSAGES.whole(["Hello"], [], [])))
        second = {"url": two.url, "overrides": MESSAGES.settings}
        async with client_of({"url": one.url, "passthrough": passthrough}, second) as client:
            answer = await client.post("/v1/chat/completions", json=HI)
    if passthrough == "never":
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
    else:
        assert answer.status_code == 503
        assert not two.requests


async def test_passed_through_request_falls_back_to_the_same_api() -> None:
    async with Upstream() as one, Upstream() as two:
        one.always(BUSY)
        two.always(reply(b'{"any": "answer"}'))
        async with client_of({"url": one.url}, {"url": two.url}) as client:
            answer = await client.post("/v1/chat/completions", json=HI)
    assert answer.text == '{"any": "answer"}'
    assert two.requests[0].body == answer.request.content


async def test_first_backend_decides_whether_a_request_is_translated() -> None:
    async with Upstream() as one, Upstream() as two:
        one.always(sse(*MESSAGES.whole(["Hello"], [], [])))
        async with client_of({"url": one.url, "overrides": MESSAGES.settings}, {"url": two.url}) as client:
            answer = await client.post("/v1/chat/completions", json=HI)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello"
    assert not two.requests
