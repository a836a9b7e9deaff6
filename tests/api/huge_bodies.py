"""
Cost of huge bodies. `python -m tests.api.huge_bodies` prints JSON by the names in `ROWS`: CPU seconds, the event loop's
longest block (see `LoopHolds`), bytes of memory, bytes in the body, and the status.

Each row runs in a separate process, over real sockets.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson
import zstandard

from app.core.history.compaction import CONTENT_MARK
from app.main import create_app
from app.runtime.process import map_large_blocks, tune_gc
from tests.support.loop_holds import watched_loop
from tests.support.serving import serving, settings
from tests.support.upstream import CLOSE, Upstream

SIZE = 8 * 1024 * 1024
LARGE = 60 * 1024 * 1024
SMALL = 4 * 1024 * 1024
MANY = 33_000  # messages with three JSON values each; 100,000 are accepted

_TEXT = b'{"type": "response.create", "model": "m", "input": [%b]}'
_JUNK = b'{"type": "response.create", "model": "m", "input": "Hi.", "junk": [%b]}'
_EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi."}}], "junk": [%b]}\n\ndata: [DONE]\n\n'
_DOCUMENT = b'{"choices": [{"index": 0, "message": {"content": "Hi."}, "finish_reason": "stop"}], "junk": [%b]}'
_EMPTY = b"[]"
SQLITE = "sqlite:///{}/store.db"
DEPLOYMENT = "/openai/deployments/d/embeddings"  # its name replaces the model's
POSTGRES, REDIS = "POSTGRES_URL", "REDIS_URL"  # servers with their URLs in the environment


def text(piece: bytes, size: int = SIZE) -> bytes:
    """Messages that repeat a piece of JSON text; a single text may have 10 MiB."""
    message = b'{"role": "user", "content": "%b"}' % (piece * (SIZE // 4 // len(piece)))
    return _TEXT % b",".join([message] * (4 * size // SIZE))


def message(content: object) -> bytes:
    return _TEXT % orjson.dumps({"role": "user", "content": content})


def messages(size: int) -> bytes:
    """The maximum number of messages, in a body with about `size` bytes."""
    return _TEXT % b",".join([orjson.dumps({"role": "user", "content": "word " * (size // MANY // 5)})] * MANY)


def extensions() -> bytes:
    """The maximum number of items, with the fewest values."""
    return _TEXT % b",".join([b'{"role":"user","content":"Hi."}', *[b'{"type":"x:y"}'] * 49_000])


def image() -> bytes:
    """A picture in a data URL."""
    url = "data:image/png;base64," + "iVBORw0K" * (SIZE // 8)
    return message([{"type": "input_image", "image_url": url}])


def three(*items: dict[str, Any]) -> bytes:
    """Some items three times, each with an 8 MB part."""
    hello = b'{"role": "user", "content": "Hi."}'
    return _TEXT % b",".join([hello, *[orjson.dumps(item) for item in items] * 3])


def encrypted() -> bytes:
    """Reasoning encrypted with a lost key."""
    sealed = CONTENT_MARK + base64.urlsafe_b64encode(Random(0).randbytes(SIZE // 4 * 3)).decode()
    return three({"type": "reasoning", "summary": [], "encrypted_content": sealed})


def large_calls() -> bytes:
    """Calls with large arguments."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"a": "word " * (SIZE // 5)})}
    return three(call, {"type": "function_call_output", "call_id": "c", "output": "x"})


def custom_calls() -> bytes:
    """Custom tool calls with a large input."""
    call = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "word " * (SIZE // 5)}
    return three(call, {"type": "custom_tool_call_output", "call_id": "c", "output": "x"})


def files() -> bytes:
    """Large text files."""
    data = base64.b64encode(b"word " * (SIZE // 20 * 3)).decode()
    file = {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"}
    return three({"role": "user", "content": [file]})


def encoded(charset: str) -> bytes:
    """Text files with a charset other than UTF-8."""
    data = base64.b64encode(b"\xe9-" + b"word" * (SIZE // 16 * 3)).decode()
    file = {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;charset={charset};base64,{data}"}
    return three({"role": "user", "content": [file]})


def descriptions() -> bytes:
    """Tools with large descriptions."""
    tools = [{"type": "function", "name": f"f{index}", "description": "word " * (SIZE // 5)} for index in range(3)]
    return orjson.dumps({"model": "m", "input": "Hi.", "tools": tools})


def conversation() -> bytes:
    """A new conversation's messages."""
    return b'{"items": [%b' % three({"role": "user", "content": "word " * (SIZE // 5)}).partition(b"[")[2]


def parts() -> bytes:
    """A message with many texts."""
    return message([{"type": "input_text", "text": "word " * 120}] * (SIZE // 640))


def many(value: bytes, template: bytes = _JUNK) -> bytes:
    """The same value again and again."""
    return template % ((value + b",") * (SIZE // (len(value) + 1)))[:-1]


def calls() -> bytes:
    """Calls with arguments as JSON in a string, each below the limit."""
    arguments = orjson.dumps({"a": [[]] * 20_000}).decode()
    call = orjson.dumps({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments})
    return many(call, _TEXT)


def arguments(values: str) -> bytes:
    """A call with streamed arguments."""
    piece = {"index": 0, "id": "c", "function": {"name": "f", "arguments": values * (60_000 // len(values))}}
    begin = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": ['}}
    events = [begin, *([piece] * (SIZE // 60_000))]
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]} for call in events]
    return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


class Row(NamedTuple):
    """One body."""

    make: Callable[[], bytes]
    sent: str = "http"  # or: gzip, zstd, websocket, backend, continued (stored before), once (with Idempotency-Key)
    status: int = 200
    ordinary: str = "a text"  # the row to compare with
    values: int = 0  # JSON values, where they take more memory than the text
    store: str = "memory://"  # {} is a directory; or `POSTGRES`, or `REDIS`
    to: str = "/v1/responses"  # the path
    stored: str = ""  # the row that stores its body first, for this row to continue


ROWS = {
    "a text": Row(lambda: text(b"word ")),
    "one text": Row(lambda: message("word " * (SIZE // 5))),
    "an image": Row(image),
    "encrypted reasoning": Row(encrypted),
    "large calls": Row(large_calls),
    "large calls, continued": Row(large_calls, "continued", store=SQLITE),
    "large calls, with Idempotency-Key": Row(large_calls, "once"),
    "large calls, counted": Row(large_calls, to="/v1/responses/input_tokens"),
    "large calls, translated": Row(large_calls, to="/v1/antiphon/translation"),
    "custom calls": Row(custom_calls),
    "files": Row(files),
    "files in windows-1252": Row(lambda: encoded("windows-1252")),
    "files in punycode": Row(lambda: encoded("punycode")),
    "files in idna": Row(lambda: encoded("idna")),
    "files in undefined": Row(lambda: encoded("undefined")),
    "descriptions of tools": Row(descriptions),
    "messages of a conversation": Row(conversation, to="/v1/conversations"),
    "texts of one message": Row(parts, values=3 * SIZE // 640),
    "Chinese": Row(lambda: text("\u4f60".encode())),
    "spaces that are no blanks, counted": Row(lambda: message("\u3000" * 3_000_000), to="/v1/responses/input_tokens"),
    "4 MB of text": Row(lambda: text(b"word ", SMALL)),
    "4 MB of Chinese": Row(lambda: text("\u4f60".encode(), SMALL)),
    "60 MB of text": Row(lambda: text(b"word ", LARGE)),
    "60 MB of messages": Row(lambda: messages(LARGE), values=3 * MANY),
    "60 MB of text, forwarded to a deployment": Row(lambda: text(b"word ", LARGE), to=DEPLOYMENT),
    "as many messages, but short ones": Row(lambda: messages(MANY * 5), "http", 200, "60 MB of messages", 3 * MANY),
    "items of an extension": Row(extensions, values=100_000),
    "60 MB of messages, continued": Row(
        lambda: messages(LARGE),
        "continued",
        200,
        "60 MB of messages",
        3 * MANY,
        SQLITE,
        stored="SQLite: 60 MB of messages",
    ),
    "SQLite: a text": Row(lambda: text(b"word "), store=SQLITE),
    "SQLite: an image": Row(image, store=SQLITE),
    "SQLite: Chinese": Row(lambda: text("\u4f60".encode()), store=SQLITE),
    "SQLite: 60 MB of text": Row(lambda: text(b"word ", LARGE), store=SQLITE),
    "SQLite: 60 MB of messages": Row(lambda: messages(LARGE), values=3 * MANY, store=SQLITE),
    "PostgreSQL: an image": Row(image, store=POSTGRES),
    "PostgreSQL: 60 MB of text": Row(lambda: text(b"word ", LARGE), store=POSTGRES),
    "PostgreSQL: 60 MB of messages": Row(lambda: messages(LARGE), values=3 * MANY, store=POSTGRES),
    "Redis: 60 MB of text": Row(lambda: text(b"word ", LARGE), store=REDIS),
    "commas and brackets": Row(lambda: text(b"[1, 2], ")),
    "quotation marks": Row(lambda: text(b'say \\"hi\\" ')),
    "characters in escapes": Row(lambda: text(b"\\u4f60")),
    "pairs of surrogates": Row(lambda: text(b"\\ud83d\\ude00")),
    "lone surrogates": Row(lambda: text(b"\\ud800")),
    "backslashes": Row(lambda: text(b"\\\\")),
    "spaces": Row(lambda: _JUNK % (b" " * SIZE)),
    "empty arrays": Row(lambda: many(_EMPTY), status=413),
    "empty objects": Row(lambda: many(b"{}"), status=413),
    "empty strings": Row(lambda: many(b'""'), status=413),
    "digits": Row(lambda: many(b"1"), status=413),
    "names": Row(lambda: many(b'"a":1', b'{"junk":{%b}}'), status=413),
    "empty arrays and no end": Row(lambda: many(_EMPTY)[:-2] + b'"', status=413),
    "levels": Row(lambda: _JUNK % (b"[" * SIZE), status=413),
    "a number": Row(lambda: _JUNK % (b"1" * SIZE), status=400),
    "messages": Row(lambda: many(b'{"role":"user","content":""}', _TEXT), status=413),
    "tools": Row(lambda: many(b'{"type":"x"}', b'{"model":"m","input":"Hi.","tools":[%b]}'), status=413),
    "arguments": Row(calls, status=400),
    "gzip: empty arrays": Row(lambda: many(_EMPTY), "gzip", 413),
    "gzip: one letter": Row(lambda: text(b"a"), "gzip", 413),
    "zstd: one letter": Row(lambda: text(b"a"), "zstd", 413),
    "gzip: empty members": Row(lambda: gzip.compress(b"") * (SIZE // 20), "members", 400),
    "WebSocket: a text": Row(lambda: text(b"word "), "websocket", 200, "WebSocket: a text"),
    "WebSocket: empty arrays": Row(lambda: many(_EMPTY), "websocket", 413, "WebSocket: a text"),
    "WebSocket: lone surrogates": Row(lambda: text(b"\\ud800"), "websocket", 200, "WebSocket: a text"),
    "backend: a text": Row(lambda: many(b'"%b"' % (b"word " * 20_000), _EVENT), "backend", 200, "backend: a text"),
    "backend: empty arrays": Row(lambda: many(_EMPTY, _EVENT), "backend", 502, "backend: a text"),
    "backend: lone surrogates": Row(
        lambda: many(b'"%b"' % (b"\\ud800" * 20_000), _EVENT), "backend", 200, "backend: a text"
    ),
    "backend: a document of empty arrays": Row(lambda: many(_EMPTY, _DOCUMENT), "backend", 502, "backend: a text"),
    "backend: arguments": Row(
        lambda: arguments('{"city": "Paris", "days": 2}, '), "backend", 200, "backend: arguments"
    ),
    "backend: arguments of empty arrays": Row(lambda: arguments("[],"), "backend", 200, "backend: arguments"),
}


async def _head(connection: socket.socket, until: bytes = b"\r\n\r\n") -> bytes:
    """Return the begin of an answer: its head, or as far as something in its body."""
    head = b""
    while until not in head:
        head += await asyncio.get_running_loop().sock_recv(connection, 65536)
    return head


def _status(head: bytes) -> int:
    return int(head.split()[1])


async def _websocket(connection: socket.socket, body: bytes) -> bytes:
    """Send a frame, and return an answer with the status of its error, or 200."""
    loop = asyncio.get_running_loop()
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    upgrade = b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    await loop.sock_sendall(connection, upgrade + key)
    assert _status(await _head(connection)) == 101
    await loop.sock_sendall(connection, b"\x81\xff" + len(body).to_bytes(8, "big") + bytes(4))  # a mask without effect
    await loop.sock_sendall(connection, body)
    frame = await loop.sock_recv(connection, 65536)
    return b"frame %d" % (413 if b'"status":413' in frame else 200 if b'"response.created"' in frame else 0)


async def _answer_start(url: str, row: Row, body: bytes) -> bytes:
    """Send a body, and return the answer's start."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", int(url.rpartition(":")[2])))
        if row.sent == "websocket":
            return await _websocket(connection, body)
        body = b'{"model": "m", "input": "Hi."}' if row.sent == "backend" else body
        encoding = {"gzip": b"gzip", "members": b"gzip", "zstd": b"zstd"}.get(row.sent, b"identity")
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n"
        head += b"Idempotency-Key: k\r\n\r\n" if row.sent == "once" else b"\r\n"
        await loop.sock_sendall(connection, head % (row.to.encode(), encoding, len(body)))
        await loop.sock_sendall(connection, body)
        return await _head(connection, b'"object":' if row.sent == "stored" else b"\r\n\r\n")


@contextmanager
def _backend(answer: bytes) -> Iterator[str]:
    """Run a backend with a fixed answer in another process, and return its URL."""

    async def serve() -> None:
        async with Upstream() as upstream:
            upstream.always(b"HTTP/1.1 200 OK\r\n\r\n", answer, CLOSE)
            os.write(writing, upstream.url.encode())
            await asyncio.Event().wait()

    reading, writing = os.pipe()
    if not (child := os.fork()):
        with suppress(KeyboardInterrupt):
            asyncio.run(serve())
        os._exit(1)
    try:
        yield os.read(reading, 100).decode()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


async def _costs(name: str) -> dict[str, dict[str, Any]]:
    """Return the costs of a row and of the row that stores its body first."""
    row = ROWS[name]
    body = row.make()
    size = len(body)
    body = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(row.sent, bytes)(body)
    answer = b'data: {"choices": [{"delta": {"content": "Hi."}}]}\n\ndata: [DONE]\n\n'
    costs = {}
    with (
        _backend(body if row.sent == "backend" else answer) as backend_url,
        tempfile.TemporaryDirectory() as directory,
    ):
        store_url = os.environ.get(row.store) or row.store.format(directory)
        app = create_app(settings(backend_url=backend_url, store_url=store_url, max_body_bytes=64 * 1024 * 1024))
        options = {"ws": "app.api.uvicorn.websocket:WebSocketProtocol", "http": "app.api.uvicorn.http:HTTPProtocol"}
        async with serving(app, ws_max_size=2 * SIZE, ws_per_message_deflate=False, **options) as url:
            if row.sent == "continued":
                cost, answer = await _measured_request(url, row._replace(sent="stored"), body)
                if row.stored:
                    costs[row.stored] = {**cost, "size": size}
                response_id = orjson.loads(answer.partition(b'{"id":')[2].partition(b",")[0])
                body = orjson.dumps({"model": "m", "input": "Hi.", "previous_response_id": response_id})
            cost, _ = await _measured_request(url, row, body)
            return {**costs, name: {**cost, "size": size}}


async def _measured_request(url: str, row: Row, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return this process's cost for a request, and the start of the answer."""
    memory, began = reset_peak(), time.process_time()
    async with watched_loop() as holds:
        answer = await _answer_start(url, row, body)
        cpu = time.process_time() - began
    memory = status_of("VmHWM") - memory
    return {"cpu": cpu, "held": holds.longest, "memory": memory, "status": _status(answer)}, answer


def reset_peak() -> int:
    """Reset the memory peak to the present use, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_of("VmHWM")


def status_of(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def prepare() -> None:
    """Do the work shared by forked processes once: everything an application's first start initializes."""
    create_app(settings(backend_url="http://127.0.0.1:1"))
    assert threading.active_count() == 1, "threads are not forked"
    gc.collect()
    gc.freeze()


def measured(name: str) -> Any:
    """Return the costs of a row, in a new process, and of the row that stores its body first."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        with open(reading, "rb") as pipe:
            costs = pipe.read()
        os.waitpid(child, 0)
        return json.loads(costs)
    try:
        map_large_blocks()
        tune_gc()
        os.write(writing, json.dumps(asyncio.run(_costs(name))).encode())
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    prepare()
    costs: dict[str, Any] = {}
    for name in sys.argv[1:] or ROWS:
        if name not in costs:
            costs |= measured(name)
    print(json.dumps(costs))
