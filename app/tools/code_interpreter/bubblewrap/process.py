"""
A running sandbox, with a pair of pipes to its supervisor.

The supervisor's answers are untrusted: their size is limited, and paths are only resolved inside the sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib

import orjson

from app.core.types import JSONObject
from app.tools.code_interpreter.bubblewrap.cgroups import Group
from app.tools.code_interpreter.bubblewrap.watch import MonitoredSandbox, SandboxMonitor, descendants, kill

STOP_GRACE = 5.0  # seconds for the supervisor to answer after a timeout or stop
MAX_ANSWER = 32 * 1024 * 1024  # bytes
_CALLS = ("python", "shell")


class SandboxEnded(Exception):
    """The sandbox's state and files are lost."""


def data_of(answer: JSONObject) -> bytes:
    """An answer's decoded `data`, or b""; raises `SandboxEnded` if malformed."""
    try:
        return base64.b64decode(str(answer.get("data", "")), validate=True)
    except binascii.Error:
        raise SandboxEnded from None


class Sandbox:
    """Callers must send one request at a time."""

    def __init__(
        self, process: asyncio.subprocess.Process, memory: int, files: int, monitor: SandboxMonitor, group: Group | None
    ) -> None:
        """`memory` (bytes) and `files` are the monitor's limits."""
        self._process, self._monitor, self._group = process, monitor, group
        self._monitored = MonitoredSandbox(memory, files, process.pid)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ready(self) -> None:
        """Wait for the supervisor, and start monitoring; raises `SandboxEnded`."""
        await self._answer()
        own = descendants(self._process.pid)  # no code runs yet
        if not own:
            raise SandboxEnded
        self._monitored.supervisor = own[0]
        self._monitor.add(self._monitored)
        self._freeze()

    async def request(self, op: str, *, within: float = STOP_GRACE, **fields: object) -> JSONObject:
        """
        Send a request; raises `SandboxEnded`.

        Kills the sandbox if a call exceeds `within` plus `STOP_GRACE` seconds, or does not stop when cancelled. If code
        was killed, `exceeded` in the answer is the limit: `memory`, `files` or `sockets`.
        """
        memory_kills = self._group.memory_kills() if self._group else 0
        with contextlib.ExitStack() as stack:
            if op in _CALLS:
                stack.enter_context(self._monitor.call(self._monitored))
            if self._group:
                self._group.thaw()
                stack.callback(self._freeze)
            answer = await self._exchange({"op": op, **fields}, within)
        if op in _CALLS:
            killed = self._group.memory_kills() > memory_kills if self._group else False
            answer["exceeded"] = self._monitored.exceeded or ("memory" if killed else "")
        return answer

    async def _exchange(self, request: dict[str, object], within: float) -> JSONObject:
        answer = asyncio.create_task(self._answer())
        try:
            await self._send(request)
            await asyncio.wait({answer}, timeout=within + STOP_GRACE)
            return answer.result() if answer.done() else await self._stop(answer)
        except asyncio.CancelledError:
            try:
                with contextlib.suppress(SandboxEnded):
                    await asyncio.shield(asyncio.ensure_future(self._stop(answer)))
            except asyncio.CancelledError:
                self.kill()
            raise
        except SandboxEnded:
            answer.cancel()
            await self.aclose()
            raise

    async def _stop(self, answer: asyncio.Task[JSONObject]) -> JSONObject:
        try:
            await self._send({"op": "stop"})
            async with asyncio.timeout(STOP_GRACE):
                reply = await answer
                if reply.get("ended") != "stopped":
                    await self._answer()  # answers the stop: the call had already ended
                return reply
        except (SandboxEnded, TimeoutError):
            answer.cancel()
            await self.aclose()
            raise SandboxEnded from None

    async def _send(self, request: dict[str, object]) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(orjson.dumps(request) + b"\n")
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError):
            await self.aclose()
            raise SandboxEnded from None

    async def _answer(self) -> JSONObject:
        assert self._process.stdout
        try:
            answer = orjson.loads(await self._process.stdout.readline())
        except ValueError:  # empty, too long, or invalid JSON
            raise SandboxEnded from None
        if not isinstance(answer, dict):
            raise SandboxEnded
        return answer

    def _freeze(self) -> None:
        if self._group:
            self._group.freeze()

    def kill(self) -> None:
        self._monitor.discard(self._monitored)
        if self._process.returncode is not None:
            return
        if self._group:
            self._group.kill()
        # When the first process in a PID namespace dies, the kernel kills the others.
        kill((*descendants(self._process.pid), self._process.pid))

    async def aclose(self) -> None:
        self.kill()
        await self._process.wait()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        with contextlib.suppress(RuntimeError):  # a request is reading the stream
            while await self._process.stdout.read(65536):
                pass
        if self._group:
            await asyncio.to_thread(self._group.remove)
