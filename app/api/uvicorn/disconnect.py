"""The client's connection: body writes and disconnect notification."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from app.api.uvicorn.http import HTTPProtocol

CONNECTION_KEY = "connection"  # request state field, if the connection is an `HTTPProtocol`


BodyWriter: TypeAlias = "HTTPProtocol | MessageWriter"


def body_writer(scope: Scope, send: Send) -> BodyWriter:
    return scope.get("state", {}).get(CONNECTION_KEY) or MessageWriter(send)


class MessageWriter:
    """Sends data as ASGI messages, which requires a coroutine."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._unsent = b""

    def write(self, data: bytes) -> bool:
        """Return False: `drain` must be awaited before the next write."""
        self._unsent += data
        return False

    async def drain(self) -> None:
        """Wait until data is sent. After a cancellation, the next call sends it."""
        if data := self._unsent:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._unsent = self._unsent[len(data) :]


class DisconnectWatch:
    """
    Calls a function when the client disconnects, until `stop`.

    The request must have been read. A connection that does not report its loss requires a task, at ten times the cost.
    """

    def __init__(self, scope: Scope, receive: Receive, call: Callable[[], object]) -> None:
        self.disconnected = False
        self._call = call
        self._waiting: asyncio.Future[None] | None = None
        self._connection: HTTPProtocol | None = scope.get("state", {}).get(CONNECTION_KEY)
        if self._connection is None or not self._connection.watch(self._notice):
            self._waiting = asyncio.ensure_future(_disconnected(receive))
            self._waiting.add_done_callback(self._waited)

    def stop(self) -> None:
        if self._connection:
            self._connection.unwatch(self._notice)
        if self._waiting:
            self._waiting.remove_done_callback(self._waited)
            self._waiting.cancel()

    def _waited(self, _: object) -> None:
        self._notice()

    def _notice(self) -> None:
        self.disconnected = True
        self._call()


class CancelOnDisconnect(DisconnectWatch):
    """
    Cancels the code in a `with` block when the client disconnects, and continues after the block.

        with CancelOnDisconnect(scope, receive):
            return json_response(await answer())
        return client_disconnected()
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task
        self._task = task
        super().__init__(scope, receive, task.cancel)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        self.stop()
        return kind is asyncio.CancelledError and self.disconnected and not self._task.uncancel()


def client_disconnected() -> Response:
    """An empty response, only for the access log."""
    return Response(status_code=499)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
