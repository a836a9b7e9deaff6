"""The server under test: requests, shared answers, and cleanup."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from openresponses_verify.exchange import HTTPExchange, read_json
from openresponses_verify.laws.law import TERMINAL_STATUS
from openresponses_verify.rows import Failed, Inconclusive, NotPassed, Unsupported

RequestFields = dict[str, Any]

_TRIES = 3
_LONGEST_WAIT = 20.0  # seconds; upper bound for `Retry-After`
_MISSING_FEATURE = (404, 405, 426, 501)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_UNSUPPORTED_TEXT = re.compile(
    r"\b(un|not |n't |not yet )(supported|implemented|available|enabled|support)|not ?implemented", re.I
)
KEY, SECOND_KEY = "API_KEY", "SECOND_API_KEY"
# A check's last exchange, whose request the report shows. Each check runs in its own context.
LAST_EXCHANGE: ContextVar[HTTPExchange | None] = ContextVar("last_exchange", default=None)


@dataclass(frozen=True, slots=True)
class ServerAccess:
    url: str  # base URL
    model: str | None = None  # None: the first listed model
    key: str | None = None
    second_key: str | None = None  # another user's API key
    timeout: float = 60  # seconds per answer
    concurrency: int = 4  # concurrent requests
    headers: Mapping[str, str] = field(default_factory=dict)  # sent with every request, for example a gateway's key


def read_headers(lines: Iterable[str]) -> dict[str, str]:
    """Parse `NAME:VALUE` headers; raises `ValueError` for other lines."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        is_valid = _HEADER_NAME.fullmatch(name.strip()) and value.isascii() and value.strip().isprintable()
        if not colon or not is_valid:
            raise ValueError("must be NAME:VALUE in ASCII, such as 'api-key: x'")
        headers[name.strip()] = value.strip()
    return headers


class VerifiedServer:
    """
    The server under test, at a base URL.

    `stored` contains the paths of stored objects until they are deleted.
    """

    def __init__(self, access: ServerAccess) -> None:
        self.url = access.url.rstrip("/")
        self.model = access.model or ""
        self.requests = 0
        self.stored: dict[str, None] = {}
        self.keys = {name: value for name, value in ((KEY, access.key), (SECOND_KEY, access.second_key)) if value}
        self._timeout = access.timeout
        self._headers = {name.lower(): value for name, value in access.headers.items()}
        self._free = asyncio.Semaphore(access.concurrency)
        self._memoized: dict[Callable[..., Any], asyncio.Future[Any]] = {}
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(access.timeout, connect=10), follow_redirects=True)

    async def memoized(self, ask: Callable[[VerifiedServer], Awaitable[HTTPExchange]]) -> HTTPExchange:
        """Call a function once for all checks."""
        if ask not in self._memoized:
            self._memoized[ask] = asyncio.ensure_future(ask(self))
        exchange: HTTPExchange = await asyncio.shield(self._memoized[ask])
        LAST_EXCHANGE.set(exchange)
        return exchange

    def clear(self) -> None:
        """Discard shared answers."""
        self._memoized.clear()

    def body(self, **fields: object) -> RequestFields:
        """Return a request body for a response, by default not stored."""
        return {"model": self.model, "input": "Say hello.", "store": False, **fields}

    async def respond(self, **fields: object) -> HTTPExchange:
        return await self.send("POST", "/responses", self.body(**fields))

    async def stream(self, **fields: Any) -> HTTPExchange:
        return await self.respond(**fields, stream=True)

    async def get(self, path: str, *, key: str | None = KEY) -> HTTPExchange:
        return await self.send("GET", path, key=key)

    async def delete(self, path: str, *, key: str | None = KEY) -> HTTPExchange:
        return await self.send("DELETE", path, key=key)

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = KEY,
        headers: dict[str, str] | None = None,
    ) -> HTTPExchange:
        """
        Send a request and return the exchange, even if it failed. Retries if the server is busy.

        `key` selects the API key to send.
        """
        for last in range(_TRIES):
            exchange = HTTPExchange(method, f"{self.url}{path}", body, key if key in self.keys else None)
            exchange.added = self.added_headers
            LAST_EXCHANGE.set(exchange)
            try:
                async with self._free:
                    await self._exchange(exchange, headers or {})
            finally:
                self._note(exchange, path)
            wait = exchange.headers.get("retry-after", "")
            if exchange.status not in (429, 503) or not wait.isdigit() or last == _TRIES - 1:
                break
            await asyncio.sleep(min(int(wait), _LONGEST_WAIT))
        return exchange

    async def _exchange(self, exchange: HTTPExchange, headers: dict[str, str]) -> None:
        self.requests += 1
        content = exchange.body if isinstance(exchange.body, bytes) else None
        if exchange.body is not None and content is None:
            content = json.dumps(exchange.body).encode()
        sent = {"accept": "*/*"} | ({"content-type": "application/json"} if content is not None else {})
        sent |= {"authorization": f"Bearer {self.keys[exchange.key]}"} if exchange.key else {}
        sent |= self._headers
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._http.stream(exchange.method, exchange.url, content=content, headers=sent | headers) as answer,
            ):
                exchange.status, exchange.headers = answer.status_code, answer.headers
                async for data in answer.aiter_bytes():
                    exchange.content += data
        except TimeoutError:
            exchange.error = f"The answer did not end within {self._timeout:g} seconds."
        except httpx.HTTPError as error:
            exchange.error = f"The connection failed: {type(error).__name__}{f': {error}' if str(error) else ''}."

    def _note(self, exchange: HTTPExchange, path: str) -> None:
        if exchange.method != "POST" or not exchange.ok:
            return
        if path == "/responses":
            self.note_response(exchange.response)
        elif path == "/conversations" and isinstance(exchange.object.get("id"), str):
            self.stored[f"/conversations/{exchange.object['id']}"] = None

    def note_response(self, response: dict[str, Any]) -> None:
        if isinstance(response.get("id"), str) and response.get("store") is not False:
            self.stored[f"/responses/{response['id']}"] = None

    @asynccontextmanager
    async def websocket(self) -> AsyncIterator[SocketTurns]:
        """Open a WebSocket; raises `Unsupported` if the server has none, and `Inconclusive` without an answer."""
        url = re.sub(r"^http", "ws", f"{self.url}/responses")
        name = KEY if KEY in self.keys else None
        headers = {"authorization": f"Bearer {self.keys[name]}"} if name else {}
        headers |= self._headers
        exchange = HTTPExchange("GET", url, key=name, sent=["(the handshake)"], added=self.added_headers)
        LAST_EXCHANGE.set(exchange)
        self.requests += 1
        try:
            socket = await connect(
                url, additional_headers=headers, max_size=None, open_timeout=self._timeout, proxy=None
            )
        except InvalidStatus as error:
            exchange.status = error.response.status_code
            refused = Unsupported if exchange.status in (*_MISSING_FEATURE, 400, 403) else Failed
            raise refused(f"The handshake is answered with HTTP {exchange.status}.", exchange) from None
        except InvalidHandshake as error:
            raise Failed(f"The handshake is not a WebSocket handshake: {error}.", exchange) from None
        except (OSError, TimeoutError) as error:
            raise Inconclusive(f"The connection failed: {type(error).__name__}.", exchange) from None
        try:
            yield SocketTurns(self, socket, url, name)
        finally:
            await socket.close()

    @property
    def added_headers(self) -> tuple[str, ...]:
        return tuple(self._headers)

    @property
    def timeout(self) -> float:
        return self._timeout

    async def clean_up(self) -> list[str]:
        """Delete stored objects, and return the paths that remain."""
        left: list[str] = []

        async def remove(path: str) -> None:
            if (await self.delete(path)).status not in (200, 202, 204, 404):
                left.append(path)

        paths = list(self.stored)
        if paths:
            await remove(paths[0])
        if left:  # the server does not support deletion
            return paths
        await asyncio.gather(*map(remove, paths[1:]))
        return left

    async def cancel_requests(self) -> None:
        """Cancel pending requests from `memoized`."""
        for request in self._memoized.values():
            request.cancel()
        await asyncio.gather(*self._memoized.values(), return_exceptions=True)

    async def aclose(self) -> None:
        await self.cancel_requests()
        await self._http.aclose()


class SocketTurns:
    """A WebSocket connection for sequential turns."""

    def __init__(self, server: VerifiedServer, socket: ClientConnection, url: str, key: str | None) -> None:
        self._server = server
        self._socket = socket
        self._url = url
        self._key = key

    async def turn(self, **fields: object) -> HTTPExchange:
        """Request a response, and read up to the terminal event or error."""
        return await self.frames({"type": "response.create", **self._server.body(**fields)})

    async def frames(self, *messages: object, turns: int = 1) -> HTTPExchange:
        """Send messages (text unchanged, other values as JSON), and read the next `turns` turns."""
        exchange = HTTPExchange("GET", self._url, key=self._key, sent=list(messages), added=self._server.added_headers)
        LAST_EXCHANGE.set(exchange)
        self._server.requests += 1
        try:
            async with asyncio.timeout(self._server.timeout):
                for message in messages:
                    await self._socket.send(message if isinstance(message, str) else json.dumps(message))
                while turns:
                    frame = await self._socket.recv()
                    exchange.content += frame.encode() if isinstance(frame, str) else frame
                    document = _document(frame)
                    exchange.frames.append(document)
                    ended = str(document.get("type")) in TERMINAL_STATUS or _refuses(document)
                    turns -= ended
        except TimeoutError:
            exchange.error = f"The turn did not end within {self._server.timeout:g} seconds."
        except WebSocketException as error:
            exchange.error = f"The connection ended: {error}."
        status = exchange.frames[-1].get("status") if exchange.frames else 0
        exchange.status = 200 if exchange.response else status if isinstance(status, int) else 0
        self._server.note_response(exchange.response)
        return exchange


def _refuses(frame: dict[str, object]) -> bool:
    """Tell whether a frame rejects a turn. An error within a response is followed by its terminal event."""
    return frame.get("type") == "error" and ("status" in frame or "sequence_number" not in frame)


def _document(frame: str | bytes) -> dict[str, Any]:
    document = read_json(frame)
    return document if isinstance(document, dict) else {"type": f"(not a JSON object) {frame[:200]!r}"}


def says_unsupported(exchange: HTTPExchange, *fields: str) -> bool:
    """Tell whether an error reports a missing feature, or names one of `fields`."""
    refusal = exchange.refusal
    text = " ".join(str(refusal.get(name) or "") for name in ("message", "param", "code", "type"))
    if exchange.status in _MISSING_FEATURE:
        return True
    if exchange.status in (400, 403, 422):
        return bool(_UNSUPPORTED_TEXT.search(text)) or any(
            re.search(rf"\b{re.escape(field)}\b", text) for field in fields
        )
    return exchange.status >= 500 and bool(_UNSUPPORTED_TEXT.search(text))


def require_ok(exchange: HTTPExchange, *fields: str) -> HTTPExchange:
    """
    Return a successful exchange, for the check that tests this request.

    Raises `Unsupported` for a missing feature (see `says_unsupported`), otherwise `Failed`.
    """
    return _success(exchange, fields, Failed(f"The request is answered with {exchange.outcome()}", exchange))


def assume_ok(exchange: HTTPExchange, *fields: str) -> HTTPExchange:
    """Return a successful exchange, for checks that only build on it; raises `Unsupported` or `Inconclusive`."""
    return _success(exchange, fields, Inconclusive(f"The request failed: {exchange.outcome()}", exchange))


def _success(exchange: HTTPExchange, fields: Sequence[str], otherwise: NotPassed) -> HTTPExchange:
    if not exchange.ok:
        raise Unsupported(exchange.outcome(), exchange) if says_unsupported(exchange, *fields) else otherwise
    body = exchange.body
    expects_json = isinstance(body, dict) and exchange.url.endswith("/responses") and body.get("stream") is not True
    if expects_json and not exchange.response:
        raise Inconclusive("The answer is not a JSON object: see schema.json.", exchange)
    return exchange


async def retry_until_compliant(
    ask: Callable[[], Awaitable[HTTPExchange]], complied: Callable[[HTTPExchange], bool], task: str, *fields: str
) -> HTTPExchange:
    """Retry up to three times until the model cooperates; raises `Inconclusive`."""
    for _ in range(_TRIES):
        exchange = assume_ok(await ask(), *fields)
        if complied(exchange):
            return exchange
    raise Inconclusive(f"The model did not {task} in {_TRIES} attempts.", exchange)
