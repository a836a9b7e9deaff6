"""
Copies of container files in object storage, which clients can download after the container has ended.

A call's files are copied when it ends; newer versions replace older.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import orjson

from app.errors import APIError, NotFound
from app.tools.code_interpreter.containers import ContainerFile
from app.tools.files.contents.attachments import Attachment, Attachments, new_attachment

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FileCopy(ContainerFile):
    attachment: Attachment


class FileCopies:
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

    async def files(self, owner: str, container_id: str) -> Sequence[FileCopy]:
        newest = {one.name: one for one in await self._attachments.list(owner, container_id)}
        return sorted(map(_file_copy, newest.values()), key=lambda file: file.path)

    async def file(self, owner: str, container_id: str, file_id: str) -> FileCopy | None:
        return next((file for file in await self.files(owner, container_id) if file.id == file_id), None)

    def content(self, file: FileCopy) -> AsyncIterator[bytes]:
        return self._attachments.content(file.attachment)

    async def delete(self, owner: str, container_id: str, file_id: str | None = None) -> bool:
        """Delete a file's copies, or the container's; return whether any existed."""
        return await self._attachments.delete(owner, container_id, None if file_id is None else [file_id])


def _file_copy(attachment: Attachment) -> FileCopy:
    detail = orjson.loads(attachment.detail)
    return FileCopy(
        attachment.name,
        attachment.place,
        detail["path"],
        attachment.bytes,
        0,
        detail["created_at"],
        detail["source"],
        attachment,
    )
