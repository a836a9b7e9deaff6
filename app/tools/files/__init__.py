"""
Uploaded files and vector stores: `/v1/files`, `/v1/vector_stores` and the tool `file_search`.

A `FileStore` keeps the files, and what is searched in them. Everything in it belongs to an owner, the hash of a
caller's key; an id of another owner is answered like one that never was.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app.errors import APIError, InvalidRequest, NotFound

if TYPE_CHECKING:
    from app.tools.files.vector_stores.records import VectorStoreRecords

# By the scheme of the URL. A name that is not here is an import path, `package.module:Class`.
FILE_STORES = {"sqlite": "app.tools.files.sqlite:SQLiteFileStore"}

PIECE = 1024 * 1024  # bytes in which content is written and read


class FilesUnavailable(APIError):
    """The file store does not answer; requests without files are not affected."""

    status = 503
    code = "store_unavailable"

    def __init__(self) -> None:
        super().__init__("The file store is unavailable. Try again.", retry_after=1)


class UnknownCursor(InvalidRequest):
    """`after` or `before` names nothing in the list."""

    def __init__(self, name: str, id: str) -> None:
        super().__init__(f"Invalid '{name}': nothing with id '{id}' is in this list.", param=name)


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list that is wanted: at most `limit` entries behind `after`, or those just before `before`."""

    limit: int = 20
    descending: bool = True  # newest first
    after: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class File:
    """What is known of an uploaded file."""

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
    Keeps files of all owners. Every method raises `FilesUnavailable` where it does not answer.

    Content comes and goes in pieces of about `PIECE` bytes, so that no file is ever in memory as a whole.
    """

    @property
    def vector_stores(self) -> VectorStoreRecords:
        """The vector stores, which are kept beside the files."""
        ...

    async def write(self, id: str, number: int, data: bytes) -> None:
        """Keep the piece of that number, from 0, of a file that is being uploaded; nobody sees it yet."""
        ...

    async def add(self, file: File, limit: int | None = None) -> bool:
        """
        Make a file visible whose content has been written.

        Returns False, and does nothing, where its owner's files would have more than `limit` bytes.
        """
        ...

    async def stored_bytes(self, owner: str) -> int:
        """Return how many bytes an owner's files have."""
        ...

    async def discard(self, id: str) -> None:
        """Forget what was written of a file that was never added."""
        ...

    async def file(self, owner: str, id: str) -> File | None:
        """Return a file, if it is there and has not expired."""
        ...

    async def files(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[File], bool]:
        """Return a page of files and whether there are more; raises `UnknownCursor`."""
        ...

    def content(self, id: str) -> AsyncIterator[bytes]:
        """Yield the content of a file, whose owner has been checked."""
        ...

    async def delete(self, owner: str, id: str) -> bool:
        """Forget a file, also in vector stores; tell whether it was there."""
        ...

    async def sweep(self) -> None:
        """Remove what has expired, and uploads that were given up."""
        ...

    async def check(self) -> None:
        """Return if the store can be written to."""
        ...

    async def aclose(self) -> None: ...


def new_file_id() -> str:
    """Return a new id, such as `file-...`."""
    return f"file-{secrets.token_hex(12)}"


def no_such_file(id: str) -> NotFound:
    """The answer to an id that is unknown, expired or another owner's."""
    return NotFound(f"No such File object: {id}", param="id")
