"""
Cost of huge backend events. `python -m tests.api.huge_answers` prints JSON by the names in `ROWS`: `held`, the longest
block of the event loop in CPU seconds; `memory`, the peak in bytes; and `same`, whether the client received the
backend's text.

Each row runs in a separate process, with backend and client in two others, over real sockets.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import orjson
import websockets.sync.client as websockets

from app.main import create_app
from app.runtime.process import map_large_blocks
from tests.api.huge_bodies import prepare, reset_peak, status_of
from tests.support.loop_holds import watched_loop
from tests.support.serving import serving, settings

SIZE = int(os.environ.get("HUGE_ANSWERS_MB", "16")) * 1024 * 1024

_END = b"data: [DONE]\n\n"


def _text(piece: str, *, ascii: bool = False) -> str:
    return piece * (SIZE // len(json.dumps(piece, ensure_ascii=ascii)[1:-1].encode()))


def _arguments(piece: str) -> str:
    return json.dumps({"input": ""})[:-2] + _text(piece) + '"}'


def _event(delta: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps({"choices": [{"index": 0, "delta": delta}]}) + _END


def _document(message: dict[str, Any]) -> bytes:
    return orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def _call(arguments: str, name: str = "f") -> dict[str, Any]:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [call]}


class Answer(NamedTuple):
    """A backend answer, and its text as the client must receive it."""

    text: Callable[[], str]
    delta: Callable[[str], dict[str, Any]]
    encode: Callable[[dict[str, Any]], bytes] = _event


def _content(text: str) -> dict[str, Any]:
    return {"content": text}


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text}


ANSWERS = {
    "text": Answer(lambda: _text("word "), _content),
    "newlines": Answer(lambda: _text("a\n"), _content),
    "Chinese": Answer(lambda: _text("你好"), _content),
    "escapes": Answer(lambda: _text("你好", ascii=True), _content, lambda delta: _ascii(delta)),
    "surrogates": Answer(lambda: _text("a\ud800", ascii=True), _content, lambda delta: _ascii(delta)),
    "reasoning": Answer(lambda: _text("hmm\n"), _reasoning),
    "encrypted reasoning": Answer(lambda: base64.b64encode(Random(0).randbytes(SIZE * 3 // 4)).decode(), _reasoning),
    "call": Answer(lambda: _arguments('word \\"hi\\", '), _call),
    "cut call": Answer(lambda: _arguments('word \\"hi\\", ')[:-2], _call),
    "quoted call": Answer(lambda: orjson.dumps(_arguments("word ")).decode(), _call),
    "custom call": Answer(lambda: _arguments("line \\n"), lambda text: _call(text, "c")),
    "document": Answer(lambda: _text("word "), _content, _document),
    "document call": Answer(lambda: _arguments('word \\"hi\\", '), _call, _document),
}


def _ascii(delta: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + _END


class Row(NamedTuple):
    """An answer, the client's transport, and the store."""

    answer: str
    transport: str  # json, sse, websocket, background
    store: str = "memory"


ROWS = {
    f"{answer}, {transport}, {store}": Row(answer, transport, store)
    for answer in ANSWERS
    for transport in ("json", "sse", "websocket", "background")
    for store in ("memory", "sqlite")
}

_TOOLS = [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]


def _received(url: str, row: Row, input: str = "Hi.") -> str:
    """Request the answer, check that deltas and final texts agree, and return the text."""
    body: dict[str, Any] = {"model": "m", "input": input, "tools": _TOOLS}
    if row.answer == "encrypted reasoning":
        body["include"] = ["reasoning.encrypted_content"]
    if row.transport == "websocket":
        with websockets.connect(url.replace("http", "ws") + "/v1/responses", max_size=None, compression=None) as socket:
            socket.send(json.dumps({"type": "response.create", **body}))
            events = []
            while not events or events[-1]["type"] not in ("response.completed", "response.incomplete"):
                events.append(orjson.loads(socket.recv()))
        return _checked(events)
    if row.transport == "json":
        return _text_of(orjson.loads(_posted(url, body))["output"][-1])
    body |= {"stream": True, "background": row.transport == "background"}
    lines = _posted(url, body).split(b"\n")
    return _checked([orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")])


def _posted(url: str, body: dict[str, Any]) -> bytes:
    """Return the body of the answer to a request; `httpx` would take longer for it than the server."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/responses", orjson.dumps(body))
        return connection.getresponse().read()


def _checked(events: list[dict[str, Any]]) -> str:
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    text = _text_of(events[-1]["response"]["output"][-1])
    assert "".join(event["delta"] for event in events if event["type"].endswith(".delta")) == text
    done = [event for event in events if event["type"].endswith(".done")]
    for event in done:
        texts = [event.get(name) for name in ("text", "arguments", "input") if name in event]
        if "part" in event:
            texts.append(event["part"]["text"])
        if "item" in event:
            texts.append(_text_of(event["item"]))
        assert texts == [text]
    assert done
    return text


def _text_of(item: dict[str, Any]) -> str:
    match item["type"]:
        case "function_call":
            return item["arguments"]
        case "custom_tool_call":
            return item["input"]
    return item["content"][0]["text"]


def _expected(answer: Answer) -> str:
    text = answer.text().replace("\ud800", "\ufffd")
    if answer is ANSWERS["custom call"]:
        return json.loads(text)["input"]
    return json.loads(text) if answer is ANSWERS["quoted call"] else text


async def _serve_backend(answer: bytes, port: int) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        body = await reader.readexactly(length)
        ordinary = _event(_content("Hello."))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + (answer if b"Hi." in body else ordinary))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    os.write(port, str(server.sockets[0].getsockname()[1]).encode())
    await asyncio.Event().wait()


@contextlib.contextmanager
def _process(work: Callable[[int], None]) -> Iterator[int]:
    """Run a function in another process with a pipe to write to; yields the read end."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            work(writing)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    try:
        yield reading
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


async def _cost(row: Row, backend_url: str) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as directory:
        store = "memory://" if row.store == "memory" else f"sqlite:///{directory}/responses.db"
        app = create_app(settings(backend_url=backend_url, store_url=store))
        options = {"ws": "app.api.uvicorn.websocket:WebSocketProtocol", "http": "app.api.uvicorn.http:HTTPProtocol"}
        async with serving(app, ws_per_message_deflate=False, **options) as url:

            def client(output: int) -> None:
                while command := os.read(commands, 1):
                    text = _received(url, row, "Hello." if command == b"w" else "Hi.")
                    os.write(output, b"1" if command == b"w" or text == _expected(ANSWERS[row.answer]) else b"0")

            commands, write = os.pipe()
            with _process(client) as answers:
                os.write(write, b"w")
                await loop.run_in_executor(None, os.read, answers, 1)
                await asyncio.sleep(0.1)
                memory = reset_peak()
                async with watched_loop() as holds:
                    os.write(write, b"x")
                    same = await loop.run_in_executor(None, os.read, answers, 1)
                return {"held": holds.longest, "memory": status_of("VmHWM") - memory, "same": same == b"1"}


def measured(row: Row) -> Any:
    answer = ANSWERS[row.answer]

    def backend(output: int) -> None:
        asyncio.run(_serve_backend(answer.encode(answer.delta(answer.text())), output))

    def server(output: int) -> None:
        map_large_blocks()
        os.write(output, json.dumps(asyncio.run(_cost(row, url))).encode())

    with _process(backend) as port:
        url = f"http://127.0.0.1:{os.read(port, 10).decode()}"
        with _process(server) as result:
            return json.loads(os.read(result, 1000))


if __name__ == "__main__":
    prepare()
    costs = {}
    for name in sys.argv[1:] or ROWS:
        costs[name] = cost = measured(ROWS[name])
        if os.environ.get("VERBOSE"):
            print(f"{name:34} {cost['held'] * 1000:5.0f} ms {cost['memory'] / SIZE:5.1f}x {cost['same']}", flush=True)
    if not os.environ.get("VERBOSE"):
        print(json.dumps(costs))
