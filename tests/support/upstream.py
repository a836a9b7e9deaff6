"""
A scripted Chat Completions server on a real socket, which records its requests.

    async with Upstream() as up:
        up.say(sse(chunk("Hel"), chunk("lo"), finish(), DONE))
        ...                                          # ask `up.url`
        assert up.requests[0].json["model"] == "m"

An answer is a list of steps: bytes are sent unchanged, a number is a pause in seconds, an `asyncio.Event` is awaited,
and `CLOSE`, `RESET` and `HANG` act on the connection. Without these, it stays open for the next request.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias, cast

import pytest_asyncio

from tests.support.ports import free_port


@dataclass(frozen=True)
class _Sign:
    name: str


CLOSE: Final = _Sign("close")  # end the connection as a server does
RESET: Final = _Sign("reset")  # end it as a crash does
HANG: Final = _Sign("hang")  # say nothing more until the client has gone
DONE: Final = "[DONE]"

Step: TypeAlias = bytes | float | asyncio.Event | _Sign
_LAST = (CLOSE, RESET, HANG)


@dataclass
class Received:
    """A request as it came in."""

    method: str
    path: str  # with the query
    headers: dict[str, str]  # by name in lower case
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set when the client goes before the answer is over
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # set when all of the answer is sent
    sent: int = 0  # how many steps of the answer were taken

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Upstream:
    """
    A server on a free loopback port.

    `say` adds the answer to a later request; `always` answers all others. `models` is the answer to `GET .../models`,
    unless None. It has the Responses API only if `native`.
    """

    port = 0  # chosen when it is first opened, and kept
    native = False

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.connections = 0  # how many there have been
        self.models: list[dict[str, Any]] | None = [{"id": "m", "object": "model", "created": 0, "owned_by": "test"}]
        self._scripts: deque[list[Step]] = deque()
        self._always = status(500, {"error": {"message": "This upstream was told to say nothing."}})
        self._lines: set[_Line] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def say(self, *steps: Step | Iterable[Step]) -> None:
        """Answer the next request without an answer with these steps."""
        self._scripts.append(_flat(steps))

    def always(self, *steps: Step | Iterable[Step]) -> None:
        """Answer all other requests with these steps."""
        self._always = _flat(steps)

    def answer_to(self, request: Received) -> list[Step]:
        """Choose the steps for a request, and note it."""
        if request.method == "GET" and request.path.partition("?")[0].endswith("/models") and self.models is not None:
            return reply(json.dumps({"object": "list", "data": self.models}).encode())
        if request.method == "POST" and request.path.endswith("/responses") and not self.native:
            return status(404, {"error": {"message": "Not found", "type": "invalid_request_error"}})
        self.requests.append(request)
        return self._scripts.popleft() if self._scripts else self._always

    async def open(self) -> None:
        """Listen, at the port where it was if it was closed before."""
        self.port = self.port or free_port()  # stays reserved after closing
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Line(self, self._lines), "127.0.0.1", self.port)

    async def close(self) -> None:
        """Break off every connection, and take no more."""
        self._server.close()
        lost = [line.lost.wait() for line in self._lines]
        for line in list(self._lines):
            line.abort()
        await asyncio.gather(*lost)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as up:
        yield up


class _Line(asyncio.Protocol):
    """A client connection."""

    def __init__(self, upstream: Upstream, lines: set[_Line]) -> None:
        self._upstream = upstream
        self._lines = lines
        self._data = bytearray()
        self._request: Received | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # as uvloop's is, though not by inheritance
        self._upstream.connections += 1
        self._lines.add(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.discard(self)
        self.lost.set()
        if self._request:
            self._request.gone.set()
        if self._task:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        self._transport.abort()

    def _next(self) -> None:
        end = self._data.find(b"\r\n\r\n")
        if self._request or end < 0:
            return
        first, *lines = self._data[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        begin = end + 4
        end = begin + int(headers.get("content-length", 0))
        if len(self._data) < end:
            return
        body = bytes(self._data[begin:end])
        del self._data[:end]
        method, path, _ = first.split(" ")
        self._request = Received(method, path, headers, body)
        steps = self._upstream.answer_to(self._request)
        self._task = asyncio.get_running_loop().create_task(self._play(self._request, steps))

    async def _play(self, request: Received, steps: list[Step]) -> None:
        for step in steps:
            request.sent += 1
            match step:
                case bytes():
                    await self._writable.wait()  # for slow clients
                    self._transport.write(step)
                case asyncio.Event():
                    await step.wait()
                case _Sign():
                    await self._leave(step)
                case _:
                    await asyncio.sleep(step)
        request.answered.set()
        self._request = self._task = None
        self._next()

    async def _leave(self, sign: _Sign) -> None:
        self._request = None if sign is not HANG else self._request
        if sign is CLOSE:
            self._transport.close()
        elif sign is RESET:
            # Closing a socket without linger resets it.
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        await self.lost.wait()


def _flat(steps: Iterable[Step | Iterable[Step]]) -> list[Step]:
    flat: list[Step] = []
    for step in steps:
        flat += [step] if isinstance(step, bytes | int | float | asyncio.Event | _Sign) else step
    return flat


# Steps of a server.


def sse(*frames: dict[str, Any] | str | Step, headers: Mapping[str, str] | None = None) -> list[Step]:
    """
    An event stream: a dict or string is an event's data, sent as one write; bytes are sent unchanged.

    Pauses, events and signals may stand between frames. The body ends normally, unless a signal is last.
    """
    steps: list[Step] = [head({"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **(headers or {})})]
    for frame in frames:
        match frame:
            case dict():
                steps.append(piece(b"data: %s\n\n" % json.dumps(frame).encode()))
            case str():
                steps.append(piece(b"data: %s\n\n" % frame.encode()))
            case bytes():
                steps.append(piece(frame))
            case _:
                steps.append(frame)
    return steps if steps[-1] in _LAST else [*steps, piece(b"")]


def chunk(content: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk with some text, or whatever else its delta has."""
    return _chunk({"content": content, **delta} if content is not None else delta)


def finish(reason: str | None = "stop", *, usage: dict[str, Any] | None = None, **delta: Any) -> dict[str, Any]:
    """The chunk with the finish reason."""
    last = _chunk(delta)
    last["choices"][0]["finish_reason"] = reason
    return {**last, "usage": usage} if usage else last


def usage(prompt: int = 5, completion: int = 2) -> dict[str, Any]:
    """The usage chunk at the end, without a choice."""
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**_chunk({}), "choices": [], "usage": tokens}


def call(index: int = 0, *, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    """A chunk with a piece of a tool call."""
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return chunk(tool_calls=[{"index": index, "function": function} | ({"id": id, "type": "function"} if id else {})])


def _chunk(delta: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def completion(content: str | None = "hi", *, reason: str = "stop", **message: Any) -> list[Step]:
    """A JSON completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}
    tokens = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    document = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return reply(json.dumps({**document, "usage": tokens}).encode())


def status(code: int, document: Any = None, headers: Mapping[str, str] | None = None) -> list[Step]:
    """A JSON answer with a status of its own."""
    return reply(b"" if document is None else json.dumps(document).encode(), status=code, headers=headers)


def reply(
    body: bytes, content_type: str = "application/json", *, status: int = 200, headers: Mapping[str, str] | None = None
) -> list[Step]:
    """An answer of known length, whatever it is."""
    fields = {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})}
    return [head(fields, status) + body]


def head(fields: Mapping[str, str], status: int = 200) -> bytes:
    """The status line and the headers of an answer; an empty value leaves a header out."""
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode()


def piece(data: bytes) -> bytes:
    """A chunk of a chunked body; an empty chunk is the last."""
    return b"%x\r\n%s\r\n" % (len(data), data)
