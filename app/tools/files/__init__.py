"""
Uploaded files and vector stores: `/v1/files`, `/v1/vector_stores` and the tool `file_search`.

Files and vector stores have an owner (a hash of the caller's key). Unknown ids, and other owners' ids, raise
`NotFound`; unknown cursors raise `InvalidRequest`. In an outage, every storage method raises `FilesUnavailable`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from app.errors import APIError, InvalidRequest, NotFound
from app.storage.tables import Rows, Tables

# By URL scheme. Any other name is an import path, `package.module:Class`.
FILE_STORES = {
    "sqlite": "app.tools.files.sqlite:SQLiteFileStore",
    "postgresql": "app.tools.files.postgres:PostgresFileStore",
    "postgres": "app.tools.files.postgres:PostgresFileStore",
}

PIECE = 1024 * 1024  # bytes
BATCH_LIFETIME = 30 * 86400  # seconds; default for files with the purpose `batch` and for batch output
ABANDONED_AFTER = 3600  # seconds without a new piece until an upload is deleted


class FilesUnavailable(APIError):
    status = 503
    code = "store_unavailable"

    def __init__(self) -> None:
        super().__init__("The file store is unavailable. Try again.", retry_after=1)


class EmbeddingsUnavailable(APIError):
    status = 503
    code = "embeddings_unavailable"

    def __init__(self, problem: str, wait: float | None = None) -> None:
        """`wait` is the backend's `Retry-After`, in seconds."""
        super().__init__(f"The backend returned no embeddings: {problem}.", retry_after=wait)


class VectorsUnsupported(ValueError):
    """The message contains the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Page:
    """At most `limit` entries after the id `after`, or just before the id `before`."""

    limit: int = 20
    descending: bool = True  # newest first
    after: str | None = None
    before: str | None = None


async def fetch_page(
    tables: Tables, select: str, table: str, where: str, values: tuple[object, ...], page: Page
) -> tuple[Rows, bool]:
    """
    Return a page of rows and whether more exist. Raises `InvalidRequest` for an unknown cursor.

    Cursors are values in the column `id`. `where` and `values` filter the rows.
    """
    conditions, bounds = [where], [*values]
    for name, row_id, below in (("after", page.after, page.descending), ("before", page.before, not page.descending)):
        if row_id is None:
            continue
        cursor = f"SELECT {{row}} FROM {table} WHERE {where} AND id = ${len(values) + 1}"
        rows = await tables.fetch(cursor, *values, row_id)
        if not rows:
            raise InvalidRequest(f"Invalid '{name}': object with id '{row_id}' not found in this list.", param=name)
        bounds.append(rows[0][0])
        conditions.append(f"{{row}} {'<' if below else '>'} ${len(bounds)}")
    # With `before` alone, the page contains the entries nearest to the cursor.
    backwards = page.before is not None and page.after is None
    order = f"ORDER BY {{row}} {'DESC' if page.descending != backwards else 'ASC'} LIMIT ${len(bounds) + 1}"
    statement = f"{select} WHERE {' AND '.join(conditions)} {order}"
    found = await tables.fetch(statement, *bounds, page.limit + 1)
    rows = found[: page.limit]
    return (rows[::-1] if backwards else rows), len(found) > page.limit


def list_page(data: list[Any], more: bool) -> dict[str, object]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }


@dataclass(frozen=True, slots=True)
class File:
    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int  # Unix time
    expires_at: int | None = None

    def resource(self) -> dict[str, object]:
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


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def file_not_found(file_id: str, param: str = "id") -> NotFound:
    """The id in the field `param` is unknown, expired or another owner's."""
    return NotFound(f"No such File object: {file_id}", param=param)
