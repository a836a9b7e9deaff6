"""
The load: asks a server whose model is `upstream.py`, checks every answer, and reads what the server's process used.

A `Target` is a server and the API it speaks: `responses`, or `chat` for the upstream itself and the floor before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.bench import wire
from tests.bench.answers import FIRST, answer

PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
TIMEOUT = 60  # seconds for one answer


@dataclass(frozen=True)
class Target:
    """A server to measure."""

    name: str
    port: int
    pid: int
    api: str


@dataclass
class Reply:
    """One answer as it came in."""

    started: float
    first: float = 0.0  # when the first delta was seen
    message: wire.Message = field(default_factory=wire.Message)


def ask(target: Target, model: str, *, stream: bool) -> bytes:
    """Return the bytes of a request of one message."""
    body: dict[str, Any] = {"model": model, "stream": stream}
    if target.api == "responses":
        body |= {"input": "Count.", "store": False}
    else:
        body |= {"messages": [{"role": "user", "content": "Count."}]}
        if stream:
            body |= {"stream_options": {"include_usage": True}}
    return wire.request("POST", PATHS[target.api], json.dumps(body).encode())


class Caller:
    """One connection, that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, target: Target) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", target.port))

    async def call(self, request: bytes, seen: asyncio.Semaphore | None = None) -> Reply:
        """Send a request and read the answer; release `seen` at the first delta."""
        reply = Reply(time.perf_counter())
        tail = b""
        self.writer.write(request)
        async with asyncio.timeout(TIMEOUT):
            while data := await self.reader.read(1 << 16):
                if not reply.first:
                    tail += data
                    if FIRST.encode() in tail:
                        reply.first = time.perf_counter()
                        if seen:
                            seen.release()
                    tail = tail[-len(FIRST) :]
                if reply.message.feed(data):
                    return reply
        raise ConnectionError("closed in the middle of an answer")

    def close(self) -> None:
        self.writer.close()


async def volley(
    target: Target, model: str, *, stream: bool, total: int, at_once: int
) -> tuple[list[Reply], list[str]]:
    """Ask `total` times, `at_once` at a time. Return the answers, and what was wrong with them."""
    request, left = ask(target, model, stream=stream), iter(range(total))
    replies: list[Reply] = []

    async def keep_asking() -> None:
        caller = await Caller.connect(target)
        for _ in left:
            replies.append(await caller.call(request))
        caller.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, total)):
            group.create_task(keep_asking())
    return replies, [problem for reply in replies if (problem := wrong(target, model, reply, stream=stream))]


async def hold(target: Target, model: str, count: int) -> float:
    """Open streams of a slow model; return the bytes of memory for each, once all of them have begun."""
    seen = asyncio.Semaphore(0)
    before = memory(target.pid)
    callers = [await Caller.connect(target) for _ in range(count)]
    request = ask(target, model, stream=True)
    tasks = [asyncio.create_task(caller.call(request, seen)) for caller in callers]
    try:
        async with asyncio.timeout(TIMEOUT):
            for _ in tasks:
                await seen.acquire()
        return (memory(target.pid) - before) / count
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for caller in callers:
            caller.close()


# Is the answer right?


def wrong(target: Target, model: str, reply: Reply, *, stream: bool) -> str:
    """Say what is wrong with an answer, or nothing."""
    body = reply.message.body
    if reply.message.line.split()[1] != b"200":
        return f"{reply.message.line.decode()}: {body[:300].decode(errors='replace')}"
    try:
        text = (_chat_text if target.api == "chat" else _responses_text)(body, stream)
    except (ValueError, LookupError) as error:
        return f"{error!r} in {body[-300:].decode(errors='replace')}"
    return "" if text == answer(model).text else f"wrong text: {text[:80]!r}"


def _data(body: bytes) -> Iterator[bytes]:
    return (found[1] for found in re.finditer(rb"^data: *(.*?)\r?$", body, re.MULTILINE))


def _chat_text(body: bytes, stream: bool) -> str:
    if not stream:
        return str(json.loads(body)["choices"][0]["message"]["content"])
    chunks = [json.loads(data) for data in _data(body) if data != b"[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def _responses_text(body: bytes, stream: bool) -> str:
    if not stream:
        return _said(json.loads(body))
    *data, last = _data(body)
    if last != b"[DONE]":
        raise ValueError("the stream does not end with [DONE]")
    events = [json.loads(one) for one in data]
    if [event["sequence_number"] for event in events] != list(range(len(events))):
        raise ValueError("sequence_number does not count 0, 1, 2, ...")
    if (kinds := [event["type"] for event in events])[:2] != ["response.created", "response.in_progress"]:
        raise ValueError(f"the stream begins with {kinds[:2]}")
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    if deltas != (said := _said(events[-1]["response"])):
        raise ValueError(f"the deltas say {deltas[:40]!r}, the response {said[:40]!r}")
    return deltas


def _said(response: dict[str, Any]) -> str:
    if response["status"] != "completed":
        raise ValueError(f"the status is {response['status']}")
    if response["usage"]["input_tokens"] != 1:
        raise ValueError(f"the upstream received {response['usage']['input_tokens']} messages instead of 1")
    return "".join(part["text"] for item in response["output"] for part in item["content"])


# What did it cost? Linux tells; elsewhere the figures are 0.


def cpu(pid: int) -> float:
    """Seconds of processor time, user and system, that a process has used."""
    try:
        # The clock of another process, in nanoseconds: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel.
        return time.clock_gettime(~pid << 3 | 2)
    except (AttributeError, OSError):
        return 0.0


def memory(pid: int) -> float:
    """Bytes of memory that a process has in use."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return float(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0.0
