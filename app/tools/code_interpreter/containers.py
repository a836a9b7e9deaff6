"""
Containers: a sandbox with a Python process, its state, and files under `/mnt/data`.

A container belongs to an owner (a hash of the caller's key). Its sandbox is a child process of the server: it starts on
first use, and restarts after a suspension, which retains only the files. `shared.py` shares containers between workers.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Protocol, TypedDict, Unpack

from app.core.access import KeyAccess
from app.core.types import JSONObject
from app.errors import APIError, InvalidRequest, NotFound
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.bubblewrap.process import STOP_GRACE, Sandbox, SandboxEnded, data_of
from app.tools.code_interpreter.files import ContainerFile, FileCopies
from app.tools.code_interpreter.settings import MemoryLimit, memory_bytes
from app.tools.code_interpreter.skills import Skill, SkillFolder, read_skill_files
from app.tools.code_interpreter.slots import ContainerSlot, ContainerSlots
from app.tools.files import File
from app.tools.files.uploads import Files

logger = logging.getLogger(__name__)

MAX_CONTAINERS = 10_000  # running or suspended
MAX_CONTAINER_NAME = 256  # limits a container name in characters, and a file name in bytes
SWEEP_INTERVAL = 10.0  # seconds
SAVE_SECONDS = 60.0  # per container
_DATA = "/mnt/data"
_PIECE = 1024 * 1024  # bytes per request
_PACK_TIMEOUT = 60.0  # seconds per request
_SAVED_OVERHEAD = 1024  # packed bytes per file, in addition to its content
_ANONYMOUS = KeyAccess().owner  # on a server without keys


def container_failed(
    message: str = "The container ended, and its files are lost. It starts empty on next use.",
) -> APIError:
    return APIError(message, status=503, code="container_failed")


@dataclass(slots=True)
class Container:
    id: str
    owner: str
    name: str
    created_at: int
    last_active_at: float
    idle_minutes: int
    memory_limit: MemoryLimit
    skills: Sequence[Skill] = ()
    files: dict[str, ContainerFile] = field(default_factory=dict)  # by path
    # The rest is only set in the process that runs the sandbox.
    mounts: Sequence[File] = ()  # to copy into a new sandbox
    chain: str | None = None
    sandbox: Sandbox | None = None
    slot: ContainerSlot | None = None
    saved: IO[bytes] | None = None  # its packed files, while suspended
    state_loss: str = ""  # at the next start: `variables`, or `files` (which includes variables)
    users: int = 0  # requests that use it or wait for it
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one request at a time
    deleted: bool = False

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


class Containers:
    """Unknown ids, and other owners' ids, raise `NotFound`."""

    def __init__(
        self,
        bubblewrap: Bubblewrap,
        skills: SkillFolder | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = bubblewrap.settings
        self.skills = skills or SkillFolder()
        self.uploads: Files | None = None  # None without a file store
        self.copies: FileCopies | None = None  # None without object storage
        self._bubblewrap = bubblewrap
        self._clock = clock
        self._containers: dict[str, Container] = {}
        self._conversations: dict[tuple[str, str], str] = {}  # by owner and chain
        self._slots = ContainerSlots(self.settings.max_containers, self._limit_of)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def _limit_of(self, owner: str) -> int:
        if owner == _ANONYMOUS:
            return self.settings.max_containers
        return self.settings.max_key_containers or max(1, self.settings.max_containers * 3 // 4)

    async def create(self, owner: str, **options: Unpack[NewContainer]) -> Container:
        """The sandbox starts on first use. Raises `InvalidRequest`."""
        memory_limit = options.get("memory_limit") or "1g"
        if memory_bytes(memory_limit) > memory_bytes(self.settings.memory_limit):
            message = f"Invalid 'memory_limit': must be at most {self.settings.memory_limit} on this server."
            raise InvalidRequest(message, param="memory_limit", code="invalid_value")
        mounts = [await self._upload(owner, file_id) for file_id in options.get("file_ids", ())]
        now = self._clock()
        container = Container(
            f"cntr_{secrets.token_hex(24)}",
            owner,
            options.get("name", "auto"),
            int(now),
            now,
            options.get("idle_minutes") or self.settings.idle_minutes,
            memory_limit,
            skills=options.get("skills", ()),
            mounts=mounts,
        )
        self._containers[container.id] = container
        if len(self._containers) > MAX_CONTAINERS:
            self._enforce_limits()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL, self._sweep)
        return container

    async def get(self, owner: str, container_id: str) -> Container:
        container = self._containers.get(container_id)
        if container is None or container.owner != owner or self._expired(container):
            raise NotFound(f"Container with id '{container_id}' not found.", param="container_id")
        return container

    async def for_conversation(
        self, owner: str, chain: str, earlier: Sequence[str], **options: Unpack[NewContainer]
    ) -> Container:
        """
        Return or create a conversation's container.

        `earlier` lists container ids from earlier calls, latest first. A container with other `skills` is suspended,
        and restarts with the new ones.
        """
        current = self._conversations.get((owner, chain))
        for container_id in (*earlier, *([current] if current else ())):
            try:
                container = await self.get(owner, container_id)
            except NotFound:
                continue
            skills = options.get("skills") or ()
            if skills and list(skills) != list(container.skills):
                container.skills = skills
                await self._suspend(container)
            return container
        container = await self.create(owner, **options)
        container.chain = chain
        self._conversations[owner, chain] = container.id
        return container

    async def list(self, owner: str, name: str | None = None) -> Sequence[dict[str, object]]:
        """Containers as in the API, oldest first."""
        own = [one for one in self._containers.values() if one.owner == owner and not self._expired(one)]
        return [container.resource() for container in own if name in (None, container.name)]

    async def summaries(self, owner: str | None, limit: int) -> Sequence[dict[str, object]]:
        """The newest containers of an owner (None: of all owners)."""
        listed = [one for one in self._containers.values() if owner in (None, one.owner) and not self._expired(one)]
        return [
            {
                "id": one.id,
                "owner": one.owner,
                "created_at": one.created_at,
                "last_active_at": int(one.last_active_at),
                "memory_limit": one.memory_limit,
                "running": one.sandbox is not None,
                "files": len(one.files),
                "bytes": sum(file.bytes for file in one.files.values()),
            }
            for one in listed[: -limit - 1 : -1]
        ]

    async def delete(self, owner: str, container_id: str) -> dict[str, object]:
        self._delete(await self.get(owner, container_id))
        return {"id": container_id, "object": "container.deleted", "deleted": True}

    def _expired(self, container: Container) -> bool:
        return not container.users and container.last_active_at + container.idle_minutes * 60 <= self._clock()

    def _sweep(self) -> None:
        for container in [*filter(self._expired, self._containers.values())]:
            self._delete(container)
        sweep = asyncio.get_running_loop().call_later
        self._timer = sweep(SWEEP_INTERVAL, self._sweep) if self._containers else None

    def _enforce_limits(self) -> None:
        """Delete unused containers above the limits for number and saved bytes."""
        while True:
            unused = [container for container in self._containers.values() if not container.users]
            saved = Counter[str]()
            for container in unused:
                saved[container.owner] += os.fstat(container.saved.fileno()).st_size if container.saved else 0
            if len(self._containers) > MAX_CONTAINERS:
                shares = Counter(container.owner for container in unused)
            elif saved.total() > self.settings.saved_files:
                shares, unused = saved, [container for container in unused if container.saved]
            else:
                return
            if not unused:
                return
            self._delete(min(unused, key=lambda one: (-shares[one.owner], one.last_active_at)))

    def _delete(self, container: Container) -> None:
        container.deleted = True
        del self._containers[container.id]
        if container.chain is not None and self._conversations.get((container.owner, container.chain)) == container.id:
            del self._conversations[container.owner, container.chain]
        if container.saved:
            container.saved.close()
            container.saved = None
        if container.sandbox:
            container.sandbox.kill()
            self._begin(self._end(container))

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def use(self, container: Container) -> AsyncIterator[SandboxChannel]:
        """
        Open a container's sandbox exclusively.

        Raises `container_failed` if it cannot run, and `TooManyRequests` if too many containers are in use.
        """
        container.users += 1
        try:
            async with container.lock:
                container.last_active_at = self._clock()
                try:
                    yield await self._running_sandbox(container)
                except SandboxEnded:
                    await self._end(container)
                    if container.saved:
                        raise container_failed("The container could not be started. Try again.") from None
                    container.state_loss = "files"
                    raise container_failed() from None
                finally:
                    container.last_active_at = self._clock()
                    if container.deleted or container.sandbox is None:
                        await self._end(container)
        finally:
            container.users -= 1
            if container.slot and not container.users:
                self._slots.mark_idle(container.slot, container.last_active_at)

    async def _running_sandbox(self, container: Container) -> Sandbox:
        unknown = NotFound(f"Container with id '{container.id}' not found.", param="container_id")
        if container.deleted:
            raise unknown
        if container.sandbox and container.sandbox.alive:
            assert container.slot
            self._slots.mark_busy(container.slot)
            return container.sandbox
        if container.slot is None:
            within = self.settings.call_seconds + 2 * STOP_GRACE  # enough for a running call to end
            container.slot = await self._slots.acquire(
                container.owner, lambda: self._begin(self._suspend(container)), within
            )
            if container.deleted:
                raise unknown
        else:
            container.state_loss = "files"  # the sandbox ended unexpectedly
        skills = await asyncio.to_thread(read_skill_files, container.skills) if container.skills else {}
        sandbox = await self._bubblewrap.start(memory_bytes(container.memory_limit), skills)
        try:
            await self._restore_files(container, sandbox)
        except BaseException:
            await sandbox.aclose()
            raise
        container.sandbox = sandbox
        return sandbox

    async def _restore_files(self, container: Container, sandbox: Sandbox) -> None:
        if container.saved:
            try:
                await _restore(container.saved, sandbox)
            except OSError as error:
                logger.warning("container files not restored", extra={"reason": str(error)})
                container.state_loss = "files"
            container.saved.close()
            container.saved = None
        else:
            container.files.clear()
            for file in container.mounts:
                assert self.uploads
                await self._write(sandbox, path_for(file.filename), self.uploads.content(file))
            await self.changes(container, sandbox, "user")
        if container.state_loss:
            await sandbox.request("resumed", lost=container.state_loss)
            container.state_loss = ""

    async def _suspend(self, container: Container) -> None:
        """Save an unused container's files and end its sandbox."""
        async with container.lock:
            if container.sandbox is None:
                return
            try:
                async with asyncio.timeout(SAVE_SECONDS):
                    max_bytes = 2 * self.settings.disk + _SAVED_OVERHEAD * len(container.files)
                    container.saved = await _save(container.sandbox, max_bytes)
                container.state_loss = "variables"
            except (SandboxEnded, OSError) as error:  # includes TimeoutError
                logger.warning("container files not saved", extra={"reason": str(error) or type(error).__name__})
                container.state_loss = "files"
            finally:
                await self._end(container)
        if container.deleted and container.saved:
            container.saved.close()
        elif container.saved:
            self._enforce_limits()

    async def _end(self, container: Container) -> None:
        sandbox, container.sandbox = container.sandbox, None
        if sandbox:
            await sandbox.aclose()
        slot, container.slot = container.slot, None
        if slot:
            self._slots.release(slot)

    async def changes(
        self, container: Container, sandbox: SandboxChannel, source: str = "assistant"
    ) -> Sequence[ContainerFile]:
        """Refresh a used container's file list; return new and changed files."""
        changed: list[ContainerFile] = []
        answer = await sandbox.request("files")
        try:
            entries = [(str(entry["path"]), int(entry["bytes"]), int(entry["changed"])) for entry in answer["files"]]
        except (KeyError, TypeError, ValueError):
            raise SandboxEnded from None
        previous, container.files = container.files, {}
        for path, size, time_changed in entries:
            file = previous.get(path)
            if file is None or (file.bytes, file.changed) != (size, time_changed):
                file_id = file.id if file else f"cfile_{secrets.token_hex(16)}"
                created = file.created_at if file else int(self._clock())
                file = ContainerFile(file_id, container.id, path, size, time_changed, created, source)
                changed.append(file)
            container.files[path] = file
        return changed

    async def aclose(self) -> None:
        if self._timer:
            self._timer.cancel()
        for container in [*self._containers.values()]:
            self._delete(container)
        if self._tasks:
            await asyncio.wait({*self._tasks})
        self.skills.close()

    async def _upload(self, owner: str, file_id: str) -> File:
        if self.uploads is None:
            message = "This server has no file store, so files cannot be mounted."
            raise InvalidRequest(message, param="file_ids", code="unsupported_parameter")
        try:
            return await self.uploads.file(owner, file_id)
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

    async def delete_with_copies(self, owner: str, container_id: str) -> dict[str, object]:
        """Delete a container and its files' copies, which may have outlived it."""
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


async def _save(sandbox: Sandbox, max_bytes: int) -> IO[bytes]:
    """
    Save a sandbox's files in an unnamed temporary file: an opaque stream packed by its supervisor.

    Raises `SandboxEnded`, and `OSError` above `max_bytes`.
    """
    saved: IO[bytes] = await asyncio.to_thread(tempfile.TemporaryFile, prefix="antiphon-container-")
    try:
        while data := data_of(await sandbox.request("pack", within=_PACK_TIMEOUT, first=not saved.tell(), size=_PIECE)):
            if saved.tell() + len(data) > max_bytes:
                raise OSError("container files are too large to save")
            await asyncio.to_thread(saved.write, data)
        await asyncio.to_thread(saved.flush)
    except BaseException:
        saved.close()
        raise
    return saved


async def _restore(saved: IO[bytes], sandbox: Sandbox) -> None:
    """Raises `SandboxEnded` and `OSError`."""
    await asyncio.to_thread(saved.seek, 0)
    data = b"-"
    while data:
        data = await asyncio.to_thread(saved.read, _PIECE)
        piece = {"data": base64.b64encode(data).decode()} if data else {}
        answer = await sandbox.request("unpack", within=_PACK_TIMEOUT, **piece)
        if "error" in answer:
            raise OSError(f"container files could not be restored: {str(answer['error'])[:100]}")
