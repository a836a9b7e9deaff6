"""
Attachments: other parts' content in object storage, such as generated images and container files.

    attachment = await attachments.add(new_attachment(owner, place, name, ...), pieces)
    async for piece in attachments.content(attachment):
        ...

An attachment ends when it is deleted, expires, or is no longer needed by its checker. The next sweep deletes its
object.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from typing import NamedTuple

from app.storage.tables import Records, Tables, Transaction, execute, in_transaction
from app.tools.files.records.contents import ContentWriter, ObjectContents, claim_content
from app.tools.files.records.uploads import ALIVE, within_limit

CHECKED = 100  # per check
UNCHECKED_AFTER = 90 * 86_400  # seconds until an overdue attachment is deleted: its checker no longer exists

_COLUMNS = "id, owner, place, name, bytes, created_at, detail, expires_at, checker, check_at"
_ADD = f"INSERT INTO antiphon_attachments ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_LIST = f"SELECT {_COLUMNS} FROM antiphon_attachments WHERE owner = $1 AND place = $2 AND {ALIVE} ORDER BY {{row}}"
_GET = f"SELECT {_COLUMNS} FROM antiphon_attachments WHERE id = $1 AND owner = $2 AND place = $3 AND {ALIVE}"
_CHECKED_BYTES = """
SELECT CAST(coalesce(sum(bytes), 0) AS bigint) FROM antiphon_attachments WHERE owner = $1 AND checker IS NOT NULL
"""
_DUE = f"""
SELECT {_COLUMNS} FROM antiphon_attachments WHERE checker = $1 AND check_at <= {{now}} ORDER BY check_at LIMIT {CHECKED}
"""
_POSTPONE = "UPDATE antiphon_attachments SET check_at = CAST({now} AS bigint) + $2 WHERE id = $1"
_EXPIRED = "DELETE FROM antiphon_attachments WHERE expires_at <= {now}"
_UNCHECKED = f"DELETE FROM antiphon_attachments WHERE check_at <= {{now}} - {UNCHECKED_AFTER}"


class Attachment(NamedTuple):
    id: str
    owner: str
    place: str  # such as a container id
    name: str  # within the place
    bytes: int
    created_at: int  # all times are Unix times
    detail: str = ""  # data of the calling code
    expires_at: int | None = None
    checker: str | None = None
    check_at: int | None = None


def new_attachment(owner: str, place: str, name: str, *, detail: str = "") -> Attachment:
    return Attachment("", owner, place, name, 0, int(time.time()), detail)


class Attachments(Records):
    """Methods raise `APIError` in an outage."""

    def __init__(self, tables: Tables, objects: ObjectContents) -> None:
        super().__init__(tables)
        self._objects = objects

    async def add(
        self, attachment: Attachment, pieces: AsyncIterable[bytes], limit: int | None = None
    ) -> Attachment | None:
        """
        Store content, and return the attachment with its size and a new id.

        Returns None, without changes, if the owner's files would exceed `limit` bytes in total.
        """
        async with ContentWriter(self._objects, f"object-{secrets.token_hex(12)}") as content:
            async for piece in pieces:
                await content.write(piece)
            await content.flush()
            new = attachment._replace(id=content.id, bytes=content.bytes)
            content.committed = await self._add(new, limit)
        return new if content.committed else None

    @in_transaction
    def _add(self, new: Attachment, limit: int | None) -> Transaction[bool]:
        if not (yield from within_limit(self._tables, new.owner, new.bytes, limit)):
            return False
        yield execute(_ADD, *new)
        yield from claim_content(new.id, "attachment")
        return True

    async def list(self, owner: str, place: str) -> Sequence[Attachment]:
        return [Attachment(*row) for row in await self._tables.fetch(_LIST, owner, place)]

    def content(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Yield pieces while the attachment exists."""
        return self._objects.read(attachment.id, "antiphon_attachments", attachment.id)

    async def add_checked(self, owner: str, place: str, name: str, record: bytes, checker: str, seconds: int) -> str:
        """Store an image, and return its id. The checker first checks it after `seconds`."""

        async def pieces() -> AsyncIterator[bytes]:
            yield record

        new = new_attachment(owner, place, name)
        added = await self.add(new._replace(checker=checker, check_at=new.created_at + seconds), pieces())
        assert added  # without a limit
        return added.id

    async def read(self, owner: str, place: str, attachment_id: str) -> bytes | None:
        rows = await self._tables.fetch(_GET, attachment_id, owner, place)
        return b"".join([piece async for piece in self.content(Attachment(*rows[0]))]) if rows else None

    async def delete(
        self, owner: str, place: str, names: Collection[str] | None = None, keep: Collection[str] = ()
    ) -> bool:
        """
        Delete a place's attachments, or only the given names, except the ids in `keep`.

        Returns whether any existed.
        """
        found = [one for one in await self.list(owner, place) if one.id not in keep]
        ids = [one.id for one in found if names is None or one.name in names]
        await self.remove(ids)
        return bool(ids)

    async def remove(self, ids: Sequence[str]) -> None:
        if ids:
            await self._tables.execute("DELETE FROM antiphon_attachments WHERE id = ANY ($1)", [*ids])

    async def checked_bytes(self, owner: str) -> int:
        return int((await self._tables.fetch(_CHECKED_BYTES, owner))[0][0])

    async def due(self, checker: str) -> Sequence[Attachment]:
        """Return at most `CHECKED` attachments that a checker must check now."""
        return [Attachment(*row) for row in await self._tables.fetch(_DUE, checker)]

    async def postpone(self, attachment_id: str, seconds: int) -> None:
        await self._tables.execute(_POSTPONE, attachment_id, seconds)

    async def sweep(self) -> None:
        await self._tables.execute(_EXPIRED)
        await self._tables.execute(_UNCHECKED)
