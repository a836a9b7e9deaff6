"""
Antiphon with a fault: a change to its requests or answers.

A fault names the check that must find it. `also` names checks of the same property, which must fail, too. No other
check may fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openresponses_verify.exchange import read_events

Json = dict[str, Any]
Events = list[Json]


@dataclass
class Sent:
    """A request as the application gets it, after the fault."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]
    memory: Json = field(default_factory=dict)  # the fault's memory of earlier requests

    @property
    def creates(self) -> bool:
        """Whether it asks for a response."""
        return self.method == "POST" and self.path == "/responses" and isinstance(self.body, dict)

    def asks(self, **fields: Any) -> bool:
        """Whether it asks for a response with these fields."""
        return self.creates and all(self.body.get(name) == value for name, value in fields.items())


@dataclass
class Reply:
    """An answer as the application gave it."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self) -> Any:
        return json.loads(self.content) if self.content and not self.streams else None

    @json.setter
    def json(self, document: Any) -> None:
        self.content = json.dumps(document).encode()

    @property
    def events(self) -> Events:
        return [json.loads(event.data) for event in read_events(self.content) if event.data != "[DONE]"]

    @events.setter
    def events(self, events: Iterable[Json]) -> None:
        frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        self.content = "".join([*frames, "data: [DONE]\n\n"]).encode()


def unchanged(*values: Any) -> None:
    """Change nothing."""


@dataclass
class Fault:
    name: str
    found_by: str
    also: tuple[str, ...] = ()  # patterns
    request: Callable[[Sent], Any] = unchanged
    reply: Callable[[Reply, Sent], Any] = unchanged
    frames: Callable[[Json, Json], Iterable[Json] | None] = unchanged  # of the WebSocket, with a memory


FAULTS: list[Fault] = []


class BrokenServer:
    """The application with a fault."""

    def __init__(self, app: ASGIApp, fault: Fault) -> None:
        self._app = app
        self._fault = fault
        self._memory: Json = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        content, more = b"", True
        while more:
            message = await receive()
            content, more = content + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        sent = Sent(scope["method"], scope["path"].removeprefix("/v1"), _read(content), headers, memory=self._memory)
        self._fault.request(sent)
        if sent.body is not None:
            content = json.dumps(sent.body).encode()
            sent.headers["content-length"] = str(len(content))
        scope = {**scope, "method": sent.method, "path": sent.path, "raw_path": sent.path.encode()}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in sent.headers.items()]
        waiting: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def modified_request() -> Message:
            return waiting.pop() if waiting else await receive()

        reply = Reply(0, {}, b"")

        async def collect_reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            elif message["type"] == "http.response.body":
                reply.content += message.get("body", b"")

        await self._app(scope, modified_request, collect_reply)
        self._fault.reply(reply, sent)
        reply.headers.pop("content-length", None)
        raw = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        await send({"type": "http.response.body", "body": reply.content})

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        memory: Json = {}

        async def send_modified(message: Message) -> None:
            frame = message.get("text") if message["type"] == "websocket.send" else None
            changed = self._fault.frames(json.loads(frame), memory) if frame else None
            if changed is None:
                await send(message)
                return
            for document in changed:
                text = document["raw"] if "raw" in document else json.dumps(document)
                await send({"type": "websocket.send", "text": text})

        await self._app(scope, receive, send_modified)


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


# Declaration of faults: a function with one change, and where it applies.


def _register(name: str, found_by: str, also: tuple[str, ...], **hooks: Any) -> None:
    assert name not in [fault.name for fault in FAULTS]
    FAULTS.append(Fault(name, found_by, also, **hooks))


def in_request(found_by: str, *also: str) -> Callable[[Callable[[Sent], Any]], Any]:
    """Register a function that changes requests."""
    return lambda change: _register(change.__name__, found_by, also, request=change)


def in_reply(found_by: str, *also: str) -> Callable[[Callable[[Reply, Sent], Any]], Any]:
    """Register a function that changes answers."""
    return lambda change: _register(change.__name__, found_by, also, reply=change)


def in_frames(found_by: str, *also: str) -> Callable[[Callable[[Json, Json], Any]], Any]:
    """Register a function that maps a frame to the frames to send; None keeps it."""
    return lambda change: _register(change.__name__, found_by, also, frames=change)


def in_stream(found_by: str, *also: str) -> Callable[[Callable[[Events], Any]], Any]:
    """Register a function that changes or replaces an unstored stream's events; they are renumbered."""

    def decorate(change: Callable[[Events], Any]) -> None:
        def reply(answer: Reply, sent: Sent) -> None:
            if answer.streams and sent.asks(store=False):
                events = answer.events
                numbers = [event["sequence_number"] for event in events]
                changed = change(events)
                events = events if changed is None else list(changed)
                if [event.get("sequence_number") for event in events] != numbers and "sequence" not in change.__name__:
                    events = [{**event, "sequence_number": n} for n, event in enumerate(events)]
                answer.events = events

        _register(change.__name__, found_by, also, reply=reply)

    return decorate


def in_response(found_by: str, *also: str, streamed: bool = False) -> Callable[[Callable[[Json, Sent], Any]], Any]:
    """Register a function that changes unstored responses, both JSON and events."""

    def decorate(change: Callable[[Json, Sent], Any]) -> None:
        def reply(answer: Reply, sent: Sent) -> None:
            if answer.status != 200 or not sent.asks(store=False):
                return
            if not answer.streams:
                document = answer.json
                change(document, sent)
                answer.json = document
            elif streamed:
                events = answer.events
                for event in events:
                    if "response" in event:
                        change(event["response"], sent)
                answer.events = events

        _register(change.__name__, found_by, also, reply=reply)

    return decorate


def of_type(events: Events, type: str) -> Iterator[Json]:
    return (event for event in events if event["type"] == type)


def without(events: Events, type: str) -> Events:
    return [event for event in events if event["type"] != type]
