"""Errors in the first event of a passed-through stream: an overload is retried like the same status."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.support.message_events import MessagesUpstream, message_stream, text_block
from tests.support.messages_server import frame
from tests.support.serving import antiphon
from tests.support.upstream import DONE, HANG, Upstream, chunk, finish, sse

OVERLOADED = sse(frame({"type": "error", "error": {"type": "overloaded_error", "message": "Full."}}))
BUSY = sse('{"error": {"message": "Busy.", "code": 503}}')
INVALID = sse('{"error": {"message": "No.", "type": "invalid_request_error", "code": 400}}')
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
MESSAGES = {**CHAT, "max_tokens": 10}
HELLO = sse(chunk("Hello"), finish(), DONE)


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.backends.server.client._BACKOFF", 0.001)


async def ask(path: str, body: dict[str, Any], **settings: Any) -> httpx.Response:
    async with antiphon(**settings) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as client:
        return await client.post(path, json=body)


async def test_overload_in_the_first_event_of_a_chat_stream_is_retried() -> None:
    async with Upstream() as up:
        up.say(BUSY)
        up.say(HELLO)
        answer = await ask("/chat/completions", CHAT, backend_url=up.url)
        assert len(up.requests) == 2
    assert answer.status_code == 200
    assert "Hello" in answer.text and "Busy" not in answer.text


async def test_stream_that_is_retried_is_closed() -> None:
    async with Upstream() as up:
        up.say([*BUSY[:2], HANG])
        up.say(HELLO)
        async with antiphon(backend_url=up.url) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as client:
            await client.post("/chat/completions", json=CHAT)
            await asyncio.wait_for(up.requests[0].gone.wait(), 60)


async def test_overload_in_the_first_event_of_a_messages_stream_is_retried() -> None:
    async with MessagesUpstream() as up:
        up.say(OVERLOADED)
        up.say(message_stream(*text_block(0, "Hello")))
        overrides = {"transport.messages": True}
        answer = await ask("/messages", MESSAGES, backend_url=up.url, backend_overrides=overrides)
        assert len(up.requests) == 2
    assert "Hello" in answer.text and "overloaded_error" not in answer.text


async def test_overload_in_the_first_event_fails_over_to_the_next_backend() -> None:
    async with Upstream() as busy, Upstream() as up:
        busy.always(BUSY)
        up.always(HELLO)
        backends = {"a": {"url": busy.url, "retries": 0}, "b": {"url": up.url}}
        answer = await ask("/chat/completions", CHAT, backends=backends)
    assert "Hello" in answer.text


async def test_overload_that_lasts_is_an_http_error() -> None:
    async with Upstream() as up:
        up.always(BUSY)
        answer = await ask("/chat/completions", CHAT, backend_url=up.url, backend_retries=1)
        assert len(up.requests) == 2
    assert answer.status_code == 503
    assert json.loads(answer.text)["error"]["code"] == "server_is_overloaded"


async def test_other_error_in_the_first_event_is_passed_on() -> None:
    async with Upstream() as up:
        up.say(INVALID)
        answer = await ask("/chat/completions", CHAT, backend_url=up.url)
        assert len(up.requests) == 1
    assert answer.status_code == 200
    assert answer.text == 'data: {"error": {"message": "No.", "type": "invalid_request_error", "code": 400}}\n\n'
