"""Split a byte stream into server-sent events (WHATWG, "9.2.6 Interpreting an event stream")."""

from __future__ import annotations

from app.errors import BackendError

# Real events with images or audio have a few million bytes.
MAX_EVENT_BYTES = 32 * 1024 * 1024
TOO_LONG = f"The backend sent more than {MAX_EVENT_BYTES // 1024**2} MiB in a single event or document."

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1024 * 1024  # bytes
_CR = b"\r"[0]  # an integer, because `in` is slow with a bytes operand


class EventFramer:
    """
    Buffers a stream until events are complete, in linear time.

    `feed` raises `BackendError` if an event exceeds `MAX_EVENT_BYTES`.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # incomplete event, with LF line ends
        self._buffered = 0  # bytes in `_pieces`
        self._unmerged = 0
        self._after_cr = False  # the last byte was a CR; the next read can begin with its LF
        self._begun = False

    @property
    def between_events(self) -> bool:
        return not (self._pieces or self._after_cr)

    def feed(self, data: bytes) -> bytes | None:
        """The events that end in `data`, separated by blank lines, with LF line ends."""
        if self._after_cr or _CR in data:
            data = self._newlines(data)
        cut = data.rfind(b"\n\n")
        pieces = self._pieces
        if cut >= 0:
            block, rest = data[:cut], data[cut + 2 :]
        elif pieces and data.startswith(b"\n") and pieces[-1].endswith(b"\n"):
            pieces[-1] = pieces[-1][:-1]
            block, rest = b"", data[1:]
        else:
            self._buffer(data)
            return None
        if pieces:
            block = b"".join((*pieces, block))
            pieces.clear()
            self._buffered = 0
        if rest:
            pieces.append(rest)
            self._buffered = len(rest)
        return self._without_mark(block)

    def end(self) -> bytes:
        block = b"".join(self._pieces)
        self._pieces.clear()
        return self._without_mark(block)

    def _buffer(self, data: bytes) -> None:
        if not data:
            return
        self._pieces.append(data)
        self._buffered += len(data)
        self._unmerged += len(data)
        if self._unmerged > _BLOCK:
            self._merge()
        if self._buffered > MAX_EVENT_BYTES:
            self._pieces.clear()
            raise BackendError(TOO_LONG)

    def _merge(self) -> None:
        """Small pieces become a large block, which the allocator returns to the system when freed."""
        self._unmerged = 0
        small: list[bytes] = []
        while self._pieces and len(self._pieces[-1]) < _BLOCK:
            small.append(self._pieces.pop())
        self._pieces.append(b"".join(reversed(small)))

    def _newlines(self, data: bytes) -> bytes:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_mark(self, block: bytes) -> bytes:
        if self._begun:
            return block
        self._begun = True
        return block.removeprefix(_BOM)
