"""A scripted hosted tool with a call record: `[tools.lab]`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from app.tools import Declaration, HostedFunction, HostedTool, Outcome, Report, ToolCall, ToolHost, ToolSession

Action = Callable[[ToolCall, Report], Awaitable[Outcome]]


class ScriptedTool:
    """The tool's script and record; a test starts a new one with `ScriptedTool.reset()`."""

    current: ScriptedTool

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.stopped: list[str] = []  # cancelled calls
        self.opened = 0  # open sessions
        self.running = 0
        self.most_running = 0
        self.gate = asyncio.Event()  # released by a test, awaited by `wait`
        self.started = asyncio.Event()  # has a `wait` begun?
        self.functions = FUNCTIONS
        self.away = False  # if set, no call starts
        self.listing: Action | None = None
        self.declarations: list[Declaration] = []
        self.known: list[Any] = []  # items passed to `functions`

    @classmethod
    def reset(cls) -> ScriptedTool:
        cls.current = cls()
        return cls.current


def function(name: str, **more: Any) -> HostedFunction:
    return HostedFunction(
        name, "mcp_call", f"Does {name}.", namespace="lab", fields={"server_label": "lab", "name": name}, **more
    )


FUNCTIONS = (
    function("echo"),
    function("add"),
    function("wait"),
    function("fail"),
    function("crash"),
    function("image"),
    function("long"),
    function("ask", needs_approval=True),
)


ScriptedTool.reset()


class LabTool(HostedTool):
    """Serves declarations of type `mcp` with the label `lab`, and `lab`."""

    types = ("mcp", "lab")

    @classmethod
    def from_settings(cls, table: Mapping[str, Any], host: ToolHost) -> LabTool:
        if table.get("wrong"):
            raise ValueError("this table is wrong")
        return cls()

    def open(self, declaration: Declaration) -> Any:
        ScriptedTool.current.declarations.append(declaration)
        deferred = declaration.tool.get("defer_loading") is True
        return self._open(deferred) if declaration.tool.get("server_label", "lab") == "lab" else None

    @asynccontextmanager
    async def _open(self, deferred: bool) -> AsyncIterator[LabSession]:
        lab = ScriptedTool.current
        lab.opened += 1
        try:
            yield LabSession(lab, deferred)
        finally:
            lab.opened -= 1


class LabSession(ToolSession):
    def __init__(self, lab: ScriptedTool, deferred: bool) -> None:
        self._lab = lab
        self._deferred = deferred

    async def functions(self, items: Sequence[Any], report: Report) -> Sequence[HostedFunction]:
        self._lab.known = [*items]
        if self._lab.listing:
            await self._lab.listing(None, report)  # type: ignore[arg-type]
        return [replace(function, deferred=self._deferred) for function in self._lab.functions]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        lab, name = self._lab, call.function.name
        if lab.away:
            return Outcome.failed("The lab is away.", begun=False)
        lab.calls.append((name, call.arguments))
        lab.running += 1
        lab.most_running = max(lab.most_running, lab.running)
        try:
            return await getattr(self, f"_{name}")(call)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            lab.stopped.append(name)
            raise
        finally:
            lab.running -= 1

    async def _echo(self, call: ToolCall) -> Outcome:
        return text_outcome(str(call.arguments.get("text", "")))

    async def _ask(self, call: ToolCall) -> Outcome:
        return text_outcome("It was done.")

    async def _add(self, call: ToolCall) -> Outcome:
        return text_outcome(str(call.arguments["a"] + call.arguments["b"]))

    async def _wait(self, call: ToolCall) -> Outcome:
        self._lab.started.set()
        await self._lab.gate.wait()
        return text_outcome("waited")

    async def _fail(self, call: ToolCall) -> Outcome:
        return Outcome.failed("It did not work.")

    async def _crash(self, call: ToolCall) -> Outcome:
        raise ZeroDivisionError("a secret")

    async def _image(self, call: ToolCall) -> Outcome:
        image: Any = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
        return Outcome([{"type": "input_text", "text": "An image."}, image], {"output": "An image."})

    async def _long(self, call: ToolCall) -> Outcome:
        return text_outcome("x" * 100_000)


def text_outcome(text: str) -> Outcome:
    return Outcome(text, {"output": text})


CONTAINER = {"type": "container_reference", "container_id": "cntr_1"}


class ShellTool(HostedTool):
    """A shell in a container, which repeats its commands."""

    types = ("shell",)

    @classmethod
    def from_settings(cls, table: Mapping[str, Any], host: ToolHost) -> ShellTool:
        return cls()

    def open(self, declaration: Declaration) -> Any:
        environment: Any = declaration.tool.get("environment") or {}
        return self._open() if environment.get("type", "").startswith("container") else None

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ShellTool]:
        yield self

    async def functions(self, items: Sequence[Any], report: Report) -> Sequence[HostedFunction]:
        return [HostedFunction("shell", "shell_call", fields={"environment": CONTAINER})]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        item = report.add("shell_call_output", call_id=call.call_id, max_output_length=None)
        results = []
        for index, command in enumerate(call.arguments["commands"]):
            item.event("delta", command_index=index, delta={"stdout": command})
            results.append({"stdout": command, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}})
            item.event("done", command_index=index, output=results[-1:])
        item.close(output=results)
        return Outcome("")
