"""
What uvicorn does with a WebSocket, but for two moments in which it would lose something.

    uvicorn.run(..., ws="app.api.uvicorn.websocket:Socket")
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.api.uvicorn import shutdown as stopping

SERVICE_RESTART = 1012  # https://www.iana.org/assignments/websocket/websocket.xhtml: only a server has reason to say it


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    def shutdown(self) -> None:
        """
        Tell the application that the server is stopping, and leave the connection to it.

        uvicorn would close at once, in the middle of an answer. It waits for the application afterwards, as long as
        `timeout_graceful_shutdown` says.
        """
        stopping.begin_shutdown(self.app_state)
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
        else:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": SERVICE_RESTART})

    def keepalive_timeout(self) -> None:
        """
        Give up a client that does not answer pings.

        A client that does not read either would keep uvicorn waiting for ever to have its last words read, and the
        application with it, and the backend's connection.
        """
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
