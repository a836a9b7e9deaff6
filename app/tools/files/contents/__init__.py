"""
Content of files and upload parts, by id: as pieces in the database, or in object storage.

A row claims each content: in `antiphon_uploads` during the upload, then in `antiphon_files` or `antiphon_upload_parts`.
The claim is written before the content and deleted before it, so a sweep finds abandoned content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, NamedTuple, Protocol

from app.storage.tables import Transaction, execute
from app.tools.files import FilesUnavailable


class Owner(NamedTuple):
    table: str
    id: str

    @property
    def exists(self) -> str:
        """An SQL condition. Parameter `$1` is the id."""
        return f"EXISTS (SELECT 1 FROM {self.table} WHERE id = $1)"


class Contents(Protocol):
    async def write(self, content_id: str, number: int, data: bytes) -> None:
        """Append a piece, numbered from 0."""
        ...

    async def finish(self, content_id: str) -> None:
        """Complete content after its last piece, so that it can be read."""
        ...

    async def discard(self, content_id: str) -> None:
        """Delete content, complete or not, unless a file or part claims it."""
        ...

    def read(self, content_id: str, owner: Owner) -> AsyncIterator[bytes]:
        """Yield pieces while the owner exists."""
        ...


def claim_content(content_id: str, kind: Literal["file", "part", "attachment"]) -> Transaction[None]:
    """Move the claim from the upload to a row added in the same transaction; raises `FilesUnavailable`."""
    if not (yield execute("DELETE FROM antiphon_uploads WHERE file = $1 RETURNING file", content_id)):
        raise FilesUnavailable  # swept as abandoned
    yield execute(f"UPDATE antiphon_objects SET {kind} = $1 WHERE content = $1", content_id)
