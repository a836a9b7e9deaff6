"""Files: upload, list, retrieve, read and delete. Results have the shapes of OpenAI's API."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from app.errors import InvalidRequest
from app.tools.files import PIECE, File, FileStore, Page, new_file_id, no_such_file

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MIN_LIFETIME, MAX_LIFETIME = 3600, 30 * 86400  # seconds, the range of `expires_after`
BATCH_LIFETIME = 30 * 86400  # seconds, the default for the purpose `batch`
MAX_FILENAME = 512  # characters


class Files:
    """The uploaded files of all callers, each visible only to its owner."""

    def __init__(
        self, store: FileStore, *, max_bytes: int, max_owner_bytes: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        """`max_bytes` limits one file, `max_owner_bytes` all files of one owner; 0 for no limit."""
        self._store = store
        self._max_owner_bytes = max_owner_bytes or None
        self._clock = clock
        self.max_bytes = max_bytes

    def upload(self, owner: str) -> Upload:
        """Start an upload: a context manager that deletes what was written unless `finish` was called."""
        return Upload(self._store, owner, self.max_bytes, self._max_owner_bytes, self._clock)

    async def list(self, owner: str, page: Page, purpose: str | None) -> dict[str, object]:
        """Return a page of files; raises `InvalidRequest` for a cursor that is not in the list."""
        files, more = await self._store.files(owner, page, purpose)
        return list_page([file.resource() for file in files], more)

    async def file(self, file_id: str, owner: str) -> File:
        """Return a file; raises `NotFound`."""
        file = await self._store.file(owner, file_id)
        if file is None:
            raise no_such_file(file_id)
        return file

    def content(self, file: File) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces."""
        return self._store.content(file.id)

    async def delete(self, file_id: str, owner: str) -> dict[str, object]:
        """Delete a file, also from vector stores; raises `NotFound`."""
        if not await self._store.delete(owner, file_id):
            raise no_such_file(file_id)
        return {"id": file_id, "object": "file", "deleted": True}


class Upload:
    """A file that is being uploaded: written to the store in pieces, and not visible until `finish`."""

    def __init__(
        self, store: FileStore, owner: str, max_bytes: int, max_owner_bytes: int | None, clock: Callable[[], float]
    ) -> None:
        self._store, self._owner, self._max_bytes, self._clock = store, owner, max_bytes, clock
        self._max_owner_bytes = max_owner_bytes
        self._quota: int | None = None  # bytes that the owner may still store; None for no limit
        self._id = new_file_id()
        self._buffer = bytearray()
        self._pieces = 0
        self._finished = False
        self.bytes = 0

    async def __aenter__(self) -> Upload:
        if self._max_owner_bytes is not None:
            self._quota = self._max_owner_bytes - await self._store.stored_bytes(self._owner)
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished and self._pieces:
            with contextlib.suppress(Exception):  # the next sweep deletes what remains
                await self._store.discard(self._id)

    async def write(self, data: bytes) -> None:
        """Append to the content; raises `InvalidRequest` once the file is too large."""
        self.bytes += len(data)
        if self.bytes > self._max_bytes:
            raise upload_too_large(self._max_bytes)
        if self._quota is not None and self.bytes > self._quota:
            raise self._storage_full()
        self._buffer += data
        while len(self._buffer) >= PIECE:
            piece = bytes(self._buffer[:PIECE])
            del self._buffer[:PIECE]
            await self._write(piece)

    async def finish(self, filename: str, purpose: str, lifetime: int | None) -> File:
        """Make the file visible and return it; `lifetime` is in seconds. Raises `InvalidRequest`."""
        if purpose not in PURPOSES:
            raise InvalidRequest(f"Invalid 'purpose': should be one of {', '.join(PURPOSES)}.", param="purpose")
        if not self.bytes:
            raise InvalidRequest("Invalid 'file': it is empty.", param="file")
        if self._buffer:
            await self._write(bytes(self._buffer))
        now = int(self._clock())
        if lifetime is None and purpose == "batch":
            lifetime = BATCH_LIFETIME
        expires_at = None if lifetime is None else now + lifetime
        file = File(self._id, self._owner, _cleaned(filename), purpose, self.bytes, now, expires_at)
        if not await self._store.add(file, self._max_owner_bytes):
            raise self._storage_full()  # another upload has used the quota meanwhile
        self._finished = True
        return file

    def _storage_full(self) -> InvalidRequest:
        message = f"Your files would have more than {self._max_owner_bytes} bytes. Delete some that you need no more."
        return InvalidRequest(message, param="file", code="storage_limit_exceeded", status=413)

    async def _write(self, piece: bytes) -> None:
        number, self._pieces = self._pieces, self._pieces + 1
        await self._store.write(self._id, number, piece)


def upload_too_large(limit: int) -> InvalidRequest:
    """Return the error for a file of more than `limit` bytes."""
    message = f"The file is larger than {limit} bytes."
    return InvalidRequest(message, param="file", code="request_too_large", status=413)


def _cleaned(filename: str) -> str:
    """Return the last part of a path, without control characters."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    name = "".join(char for char in name if char.isprintable())
    return name[-MAX_FILENAME:] or "file"


def list_page(data: list[Any], more: bool) -> dict[str, object]:
    """Return a page of a list in OpenAI's shape; `more` becomes `has_more`."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }
