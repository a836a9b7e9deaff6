"""Refusals beyond their status: retry time, server and allowed methods."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest

from app.api.request_body import warning_headers
from app.errors import BackendError
from tests.support import sockets
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

HELLO: list[Any] = [delta(content="Hello")]


@contextlib.asynccontextmanager
async def served(backend: Any = None, **settings: Any) -> Any:
    async with antiphon(backend or Scripted(HELLO), **settings) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield http


@pytest.mark.parametrize(
    ("path", "methods"),
    {
        "/v1/responses": {"POST"},
        "/v1/responses/resp_x": {"GET", "DELETE"},
        "/v1/responses/compact": {"POST"},
        "/responses/input_tokens": {"POST"},
        "/v1/conversations": {"POST"},
        "/v1/conversations/x": {"GET", "POST", "DELETE"},
        "/v1/conversations/x/items": {"GET", "POST"},
        "/v1/conversations/x/items/y": {"GET", "DELETE"},
        "/v1/models/a/b": {"GET"},
        "/healthz": {"GET", "HEAD"},
        "/health": {"GET", "HEAD"},
    }.items(),
)
async def test_method_that_is_not_allowed_is_refused_with_those_that_are(path: str, methods: set[str]) -> None:
    async with served() as http:
        answer = await http.put(path, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == methods


async def refused_late(error: BackendError) -> str:
    """The stream of a request that is refused once the stream is open."""
    go = asyncio.Event()
    body = {"model": "m", "input": "Hi", "stream": True}
    async with (
        served(Scripted([go, error]), open_after=0.05) as http,
        http.stream("POST", "/v1/responses", json=body) as answer,
    ):
        go.set()
        return (await answer.aread()).decode()


async def test_late_refusal_has_retry_after() -> None:
    busy = BackendError(
        "Busy.", status=429, error_type="too_many_requests", code="rate_limit_exceeded", retry_after=2.5
    )
    text = await refused_late(busy)
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    (error,) = (event for event in events if event["type"] == "error")
    assert error["error"]["headers"] == {"Retry-After": "3"}
    assert "headers" not in events[-1]["response"]["error"]


async def test_late_failure_without_retry_after_has_no_headers() -> None:
    text = await refused_late(BackendError("Broken."))
    (error,) = (json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: {"type":"error"'))
    assert "headers" not in error["error"]


@pytest.mark.parametrize(("conversation", "status"), [("conv_x", 404), ("x", 400)])
async def test_conversation_that_cannot_be_sent_is_named(conversation: str, status: int) -> None:
    async with served() as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "x", "conversation": conversation})
        there = await http.get(f"/v1/conversations/{conversation}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, "conversation")
    assert status == 404 or "begins with 'conv_'" in answer.json()["error"]["message"]
    assert (there.status_code, there.json()["error"]["param"]) == (404, "conversation_id")


async def test_readyz_does_not_return_the_backends_messages() -> None:
    class Refusing(Scripted):
        async def check(self) -> None:
            error = BackendError("You asked: my secret prompt", status=503, code="overloaded")
            error.quoted = True
            raise error

    async with served(Refusing(HELLO)) as http:
        answer = await http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable", "backend": "503 overloaded", "store": "ok"}


def test_warning_with_a_line_break_does_not_end_its_header() -> None:
    (value,) = warning_headers(["one\r\nx-mine: yes", "two\x00\x1b\x7f", "thr\u00e9e"]).values()
    assert value == "one x-mine: yes; two ; thr?e"


@pytest.mark.parametrize(
    ("fields", "expected_words"),
    [
        ({"include": ["nope"]}, ["nope"]),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, []),
        ({"include": ["a\nb", "c" * 500, *"defghijk" * 99]}, ["a"]),
        ({"stream_options": {"include_obfuscation": True}}, ["include_obfuscation"]),
        ({"stream_options": {"include_obfuscation": False}}, []),
        ({"stream_options": {}}, []),
    ],
)
async def test_unsupported_fields_are_a_warning(fields: dict[str, Any], expected_words: list[str]) -> None:
    async with served() as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "x", **fields})
    assert answer.status_code == 200
    warning = answer.headers.get("x-antiphon-warning", "")
    assert bool(warning) == bool(expected_words)
    assert all(word in warning for word in expected_words)
    assert len(warning) < 400


async def test_websocket_that_ends_by_a_bug_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("app.api.routes.websocket.WebSocketConnection._answer", broken)
    async with sockets.listening(Scripted(HELLO)) as url, sockets.dial(url) as socket:
        await sockets.send(socket)
        async with asyncio.timeout(60):
            await socket.wait_closed()
        assert socket.close_code == 1011
    assert [record for record in caplog.records if record.exc_info and record.exc_info[0] is ZeroDivisionError]


async def test_stored_turn_after_an_unstored_one_has_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Unstored turns are missing over HTTP, so a part of the conversation is lost."""
    async with sockets.listening(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        async with sockets.dial(url) as socket:
            first = await sockets.response(socket, store=False)
            assert not [one for one in caplog.records if one.msg == "dropped unsupported request field"]
            second = await sockets.response(socket, store=True, previous_response_id=first["id"])
        (warning,) = (
            record.__dict__["reason"] for record in caplog.records if record.msg == "dropped unsupported request field"
        )
        assert "store" in warning
        assert (await http.get(f"/v1/responses/{second['id']}")).status_code == 200
        body = {"model": "m", "input": "Hi", "previous_response_id": second["id"]}
        answer = await http.post("/v1/responses", json=body)
    assert answer.json()["error"]["code"] == "previous_response_not_found"
