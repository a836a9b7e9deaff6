"""Files: upload, list, retrieve, read and delete. Results have OpenAI's shapes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from app.errors import InvalidRequest
from app.tools.files import PIECE, File, FileStore, Page, file_not_found, new_file_id

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MIN_LIFETIME, MAX_LIFETIME = 3600, 30 * 86400  # seconds; range for `expires_after`
BATCH_LIFETIME = 30 * 86400  # seconds; for the purpose `batch`
MAX_FILENAME = 512  # characters


class Files:
    def __init__(
        self, store: FileStore, *, max_bytes: int, max_owner_bytes: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        """`max_bytes` limits a file, `max_owner_bytes` an owner's files in total; 0 means no limit."""
        self._store = store
        self._max_owner_bytes = max_owner_bytes or None
        self._clock = clock
        self.max_bytes = max_bytes

    @property
    def max_owner_bytes(self) -> int | None:
        """None means no limit."""
        return self._max_owner_bytes

    def upload(self, owner: str) -> Upload:
        """Return a context manager that deletes the content written unless `finish` was called."""
        return Upload(self._store, owner, self.max_bytes, self._max_owner_bytes, self._clock)

    async def list(self, owner: str, page: Page, purpose: str | None) -> dict[str, object]:
        files, more = await self._store.files(owner, page, purpose)
        return list_page([file.resource() for file in files], more)

    async def file(self, file_id: str, owner: str) -> File:
        file = await self._store.file(owner, file_id)
        if file is None:
            raise file_not_found(file_id)
        return file

    def content(self, file: File) -> AsyncIterator[bytes]:
        return self._store.content(file.id)

    async def delete(self, file_id: str, owner: str) -> dict[str, object]:
        if not await self._store.delete(owner, file_id):
            raise file_not_found(file_id)
        return {"id": file_id, "object": "file", "deleted": True}


class ContentWriter:
    """Writes content to the store in pieces, and deletes it on exit unless `committed`."""

    def __init__(self, store: FileStore, content_id: str, max_bytes: int, field: str) -> None:
        self._store, self._max_bytes, self._field = store, max_bytes, field
        self._buffer = bytearray()
        self._pieces = 0
        self.id = content_id
        self.committed = False
        self.bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.committed and self._pieces:
            with contextlib.suppress(Exception):  # the next sweep deletes the rest
                await self._store.discard(self.id)

    async def write(self, data: bytes) -> None:
        """Raises `InvalidRequest` above the size limit."""
        self.bytes += len(data)
        if self.bytes > self._max_bytes:
            raise upload_too_large(self._max_bytes, self._field)
        self._buffer += data
        while len(self._buffer) >= PIECE:
            piece = bytes(self._buffer[:PIECE])
            del self._buffer[:PIECE]
            await self._write(piece)

    async def flush(self) -> None:
        """Write the last, partial piece, and complete the content."""
        if self._buffer:
            await self._write(bytes(self._buffer))
            self._buffer.clear()
        await self._store.finish(self.id)

    async def _write(self, piece: bytes) -> None:
        number, self._pieces = self._pieces, self._pieces + 1
        await self._store.write(self.id, number, piece)


class Upload(ContentWriter):
    """The file is not visible until `finish`."""

    def __init__(
        self, store: FileStore, owner: str, max_bytes: int, max_owner_bytes: int | None, clock: Callable[[], float]
    ) -> None:
        super().__init__(store, new_file_id(), max_bytes, "file")
        self._owner, self._clock, self._max_owner_bytes = owner, clock, max_owner_bytes
        self._quota: int | None = None  # bytes left for the owner; None means no limit

    async def __aenter__(self) -> Self:
        if self._max_owner_bytes is not None:
            self._quota = self._max_owner_bytes - await self._store.stored_bytes(self._owner)
        return self

    async def write(self, data: bytes) -> None:
        """Raises `InvalidRequest` once the file or the owner's files are too large."""
        if self._quota is not None and self.bytes + len(data) > self._quota:
            raise storage_full(self._max_owner_bytes, "file")
        await super().write(data)

    async def finish(self, filename: str, purpose: str, lifetime: int | None) -> File:
        """Make the file visible; `lifetime` is in seconds. Raises `InvalidRequest`."""
        if purpose not in PURPOSES:
            raise InvalidRequest(f"Invalid 'purpose': must be one of {', '.join(PURPOSES)}.", param="purpose")
        if not self.bytes:
            raise InvalidRequest("Invalid 'file': must not be empty.", param="file")
        await self.flush()
        now = int(self._clock())
        expires_at = expiry_of(now, purpose, lifetime)
        file = File(self.id, self._owner, cleaned_filename(filename), purpose, self.bytes, now, expires_at)
        if not await self._store.add(file, self._max_owner_bytes):
            raise storage_full(self._max_owner_bytes, "file")  # a concurrent upload has used the quota
        self.committed = True
        return file


def expiry_of(created_at: int, purpose: str, lifetime: int | None) -> int | None:
    """`lifetime` is in seconds."""
    if lifetime is None and purpose == "batch":
        lifetime = BATCH_LIFETIME
    return None if lifetime is None else created_at + lifetime


def storage_full(limit: int | None, field: str) -> InvalidRequest:
    message = f"This upload would exceed your storage limit of {limit} bytes. Delete files you no longer need."
    return InvalidRequest(message, param=field, code="storage_limit_exceeded", status=413)


def upload_too_large(limit: int, field: str = "file") -> InvalidRequest:
    message = f"The {'file' if field == 'file' else 'part'} is larger than {limit} bytes."
    return InvalidRequest(message, param=field, code="request_too_large", status=413)


def cleaned_filename(filename: str) -> str:
    """Return the last path segment, without control characters."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    name = "".join(char for char in name if char.isprintable())
    return name[-MAX_FILENAME:] or "file"


def list_page(data: list[Any], more: bool) -> dict[str, object]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }
