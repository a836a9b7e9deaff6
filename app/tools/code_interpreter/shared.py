"""
Containers shared by workers: one worker runs all sandboxes; the others use a Unix socket.

The worker with the lock file is the *host*. When it exits, its sandboxes end, and the next worker that needs a
container becomes the host.

Messages are JSON objects, one per line; each connection serves a single operation. After `use`, requests to the sandbox
follow; closing the connection stops a running request and releases the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import orjson

from app.core.types import JSONMapping, JSONObject
from app.errors import APIError, NotFound
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.bubblewrap.process import MAX_ANSWER, STOP_GRACE, SandboxEnded
from app.tools.code_interpreter.containers import Container, Containers, NewContainer, SandboxChannel, container_failed
from app.tools.code_interpreter.files import ContainerFile
from app.tools.code_interpreter.skills import Skill, SkillFolder

logger = logging.getLogger(__name__)

HOST_TIMEOUT = 10.0  # seconds to wait for a starting host
_RETRY_INTERVAL = 0.05
_MAX_LINE = 2 * MAX_ANSWER  # bytes


class SharedContainers(Containers):
    def __init__(self, bubblewrap: Bubblewrap, directory: Path, skills: SkillFolder | None = None) -> None:
        """Only the workers' user may write to `directory`."""
        super().__init__(bubblewrap, skills)
        self._lock_path, self._socket_path = directory / "containers.lock", directory / "containers.socket"
        self._lock: int | None = None  # file descriptor, if this worker is the host
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def _try_to_host(self) -> bool:
        """Become the host if there is none. Returns whether this worker is the host."""
        if self._lock is not None:
            return True
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        self._socket_path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self._socket_path, limit=_MAX_LINE)
        return True

    async def _connect(self) -> _RemoteSandbox | None:
        """A connection to the host; None if this worker is the host. Raises `container_failed`."""
        try:
            async with asyncio.timeout(HOST_TIMEOUT):
                while not await self._try_to_host():
                    with contextlib.suppress(ConnectionError, FileNotFoundError):
                        return _RemoteSandbox(*await asyncio.open_unix_connection(self._socket_path, limit=_MAX_LINE))
                    await asyncio.sleep(_RETRY_INTERVAL)
        except TimeoutError:
            raise container_failed() from None
        return None

    async def _do(self, operation: str, **fields: object) -> Any:
        """Run an operation here or on the host; raises its errors and `container_failed`."""
        if (remote := await self._connect()) is None:
            return await getattr(super(), operation)(**fields)
        async with remote:
            return await remote.send(operation, fields)

    async def create(self, owner: str, **options: Unpack[NewContainer]) -> Container:
        return _container(await self._do("create", owner=owner, **options))

    async def get(self, owner: str, container_id: str) -> Container:
        return _container(await self._do("get", owner=owner, container_id=container_id))

    async def for_conversation(
        self, owner: str, chain: str, earlier: Sequence[str], **options: Unpack[NewContainer]
    ) -> Container:
        fields = {"owner": owner, "chain": chain, "earlier": [*earlier], **options}
        return _container(await self._do("for_conversation", **fields))

    async def list(self, owner: str, name: str | None = None) -> Sequence[dict[str, object]]:
        result: Sequence[dict[str, object]] = await self._do("list", owner=owner, name=name)
        return result

    async def summaries(self, owner: str | None, limit: int) -> Sequence[dict[str, object]]:
        result: Sequence[dict[str, object]] = await self._do("summaries", owner=owner, limit=limit)
        return result

    async def delete(self, owner: str, container_id: str) -> dict[str, object]:
        deleted: dict[str, object] = await self._do("delete", owner=owner, container_id=container_id)
        return deleted

    @asynccontextmanager
    async def use(self, container: Container) -> AsyncIterator[SandboxChannel]:
        if (remote := await self._connect()) is None:
            async with super().use(await super().get(container.owner, container.id)) as sandbox:
                yield sandbox
            return
        async with remote:
            await remote.send("use", {"owner": container.owner, "container_id": container.id})
            yield remote

    async def changes(
        self, container: Container, sandbox: SandboxChannel, source: str = "assistant"
    ) -> Sequence[ContainerFile]:
        if not isinstance(sandbox, _RemoteSandbox):
            return await super().changes(container, sandbox, source)
        answer = await sandbox.send("changes", {"source": source})
        container.files = {fields["path"]: ContainerFile(**fields) for fields in answer["files"]}
        return [container.files[path] for path in answer["changed"]]

    async def aclose(self) -> None:
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait({*self._connections})
        await super().aclose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The operation is cancelled when the other worker closes the connection."""
        lines: asyncio.Queue[Mapping[str, object]] = asyncio.Queue()
        work = asyncio.create_task(self._work(lines, writer))
        try:
            while line := await reader.readline():
                lines.put_nowait(orjson.loads(line))
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()
            work.cancel()
            await asyncio.wait({work})

    async def _work(self, lines: asyncio.Queue[JSONMapping], writer: asyncio.StreamWriter) -> None:
        message = await lines.get()
        try:
            if message["operation"] != "use":
                assert message["operation"] in _OPERATIONS
                result = await getattr(super(), message["operation"])(**_received(message["fields"]))
                _write(writer, {"result": result})
                return
            container = await super().get(**message["fields"])
            async with super().use(container) as sandbox:
                _write(writer, {"result": None})
                while True:
                    message = await lines.get()
                    fields = message["fields"]
                    if message["operation"] == "changes":
                        changed = [file.path for file in await super().changes(container, sandbox, **fields)]
                        _write(writer, {"result": {"changed": changed, "files": [*container.files.values()]}})
                    else:
                        _write(writer, {"result": await sandbox.request(message["operation"], **fields)})
        except APIError as error:
            _write(writer, {"error": {**error.payload(), "status": error.status, "retry_after": error.retry_after}})
        except ConnectionError:
            pass
        except Exception:
            logger.exception("container request from a worker failed")
            writer.close()


class _RemoteSandbox(AbstractAsyncContextManager["_RemoteSandbox"]):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def __aexit__(self, error_type: object, error: object, traceback: object) -> None:
        """Raises `container_failed` if the host has exited."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        if isinstance(error, SandboxEnded):
            raise container_failed() from None

    async def request(self, op: str, *, within: float = STOP_GRACE, **fields: object) -> JSONObject:
        answer: JSONObject = await self.send(op, {"within": within, **fields})
        return answer

    async def send(self, operation: str, fields: JSONMapping) -> Any:
        """Raises the host's `APIError`, or `SandboxEnded` if the host has exited."""
        try:
            _write(self._writer, {"operation": operation, "fields": fields})
            await self._writer.drain()
            answer = orjson.loads(await self._reader.readline())
        except (OSError, ValueError):
            raise SandboxEnded from None
        if error := answer.get("error"):
            kind = NotFound if error["status"] == NotFound.status else APIError
            raise kind(error_type=error.pop("type"), **error)
        return answer["result"]


_OPERATIONS = ("create", "get", "for_conversation", "list", "summaries", "delete")
_FIELDS = ("id", "owner", "name", "created_at", "last_active_at", "idle_minutes", "memory_limit", "skills")


def _write(writer: asyncio.StreamWriter, message: Mapping[str, object]) -> None:
    writer.write(orjson.dumps(message, default=_sent, option=orjson.OPT_PASSTHROUGH_DATACLASS) + b"\n")


def _sent(value: object) -> object:
    if isinstance(value, Skill):
        return [*value]
    if isinstance(value, Container):
        return {name: getattr(value, name) for name in _FIELDS}
    assert isinstance(value, ContainerFile)
    return asdict(value)


def _received(fields: JSONMapping) -> JSONObject:
    """Convert a message's fields to an operation's arguments."""
    received = {**fields}
    if "skills" in fields:
        received["skills"] = [Skill(*skill) for skill in fields["skills"]]
    return received


def _container(result: Any) -> Container:
    return result if isinstance(result, Container) else Container(**_received(result))
