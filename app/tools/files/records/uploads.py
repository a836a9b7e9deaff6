from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Literal, TypeAlias

from app.errors import InvalidRequest, NotFound
from app.storage.tables import Records, Rows, Tables, Transaction, execute, in_transaction
from app.tools.files import File
from app.tools.files.records.contents import claim_content

UPLOAD_LIFETIME = 3600  # seconds
ENDED_TTL = 86_400  # seconds
_EXPIRED_PER_STATEMENT = 100

ALIVE = "(expires_at IS NULL OR expires_at > {now})"
_PENDING = "status = 'pending' AND expires_at > {now}"

# Includes container files and pending uploads: the larger of received and declared bytes.
STORED_BYTES = f"""
SELECT CAST(
    (SELECT coalesce(sum(bytes), 0) FROM antiphon_files WHERE owner = $1 AND {ALIVE})
    + (SELECT coalesce(sum(CASE WHEN received > bytes THEN received ELSE bytes END), 0)
        FROM antiphon_multipart_uploads WHERE owner = $1 AND {_PENDING})
    + (SELECT coalesce(sum(bytes), 0) FROM antiphon_attachments WHERE owner = $1 AND checker IS NULL AND {ALIVE})
    AS bigint)
"""

PARTS_OF_FILE = "SELECT id FROM antiphon_upload_parts WHERE file = $1 ORDER BY position"
_UPLOAD = """
SELECT id, owner, filename, purpose, bytes, created_at, expires_at, lifetime,
    CASE WHEN status = 'pending' AND expires_at <= {now} THEN 'expired' ELSE status END, file
FROM antiphon_multipart_uploads
"""
_CREATE = """
INSERT INTO antiphon_multipart_uploads (id, owner, filename, purpose, bytes, created_at, expires_at, lifetime)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
_DELETE_UNUSED_PARTS = "DELETE FROM antiphon_upload_parts WHERE upload = $1 AND file IS NULL RETURNING id"
_MARK_REMOVED = "INSERT INTO antiphon_removed (content) VALUES ($1)"
_END = f"UPDATE antiphon_multipart_uploads SET status = $2, file = $3 WHERE id = $1 AND {_PENDING} RETURNING id"
_ADD_FILE = """
INSERT INTO antiphon_files (id, owner, filename, purpose, bytes, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_OVERDUE = f"""
SELECT id FROM antiphon_multipart_uploads WHERE status = 'pending' AND expires_at <= {{now}}
LIMIT {_EXPIRED_PER_STATEMENT} FOR UPDATE SKIP LOCKED
"""
_OLD = "DELETE FROM antiphon_multipart_uploads WHERE created_at <= {now} - $1"


def within_limit(tables: Tables, owner: str, size: int, limit: int | None) -> Transaction[bool]:
    """Return whether an owner may store `size` more bytes. Locks the owner, so that concurrent uploads wait."""
    if limit is None:
        return True
    yield from tables.advisory_lock(owner)
    ((stored,),) = yield execute(STORED_BYTES, owner)
    return bool(stored + size <= limit)


def storage_full(limit: int | None, field: str) -> InvalidRequest:
    message = f"This upload would exceed your storage limit of {limit} bytes. Delete files you no longer need."
    return InvalidRequest(message, param=field, code="storage_limit_exceeded", status=413)


def add_file(file: File) -> Transaction[None]:
    """Make a file visible after its content was written; raises `FilesUnavailable` if the content was abandoned."""
    yield execute(_ADD_FILE, *astuple(file))  # fields are in column order, here and below
    yield from claim_content(file.id, "file")


UploadStatus: TypeAlias = Literal["pending", "completed", "cancelled", "expired"]


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int  # declared file size
    created_at: int  # Unix time
    expires_at: int
    lifetime: int | None = None  # seconds until the completed file expires
    status: UploadStatus = "pending"
    file_id: str | None = None

    def resource(self, file: File | None = None) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "upload",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": self.status,
            "file": file and file.resource(),
        }


@dataclass(frozen=True, slots=True)
class UploadPart:
    id: str
    upload_id: str
    bytes: int
    created_at: int  # Unix time

    def resource(self) -> dict[str, object]:
        return {"id": self.id, "object": "upload.part", "created_at": self.created_at, "upload_id": self.upload_id}


class UploadRecords(Records):
    """`complete` and `cancel` return False, without changes, after the upload ended."""

    @in_transaction
    def create(self, upload: MultipartUpload, limit: int | None) -> Transaction[None]:
        """Raises `InvalidRequest` if the owner's files would exceed `limit` bytes."""
        if not (yield from within_limit(self._tables, upload.owner, upload.bytes, limit)):
            raise storage_full(limit, "bytes")
        yield execute(_CREATE, *astuple(upload)[:8])

    async def get(self, owner: str, upload_id: str) -> MultipartUpload:
        """Overdue uploads have the status `expired`. Raises `NotFound`."""
        rows = await self._tables.fetch(f"{_UPLOAD} WHERE id = $1 AND owner = $2", upload_id, owner)
        if not rows:
            raise NotFound(f"No such Upload object: {upload_id}", param="upload_id")
        return MultipartUpload(*rows[0])

    @in_transaction
    def add_part(self, part: UploadPart, max_bytes: int, limit: int | None) -> Transaction[None]:
        """
        Add a part whose content was written.

        Raises `InvalidRequest` after the upload ended, for more than `max_bytes` in all parts, or if the owner's files
        would exceed `limit` bytes.
        """
        where = f"WHERE id = $1 AND {_PENDING}"
        select = f"SELECT owner, bytes, received FROM antiphon_multipart_uploads {where} FOR UPDATE"
        rows = yield execute(select, part.upload_id)
        if not rows:
            raise InvalidRequest("The upload has already ended.", param="upload_id")
        ((owner, size, received),) = rows
        if received + part.bytes > max_bytes:
            message = f"The parts must not exceed {max_bytes} bytes in total, including resent ones."
            raise InvalidRequest(f"{message} Create a new upload.", param="data")
        more = max(received + part.bytes, size) - max(received, size)  # not yet counted as stored
        if more and not (yield from within_limit(self._tables, owner, more, limit)):
            raise storage_full(limit, "data")
        update = "UPDATE antiphon_multipart_uploads SET received = received + $2 WHERE id = $1"
        yield execute(update, part.upload_id, part.bytes)
        insert = "INSERT INTO antiphon_upload_parts (id, upload, bytes, created_at) VALUES ($1, $2, $3, $4)"
        yield execute(insert, *astuple(part))
        yield from claim_content(part.id, "part")

    async def parts(self, upload_id: str) -> dict[str, int]:
        statement = "SELECT id, bytes FROM antiphon_upload_parts WHERE upload = $1"
        return {str(part_id): size for part_id, size in await self._tables.fetch(statement, upload_id)}

    @in_transaction
    def complete(self, upload: MultipartUpload, part_ids: Sequence[str], file: File) -> Transaction[bool]:
        """Create a file from parts, and delete unused parts."""
        if not (yield execute(_END, upload.id, "completed", file.id)):
            return False
        use = "UPDATE antiphon_upload_parts SET file = $1, position = $2 WHERE id = $3"
        for position, part_id in enumerate(part_ids):
            yield execute(use, file.id, position, part_id)
        yield execute(_ADD_FILE, *astuple(file))
        yield from _remove_parts(upload.id)
        return True

    @in_transaction
    def cancel(self, upload: MultipartUpload) -> Transaction[bool]:
        if not (yield execute(_END, upload.id, "cancelled", None)):
            return False
        yield from _remove_parts(upload.id)
        return True

    async def sweep(self) -> None:
        """Expire overdue uploads with their parts, and delete old records."""
        while await self._tables.fetch(_OVERDUE.partition("FOR UPDATE")[0]):  # without the transaction's lock
            await self._tables.run(_expire)
        await self._tables.execute(_OLD, ENDED_TTL + UPLOAD_LIFETIME)


def _remove_parts(upload_id: str) -> Transaction[None]:
    """The next sweep deletes the parts' content."""
    for row in (yield execute(_DELETE_UNUSED_PARTS, upload_id)):
        yield execute(_MARK_REMOVED, *row)


def _expire() -> Transaction[None]:
    rows: Rows = yield execute(_OVERDUE)
    for (upload_id,) in rows:
        yield execute("UPDATE antiphon_multipart_uploads SET status = 'expired' WHERE id = $1", upload_id)
        yield from _remove_parts(upload_id)
