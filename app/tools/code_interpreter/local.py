"""
Containers whose sandboxes are child processes. Suspended containers retain only their files.

Slots limit how many containers run at once, in total and per owner. If none is free, the owner with the most slots
loses its longest idle container. Owners at their own limit only evict their own containers. If no container is idle,
the next slot goes to the owner with the fewest slots.
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
from functools import partial
from typing import IO, Unpack

from app.core.access import KeyAccess
from app.errors import InvalidRequest, NotFound, TooManyRequests
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.bubblewrap.process import STOP_GRACE, Sandbox, SandboxEnded, data_of
from app.tools.code_interpreter.containers import (
    Container,
    ContainerFile,
    Containers,
    NewContainer,
    SandboxChannel,
    container_failed,
    path_for,
)
from app.tools.code_interpreter.settings import memory_bytes
from app.tools.code_interpreter.skills import SkillFolder, read_skill_files
from app.tools.files import File

logger = logging.getLogger(__name__)

MAX_CONTAINERS = 10_000  # running or suspended
SWEEP_INTERVAL = 10.0  # seconds
SAVE_SECONDS = 60.0  # per container
_SAVED_OVERHEAD = 1024  # packed bytes per file, in addition to its content
_ANONYMOUS = KeyAccess().owner  # on a server without keys


@dataclass(slots=True)
class LocalContainer(Container):
    mounts: Sequence[File] = ()  # to copy into a new sandbox
    chain: str | None = None
    sandbox: Sandbox | None = None
    slot: ContainerSlot | None = None
    saved: IO[bytes] | None = None  # its packed files, while suspended
    state_loss: str = ""  # at the next start: `variables`, or `files` (which includes variables)
    users: int = 0  # requests that use it or wait for it
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one request at a time
    deleted: bool = False


class LocalContainers(Containers):
    def __init__(
        self,
        bubblewrap: Bubblewrap,
        skills: SkillFolder | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(bubblewrap.settings, skills)
        self._bubblewrap = bubblewrap
        self._clock = clock
        self._containers: dict[str, LocalContainer] = {}
        self._conversations: dict[tuple[str, str], str] = {}  # by owner and chain
        self._slots = ContainerSlots(self.settings.max_containers, self._limit_of)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def _limit_of(self, owner: str) -> int:
        if owner == _ANONYMOUS:
            return self.settings.max_containers
        return self.settings.max_key_containers or max(1, self.settings.max_containers * 3 // 4)

    async def create(self, owner: str, **options: Unpack[NewContainer]) -> LocalContainer:
        memory_limit = options.get("memory_limit") or "1g"
        if memory_bytes(memory_limit) > memory_bytes(self.settings.memory_limit):
            message = f"Invalid 'memory_limit': must be at most {self.settings.memory_limit} on this server."
            raise InvalidRequest(message, param="memory_limit", code="invalid_value")
        mounts = [await self._upload(owner, file_id) for file_id in options.get("file_ids", ())]
        now = self._clock()
        container = LocalContainer(
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

    async def get(self, owner: str, container_id: str) -> LocalContainer:
        container = self._containers.get(container_id)
        if container is None or container.owner != owner or self._expired(container):
            raise NotFound(f"Container with id '{container_id}' not found.", param="container_id")
        return container

    async def for_conversation(
        self, owner: str, chain: str, earlier: Sequence[str], **options: Unpack[NewContainer]
    ) -> LocalContainer:
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
        own = [one for one in self._containers.values() if one.owner == owner and not self._expired(one)]
        return [container.resource() for container in own if name in (None, container.name)]

    async def summaries(self, owner: str | None, limit: int) -> Sequence[dict[str, object]]:
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

    def _expired(self, container: LocalContainer) -> bool:
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

    def _delete(self, container: LocalContainer) -> None:
        container.deleted = True
        del self._containers[container.id]
        if container.chain is not None and self._conversations.get((container.owner, container.chain)) == container.id:
            del self._conversations[container.owner, container.chain]
        if container.saved:
            container.saved.close()
            container.saved = None
        if container.sandbox:
            container.sandbox.kill()
            self._begin(self._end, container)

    def _begin(
        self, work: Callable[[LocalContainer], Coroutine[object, object, None]], container: LocalContainer
    ) -> None:
        task = asyncio.create_task(work(container))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def use(self, container: Container) -> AsyncIterator[SandboxChannel]:
        assert isinstance(container, LocalContainer)
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

    async def _running_sandbox(self, container: LocalContainer) -> Sandbox:
        unknown = NotFound(f"Container with id '{container.id}' not found.", param="container_id")
        if container.deleted:
            raise unknown
        if container.sandbox and container.sandbox.alive:
            assert container.slot
            self._slots.mark_busy(container.slot)
            return container.sandbox
        if container.slot is None:
            within = self.settings.call_seconds + 2 * STOP_GRACE  # enough for a running call to end
            evict = partial(self._begin, self._suspend, container)
            container.slot = await self._slots.acquire(container.owner, evict, within)
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

    async def _restore_files(self, container: LocalContainer, sandbox: Sandbox) -> None:
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

    async def _suspend(self, container: LocalContainer) -> None:
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

    async def _end(self, container: LocalContainer) -> None:
        sandbox, container.sandbox = container.sandbox, None
        if sandbox:
            await sandbox.aclose()
        slot, container.slot = container.slot, None
        if slot:
            self._slots.release(slot)

    async def changes(
        self, container: Container, sandbox: SandboxChannel, source: str = "assistant"
    ) -> Sequence[ContainerFile]:
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


_PIECE = 1024 * 1024  # bytes per request
_TIMEOUT = 60.0  # seconds per request


async def _save(sandbox: Sandbox, max_bytes: int) -> IO[bytes]:
    """
    Save a sandbox's files in an unnamed temporary file: an opaque stream packed by its supervisor.

    Raises `SandboxEnded`, and `OSError` above `max_bytes`.
    """
    saved: IO[bytes] = await asyncio.to_thread(tempfile.TemporaryFile, prefix="antiphon-container-")
    try:
        while data := data_of(await sandbox.request("pack", within=_TIMEOUT, first=not saved.tell(), size=_PIECE)):
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
        answer = await sandbox.request("unpack", within=_TIMEOUT, **piece)
        if "error" in answer:
            raise OSError(f"container files could not be restored: {str(answer['error'])[:100]}")


@dataclass(eq=False, slots=True)
class ContainerSlot:
    owner: str
    evict: Callable[[], None]  # starts a suspension, which ends with `release`
    granted: asyncio.Future[None]
    idle_since: float | None = None  # None while in use or being evicted
    evicting: ContainerSlot | None = None  # evicted for this slot, which waits


class ContainerSlots:
    def __init__(self, total: int, limit_of: Callable[[str], int]) -> None:
        """`limit_of` returns an owner's maximum."""
        self._total, self._limit_of = total, limit_of
        self._held: set[ContainerSlot] = set()
        self._waiting: list[ContainerSlot] = []

    async def acquire(self, owner: str, evict: Callable[[], None], within: float) -> ContainerSlot:
        """Wait up to `within` seconds; raises `TooManyRequests`."""
        slot = ContainerSlot(owner, evict, asyncio.get_running_loop().create_future())
        self._waiting.append(slot)
        self._serve()
        try:
            async with asyncio.timeout(within):
                await slot.granted
        except BaseException as error:
            if slot in self._waiting:
                self._waiting.remove(slot)
            else:
                self.release(slot)
            if isinstance(error, TimeoutError):
                message = "All containers are in use. Try again, or delete containers you no longer need."
                raise TooManyRequests(message, code="too_many_containers", retry_after=10) from None
            raise
        return slot

    def release(self, slot: ContainerSlot) -> None:
        self._held.discard(slot)
        for other in self._waiting:
            if other.evicting is slot:
                other.evicting = None
        self._serve()

    def mark_busy(self, slot: ContainerSlot) -> None:
        slot.idle_since = None

    def mark_idle(self, slot: ContainerSlot, now: float) -> None:
        slot.idle_since = now
        self._serve()

    def _serve(self) -> None:
        while slot := next(filter(self._can_grant, self._in_order()), None):
            self._waiting.remove(slot)
            self._held.add(slot)
            slot.granted.set_result(None)
        for slot in self._in_order():
            if slot.evicting is None and (candidate := self._eviction_candidate(slot.owner)):
                candidate.idle_since, slot.evicting = None, candidate
                candidate.evict()

    def _in_order(self) -> list[ContainerSlot]:
        """Owners with the fewest slots first, then by arrival."""
        held = self._counts()
        waiting = [slot for slot in self._waiting if not slot.granted.done()]  # some may be cancelled
        return sorted(waiting, key=lambda slot: held[slot.owner])

    def _can_grant(self, slot: ContainerSlot) -> bool:
        return len(self._held) < self._total and self._counts()[slot.owner] < self._limit_of(slot.owner)

    def _counts(self) -> Counter[str]:
        return Counter(slot.owner for slot in self._held)

    def _eviction_candidate(self, owner: str) -> ContainerSlot | None:
        held = self._counts()
        full = held[owner] >= self._limit_of(owner)

        def priority(slot: ContainerSlot) -> tuple[int, float]:
            return -held[slot.owner] - (slot.owner == owner), slot.idle_since or 0.0

        idle = [slot for slot in self._held if slot.idle_since is not None and (slot.owner == owner or not full)]
        return min(idle, key=priority, default=None)
