"""
The sessions of a response's hosted tools.

Each session has its own task, because its context must be entered and exited in the same task.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import orjson

from app.core.bounded_json import loads
from app.core.history.context import RequestContext
from app.core.types import JSONMapping, JSONObject
from app.core.types.hosted import HostedFunction
from app.core.types.request import CreateResponse, Item, Part
from app.errors import APIError, InvalidRequest, PermissionDenied
from app.responses.policy import InputReview
from app.responses.run import Caller
from app.tools import (
    NAMED_TYPES,
    Declaration,
    HostedTool,
    Outcome,
    Report,
    ToolCall,
    ToolLimits,
    ToolSession,
    truncated_result,
    unknown_server,
)

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0  # seconds until a closing session is cancelled

MAX_DECLARED = 64  # per request; each can start a process


class DeclaredTool(NamedTuple):
    name: str  # the tool's table in the settings
    types: Collection[str]  # declaration types that the tool serves
    type: str
    position: int  # the declaration's index in `tools`
    session: AbstractAsyncContextManager[ToolSession]


def open_tools(tools: Mapping[str, HostedTool], declarations: Mapping[int, Declaration]) -> list[DeclaredTool]:
    """
    The declarations (by position in the request's `tools`) that hosted tools serve, with unopened sessions.

    Raises `InvalidRequest`, and `PermissionDenied` for the caller's key.
    """
    opened: list[DeclaredTool] = []
    labels: set[object] = set()
    for position, declaration in declarations.items():
        if not (tool := _open_tool(tools, declaration, position)):
            continue
        if len(opened) == MAX_DECLARED:
            message = f"At most {MAX_DECLARED} tools that this server runs can be declared in one request."
            raise InvalidRequest(message, param=declaration.param_path)
        label = declaration.tool.get("server_label")
        if label is not None and label in labels:
            message = f"Invalid 'tools': must not contain two servers with the label '{label}'."
            raise InvalidRequest(message, param=f"{declaration.param_path}.server_label")
        labels.add(label)
        opened.append(tool)
    return opened


def _open_tool(tools: Mapping[str, HostedTool], declaration: Declaration, position: int) -> DeclaredTool | None:
    item_type = str(declaration.tool["type"])
    refusal: APIError | None = None
    for name, tool in tools.items():
        if item_type not in tool.types:
            continue
        try:
            session = tool.open(declaration)
            if session and tool.rights(declaration.tool) is None:
                declaration.require(item_type, name)
        except (InvalidRequest, PermissionDenied) as error:
            refusal = refusal or error
        else:
            if session:
                return DeclaredTool(name, frozenset(tool.types), item_type, position, session)
    served = any(item_type in tool.types for tool in tools.values())
    # Without any tool of the type, a declaration with a URL is dropped with a warning instead.
    if refusal is None and item_type in NAMED_TYPES and (served or not declaration.secrets.get("server_url")):
        refusal = unknown_server(declaration)
    if refusal:
        raise refusal
    return None


def declared_tools(
    tools: Mapping[str, HostedTool],
    request: CreateResponse,
    caller: Caller,
    context: RequestContext,
    response_id: str = "",
) -> list[DeclaredTool]:
    """See `open_tools`."""
    if context.compacts or not request.tools:
        return []
    types = NAMED_TYPES.union(*(tool.types for tool in tools.values()))
    declarations = {
        position: Declaration(
            tool=tool,
            secrets=request.tool_secrets.restore(tool),
            param_path=f"tools[{position}]",
            owner=caller.owner,
            response_id=response_id,
            chain=context.key,
            include=frozenset(request.include),
            key_names=caller.key_names,
            access=caller.access,
            warnings=context.warnings,
        )
        for position, tool in enumerate(request.tools)
        if tool["type"] in types
    }
    return open_tools(tools, declarations)


class SessionFunction(NamedTuple):
    function: HostedFunction
    tool: DeclaredTool
    session: ToolSession


class ToolSessions:
    def __init__(self, declared: Sequence[DeclaredTool], limits: ToolLimits) -> None:
        self.functions: list[SessionFunction] = []
        self._declared = declared
        self._max_chars = limits.max_result_chars
        self._call_seconds = limits.max_call_seconds
        self._closing = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], asyncio.Future[list[SessionFunction]]] = {}

    async def open(self, items: Sequence[Item], report: Report) -> None:
        """
        Open all sessions and list their functions; `items` is the conversation so far.

        A failed session is dropped with a warning. Raises `APIError` if a session rejects the request.
        """
        for tool in self._declared:
            opened: asyncio.Future[list[SessionFunction]] = asyncio.get_running_loop().create_future()
            self._tasks[asyncio.create_task(self._hold(tool, items, report, opened))] = opened
        results = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for tool, result in zip(self._declared, results, strict=True):
            if isinstance(result, list):
                self.functions += result
            elif isinstance(result, APIError):
                raise result
            else:
                logger.error("hosted tool not opened", exc_info=result, extra={"tool": tool.name})
                report.warn(f"The tool {tool.type!r} could not be opened and was not offered.")

    async def review(self, review: InputReview, report: Report) -> None:
        """
        Drop the functions of MCP servers that the policy refuses. Other tools' functions contain no untrusted text.
        """
        labels = [*dict.fromkeys(entry.function.namespace for entry in self.functions if entry.function.namespace)]
        listed = {label: [entry for entry in self.functions if entry.function.namespace == label] for label in labels}
        refusals = await asyncio.gather(
            *(review.tools(label, [entry.function for entry in entries]) for label, entries in listed.items())
        )
        for (label, entries), refusal in zip(listed.items(), refusals, strict=True):
            if refusal is not None:
                self.functions = [entry for entry in self.functions if entry not in entries]
                report.warn(f"The tools of the MCP server {label!r} were blocked by a policy: {refusal}")

    async def _hold(
        self, tool: DeclaredTool, items: Sequence[Item], report: Report, opened: asyncio.Future[list[SessionFunction]]
    ) -> None:
        try:
            async with tool.session as session:
                functions = await session.functions(items, report)
                opened.set_result([SessionFunction(function, tool, session) for function in functions])
                await self._closing.wait()
        except Exception as error:
            if opened.cancelled():
                return
            if opened.done():
                logger.exception("hosted tool not closed", extra={"tool": tool.name})
            else:
                opened.set_exception(error)
        finally:
            opened.cancel()

    def find(self, function: HostedFunction) -> SessionFunction | None:
        """Another function of the same name does not match."""
        return next((entry for entry in self.functions if entry.function is function), None)

    async def run(self, session: ToolSession, call: ToolCall, report: Report) -> Outcome:
        """Failures become outcomes, not exceptions."""
        try:
            async with asyncio.timeout(self._call_seconds) as limit:
                return await session.run(call, report)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return Outcome.failed(f"The tool did not answer within {self._call_seconds:g} seconds.")
            logger.exception("hosted tool failed", extra={"function": call.function.name})
            return Outcome.failed("The tool failed.")

    def truncated(self, output: str | list[Part]) -> str | list[Part]:
        if isinstance(output, str):
            return truncated_result(output, self._max_chars)
        left = self._max_chars
        parts: list[Part] = []
        for part in output:
            text = part.get("text")
            if isinstance(text, str):
                part = {**part, "text": truncated_result(text, left)}
                left = max(0, left - len(text))
            parts.append(part)
        return parts

    async def close(self) -> None:
        """Close all sessions; cancel unopened and slow ones."""
        self._closing.set()
        for task, opened in self._tasks.items():
            if not opened.done():
                task.cancel()
        pending = {*self._tasks}
        for _ in range(2):
            if not pending:
                return
            _, pending = await asyncio.wait(pending, timeout=CLOSE_TIMEOUT)
            for task in pending:
                task.cancel()
        for task in pending:
            logger.error("hosted tool session not stopped by cancellation", extra={"task": task.get_name()})


def parsed_arguments(written: str, argument: str | None) -> JSONObject | None:
    """
    None unless the arguments are a JSON object.

    With `argument`, the text is this argument's value, not JSON.
    """
    if argument is not None:
        return {argument: written}
    try:
        value = loads(written) if written.strip() else {}
    except ValueError:
        return None
    return {} if value is None else value if isinstance(value, dict) else None


def call_signature(function: HostedFunction, arguments: JSONMapping | None, written: str) -> str:
    same = written.encode() if arguments is None else orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
    return f"{function.key}\n{hashlib.sha256(same).hexdigest()}"
