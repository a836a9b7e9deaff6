"""Load generator: sends a scenario's requests to a server with the model `upstream.py`, and keeps the answers."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from tests.bench import check, wire
from tests.bench.answers import FIRST, answer, call_id, tool_call
from tests.bench.cost import memory
from tests.bench.scenarios import Scenario
from tests.bench.servers import Server, Target

TIMEOUT = 120  # seconds per answer
TOOL = {"name": "count", "description": "Count.", "parameters": {"type": "object", "properties": {}}}


@dataclass
class Reply:
    """One answer as it came in."""

    messages: int  # expected messages at the upstream
    started: float
    first: float = 0.0  # when the first delta was seen
    ended: float = 0.0
    message: wire.Message = field(default_factory=wire.Message)
    error: str = ""

    def wrong(self, server: Server, scenario: Scenario) -> str:
        """Return the error, or ""."""
        if self.error:
            return self.error
        if self.message.line.split()[1] != b"200":
            return f"{self.message.line.decode()}: {self.message.body[:200].decode(errors='replace')}"
        return check.wrong(server, scenario, self.message.body, self.messages)


@lru_cache(8)
def ask(server: Server, scenario: Scenario, turn: int, previous: str) -> tuple[bytes, int]:
    """
    Return a turn's request, and the number of messages that reach the upstream. Chat Completions clients send the whole
    conversation; Responses clients send the previous response's id.
    """
    agent = scenario.model.endswith("-agent")
    texts = [f"Message {n} of {scenario.items}. ".ljust(scenario.size, ".") for n in range(scenario.items)]
    new = [{"role": "user", "content": text} for text in texts]
    reply = {"role": "assistant", "content": answer(scenario.model).text}
    before, messages = [*new, reply] * turn, turn * (len(new) + 1) + len(new)
    if scenario.rounds:
        before, new, messages = _tool_rounds(server, scenario, turn, new)
    if agent:  # only the first turn is the user's, and the others have the results of calls
        before, new, messages = _agent_turns(server, scenario, turn, new)
    body: dict[str, Any] = {"model": scenario.model, "stream": scenario.stream}
    api, path = server.endpoint(chat=scenario.chat)
    if api == "chat":
        body |= {"messages": before + new}
        body |= {"stream_options": {"include_usage": True}} if scenario.stream else {}
        tool: dict[str, Any] = {"type": "function", "function": TOOL}
    else:
        body |= {"input": new, "store": scenario.store}
        body |= {"previous_response_id": previous} if previous else {}
        tool = {"type": "function", **TOOL}
        if scenario.rounds:
            tool = {"type": "mcp", "server_label": "demo"}
    body |= {"tools": [tool]} if answer(scenario.model).call or scenario.rounds else {}
    return wire.request("POST", path, json.dumps(body).encode()), messages


def turns_of(server: Server, scenario: Scenario) -> range:
    """Return a conversation's turns. Chat Completions clients run each tool round in a turn."""
    chat = server.endpoint(chat=scenario.chat)[0] == "chat"
    return range(scenario.rounds + 1) if scenario.rounds and chat else scenario.turns


def _tool_rounds(
    server: Server, scenario: Scenario, turn: int, first: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """
    Return the messages before a tool round and its input, and the number of messages at the upstream.

    A hosted tool's rounds are reported together at the end.
    """
    if server.endpoint(chat=scenario.chat)[0] != "chat":
        return [], first, sum(1 + 2 * round for round in range(scenario.rounds + 1))
    messages = [*first]
    for round in range(turn):
        function = {"name": TOOL["name"], "arguments": tool_call(scenario.model, round).text}
        id = call_id(len(messages))
        messages.append({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": id, "content": ""})
    return messages, [], len(messages)


def _agent_turns(
    server: Server, scenario: Scenario, turn: int, first: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the messages before a turn of an agent and its own input, and how many messages the upstream gets."""
    prepared, messages = answer(scenario.model), [*first]
    for _ in range(turn):
        id = call_id(len(messages))
        function = {"name": TOOL["name"], "arguments": prepared.text}
        calls = [{"id": id, "type": "function", "function": function}]
        messages.append({"role": "assistant", "reasoning_content": prepared.reasoning, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": id, "content": "Counted.".ljust(scenario.size, ".")})
    if turn == 0:
        return [], first, len(first)
    last = messages[-1]
    output = {"type": "function_call_output", "call_id": last["tool_call_id"], "output": last["content"]}
    return messages[:-1], [last if server.endpoint(chat=scenario.chat)[0] == "chat" else output], len(messages)


class Caller(asyncio.Protocol):
    """A keep-alive connection, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.reply = Reply(0, 0.0)
        self.tail = b""
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.seen: asyncio.Semaphore | None = None

    @classmethod
    async def connect(cls, port: int) -> Caller:
        _, caller = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.whole.done():
            self.whole.set_exception(ConnectionError("closed in the middle of an answer"))
            self.whole.exception()  # seen, also where nobody waits

    def data_received(self, data: bytes) -> None:
        reply = self.reply
        if not reply.first:
            self.tail += data
            if FIRST.encode() in self.tail:
                reply.first = time.perf_counter()
                if self.seen:
                    self.seen.release()
            self.tail = self.tail[-len(FIRST) :]
        if reply.message.feed(data):
            reply.ended = time.perf_counter()
            if not self.whole.done():
                self.whole.set_result(None)

    async def call(self, request: bytes, messages: int) -> Reply:
        """Send a request and return the answer; a failure is in `error`, and ends the connection."""
        self.whole, self.tail = asyncio.get_running_loop().create_future(), b""
        self.reply = Reply(messages, time.perf_counter())
        self.transport.write(request)
        try:
            async with asyncio.timeout(TIMEOUT):
                await self.whole
        except (OSError, TimeoutError) as error:
            self.reply.error = repr(error)
            self.transport.abort()
        return self.reply


async def volley(target: Target, scenario: Scenario, total: int, parent: str = "") -> list[Reply]:
    """
    Make `total` conversations, as many at once as the scenario says, and return the answers. `parent`: the response
    before the first turn.
    """
    left, replies = iter(range(total)), []
    lines = min(scenario.at_once, total)
    prepared = answer(scenario.model)
    apart = len(prepared.pieces) * prepared.delay / lines if scenario.spread else 0.0

    async def converse(caller: Caller) -> bool:
        previous = parent
        for turn in turns_of(target.server, scenario):
            reply = await caller.call(*ask(target.server, scenario, turn, previous))
            replies.append(reply)
            if reply.error:
                return False
            if turn + 1 in scenario.turns and target.server.api == "responses":
                previous = response_id(reply)
        return True

    async def keep_asking(pause: float) -> None:
        await asyncio.sleep(pause)
        caller = await Caller.connect(target.port)
        for _ in left:
            if not await converse(caller):
                caller = await Caller.connect(target.port)
        caller.transport.abort()

    async with asyncio.TaskGroup() as group:
        for line in range(lines):
            group.create_task(keep_asking(line * apart))
    return replies


async def begun(target: Target, scenario: Scenario) -> str:
    """Create a conversation's unmeasured turns, and return the last response id, or ""."""
    if target.server.api == "chat" or not scenario.turns.start:
        return ""
    return response_id((await volley(target, scenario._replace(turns=range(scenario.turns.start)), 1))[-1])


def response_id(reply: Reply) -> str:
    """Return a JSON response's id, or ""."""
    try:
        return str(json.loads(reply.message.body)["id"])
    except (ValueError, LookupError, TypeError):
        return ""


async def hold(target: Target, scenario: Scenario, count: int) -> float:
    """Open streams from a slow model, and return the memory in bytes per stream once all have started."""
    seen = asyncio.Semaphore(0)
    before = memory(target.pid)
    callers = [await Caller.connect(target.port) for _ in range(count)]
    for caller in callers:
        caller.seen = seen
    question = ask(target.server, scenario, 0, "")
    tasks = [asyncio.create_task(caller.call(*question)) for caller in callers]
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
            caller.transport.abort()
