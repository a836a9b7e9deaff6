"""White space before a slow backend's JSON answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openresponses_types.types import ResponseResource

from app.errors import BackendError
from app.main import create_app
from tests.support.build import delta
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon, serving, settings

ASK = {"model": "m", "input": "Hi"}
HELLO: list[Step] = [delta(content="Hello")]
NEVER = 600.0  # seconds
ERROR = BackendError("The model has crashed.")


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False)


@contextlib.asynccontextmanager
async def pending_answer(url: str, **headers: str) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.Response, Any]]:
    """Send a request, and yield the answer after its first white space, with the rest of its body."""
    async with client(url) as http, http.stream("POST", "/responses", json=ASK, headers=headers) as answer:
        body = answer.aiter_raw()
        assert (await anext(body)).isspace()
        yield http, answer, body


async def rest_of(body: AsyncIterator[bytes]) -> Any:
    return json.loads(b"".join([piece async for piece in body]))


async def test_slow_json_answer_has_white_space_before_it() -> None:
    go = asyncio.Event()
    async with (
        antiphon(Scripted([go, *HELLO]), json_heartbeat=0.05) as url,
        pending_answer(url) as (http, answer, body),
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert (await anext(body)).isspace()
        go.set()
        response = await rest_of(body)
        stored = (await http.get(f"/responses/{response['id']}")).json()

    ResponseResource.model_validate(response)
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert stored == response


@pytest.mark.parametrize("heartbeat", [0, NEVER])
async def test_json_answer_before_the_first_heartbeat_has_no_white_space(heartbeat: float) -> None:
    async with antiphon(Scripted(HELLO), json_heartbeat=heartbeat) as url, client(url) as http:
        answer = await http.post("/responses", json=ASK)

    assert answer.content.startswith(b"{")
    assert answer.json()["status"] == "completed"


@pytest.mark.parametrize("script", [[ERROR], [*HELLO, ERROR]])
@pytest.mark.parametrize("heartbeat", [0, NEVER])
async def test_failure_before_the_first_heartbeat_is_as_without_heartbeats(heartbeat: float, script: Any) -> None:
    async with antiphon(Scripted(script), json_heartbeat=heartbeat) as url, client(url) as http:
        answer = await http.post("/responses", json=ASK)

    error = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (502 if script == [ERROR] else 200, ERROR.message)


async def test_failure_after_white_space_is_a_failed_response() -> None:
    fail = asyncio.Event()
    backend = Scripted([fail, ERROR], HELLO)
    async with antiphon(backend, json_heartbeat=0.05) as url:
        async with pending_answer(url, **{"idempotency-key": "k"}) as (http, answer, body):
            fail.set()
            response = await rest_of(body)
            stored = (await http.get(f"/responses/{response['id']}")).json()
            again = await http.post("/responses", json=ASK, headers={"idempotency-key": "k"})

    ResponseResource.model_validate(response)
    assert (answer.status_code, response["status"], response["output"]) == (200, "failed", [])
    assert response["error"]["message"] == ERROR.message
    assert stored == response
    assert again.json()["status"] == "completed", "a failed response may be asked for again"


async def test_client_that_disconnects_after_white_space_closes_the_backends_stream() -> None:
    backend = Scripted([*HELLO, asyncio.Event()])
    async with antiphon(backend, json_heartbeat=0.05) as url:
        async with asyncio.timeout(60):
            async with pending_answer(url):
                while not backend.waiting:
                    await asyncio.sleep(0.01)
            while backend.opened:
                await asyncio.sleep(0.01)

    assert backend.left == 1


async def test_server_that_stops_after_white_space_answers_with_a_failed_response() -> None:
    app = create_app(settings(json_heartbeat=0.05, shutdown_grace=0), backend=Scripted([*HELLO, asyncio.Event()]))
    async with contextlib.AsyncExitStack() as stopping:
        url = await stopping.enter_async_context(serving(app, timeout_graceful_shutdown=0.1))
        async with pending_answer(url) as (_, _, body):
            reading = asyncio.create_task(rest_of(body))
            await stopping.aclose()
            response = await reading

    ResponseResource.model_validate(response)
    assert response["status"] == "failed"
    assert response["error"]["message"].startswith("The server was stopped")
