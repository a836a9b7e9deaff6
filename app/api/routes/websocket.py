"""
The API over a WebSocket: consecutive turns on a connection, which stores unstored responses until it closes.

Clients send `response.create` frames. The server sends response events, one per text frame, or an error, `{"type":
"error", "status": 400, "error": {...}}`, without closing the connection. Turns with different `stream_id`s run
concurrently. Control frames, for example `response.cancel`, are answered at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from app.api.auth import SUBPROTOCOL_KEY, handshake_headers
from app.api.dependencies import APIDependencies
from app.api.errors import refuse, report
from app.api.request_body import body_too_large, load_json, read_data, validate
from app.api.uvicorn.websocket import SERVICE_RESTART
from app.core.bounded_json import MAX_VALUES, dumps
from app.core.dialects import dialect_of
from app.core.ids import partition_of
from app.core.stream.event_batch import EventBatch
from app.core.types import JSONObject
from app.core.types.request import TERMINAL, CreateResponse, Response
from app.errors import APIError, InvalidRequest, TooManyRequests
from app.responses import Caller, Run
from app.responses.delivery import Outbox
from app.runtime.tasks import cancel, end
from app.stores import LayeredStore, Store, images_partition

logger = logging.getLogger(__name__)

GOING_AWAY = 1001
INTERNAL_ERROR = 1011
CLOSING_TIMEOUT = 5  # seconds to send the last frame and the close frame


# "HTTP/SSE transport-specific fields such as `stream`, `stream_options`, and `background` MUST NOT be sent on WebSocket
# requests." Codex sends them, with values without effect.
_HARMLESS: dict[str, Callable[[object], bool]] = {
    "stream": lambda value: value is True,
    "stream_options": lambda value: isinstance(value, dict),
    "background": lambda value: value is False,
}
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
CREATE, CANCEL, STEER = FRAME_TYPES = "response.create", "response.cancel", "response.steer"


class Create(NamedTuple):
    request: CreateResponse | InvalidRequest  # the error is raised when the turn begins
    length: int  # bytes
    stream_id: str | None  # the client's turn id, repeated in each frame of the response
    previous_response_id: object
    generate: bool  # False only stores the input, for a later request


def read_frame(frame: bytes, max_values: int = MAX_VALUES, *, lenient: bool = False) -> Create | JSONObject:
    """
    Returns the fields of a control frame. Raises `InvalidRequest` if the frame is not a JSON object.

    Request fields are next to `type`, or in `response` as in OpenAI's Realtime API. `lenient` accepts HTTP fields with
    values without effect.
    """
    fields = load_json(frame, "frame", max_values)
    if fields.get("type") != CREATE:
        return fields
    del fields["type"]
    nested = fields.pop("response", None)
    fields = {**nested, **fields} if isinstance(nested, dict) else fields
    request: CreateResponse | InvalidRequest
    try:
        request = _request(fields, len(frame), lenient=lenient)
    except InvalidRequest as error:
        request = error
    stream_id, generate = fields.get("stream_id"), fields.get("generate") is not False
    known = stream_id if isinstance(stream_id, str) and _STREAM_ID.fullmatch(stream_id) else None
    return Create(request, len(frame), known, fields.get("previous_response_id"), generate)


def _request(fields: JSONObject, length: int, *, lenient: bool) -> CreateResponse:
    for name, harmless in _HARMLESS.items():
        value = fields.get(name)
        if value is not None and not (lenient and harmless(value)):
            message = f"Invalid '{name}': must be omitted on a WebSocket."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    if not isinstance(fields.get("generate"), bool | None):
        message = "Invalid 'generate': must be true or false."
        raise InvalidRequest(message, param="generate", code="invalid_type")
    stream_id = fields.get("stream_id")
    if stream_id is not None and not (isinstance(stream_id, str) and _STREAM_ID.fullmatch(stream_id)):
        message = "Invalid 'stream_id': must be 1 to 256 letters, digits, underscores, hyphens and periods."
        raise InvalidRequest(message, param="stream_id", code="invalid_stream_id")
    return validate({name: value for name, value in fields.items() if name not in _HARMLESS}, CreateResponse, length)


def unknown_frame(frame_type: object) -> dict[str, object]:
    """The `frame` field distinguishes this error from a turn's error."""
    types = ", ".join(map(repr, FRAME_TYPES))
    message = f"Invalid 'type': must be one of {types}, not {repr(frame_type)[:100]}."
    error = InvalidRequest(message, param="type", code="invalid_value")
    return {**envelope(error), "frame": frame_type[:100] if isinstance(frame_type, str) else None}


def steer_failure(fields: JSONObject, number: int) -> dict[str, object]:
    """
    Reject a `response.steer` frame; `number` is its sequence number.

    Chat Completions cannot add input to a response in progress. The answer returns the input, which the client can send
    with the next turn.
    """
    steer = {name: fields.get(name) for name in ("input", "previous_response_id")}
    code = "steering_not_supported"
    message = "This server cannot steer a response in progress. Send the input after it has ended."
    if not isinstance(steer["previous_response_id"], str) or not isinstance(steer["input"], (str, list)):
        code = "invalid_input"
        message = "A steer must have 'previous_response_id' and 'input', a string or a list of messages."
    error = {"code": code, "message": message, "type": "invalid_request_error"}
    return {"type": "response.steer.failed", "sequence_number": number, "steer": steer, "error": error}


def envelope(error: APIError, stream_id: str | None = None) -> dict[str, object]:
    """An error as the spec's `WebSocketErrorEvent`, with an HTTP error response's headers."""
    headers: dict[str, object] = {"headers": error.headers()} if error.headers() else {}
    frame = {"type": "error", "status": error.status, "error": {**error.payload(), **headers}, **headers}
    return frame if stream_id is None else {**frame, "stream_id": stream_id}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    lifetime: float  # seconds
    grace: float  # seconds for the current turn to finish after the lifetime
    queue: int  # turns beyond the first, running or waiting


def routes(api: APIDependencies, limits: ConnectionLimits, memory: Callable[[], Store]) -> APIRouter:
    """`memory` creates a connection's store for unstored responses."""
    router = APIRouter(prefix="/v1")

    @router.websocket("/responses")
    async def responses(websocket: WebSocket) -> None:
        try:
            caller = api.auth.caller(handshake_headers(websocket.scope))
        except APIError as error:
            await refuse(error, websocket.scope, websocket.receive, websocket.send)
            return
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(
            subprotocol=next((name for name in offered if not name.startswith(SUBPROTOCOL_KEY)), None)
        )
        await WebSocketConnection(websocket, caller, api, limits, memory()).serve()

    return router


class Lane:
    """Runs the turns with the same `stream_id` in order."""

    def __init__(self, stream_id: str | None) -> None:
        self.stream_id = stream_id
        # Parsed frames need more memory, so only a turn that can begin at once is parsed.
        self.waiting: deque[Create | bytes] = deque()
        self.task: asyncio.Task[None] | None = None
        self._response: Response | None = None
        self._generating: asyncio.Task[None] | None = None
        self._cancelled = False

    def end_turn(self) -> None:
        self._response, self._generating, self._cancelled = None, None, False

    def generate_in_task(self, run: Run, outbox: Outbox, open_after: float) -> asyncio.Task[None]:
        self._response = run.response
        return asyncio.create_task(self._generate(run, outbox, open_after))

    def cancel(self, response_id: object) -> None:
        """Cancel the current response if it has this id (None: any id)."""
        response = self._response
        if response_id is not None and not (response and response["id"] == response_id):
            return
        if response and response["status"] in TERMINAL:
            return
        self._cancelled = True
        if self._generating:
            self._generating.cancel()

    async def _generate(self, run: Run, outbox: Outbox, open_after: float) -> None:
        self._generating = generating = asyncio.current_task()
        with run.watched():
            try:
                if not self._cancelled:
                    await run.generate(outbox, open_after)
                    return
            except asyncio.CancelledError:
                if not (generating and self._cancelled):
                    raise
                generating.uncancel()
            outbox.send(await run.stop())


class WebSocketConnection:
    """
    One task reads the frames; each lane runs its turns in its own task.

    A client that does not read blocks sending, and thereby reading from the backend.
    """

    def __init__(
        self, websocket: WebSocket, caller: Caller, api: APIDependencies, limits: ConnectionLimits, memory: Store
    ) -> None:
        self._websocket = websocket
        self._caller = caller
        self._api = api
        self._limits = limits
        self._layers = LayeredStore(memory, api.responses.store)
        lenient = "keepalive" in (caller.dialect.heartbeat, dialect_of(websocket.headers).heartbeat)
        self._read_frame = partial(read_frame, max_values=api.body_limits.values, lenient=lenient)
        self._lanes: dict[str | None, Lane] = {}  # by `stream_id`
        self._turns = 0  # running and waiting
        self._turns_size = 0  # bytes in their frames
        self._finishing = False
        self._send_lock = asyncio.Lock()  # held for a batch of events
        self._last_sent = 0.0  # loop time
        self._steers = 0  # number of `response.steer` frames

    async def serve(self) -> None:
        reading = asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=self._limits.lifetime)
            if not done:
                await self._finish(reading)
                await self._close(GOING_AWAY, self._limit_reached())
            elif reading.result() == SERVICE_RESTART:
                await self._finish()
                await self._close(SERVICE_RESTART)
        finally:
            await end(reading, *self._tasks())
            logger.info("WebSocket closed")

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [lane.task for lane in self._lanes.values() if lane.task]

    async def _read(self) -> int:
        """Returns the close code."""
        with contextlib.suppress(WebSocketDisconnect):
            while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                await self._receive(message.pop("text", None) or message.pop("bytes", None) or "")
            return int(message.get("code") or 1005)
        return 1006

    async def _receive(self, frame: str | bytes) -> None:
        try:
            if len(frame) > self._api.body_limits.bytes:
                raise body_too_large(self._api.body_limits.bytes)
            if isinstance(frame, str):
                frame = frame.encode()  # frees the text before the bytes are parsed
            read = await self._parse(frame)
        except Exception as error:
            await self._send_frame({**self._refused(error), "frame": None})
            return
        if not isinstance(read, Create):
            await self._control(read)
        elif self._turns and (
            self._turns > self._limits.queue or self._turns_size + read.length > self._api.body_limits.bytes
        ):
            message = "Too many turns in progress on this connection. Wait until a turn has ended."
            await self._send_frame(self._refused(TooManyRequests(message), read.stream_id))
        elif not self._finishing:
            self._turns += 1
            self._turns_size += read.length
            if lane := self._lanes.get(read.stream_id):
                lane.waiting.append(frame)
            else:
                lane = self._lanes[read.stream_id] = Lane(read.stream_id)
                lane.waiting.append(read)
                lane.task = asyncio.create_task(self._work(lane))

    async def _parse(self, frame: bytes) -> Create | JSONObject:
        return await read_data(frame, self._read_frame)

    async def _control(self, frame: JSONObject) -> None:
        """Answered at once, even during a response. The only answer to `response.cancel` is the response's end."""
        frame_type = frame.get("type")
        if frame_type == CANCEL:
            stream_id = frame.get("stream_id")
            for lane in self._lanes.values():
                if stream_id in (None, lane.stream_id):
                    lane.cancel(frame.get("response_id"))
        elif frame_type == STEER:
            number, self._steers = self._steers, self._steers + 1
            await self._send_frame(steer_failure(frame, number))
        else:
            await self._send_frame(unknown_frame(frame_type))

    async def _work(self, lane: Lane) -> None:
        """An unexpected error closes the connection."""
        try:
            while lane.waiting:
                turn = lane.waiting.popleft()
                create = await self._parse(turn) if isinstance(turn, bytes) else turn
                assert isinstance(create, Create)
                await self._answer(lane, create)
        except WebSocketDisconnect:
            pass
        except Exception:
            logger.exception("unexpected error")
            await self._close(INTERNAL_ERROR)
        finally:
            del self._lanes[lane.stream_id]

    async def _answer(self, lane: Lane, create: Create) -> None:
        """
        Answer a turn; raises only `WebSocketDisconnect`.

        "If a continuation turn fails with a 4xx or 5xx error, the server MUST evict the referenced
        `previous_response_id` from the connection-local cache."
        """
        try:
            self._caller = self._api.auth.verify(self._caller)  # the key may have been revoked
            if isinstance(request := create.request, InvalidRequest):
                raise request
            with await self._api.admit(self._caller) as admission:
                await admission.acquire_slots()
                run = await self._api.responses.create(
                    request,
                    self._caller,
                    generate=create.generate,
                    delivery="websocket",
                    account=admission,
                    layers=self._layers,
                )
                await self._send_run(run, lane)
            failed = run.response["status"] == "failed"
        except WebSocketDisconnect:
            raise
        except Exception as error:
            failed = True
            await self._send_frame(self._refused(error, create.stream_id))
        previous = create.previous_response_id
        if failed and isinstance(previous, str) and (partition := partition_of(self._caller.owner, previous)):
            await self._layers.delete_in_memory(partition, previous)
            await self._layers.delete_in_memory(images_partition(partition), previous)
        lane.end_turn()
        self._turns -= 1
        self._turns_size -= create.length

    async def _send_run(self, run: Run, lane: Lane) -> None:
        """Raises `APIError` if the response fails before the first event."""
        outbox, stream_id = Outbox(), lane.stream_id
        generating = lane.generate_in_task(run, outbox, self._api.open_after)
        generating.add_done_callback(lambda _: outbox.close())
        tasks = [generating]
        try:
            await outbox.wait()
            if not outbox:
                generating.result()  # raises
            if self._caller.dialect.heartbeat == "keepalive" and self._api.heartbeat:
                tasks.append(asyncio.create_task(self._send_heartbeats(run, outbox)))
            while outbox or not generating.done():
                await outbox.wait()
                if outbox:
                    await self._send_events(outbox.pop(), stream_id)
            await generating
            return
        except (APIError, WebSocketDisconnect):
            raise
        except Exception as error:
            if generating.done() and generating.exception() is error:
                raise
            broken = error  # an event could not be encoded
        finally:
            await cancel(*tasks)
        await self._send_events(await run.break_off(broken), stream_id)

    async def _send_heartbeats(self, run: Run, outbox: Outbox) -> None:
        """Keepalive events during silence: some clients reset their idle timer only on events."""
        clock = asyncio.get_running_loop().time
        while True:
            silence = clock() - self._last_sent
            if silence < self._api.heartbeat:
                await asyncio.sleep(self._api.heartbeat - silence)
            else:
                if not (outbox or self._send_lock.locked()):  # otherwise the client does not read
                    outbox.send(run.keepalive())
                await asyncio.sleep(self._api.heartbeat)

    async def _send_events(self, events: EventBatch, stream_id: str | None) -> None:
        more = {} if stream_id is None else {"stream_id": stream_id}
        async with self._send_lock:
            for event in events.events():
                await self._send({**event, **more} if more else event)
            self._last_sent = asyncio.get_running_loop().time()

    async def _send_frame(self, frame: Mapping[str, object]) -> None:
        async with self._send_lock:
            await self._send(frame)

    async def _send(self, frame: Mapping[str, object]) -> None:
        try:
            await self._websocket.send_text(dumps(frame).decode())
        except RuntimeError as error:  # the other task has received the disconnect
            raise WebSocketDisconnect(1006) from error

    def _refused(self, error: Exception, stream_id: str | None = None) -> dict[str, object]:
        if isinstance(error, APIError):
            report(error)
        else:
            logger.error("unexpected error", exc_info=error)
            error = APIError("The server had an error while processing the request.")
        self._api.refused(self._caller, "WebSocket /responses", error)
        return envelope(error, stream_id)

    def _limit_reached(self) -> dict[str, object]:
        """
        "WebSocket connections are limited to 60 minutes. When the limit is reached, servers MUST return an error whose
        code is `websocket_connection_limit_reached`."
        """
        message = (
            f"Responses websocket connection limit reached ({self._limits.lifetime / 60:g} minutes). "
            "Create a new websocket connection to continue."
        )
        return envelope(InvalidRequest(message, code="websocket_connection_limit_reached"))

    async def _finish(self, *others: asyncio.Future[Any]) -> None:
        """Drops waiting turns; waits for running turns until the grace period ends or another task is done."""
        self._finishing = True
        for lane in self._lanes.values():
            lane.waiting.clear()
        running: asyncio.Future[Any] = asyncio.gather(*self._tasks())
        await asyncio.wait({running, *others}, timeout=self._limits.grace, return_when=asyncio.FIRST_COMPLETED)
        await cancel(running)

    async def _close(self, code: int, last: dict[str, object] | None = None) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(CLOSING_TIMEOUT):
                if last:
                    await self._send(last)
                await self._websocket.close(code)
