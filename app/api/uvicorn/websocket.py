"""
uvicorn's WebSocket protocol with frame limits and different shutdown and keepalive timeout.

    uvicorn.run(..., ws="app.api.uvicorn.websocket:WebSocketProtocol")
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.streams import StreamReader

from app.api.uvicorn.http import REFUSAL_LINGER
from app.api.uvicorn.shutdown import begin_shutdown

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent

SERVICE_RESTART = 1012  # see https://www.iana.org/assignments/websocket/websocket.xhtml

# A 256 KB read can contain 43,000 frames, and each costs 10 to 50 µs.
FRAMES_PER_PASS = 64  # per connection, parsed before other tasks run
CONTROL_FRAMES_PER_SECOND = 100  # pings and pongs; typical clients send one every 20 seconds
MAX_FRAGMENTS = 20_000  # per message; 64 MiB in 4 KiB fragments, used by some clients, are 16,384


class FrameReader(StreamReader):
    """Input for the frame parser; it stops before a frame when `frames_left` is 0."""

    frames_left = FRAMES_PER_PASS

    def at_eof(self) -> Generator[None, None, bool]:
        """Called by the parser before each frame."""
        while not self.frames_left:
            yield
        at_eof = yield from super().at_eof()
        self.frames_left -= 1
        return at_eof

    @property
    def is_stopped(self) -> bool:
        return bool(self.buffer) and not self.frames_left


class WebSocketProtocol(WebSocketsSansIOProtocol):
    _control_frames = 0  # received since `_control_since`
    _control_since = 0.0  # loop time
    _will_parse = False  # the remaining data will be parsed

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reader = self.conn.reader = FrameReader()
        self.conn.parser = self.conn.parse()
        next(self.conn.parser)

    def data_received(self, data: bytes) -> None:
        """Parse up to `FRAMES_PER_PASS` frames. If data remains, pause reading and parse it in later passes."""
        self._reader.frames_left = FRAMES_PER_PASS
        super().data_received(data)
        self._schedule_parsing()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        self._schedule_parsing()
        return message

    def _schedule_parsing(self) -> None:
        """Parse remaining data once the application has received all messages."""
        if not self._reader.is_stopped or self.transport.is_closing():
            return
        self.transport.pause_reading()
        if not self._will_parse and (self.queue.empty() or self.close_sent):
            self._will_parse = True
            self.loop.call_soon(self._parse_more)

    def _parse_more(self) -> None:
        self._will_parse = False
        if self.transport.is_closing():
            return
        self.data_received(b"")
        if not (self._reader.is_stopped or self.read_paused):
            self.transport.resume_reading()

    def handle_ping(self) -> None:
        if self._admit_control_frame():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._admit_control_frame():
            super().handle_pong(event)

    def _admit_control_frame(self) -> bool:
        if (now := self.loop.time()) - self._control_since >= 1:
            self._control_since, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > CONTROL_FRAMES_PER_SECOND:
            self._refuse("too many control frames")
        return not self.close_sent

    def handle_cont(self, event: Frame) -> None:
        """A fragment has up to 45 bytes overhead."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._refuse("too many fragments")
        if not self.close_sent:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Refuse text that is not UTF-8, for which uvicorn would log a traceback."""
        data = b"".join(self.frames)
        if self.curr_msg_data_type == "text" and not data.isascii():
            try:
                data.decode()
            except UnicodeDecodeError:
                self._refuse("text is not UTF-8", CloseCode.INVALID_DATA)
                return
        self.frames = [data]
        super().send_receive_event_to_app()

    def _refuse(self, reason: str, code: CloseCode = CloseCode.POLICY_VIOLATION) -> None:
        """Close the connection. Received data is discarded until the client has read the close frame."""
        if self.close_sent or self.transport.is_closing():
            return
        self.logger.warning("WebSocket rejected", extra={"reason": reason})
        if not self.handshake_complete:
            self.transport.close()
            return
        self.conn.fail(code, reason)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.frames = []
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_timer = self.loop.call_later(REFUSAL_LINGER, self.transport.close)

    def shutdown(self) -> None:
        """
        Send the application a disconnect with `SERVICE_RESTART`; leave the connection open for its last frames.

        uvicorn would close at once, in the middle of a response.
        """
        begin_shutdown(self.app_state)
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
        else:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": SERVICE_RESTART})

    def handle_text(self, event: Frame) -> None:
        """Free the frame's bytes, which the parser references until the next frame arrives."""
        super().handle_text(event)
        event.data = b""

    def handle_bytes(self, event: Frame) -> None:
        super().handle_bytes(event)
        event.data = b""

    def keepalive_timeout(self) -> None:
        """
        Abort the connection of a client that does not answer pings.

        uvicorn would wait for a client that does not read, and block the application and the backend connection.
        """
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
