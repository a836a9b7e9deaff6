"""A response ends once, whatever becomes of whoever listens to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Scope

from app.errors import StoreUnavailable
from app.main import create_app
from app.stores import Change
from app.stores.memory import MemoryStore
from tests.support import sockets
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import settings


def scope(**body: Any) -> tuple[Scope, bytes]:
    """A request as an ASGI server hands it over."""
    address = {"server": ("localhost", 80), "client": ("127.0.0.1", 1), "scheme": "http", "root_path": ""}
    request_line = {"method": "POST", "path": "/v1/responses", "raw_path": b"/v1/responses", "query_string": b""}
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    versions = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1"}
    return {**versions, **request_line, **address, "headers": headers, "state": {}}, json.dumps(body).encode()


async def cancelled_at(app: ASGIApp, word: bytes) -> list[dict[str, Any]]:
    """Stop a request while the first event with this word waits for buffer space; return the sent events."""
    request, body = scope(model="m", input="Hi", stream=True)
    sent: list[bytes] = []
    slow = asyncio.Event()

    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Message) -> None:
        chunk = message.get("body", b"")
        if word in chunk and not slow.is_set():
            slow.set()
            await asyncio.Event().wait()  # the buffer stays full
        sent.append(chunk)

    task = asyncio.create_task(app(request, receive, send))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        await slow.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    lines = b"".join(sent).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def status(app: ASGIApp, id: str) -> str:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        return str((await http.get(f"/v1/responses/{id}")).json()["status"])


@pytest.mark.parametrize(
    ("word", "ending"),
    [(b"response.output_text.delta", "failed"), (b"response.completed", "completed")],
)
async def test_server_that_stops_does_not_take_back_what_has_ended(word: bytes, ending: str) -> None:
    app = create_app(settings(), backend=Scripted([delta(content="Hello")]), store=MemoryStore(ttl=60))
    events = await cancelled_at(app, word)
    terminal = [event["type"] for event in events if event["type"] in ("response.completed", "response.failed")]
    assert terminal == [f"response.{ending}"]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert await status(app, events[0]["response"]["id"]) == ending


class UnconfirmedStore(MemoryStore):
    """A store whose first write succeeds without confirmation."""

    late = True

    async def apply(self, *changes: Change) -> bool:
        made = await super().apply(*changes)
        if self.late:
            self.late = False
            raise StoreUnavailable("The store is away.")
        return made


async def test_response_that_is_stored_late_equals_the_stream() -> None:
    app = create_app(settings(), backend=Scripted([delta(content="Hello")]), store=UnconfirmedStore(ttl=60))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        response = (await http.post("/v1/responses", json={"model": "m", "input": "Hi"})).json()
        assert (response["status"], response["error"]["message"]) == ("failed", "The store is away.")
        assert (await http.get(f"/v1/responses/{response['id']}")).json() == response


WARNED = "The parameter 'sead' is not supported by this backend and was ignored."


async def events_of(url: str, way: str, **body: Any) -> list[dict[str, Any]]:
    """Send a request in an event delivery mode, and return its events."""
    body = {"model": "m", "input": "Hi", "sead": 1, **body}
    if way == "websocket":
        async with sockets.dial(url) as socket:
            return await sockets.ask(socket, **body)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        answer = await http.post("/v1/responses", json={**body, "stream": True, "background": way == "background"})
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("way", ["sse", "websocket", "background"])
async def test_warnings_are_events_if_included(way: str) -> None:
    async with sockets.listening(Scripted([delta(content="Hello")])) as url:
        events = await events_of(url, way, include=["antiphon:events"])
        unasked = await events_of(url, way)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    warned = [event for event in events if event["type"] == "antiphon:warning"]
    assert warned == [
        {
            "type": "antiphon:warning",
            "sequence_number": warned[0]["sequence_number"],
            "source": "framework",
            "message": WARNED,
        }
    ]
    assert events[-1]["type"] == "response.completed"
    assert not [event for event in unasked if event["type"].startswith("antiphon:")]
