"""
A caller's view: the same input in every delivery mode, with comparable outcomes.

    async with calling(url) as caller:
        assert (await caller.ask("sse")).outcome == Ended(text="Hello")
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
from websockets.asyncio.client import ClientConnection

from app.core.types.request import TERMINAL, Event
from tests.responses.test_background import parsed
from tests.support import laws
from tests.support.sockets import dial, hear_out, send
from tests.support.upstream import CLOSE, DONE, chunk, finish, sse

FOREGROUND = ("json", "sse", "websocket")
WAYS = (*FOREGROUND, "background", "followed")
ASK = {"model": "m", "input": "Hi"}


@dataclass(frozen=True)
class Refused:
    """An HTTP error, or its WebSocket equivalent."""

    status: int
    code: str

    def __str__(self) -> str:
        return f"{self.status} `{self.code}`"


@dataclass(frozen=True)
class Ended:
    """A response that ended in any way."""

    status: str = "completed"
    code: str | None = None  # its error code, or why it is incomplete
    text: str = ""

    def __str__(self) -> str:
        if self.status == "completed":
            return "`completed`"
        return f"`{self.status}` (`{self.code}`)" + (" with the text" if self.text else "")


Outcome = Refused | Ended

# A healthy backend's answer. Each uses a new connection: requests are retried if a reused connection closes without an
# answer.
HELLO = [*sse(chunk("Hel"), chunk("lo"), finish(), DONE, headers={"Connection": "close"}), CLOSE]
COMPLETED = Ended(text="Hello")


class Seen(NamedTuple):
    """The outcome of a request."""

    outcome: Outcome
    response: dict[str, Any] | None = None  # the last received state


def outcomes(seen: dict[str, Seen]) -> dict[str, Outcome]:
    return {way: each.outcome for way, each in seen.items()}


def received_responses(seen: dict[str, Seen]) -> list[dict[str, Any]]:
    """Return the received responses by id."""
    return sorted((each.response for each in seen.values() if each.response), key=lambda response: response["id"])


class Caller:
    """One client, with a connection for each way; the WebSocket is the same for all turns."""

    def __init__(self, http: httpx.AsyncClient, socket: ClientConnection) -> None:
        self.http = http
        self._socket = socket

    async def ask(self, way: str, **fields: Any) -> Seen:
        """Send a request, and return its outcome at the end. Events are checked against the laws."""
        seen: Seen = await getattr(self, f"_{way}")({**ASK, **fields})
        return seen

    async def ask_all(self, **fields: Any) -> dict[str, Seen]:
        """Ask in every way at once."""
        return dict(zip(WAYS, await asyncio.gather(*(self.ask(way, **fields) for way in WAYS)), strict=True))

    async def _json(self, body: dict[str, Any]) -> Seen:
        return _answer(await self.http.post("/responses", json=body))

    async def _sse(self, body: dict[str, Any]) -> Seen:
        answer = await self.http.post("/responses", json={**body, "stream": True})
        return _stream(parsed(answer.text)) if answer.is_success else _answer(answer)

    async def _websocket(self, body: dict[str, Any]) -> Seen:
        await send(self._socket, **body)
        frames = await hear_out(self._socket)
        if "status" in frames[-1]:
            return Seen(Refused(frames[-1]["status"], frames[-1]["error"]["code"]))
        return _stream(frames)

    async def _followed(self, body: dict[str, Any]) -> Seen:
        return await self._sse({**body, "background": True})

    async def _background(self, body: dict[str, Any]) -> Seen:
        queued = await self.http.post("/responses", json={**body, "background": True})
        if not queued.is_success:
            return _answer(queued)
        pause = 0.02
        async with asyncio.timeout(120):
            while True:
                answer = await self.http.get(f"/responses/{queued.json()['id']}")
                if answer.status_code != 503 and (response := answer.json())["status"] in TERMINAL:
                    return Seen(ended(response), response)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.2)


@contextlib.asynccontextmanager
async def calling(url: str) -> AsyncIterator[Caller]:
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=120, trust_env=False) as http, dial(url) as socket:
        yield Caller(http, socket)


def ended(response: dict[str, Any]) -> Ended:
    """The outcome of a finished response."""
    assert response["status"] in TERMINAL
    text = "".join(part["text"] for item in response["output"] for part in item.get("content", ()))
    incomplete = response["incomplete_details"] or {}
    return Ended(response["status"], (response["error"] or {}).get("code") or incomplete.get("reason"), text)


def _answer(answer: httpx.Response) -> Seen:
    document = json.loads(answer.content)  # in the API's shape, whatever happened
    if answer.is_success:
        return Seen(ended(document), document)
    assert document["error"].keys() == {"type", "code", "message", "param"}
    assert "retry-after" in answer.headers or document["error"]["code"] != "store_unavailable"
    return Seen(Refused(answer.status_code, document["error"]["code"]))


def _stream(events: list[Event]) -> Seen:
    laws.check(events)
    response = events[-1]["response"]
    return Seen(ended(response), response)
