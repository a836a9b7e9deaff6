"""
Containers: a sandbox with a Python process, its state, and files under `/mnt/data`.

A container belongs to an owner (a hash of the caller's key). Its sandbox starts on first use, and restarts after a
suspension. Sandboxes end with their server process (`local.py`); `shared.py` shares them between workers.
"""

from __future__ import annotations

import base64
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypedDict, Unpack

import orjson

from app.core.types import JSONObject
from app.errors import APIError, InvalidRequest, NotFound
from app.tools.code_interpreter.bubblewrap.process import STOP_GRACE, data_of
from app.tools.code_interpreter.settings import CodeSettings, MemoryLimit
from app.tools.code_interpreter.skills import Skill, SkillFolder
from app.tools.files import File
from app.tools.files.records.attachments import Attachment, Attachments, new_attachment
from app.tools.files.uploads import Files

logger = logging.getLogger(__name__)

_DATA = "/mnt/data"
_PIECE = 512 * 1024
MAX_CONTAINER_NAME = 256  # limits a container name in characters, and a file name in bytes


def container_failed(
    message: str = "The container ended, and its files are lost. It starts empty on next use.",
) -> APIError:
    return APIError(message, status=503, code="container_failed")


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


@dataclass(slots=True)
class Container:
    id: str
    owner: str
    name: str
    created_at: int
    last_active_at: float
    idle_minutes: int
    memory_limit: MemoryLimit
    files: dict[str, ContainerFile] = field(default_factory=dict)  # by path
    skills: Sequence[Skill] = ()

    def resource(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "container",
            "created_at": self.created_at,
            "name": self.name,
            "status": "running",
            "last_active_at": int(self.last_active_at),
            "expires_after": {"anchor": "last_active_at", "minutes": self.idle_minutes},
            "memory_limit": self.memory_limit,
            "network_policy": {"type": "disabled"},
        }


class NewContainer(TypedDict, total=False):
    name: str
    file_ids: Sequence[str]
    memory_limit: MemoryLimit | None
    idle_minutes: int | None
    skills: Sequence[Skill]


class SandboxChannel(Protocol):
    async def request(self, op: str, *, within: float = STOP_GRACE, **fields: object) -> JSONObject: ...


class Containers(ABC):
    """Unknown ids, and other owners' ids, raise `NotFound`."""

    def __init__(self, settings: CodeSettings, skills: SkillFolder | None = None) -> None:
        self.settings = settings
        self.skills = skills or SkillFolder()
        self.uploads: Files | None = None  # None without a file store
        self.copies: FileCopies | None = None  # None without object storage

    @abstractmethod
    async def create(self, owner: str, **options: Unpack[NewContainer]) -> Container:
        """The sandbox starts on first use. Raises `InvalidRequest`."""

    @abstractmethod
    async def get(self, owner: str, container_id: str) -> Container: ...

    @abstractmethod
    async def for_conversation(
        self, owner: str, chain: str, earlier: Sequence[str], **options: Unpack[NewContainer]
    ) -> Container:
        """
        Return or create a conversation's container.

        `earlier` lists container ids from earlier calls, latest first. A container with other `skills` is suspended,
        and restarts with the new ones.
        """

    @abstractmethod
    async def list(self, owner: str, name: str | None = None) -> Sequence[dict[str, object]]:
        """Containers as in the API, oldest first."""

    @abstractmethod
    async def summaries(self, owner: str | None, limit: int) -> Sequence[dict[str, object]]:
        """The newest containers of an owner (None: of all owners)."""

    @abstractmethod
    async def delete(self, owner: str, container_id: str) -> dict[str, object]: ...

    @abstractmethod
    def use(self, container: Container) -> AbstractAsyncContextManager[SandboxChannel]:
        """
        Open a container's sandbox exclusively.

        Raises `container_failed` if it cannot run, and `TooManyRequests` if too many containers are in use.
        """

    @abstractmethod
    async def changes(
        self, container: Container, sandbox: SandboxChannel, source: str = "assistant"
    ) -> Sequence[ContainerFile]:
        """Refresh a used container's file list; return new and changed files."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def _upload(self, owner: str, file_id: str) -> File:
        if self.uploads is None:
            message = "This server has no file store, so files cannot be mounted."
            raise InvalidRequest(message, param="file_ids", code="unsupported_parameter")
        try:
            return await self.uploads.file(file_id, owner)
        except NotFound as error:
            error.param = "file_ids"
            raise

    async def read(self, sandbox: SandboxChannel, path: str, offset: int = 0, size: int = _PIECE) -> bytes:
        answer = await sandbox.request("read", path=path, offset=offset, size=size)
        if not isinstance(answer.get("data"), str):
            raise NotFound("File not found: it no longer exists.", param="file_id")
        return data_of(answer)[:size]

    async def _write(self, sandbox: SandboxChannel, path: str, pieces: AsyncIterator[bytes]) -> None:
        append = False
        async for data in pieces:
            for start in range(0, max(len(data), 1), _PIECE):
                encoded = base64.b64encode(data[start : start + _PIECE]).decode()
                answer = await sandbox.request("write", path=path, data=encoded, append=append)
                if "error" in answer:
                    await sandbox.request("delete", path=path)
                    message = f"The file could not be written ({str(answer['error'])[:100]})."
                    raise InvalidRequest(message, param="file", code="container_full")
                append = True

    async def erase(self, owner: str, container_id: str) -> dict[str, object]:
        """Delete a container, even if ended, and its files' copies."""
        deleted = self.copies and await self.copies.delete(owner, container_id)
        try:
            return await self.delete(owner, container_id)
        except NotFound:
            if not deleted:
                raise
        return {"id": container_id, "object": "container.deleted", "deleted": True}

    async def add_file(self, container: Container, filename: str, pieces: AsyncIterator[bytes]) -> dict[str, object]:
        path = path_for(filename)
        async with self.use(container) as sandbox:
            await self._write(sandbox, path, pieces)
            await self.changes(container, sandbox, "user")
            if path not in container.files:
                raise InvalidRequest("The file could not be written.", param="file")
            return container.files[path].resource()

    async def copy_upload(self, container: Container, file_id: str) -> dict[str, object]:
        try:
            file = await self._upload(container.owner, file_id)
        except APIError as error:
            error.param = "file_id"
            raise
        assert self.uploads
        return await self.add_file(container, file.filename, self.uploads.content(file))

    async def copy_files(self, container: Container, sandbox: SandboxChannel, files: Sequence[ContainerFile]) -> None:
        """Copy files to object storage, if configured."""
        for file in files if self.copies else ():
            assert self.copies
            await self.copies.add(container.owner, file, self._pieces(sandbox, file))

    async def _pieces(self, sandbox: SandboxChannel, file: ContainerFile) -> AsyncIterator[bytes]:
        for offset in range(0, file.bytes, _PIECE):
            if not (data := await self.read(sandbox, file.path, offset, min(_PIECE, file.bytes - offset))):
                return
            yield data

    async def files(self, owner: str, container_id: str) -> Sequence[dict[str, object]]:
        """A container's files, or their copies after the container ended."""
        try:
            container = await self.get(owner, container_id)
        except NotFound:
            if not (self.copies and (found := await self.copies.files(owner, container_id))):
                raise
            return [copy.resource() for copy in found]
        async with self.use(container) as sandbox:
            await self.changes(container, sandbox)
            return [file.resource() for file in container.files.values()]

    async def file(self, owner: str, container_id: str, file_id: str) -> tuple[ContainerFile, AsyncIterator[bytes]]:
        """A file and its content, or its copy if the container has ended or lost it."""
        try:
            container = await self.get(owner, container_id)
            async with self.use(container) as sandbox:
                await self.changes(container, sandbox)
                file = self._file(container, file_id)
        except NotFound:
            if not (self.copies and (copy := await self.copies.file(owner, container_id, file_id))):
                raise
            return copy
        return file, self.content(container, file)

    def _file(self, container: Container, file_id: str) -> ContainerFile:
        for file in container.files.values():
            if file.id == file_id:
                return file
        raise NotFound(f"File with id '{file_id}' not found in container '{container.id}'.", param="file_id")

    async def content(self, container: Container, file: ContainerFile) -> AsyncIterator[bytes]:
        offset = 0
        while offset < file.bytes:
            async with self.use(container) as sandbox:
                data = await self.read(sandbox, file.path, offset, min(_PIECE, file.bytes - offset))
            if not data:
                return
            offset += len(data)
            yield data

    async def delete_file(self, owner: str, container_id: str, file_id: str) -> dict[str, object]:
        deleted = self.copies and await self.copies.delete(owner, container_id, file_id)
        try:
            container = await self.get(owner, container_id)
            async with self.use(container) as sandbox:
                await self.changes(container, sandbox)
                await sandbox.request("delete", path=self._file(container, file_id).path)
                await self.changes(container, sandbox)
        except NotFound:
            if not deleted:
                raise
        return {"id": file_id, "object": "container.file.deleted", "deleted": True}


def path_for(filename: str) -> str:
    """Raises `InvalidRequest` for an invalid file name."""
    name = "".join(char for char in filename.replace("\\", "/").rpartition("/")[2] if char.isprintable())
    if name in ("", ".", "..") or len(name.encode("utf-8", "replace")) > MAX_CONTAINER_NAME - 1:
        raise InvalidRequest("Invalid 'file': must have a name of at most 255 bytes.", param="file")
    return f"{_DATA}/{name}"


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
