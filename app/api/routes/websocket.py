"""
The API over a WebSocket: turns that follow one another on one connection, and a memory that ends with it.

A client sends `response.create` frames, and each is answered in order: with the events of a streamed response, one in
each text frame, or with an error, `{"type": "error", "status": 400, "error": {...}}`, after which the connection lives
on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from app.api.errors import refuse, report
from app.api.request_body import SMALL, too_large
from app.api.routes.responses import ApiContext
from app.api.routes.websocket_frames import Create, envelope, read_frame
from app.api.uvicorn.websocket import SERVICE_RESTART
from app.core.dialects import dialect_of
from app.core.types.request import Event
from app.errors import APIError, InvalidRequest, TooManyRequests
from app.responses import Caller, Run
from app.responses.off_loop import off_loop
from app.stores import Store

logger = logging.getLogger(__name__)

GOING_AWAY = 1001
LAST_WORDS = 5  # seconds that a client has to hear why the connection ends

# Browsers cannot set headers on a WebSocket, so OpenAI takes the key among the subprotocols.
_KEY = "openai-insecure-api-key."


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a connection lives, and how much it may ask for."""

    lifetime: float  # seconds
    grace: float  # seconds that a running turn has when the lifetime is over
    queue: int  # turns that may wait for the running one


def routes(api: ApiContext, bounds: ConnectionLimits, memory: Callable[[], Store]) -> APIRouter:
    """Return the route, without the `/v1`; `memory` makes what one connection remembers of unstored responses."""
    router = APIRouter()

    @router.websocket("/responses")
    async def responses(websocket: WebSocket) -> None:
        try:
            caller = api.auth.caller(_headers(websocket))
        except APIError as error:
            await refuse(error, websocket.scope, websocket.receive, websocket.send)
            return
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(subprotocol=next((name for name in offered if not name.startswith(_KEY)), None))
        await WebSocketConnection(websocket, caller, api, bounds, memory()).serve()

    return router


def _headers(websocket: WebSocket) -> Mapping[str, str]:
    """Return the headers of the request, with the key in the place where it belongs."""
    keys = [name.removeprefix(_KEY) for name in websocket.scope.get("subprotocols", []) if name.startswith(_KEY)]
    if not keys or "authorization" in websocket.headers:
        return websocket.headers
    return {**websocket.headers, "authorization": f"Bearer {keys[0]}"}


class WebSocketConnection:
    """
    One client's connection.

    One task reads frames and one answers them, a turn at a time; what a client sends meanwhile waits, in order and up
    to a bound. Sending waits for the client to read, and the backend is not read meanwhile.
    """

    def __init__(
        self, websocket: WebSocket, caller: Caller, api: ApiContext, bounds: ConnectionLimits, memory: Store
    ) -> None:
        self._websocket = websocket
        self._caller = caller
        self._door = api
        self._bounds = bounds
        self._responses = api.responses.within(memory)
        self._lenient = "keepalive" in (caller.dialect.heartbeat, dialect_of(websocket.headers).heartbeat)
        self._frames: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._waiting = 0  # bytes, or characters, of the frames that wait
        self._sending = asyncio.Lock()  # held over a batch of events, so that no heartbeat gets in between
        self._heard = 0.0  # when the client was last sent something, by the loop's clock

    async def serve(self) -> None:
        """Serve until the client goes, the connection's time is over, or the server is stopped."""
        reading = asyncio.create_task(self._read())
        working = asyncio.create_task(self._work())
        try:
            done, _ = await asyncio.wait(
                {reading, working}, timeout=self._bounds.lifetime, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                await self._finish(working, reading)
                await self._part(GOING_AWAY, self._limit_reached())
            elif reading in done and reading.result() == SERVICE_RESTART:
                await self._finish(working)
                await self._part(SERVICE_RESTART)
        finally:
            for died in await _put_away(reading, working):
                logger.error("unexpected error", exc_info=died)
            logger.info("socket closed")

    async def _read(self) -> int:
        """Put what the client sends into the queue; return the code with which the connection ended."""
        with contextlib.suppress(WebSocketDisconnect):
            while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                frame = message.get("text") or message.get("bytes") or ""
                if refusal := self._refusal(frame):
                    await self._send(envelope(refusal))
                    continue
                self._waiting += len(frame)
                self._frames.put_nowait(frame)
            return int(message.get("code") or 1005)
        return 1006

    def _refusal(self, frame: str | bytes) -> APIError | None:
        """Say why a frame cannot even wait: it is too large, or too many are waiting."""
        size, limit = len(frame), self._door.body_limits.bytes
        if size > limit:
            return too_large(limit)
        if self._frames.qsize() < self._bounds.queue and self._waiting + size <= limit:
            return None
        return TooManyRequests("Too many turns are waiting on this connection; send on when one has ended.")

    async def _work(self) -> None:
        """Answer frame after frame, until there are to be no more or the client is gone."""
        with contextlib.suppress(WebSocketDisconnect):
            while (frame := await self._frames.get()) is not None:
                self._waiting -= len(frame)
                await self._answer(frame)

    async def _answer(self, frame: str | bytes) -> None:
        """
        Answer one frame. Raises `WebSocketDisconnect` and nothing else.

        "If a continuation turn fails with a 4xx or 5xx error, the server MUST evict the referenced
        `previous_response_id` from the connection-local cache."
        """
        create = Create()
        try:
            create = await off_loop(len(frame) > SMALL, read_frame, frame, self._door.body_limits.values)
            self._door.auth.verify(self._caller)  # the key may have been revoked since the connection was made
            request = await off_loop(len(frame) > SMALL, create.request, lenient=self._lenient)
            async with (await self._door.admit(self._caller)).slot() as grant:
                run = await self._responses.create(request, self._caller, generate=create.generate, observers=[grant])
                await self._tell(run, create.stream_id)
            failed = run.response["status"] == "failed"
        except WebSocketDisconnect:
            raise
        except Exception as error:
            failed = True
            await self._send(envelope(_api_error(error), create.stream_id))
        if failed and create.previous_response_id:
            await self._responses.forget(create.previous_response_id, self._caller)

    async def _tell(self, run: Run, stream_id: str | None) -> None:
        """Send the events of a response. Raises `APIError` for what fails before the first one."""
        async with contextlib.aclosing(run.events(self._door.open_after)) as events:
            await self._send_events(await anext(events), stream_id)
            async with self._heartbeat(run, stream_id):
                async for batch in events:
                    await self._send_events(batch, stream_id)

    @contextlib.asynccontextmanager
    async def _heartbeat(self, run: Run, stream_id: str | None) -> AsyncIterator[None]:
        """
        Tell a client whose idle timer counts nothing but events that the response lives, while it is silent.

        Connections are kept alive by pings, which is the server's business (uvicorn's).
        """
        if self._caller.dialect.heartbeat != "keepalive" or not self._door.heartbeat:
            yield
            return
        beating = asyncio.create_task(self._beat(run, stream_id))
        try:
            yield
        finally:
            await _put_away(beating)

    async def _beat(self, run: Run, stream_id: str | None) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            silent = clock() - self._heard
            if silent < self._door.heartbeat:
                await asyncio.sleep(self._door.heartbeat - silent)
            elif self._sending.locked():
                await asyncio.sleep(self._door.heartbeat)  # the client does not read
            else:
                await self._send_events(run.keepalive(), stream_id)

    async def _send_events(self, events: list[Event], stream_id: str | None) -> None:
        async with self._sending:
            for event in events:
                await self._send(event if stream_id is None else {**event, "stream_id": stream_id})
            self._heard = asyncio.get_running_loop().time()

    async def _send(self, frame: dict[str, Any]) -> None:
        try:
            await self._websocket.send_text(orjson.dumps(frame).decode())
        except RuntimeError as error:  # the other task has seen before us that the client is gone
            raise WebSocketDisconnect(1006) from error

    def _limit_reached(self) -> dict[str, Any]:
        """
        "WebSocket connections are limited to 60 minutes. When the limit is reached, servers MUST return an error whose
        code is `websocket_connection_limit_reached`."
        """
        message = (
            f"Responses websocket connection limit reached ({self._bounds.lifetime / 60:g} minutes). "
            "Create a new websocket connection to continue."
        )
        return envelope(InvalidRequest(message, code="websocket_connection_limit_reached"))

    async def _finish(self, working: asyncio.Task[None], *others: asyncio.Task[int]) -> None:
        """Begin no turn any more, and let the running one end, within the grace and as long as no other task ends."""
        while not self._frames.empty():
            self._frames.get_nowait()
        self._frames.put_nowait(None)
        await asyncio.wait({working, *others}, timeout=self._bounds.grace, return_when=asyncio.FIRST_COMPLETED)
        await _put_away(working)

    async def _part(self, code: int, last: dict[str, Any] | None = None) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                if last:
                    await self._send(last)
                await self._websocket.close(code)


def _api_error(error: Exception) -> APIError:
    if isinstance(error, APIError):
        report(error)
        return error
    logger.error("unexpected error", exc_info=error)
    return APIError("The server had an error while processing the request.")


async def _put_away(*tasks: asyncio.Task[Any]) -> list[Exception]:
    """Cancel tasks, and wait until they are over; return the errors of which they died."""
    for task in tasks:
        task.cancel()
    return [ended for ended in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(ended, Exception)]
