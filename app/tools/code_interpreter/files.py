"""Container files, and their copies in object storage."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import orjson

from app.errors import APIError, NotFound
from app.tools.files.records.attachments import Attachment, Attachments, new_attachment

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ContainerFile:
    id: str
    container_id: str
    path: str
    bytes: int
    changed: int  # nanoseconds
    created_at: int  # Unix time of the first listing
    source: str  # `user` or `assistant`

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]

    def resource(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "container.file",
            "container_id": self.container_id,
            "created_at": self.created_at,
            "bytes": self.bytes,
            "path": self.path,
            "source": self.source,
        }


class FileCopies:
    """
    Copies of container files in object storage, which clients can download after the container has ended.

    A call's files are copied when it ends; newer versions replace older.
    """

    def __init__(self, attachments: Attachments, days: int, max_owner_bytes: int | None) -> None:
        """`max_owner_bytes` limits an owner's files and copies together."""
        self._attachments = attachments
        self._lifetime = days * 86_400
        self._limit = max_owner_bytes

    async def add(self, owner: str, file: ContainerFile, pieces: AsyncIterator[bytes]) -> None:
        """Failures are only logged."""
        detail = orjson.dumps({"path": file.path, "source": file.source, "created_at": file.created_at}).decode()
        new = new_attachment(owner, file.container_id, file.id, detail=detail)
        copy = new._replace(expires_at=new.created_at + self._lifetime)
        try:
            if added := await self._attachments.add(copy, pieces, self._limit):
                await self._attachments.delete(owner, file.container_id, [file.id], [added.id])
            else:
                logger.warning("container file not kept", extra={"reason": "the key's storage limit is reached"})
        except NotFound:
            pass  # deleted by a process in the container
        except APIError as error:
            logger.warning("container file not kept", extra={"reason": error.code})

    async def _newest(self, owner: str, container_id: str) -> dict[str, Attachment]:
        return {one.name: one for one in await self._attachments.list(owner, container_id)}

    async def files(self, owner: str, container_id: str) -> Sequence[ContainerFile]:
        newest = await self._newest(owner, container_id)
        return sorted(map(_file_of, newest.values()), key=lambda file: file.path)

    async def file(
        self, owner: str, container_id: str, file_id: str
    ) -> tuple[ContainerFile, AsyncIterator[bytes]] | None:
        copy = (await self._newest(owner, container_id)).get(file_id)
        return (_file_of(copy), self._attachments.content(copy)) if copy else None

    async def delete(self, owner: str, container_id: str, file_id: str | None = None) -> bool:
        """Delete a file's copies, or the container's; return whether any existed."""
        return await self._attachments.delete(owner, container_id, None if file_id is None else [file_id])


def _file_of(copy: Attachment) -> ContainerFile:
    detail = orjson.loads(copy.detail)  # see `FileCopies.add`
    path, created_at, source = (detail[name] for name in ("path", "created_at", "source"))
    return ContainerFile(copy.name, copy.place, path, copy.bytes, 0, created_at, source)
