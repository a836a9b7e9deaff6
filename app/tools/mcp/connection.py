"""
An MCP session in its own task.

The SDK's client opens anyio cancel scopes, which only the task that entered them may exit, but a response may be closed
in any task. So `ServerConnection`'s task enters and exits the client, and runs queued requests in child tasks. A
cancelled caller's request is also cancelled, and the server notified.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TextIO, cast

import anyio
import httpcore2
import httpx2
import mcp_types
from mcp.client import streamable_http
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from app import __version__
from app.core.bounded_json import size_of
from app.tools.guard import BoundedBody, GuardedNetwork, OutboundRefused, plain_headers, tls
from app.tools.mcp.server import CONNECTION_CLOSED, REQUEST_TIMEOUT, ConnectionKey, MCPFailure, ServerAddress

MAX_PAGES = 50  # per tool list
MAX_LIST_BYTES = 8 * 1024 * 1024  # per tool list, stored with the turn
MAX_MESSAGE = 2000  # characters
_LIST_SECONDS = 300.0  # tool list cache TTL
_MAX_CACHED_LIST = 1024 * 1024  # characters of JSON
_CLOSE_SECONDS = 5
_CHECK_SECONDS = 5  # for a ping
_WITHOUT_SESSIONS = "2026-07-28"  # first protocol version without HTTP sessions and pings
_OTHER_TRANSPORT = frozenset({400, 404, 405, 406, 415})  # statuses of SSE servers for streamable HTTP requests

# The SDK logs URLs, session ids and messages.
for _name in ("mcp", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)
# The SDK's own logger has this generic name, so only its records are dropped.
logging.getLogger("client").addFilter(lambda record: f"{os.sep}mcp{os.sep}client{os.sep}" not in record.pathname)

# The SDK's messages for closed connections; servers use the same code.
_LOST = ("Connection closed", "SSE stream ")


@dataclass(eq=False)
class _Request:
    """
    A request in the session's task, or its opening, without `work`.

    The SDK only reports that a request failed, but sends each message in its context, with `current_request`.
    """

    answer: asyncio.Future[Any]
    scope: anyio.CancelScope
    work: Callable[[Client], Awaitable[object]] | None = None
    status: int | None = None  # last HTTP status of 300 or above
    ends_on_refusal: bool = False  # cancelled if a POST receives such a status


current_request: ContextVar[_Request | None] = ContextVar("current_request", default=None)


class ServerConnection:
    """Every method raises `MCPFailure` if the server fails."""

    def __init__(self, address: ServerAddress, key: ConnectionKey | None = None, *, stderr: bool = False) -> None:
        """
        `key` identifies it in the pool; None if it is used once.

        With `stderr`, a server program inherits this process's standard error.
        """
        self.key = key
        self.users = 1  # responses
        self.expires = math.inf  # event loop time
        self.idle: asyncio.TimerHandle | None = None
        self._address, self._settings = address, address.settings
        self._stderr = stderr
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._pending: set[_Request] = set()
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None
        self._failed: MCPFailure | None = None
        self._sse = False
        self._list_version = 0  # incremented when the server reports a changed tool list
        self._listed = ""  # JSON, so that responses cannot change the cached list
        self._listed_version = 0
        self._listed_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._task is not None and not self._task.done() and self._failed is None

    async def open(self) -> None:
        opening = _Request(asyncio.get_running_loop().create_future(), self._scope)
        # The session outlives the response's trace and log fields.
        self._task = asyncio.create_task(self._run(opening), name="mcp-session", context=Context())
        try:
            await opening.answer
        except asyncio.CancelledError:
            self._scope.cancel()
            raise

    async def list_tools(self) -> tuple[list[dict[str, object]], bool]:
        """Tool descriptions, and whether the list is complete."""
        now, version = asyncio.get_running_loop().time(), self._list_version
        if self._listed and version == self._listed_version and now < self._listed_at + _LIST_SECONDS:
            tools, complete = json.loads(self._listed)
            return tools, complete
        tools, complete = await self._request(partial(_list_tools, seconds=self._settings.open_timeout))
        listed = json.dumps((tools, complete)) if self.key else ""
        self._listed = listed if len(listed) <= _MAX_CACHED_LIST else ""
        self._listed_version, self._listed_at = version, now
        return tools, complete

    async def call_tool(self, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return `content`, `structuredContent` and `isError`."""
        call = partial(_call_tool, name=name, arguments=dict(arguments), seconds=self._settings.timeout)
        result: dict[str, object] = await self._request(call)
        return result

    async def check(self) -> None:
        """Raises `MCPFailure` if the server no longer has the session."""
        try:
            await self._request(partial(_ping, seconds=_CHECK_SECONDS, over_http=not self._settings.command))
        except MCPFailure as failure:
            if not failure.by_server:  # an error proves that the server is alive
                raise

    def close(self) -> asyncio.Task[None] | None:
        """The closing task, which ends within seconds; None if never opened."""
        if self._task and not self._task.done():
            self._requests.put_nowait(None)
            self._scope.deadline = min(self._scope.deadline, anyio.current_time() + _CLOSE_SECONDS)
        return self._task

    async def _request(self, work: Callable[[Client], Awaitable[object]]) -> Any:
        if not self.is_open:
            raise self._failed or MCPFailure("The session with the MCP server has ended.")
        request = _Request(asyncio.get_running_loop().create_future(), anyio.CancelScope(), work)
        self._pending.add(request)
        self._requests.put_nowait(request)
        try:
            return await request.answer
        except asyncio.CancelledError:
            request.scope.cancel()
            raise
        finally:
            self._pending.discard(request)

    async def _run(self, opening: _Request) -> None:
        failure = MCPFailure("The session with the MCP server has ended.")
        opened = opening.answer
        current_request.set(opening)
        try:
            with self._scope:
                self._scope.deadline = anyio.current_time() + self._settings.open_timeout
                async with AsyncExitStack() as stack:
                    client = await self._connect(stack, opening)
                    self._scope.deadline, opening.ends_on_refusal = math.inf, False
                    if not opened.done():
                        opened.set_result(None)
                    async with anyio.create_task_group() as tasks:
                        while request := await self._requests.get():
                            tasks.start_soon(self._answer, client, request)
                        tasks.cancel_scope.cancel()
            if self._scope.cancelled_caught and not opened.done():
                failure = failure_of(TimeoutError(), opening.status if self._sse else None)
        except Exception as error:
            failure = failure_of(error, opening.status)
        finally:
            self._failed = failure
            for future in (opened, *(request.answer for request in self._pending)):
                if not future.done():
                    future.set_exception(failure)
                    future.exception()  # the future may no longer be awaited

    async def _connect(self, stack: AsyncExitStack, opening: _Request) -> Client:
        *others, last = self._transports()
        for kind in others:
            try:
                return await stack.enter_async_context(self._client(kind))
            except Exception:
                if opening.status not in _OTHER_TRANSPORT:
                    raise
                opening.status = None
        if last == "sse":
            # The SDK's SSE writer ends silently when a request is refused.
            self._sse = opening.ends_on_refusal = True
        return await stack.enter_async_context(self._client(last))

    def _transports(self) -> Sequence[str]:
        if self._settings.command:
            return ("stdio",)
        if self._settings.transport != "auto":
            return (self._settings.transport,)
        path = self._address.url.partition("?")[0].rstrip("/")
        return ("sse",) if path.endswith("/sse") else ("http", "sse")

    def _client(self, kind: str) -> Client:
        info = mcp_types.Implementation(name="antiphon", version=__version__)
        # Servers older than streamable HTTP support only the legacy handshake.
        return Client(
            self._transport(kind),
            client_info=info,
            cache=None,
            mode="legacy" if kind == "sse" else "auto",
            message_handler=self._notified,
        )

    async def _notified(self, message: object) -> None:
        self._list_version += isinstance(message, mcp_types.ToolListChangedNotification)

    def _transport(self, kind: str) -> AbstractAsyncContextManager[Any]:
        address, settings = self._address, self._settings
        if kind == "stdio":
            program, *arguments = settings.command
            parameters = StdioServerParameters(command=program, args=arguments, env=address.env, cwd=settings.directory)
            return stdio_client(parameters, sys.stderr if self._stderr else cast(TextIO, subprocess.DEVNULL))
        seconds = max(settings.open_timeout, settings.timeout)
        client = partial(http_client, address, seconds=seconds)
        if kind == "sse":
            return sse_client(
                address.url,
                sse_read_timeout=seconds,
                httpx_client_factory=lambda *_, **__: client(),
            )
        return _streamable_http(address.url, client())

    async def _answer(self, client: Client, request: _Request) -> None:
        assert request.work
        request.ends_on_refusal = self._sse
        current_request.set(request)
        try:
            with request.scope:
                answer = await request.work(client)
        except Exception as error:
            failure = failure_of(error, request.status)
            # 404: the server has dropped the session.
            if failure.error["code"] in (CONNECTION_CLOSED, 404) and not failure.by_server:
                self._failed = failure  # running requests may finish; new requests are refused
            if not request.answer.done():
                request.answer.set_exception(failure)
            return
        if request.answer.done():
            return
        if not request.scope.cancelled_caught:
            request.answer.set_result(answer)
        elif self._sse and request.status:
            self._failed = failure_of(OSError(), request.status)
            request.answer.set_exception(self._failed)


@asynccontextmanager
async def _streamable_http(url: str, client: httpx2.AsyncClient) -> AsyncIterator[object]:
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MAX_RESULT_BYTES) as streams:
        yield streams


async def _ping(client: Client, *, seconds: float, over_http: bool) -> None:
    if over_http and client.protocol_version >= _WITHOUT_SESSIONS:
        return
    with anyio.fail_after(seconds):
        await client.session.send_request(mcp_types.PingRequest(), mcp_types.EmptyResult)


async def _list_tools(client: Client, seconds: float) -> tuple[list[dict[str, object]], bool]:
    tools: list[dict[str, object]] = []
    size = 0
    cursor = None
    seen: set[str] = set()
    with anyio.fail_after(seconds):
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            listed = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in page.tools]
            size += size_of(listed)
            if size > MAX_LIST_BYTES:
                break
            tools += listed
            cursor = page.next_cursor
            if not cursor:
                return tools, True
            if cursor in seen:
                break
            seen.add(cursor)
    return tools, False


async def _call_tool(client: Client, name: str, arguments: dict[str, object], seconds: float) -> dict[str, object]:
    parameters = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
    request = mcp_types.CallToolRequest(params=parameters)
    with anyio.fail_after(seconds):
        # `client.call_tool` would list the tools again and validate the result.
        try:
            result = await client.session.send_request(request, mcp_types.CallToolResult)
        except MCPError as error:
            if error.code != mcp_types.HEADER_MISMATCH:
                raise
            await client.list_tools(cache_mode="bypass")  # tells the SDK which arguments are sent as headers
            result = await client.session.send_request(request, mcp_types.CallToolResult)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


_UNREADABLE = "The MCP server sent an invalid response."


def failure_of(error: BaseException, status: int | None = None) -> MCPFailure:
    """`status`: the refused request's HTTP status."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPFailure):
        return error
    if isinstance(error, httpx2.HTTPStatusError):
        status = error.response.status_code
    if isinstance(error, OutboundRefused):
        return MCPFailure(f"Requests to the MCP server are not allowed: {error}")
    if status is not None:
        return _refusal(status)
    match error:
        case MCPError() if error.code == CONNECTION_CLOSED and error.message.startswith(_LOST):
            return MCPFailure("The connection to the MCP server was lost.")
        case MCPError() if error.code == mcp_types.PARSE_ERROR and error.message.startswith("Failed to parse"):
            return MCPFailure(_UNREADABLE, mcp_types.PARSE_ERROR)  # the SDK quotes the answer
        case MCPError():
            return MCPFailure(error.message[:MAX_MESSAGE], error.code, by_server=True)
        case TimeoutError() | httpx2.TimeoutException():
            return MCPFailure("The MCP server did not answer in time.", REQUEST_TIMEOUT)
        case ValidationError() | json.JSONDecodeError() | httpx2.DecodingError():
            return MCPFailure(_UNREADABLE, mcp_types.PARSE_ERROR)
        case FileNotFoundError() | PermissionError():
            return MCPFailure("The MCP server's program cannot be run: it was not found, or is not executable.")
        case httpx2.HTTPError() | OSError() | subprocess.SubprocessError():
            return MCPFailure("The MCP server cannot be reached.")
    return MCPFailure("The session with the MCP server has failed.", mcp_types.INTERNAL_ERROR)


def _refusal(status: int) -> MCPFailure:
    if 300 <= status < 400:
        return MCPFailure(
            "The MCP server redirects to another address. Redirects are not followed.", status, "http_error"
        )
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    return MCPFailure(f"The MCP server answered with the HTTP status {status}{phrase}.", status, "http_error")


MAX_RESULT_BYTES = 32 * 1024 * 1024  # per document, or per event in a stream
_MAX_STREAM_BYTES = 8 * MAX_RESULT_BYTES


def http_client(address: ServerAddress, *, seconds: float) -> httpx2.AsyncClient:
    """Restricted to a server's origin, by the guard's rules; `seconds` limits each step, for example a read."""
    return httpx2.AsyncClient(
        transport=_GuardedTransport(address),
        headers=dict(address.headers),
        timeout=httpx2.Timeout(seconds),
        trust_env=False,
    )


class _GuardedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, address: ServerAddress) -> None:
        url = httpx2.URL(address.url)
        self._origin = (url.scheme, url.host, url.port)
        self._check = address.check
        network = GuardedNetwork(address.policy, library=httpcore2, resolver=address.resolver)
        self._http = httpx2.AsyncHTTPTransport(verify=tls(), trust_env=False)
        self._http._pool = httpcore2.AsyncConnectionPool(ssl_context=tls(), network_backend=network)  # type: ignore[arg-type]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (request.url.scheme, request.url.host, request.url.port) != self._origin:
            raise OutboundRefused("The MCP server refers to another origin, which is not allowed.")
        self._check(str(request.url))  # the SDK follows redirects to the same origin
        request.headers["accept-encoding"] = "identity"
        response = await self._http.handle_async_request(request)
        current = current_request.get()
        if response.status_code >= 300 and current is not None:
            current.status = response.status_code
            if current.ends_on_refusal and request.method == "POST":
                current.scope.cancel()
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        return httpx2.Response(
            response.status_code,
            headers=plain_headers(response.headers.multi_items()),
            stream=_Body(response, _MAX_STREAM_BYTES if streamed else MAX_RESULT_BYTES),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._http.aclose()


class _Body(BoundedBody, httpx2.AsyncByteStream):
    _error = httpx2.StreamError  # the SDK treats the response as unreadable, and continues


MAX_LEVELS = 150  # in a message; pydantic parses about 200
MAX_REPAIRED_BYTES = 4 * 1024 * 1024  # the search for deep nesting blocks the event loop

# A string, or a bracket outside a string.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def parse_leniently() -> None:
    """
    Repair messages that the SDK would discard.

    Too deeply nested messages cannot be parsed, and a nonconforming tool invalidates the whole tool list. So deep
    values become null, and nonconforming fields are dropped.
    """
    adapter = _Adapter(mcp_types.jsonrpc_message_adapter)
    for module in (mcp_types, streamable_http):
        setattr(module, "jsonrpc_message_adapter", adapter)  # noqa: B010 - the SDK declares its type


class _Adapter:
    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def validate_json(self, data: str | bytes, **options: Any) -> Any:
        try:
            message = self._adapter.validate_json(data, **options)
        except ValidationError:
            if len(data) > MAX_REPAIRED_BYTES:
                raise
            encoded = data.encode(errors="surrogatepass") if isinstance(data, str) else data
            if (repaired := truncate_nesting(encoded)) == encoded:
                raise
            message = self._adapter.validate_json(repaired, **options)
        if isinstance(message, mcp_types.JSONRPCResponse) and isinstance(tools := message.result.get("tools"), list):
            conforming = [*map(conforming_tool, tools)]
            if any(tool["name"] for tool in conforming):  # otherwise not a tool list
                message.result["tools"] = conforming
        return message


def truncate_nesting(data: bytes, levels: int = MAX_LEVELS) -> bytes:
    """Replace objects and arrays nested below `levels` others with null."""
    parts: list[bytes] = []
    level = end = 0
    for token in _TOKENS.finditer(data):
        mark = data[token.start()]
        if mark in b"[{":
            level += 1
            if level == levels + 1:
                parts.append(data[end : token.start()])
        elif mark in b"]}":
            if level == levels + 1:
                parts.append(b"null")
                end = token.end()
            level -= 1
    return b"".join([*parts, data[end:]]) if level == 0 else data


def conforming_tool(tool: object) -> dict[str, object]:
    """The tool's fields that are used here."""
    described = tool if isinstance(tool, Mapping) and isinstance(tool.get("name"), str) else {"name": ""}
    fields: dict[str, object] = {
        field: text for field in ("name", "title", "description") if isinstance(text := described.get(field), str)
    }
    if isinstance(annotations := described.get("annotations"), Mapping):
        hints = {name: hint for name, hint in annotations.items() if isinstance(hint, bool)}
        fields |= {"annotations": hints} if hints else {}
    return {**fields, "inputSchema": _conforming_schema(described.get("inputSchema"))}


def _conforming_schema(schema: object) -> dict[str, object]:
    conforming = {**schema, "type": "object"} if isinstance(schema, dict) else {"type": "object"}
    properties, required = conforming.get("properties"), conforming.get("required")
    if not isinstance(properties, dict) or not all(isinstance(one, dict | bool) for one in properties.values()):
        conforming.pop("properties", None)
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        conforming.pop("required", None)
    if not isinstance(conforming.get("$schema"), str):
        conforming.pop("$schema", None)
    return conforming


parse_leniently()
