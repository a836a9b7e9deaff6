"""
uvicorn's WebSocket protocol, with changes to shutdown and to the keepalive timeout, and messages in fragments.

    uvicorn.run(..., ws="app.api.uvicorn.websocket:Socket")
"""

from __future__ import annotations

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame

from app.api.uvicorn.shutdown import begin_shutdown

SERVICE_RESTART = 1012  # close code of https://www.iana.org/assignments/websocket/websocket.xhtml


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    def shutdown(self) -> None:
        """
        Send the application a disconnect with `SERVICE_RESTART`, and leave the connection open for its last frames.

        uvicorn would close at once, in the middle of a response. It then waits for the application for up to
        `timeout_graceful_shutdown`.
        """
        begin_shutdown(self.app_state)
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
        else:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": SERVICE_RESTART})

    async def run_asgi(self) -> None:
        """Run the application, which can send a large message in fragments by `send_fragment` of its scope's state."""
        state: dict[str, object] = self.scope["state"]
        state["send_fragment"] = self.send_fragment
        try:
            await super().run_asgi()
        finally:
            del state["send_fragment"]  # breaks a reference cycle

    async def send_fragment(self, data: bytes, *, first: bool, last: bool) -> None:
        """Send a piece of a text message; raises `OSError` if the client has disconnected."""
        await self.writable.wait()
        if self.disconnected or self.close_sent:
            raise ClientDisconnected
        try:
            (self.conn.send_text if first else self.conn.send_continuation)(data, last)
        except InvalidState as error:
            raise ClientDisconnected from error
        self.transport.write(b"".join(self.conn.data_to_send()))

    def handle_text(self, event: Frame) -> None:
        """Queue a message, and free its bytes: the parser refers to a frame until the next one comes."""
        super().handle_text(event)
        event.data = b""

    def handle_bytes(self, event: Frame) -> None:
        """Queue a message, as `handle_text` does."""
        super().handle_bytes(event)
        event.data = b""

    def keepalive_timeout(self) -> None:
        """
        Close the connection of a client that does not answer pings.

        If the client does not read either, uvicorn would wait for ever to write its close frame, and so would the
        application and the backend's connection. So the connection is aborted.
        """
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
