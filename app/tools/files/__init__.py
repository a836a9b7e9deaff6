"""
Uploaded files and vector stores: `/v1/files`, `/v1/vector_stores` and the tool `file_search`.

A `FileStore` stores the files and their search indexes. Everything in it belongs to an owner, the hash of a caller's
key; for other owners it does not exist.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from app.errors import APIError, InvalidRequest, NotFound

if TYPE_CHECKING:
    from app.tools.files.batches import BatchRecords
    from app.tools.files.multipart import UploadRecords
    from app.tools.files.vector_stores.records import VectorStoreRecords

T = TypeVar("T")

# By the scheme of the URL. Any other name is an import path, `package.module:Class`.
FILE_STORES = {
    "sqlite": "app.tools.files.sqlite:SQLiteFileStore",
    "postgresql": "app.tools.files.postgres:PostgresFileStore",
    "postgres": "app.tools.files.postgres:PostgresFileStore",
}

PIECE = 1024 * 1024  # bytes of content per read or write
ABANDONED_AFTER = 3600  # seconds without a new piece after which an upload is deleted


class FilesUnavailable(APIError):
    """The file store is unavailable; requests without files are not affected."""

    status = 503
    code = "store_unavailable"

    def __init__(self) -> None:
        super().__init__("The file store is unavailable. Try again.", retry_after=1)


class VectorsUnsupported(ValueError):
    """The database cannot store embeddings; the message says why, and what to do."""


class UnknownCursor(InvalidRequest):
    """The cursor `after` or `before` is not an id in the list."""

    def __init__(self, name: str, cursor: str) -> None:
        super().__init__(f"Invalid '{name}': object with id '{cursor}' not found in this list.", param=name)


@dataclass(frozen=True, slots=True)
class Page:
    """The requested page of a list: at most `limit` entries after the id `after`, or just before the id `before`."""

    limit: int = 20
    descending: bool = True  # newest first
    after: str | None = None
    before: str | None = None

    def cursors(self) -> list[tuple[str, str, str]]:
        """Return the name and id of each cursor, and how the entries compare to it: `<` or `>`."""
        cursors = [("after", self.after, self.descending), ("before", self.before, not self.descending)]
        return [(name, cursor, "<" if below else ">") for name, cursor, below in cursors if cursor is not None]

    @property
    def _backwards(self) -> bool:
        """Whether the page is read from its end: with `before` alone it has the entries nearest to it."""
        return self.before is not None and self.after is None

    @property
    def order(self) -> str:
        """The order in which to read the entries, `ASC` or `DESC`; one more than `limit` should be read."""
        return "DESC" if self.descending != self._backwards else "ASC"

    def cut(self, entries: list[T]) -> tuple[list[T], bool]:
        """Return the entries of the page in its order, and whether there are more, from those that were read."""
        more, entries = len(entries) > self.limit, entries[: self.limit]
        return (entries[::-1] if self._backwards else entries), more


@dataclass(frozen=True, slots=True)
class File:
    """The record of an uploaded file, without its content."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int  # Unix time
    expires_at: int | None = None

    def resource(self) -> dict[str, object]:
        """Return the file as the API shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class FileStore(Protocol):
    """
    Stores the files of all owners. Every method raises `FilesUnavailable` if the store cannot be reached.

    Content is written and read in pieces of about `PIECE` bytes, so that no file is ever in memory as a whole.
    """

    @property
    def vector_stores(self) -> VectorStoreRecords:
        """The vector stores, stored with the files."""
        ...

    @property
    def uploads(self) -> UploadRecords:
        """The uploads in parts, stored with the files."""
        ...

    @property
    def batches(self) -> BatchRecords:
        """The batches of requests, stored with the files."""
        ...

    async def write(self, file_id: str, number: int, data: bytes) -> None:
        """Write a piece, numbered from 0, of a file or part that is being uploaded; it is not visible yet."""
        ...

    async def finish(self, file_id: str) -> None:
        """Complete the content of a file or part after its last piece, before it is added."""
        ...

    async def add(self, file: File, limit: int | None = None) -> bool:
        """
        Make a file visible after its content has been written.

        Returns False, and does nothing, if the owner's files would exceed `limit` bytes in total.
        """
        ...

    async def stored_bytes(self, owner: str) -> int:
        """Return the total size of an owner's files, and of the uploads that are not completed, in bytes."""
        ...

    async def discard(self, file_id: str) -> None:
        """Delete the pieces of a file or part that was never added."""
        ...

    async def file(self, owner: str, file_id: str) -> File | None:
        """Return a file, or None if it does not exist or has expired."""
        ...

    async def files(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[File], bool]:
        """Return a page of files and whether there are more; raises `UnknownCursor`."""
        ...

    def content(self, file_id: str) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces. The owner is not checked here."""
        ...

    def part_content(self, part_id: str) -> AsyncIterator[bytes]:
        """Yield the content of a part of an upload in pieces. The owner is not checked here."""
        ...

    async def delete(self, owner: str, file_id: str) -> bool:
        """Delete a file, also from vector stores; return whether it existed."""
        ...

    async def sweep(self) -> None:
        """Delete expired files and abandoned uploads."""
        ...

    async def prepare_vectors(self) -> None:
        """Prepare to store embeddings; raises `VectorsUnsupported` if the database cannot."""
        ...

    async def check(self) -> None:
        """Check that the store can be written to."""
        ...

    async def aclose(self) -> None: ...


def new_file_id() -> str:
    """Return a new random id, `file-` and 24 hexadecimal digits."""
    return f"file-{secrets.token_hex(12)}"


def no_such_file(file_id: str, param: str = "id") -> NotFound:
    """Return the error for the id of a file, in the field `param`, that is unknown, expired or another owner's."""
    return NotFound(f"No such File object: {file_id}", param=param)
