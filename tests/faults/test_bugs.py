"""Unexpected exceptions in the server: the caller's outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, NamedTuple, cast

import httpx
import orjson
import pytest

from app.api.routes import websocket
from app.core.profile import Profile
from app.core.request.model_request import ModelRequest
from app.core.stream import event_batch
from app.stores import Change, EventSegment, LeaseState, RunKey
from app.stores.memory import MemoryLog, MemoryStore
from app.tools import HostedFunction, Outcome, Report, ToolCall, ToolHost
from tests.faults.callers import WAYS, Ended, Refused, calling, outcomes
from tests.faults.callers import Outcome as Seen
from tests.responses.test_background import parsed, until_ended
from tests.support import sockets
from tests.support.build import call, delta, finish
from tests.support.scripted import Scripted
from tests.support.sockets import listening

SECRET = "what only operators may read"
TABLES = {"buggy": {"tool": "tests.faults.test_bugs:BuggyTool"}}
HEL, LO = delta(content="Hel"), delta(content="lo")
CALLED: list[Any] = [HEL, call(0, "c0", "buggy__roll", "{}"), finish("tool_calls")]


class Bugs:
    """Where there is a bug now."""

    step = ""


def may_break(step: str, *, once: bool = False) -> None:
    """Raise if there is a bug in this step; `once`: it is over then."""
    if Bugs.step == step:
        Bugs.step = "" if once else step
        raise ZeroDivisionError(SECRET)


class BuggyBackend(Scripted):
    """Says "Hello", or with a hosted tool "Hel", a call of it, and then "lo"."""

    def __init__(self) -> None:
        super().__init__([HEL, LO])
        self._called = False  # whether the next model request has a tool's result

    def profile(self, model: str) -> Profile:
        if self._called:
            self._called = False
            may_break("translating a later round")
        return super().profile(model)

    async def _answer(self, model_request: ModelRequest) -> AsyncGenerator[list[Any], None]:
        may_break("opening the backend's stream")
        if Bugs.step == "opening the stream late":
            await asyncio.sleep(0.05)  # the stream is open by then, since `open_after` is 0
            may_break("opening the stream late")
        body = self.encode(model_request).body
        called = any(message["role"] == "tool" for message in body["messages"])
        offered = "tools" in body
        self.scripts = [[LO] if called else CALLED if offered else [HEL, LO]]
        async for batch in super()._answer(model_request):
            if not batch:  # it accepts the model request
                self._called = offered and not called
            yield batch
            if batch:
                may_break("reading the stream")
                if Bugs.step == "decoding a chunk":
                    yield [cast(Any, None)]


class BuggyTool:
    types = ("buggy",)

    @classmethod
    def from_settings(cls, table: object, host: ToolHost) -> BuggyTool:
        return cls()

    @contextlib.asynccontextmanager
    async def open(self, declaration: object) -> AsyncIterator[BuggyTool]:
        yield self
        may_break("closing a tool")

    async def functions(self, items: Sequence[Any], report: Report) -> Sequence[HostedFunction]:
        return [HostedFunction("roll", "mcp_call", namespace="buggy", fields={"server_label": "buggy", "name": "roll"})]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        may_break("running a tool")
        if Bugs.step == "encoding a tool's result":
            return Outcome(cast(Any, object()), {"output": "4"})
        if Bugs.step == "encoding a tool's item":
            return Outcome("4", {"output": object()})
        return Outcome("4", {"output": "4"})

    async def check(self) -> dict[str, str | None]:
        return {}

    async def aclose(self) -> None:
        pass


class BuggyStore(MemoryStore):
    async def apply(self, *changes: Change) -> bool:
        if any(b'"completed_at":1' in record for change in changes for record in change.put.values()):
            may_break("storing the response")
        return await super().apply(*changes)

    def log(self, *, ttl: float, lease: float) -> BuggyLog:
        return BuggyLog(ttl=ttl, lease=lease)


class BuggyLog(MemoryLog):
    async def append(self, run: RunKey, worker: str, batch: EventSegment) -> LeaseState:
        if batch.first > 1:
            may_break("log", once=True)
        return await super().append(run, worker, batch)

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        if after >= 0:
            may_break("read the log", once=True)
        return (await super().read(run, after, wait))[:1]


class Bug(NamedTuple):
    """A row: the bug's location, and the outcome."""

    name: str
    as_json: Seen
    streamed: Seen  # SSE and WebSocket
    background: Seen
    followed: Seen | None = None  # where it differs from `background`
    tool: bool = False  # whether the request has a hosted tool

    @property
    def seen(self) -> dict[str, Seen]:
        followed = self.followed or self.background
        return dict(zip(WAYS, (self.as_json, self.streamed, self.streamed, self.background, followed), strict=True))

    @property
    def row(self) -> str:
        """The line in docs/faults.md."""
        cells = (
            self.name,
            self.as_json,
            self.streamed,
            self.background,
            f"`test_bugs.py::test_bug_ends_as_documented[{self.name}]`",
        )
        return f"| {' | '.join(map(str, cells))} |"


REFUSED = Refused(500, "server_error")
FAILED, FAILED_WITH_TEXT = Ended("failed", "server_error"), Ended("failed", "server_error", "Hel")
FAILED_AFTER = Ended("failed", "server_error", "Hello")
HELLO = Ended(text="Hello")
FAULTS = [
    Bug("opening the backend's stream", REFUSED, REFUSED, FAILED),
    Bug("opening the stream late", REFUSED, FAILED, FAILED),
    Bug("reading the stream", *[FAILED_WITH_TEXT] * 3),
    Bug("decoding a chunk", *[FAILED_WITH_TEXT] * 3),
    Bug("translating a later round", *[FAILED_WITH_TEXT] * 3, tool=True),
    Bug("running a tool", *[HELLO] * 3, tool=True),
    Bug("encoding a tool's result", *[FAILED_WITH_TEXT] * 3, tool=True),
    Bug("encoding a tool's item", *[HELLO] * 3, tool=True),
    Bug("closing a tool", *[HELLO] * 3, tool=True),
    Bug("storing the response", *[FAILED_AFTER] * 3),
]


@pytest.mark.parametrize("bug", FAULTS, ids=lambda bug: bug.name)
async def test_bug_ends_as_documented(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"tools": [{"type": "buggy"}]} if bug.tool else {}
    store = BuggyStore(ttl=60)
    async with listening(BuggyBackend(), store, tools=TABLES, open_after=0, background_lease=0.5) as url:
        async with calling(url) as caller:
            seen = {}
            for way in WAYS:
                monkeypatch.setattr(Bugs, "step", bug.name)
                seen[way] = await caller.ask(way, **fields)
            assert outcomes(seen) == bug.seen
            assert SECRET not in repr(seen)
            monkeypatch.setattr(Bugs, "step", "")
            assert outcomes(await caller.ask_all(**fields)) == dict.fromkeys(WAYS, HELLO)


async def broken_off(url: str, way: str) -> list[dict[str, Any]]:
    """Return a stream's events up to the last, in a delivery mode."""
    body = {"model": "m", "input": "Hi"}
    if way == "websocket":
        async with sockets.dial(url) as socket:
            return await sockets.ask(socket, **body)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        answer = await http.post("/v1/responses", json={**body, "stream": True, "background": way == "background"})
    return parsed(answer.text)


@pytest.mark.parametrize("event", ["response.output_text.done", "response.completed"])
@pytest.mark.parametrize("way", ["sse", "websocket"])
async def test_event_that_cannot_be_encoded_ends_the_stream_failed(
    way: str, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(value: Any) -> bytes:
        if isinstance(value, dict) and value.get("type") == event:
            may_break("encode", once=True)
        return orjson.dumps(value)

    monkeypatch.setattr(event_batch, "dumps", encode)
    monkeypatch.setattr(websocket, "dumps", encode)
    store = BuggyStore(ttl=60)
    async with sockets.listening(BuggyBackend(), store) as url:
        monkeypatch.setattr(Bugs, "step", "encode")
        events = await broken_off(url, way)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        failed = events[-1]["response"]
        assert failed["output"][0]["content"][0]["text"] == "Hello"
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await http.get(f"/v1/responses/{failed['id']}")).json() == failed


async def test_log_that_cannot_be_written_ends_the_response_at_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sockets.listening(BuggyBackend(), BuggyStore(ttl=60), background_lease=0.5) as url:
        monkeypatch.setattr(Bugs, "step", "log")
        events = await broken_off(url, "background")
        last = events[-1]["response"]
        assert events[-1]["type"] == f"response.{last['status']}"
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await http.get(f"/v1/responses/{last['id']}")).json() == last


async def test_log_that_cannot_be_read_ends_the_stream_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ends with an error, but the response goes on."""
    async with sockets.listening(BuggyBackend(), BuggyStore(ttl=60)) as url:
        monkeypatch.setattr(Bugs, "step", "read the log")
        events = await broken_off(url, "background")
        assert (events[-1]["type"], events[-1]["error"]["code"]) == ("error", "server_error")
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            assert (await until_ended(http, events[0]["response"]["id"]))["status"] == "completed"
