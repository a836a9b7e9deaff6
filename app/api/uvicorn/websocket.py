"""
uvicorn's WebSocket protocol, with changes to shutdown and to the keepalive timeout.

    uvicorn.run(..., ws="app.api.uvicorn.websocket:Socket")
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
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
