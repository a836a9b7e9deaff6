"""Expiring backend keys from a file or a command's output."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.backends.server.errors.classification import failure
from app.errors import BackendError

logger = logging.getLogger(__name__)

_COMMAND_TIMEOUT = 30.0  # seconds
_RETRY_INTERVAL = 10.0  # seconds between renewal attempts
_MAX_KEY_LENGTH = 16_384  # characters


class KeySource:
    """An expiring key, read again after its lifetime or a rejection. Concurrent requests wait for a single read."""

    def __init__(
        self, read: Callable[[], Awaitable[str]], lifetime: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`read` returns the key or raises `BackendError`; `lifetime` is in seconds."""
        self.key: str | None = None
        self._read = read
        self._lifetime = lifetime
        self._clock = clock
        self._until = 0.0
        self._reads = 0  # ended; requests that waited for a read share its failure
        self._reason = ""  # for the last failure
        self._lock = asyncio.Lock()

    async def current(self) -> str:
        """Raises `BackendError`."""
        if self.key is None or self._clock() >= self._until:
            reads = self._reads
            async with self._lock:
                if reads == self._reads:
                    await self._read_again()
        if self.key is None:
            raise _unreadable(self._reason)
        return self.key

    async def renew(self, refused: str) -> bool:
        """Whether the key has changed after a rejection."""
        async with self._lock:
            if self.key == refused:
                await self._read_again()
        return self.key != refused

    async def _read_again(self) -> None:
        """Keep the last key if reading fails: the server may still accept it."""
        try:
            key = (await self._read()).strip()
            if not key or len(key) > _MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
                raise _unreadable("must be one line of printable ASCII")
            self.key = key
            self._until = self._clock() + self._lifetime
        except BackendError as error:
            self._until = self._clock() + _RETRY_INTERVAL
            self._reason = error.detail
            if self.key is not None:
                logger.warning("backend key not renewed", extra={"reason": error.explanation})
        self._reads += 1


def _unreadable(reason: str) -> BackendError:
    error = failure("key", "This server's API key for the backend cannot be read.")
    error.add_note(reason)
    return error


async def key_from_file(path: Path) -> str:
    try:
        return await asyncio.to_thread(lambda: path.expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(f"api_key_file: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


async def key_from_command(command: Sequence[str], seconds: float = _COMMAND_TIMEOUT) -> str:
    """The output is never logged; raises `BackendError`."""
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=none, stdout=pipe, stderr=none, start_new_session=True
        )
    except OSError as error:
        raise _unreadable(f"api_key_command: {error.strerror}") from None
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        raise _unreadable(f"api_key_command: no output within {seconds:.0f} seconds") from None
    finally:
        if process.returncode is None:
            _kill_with_children(process)
            await process.wait()
    if process.returncode:
        raise _unreadable(f"api_key_command: exit status {process.returncode}")
    return output.decode(errors="replace")


def _kill_with_children(process: asyncio.subprocess.Process) -> None:
    """Children of a killed shell would keep running, and its output open."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def key_source(file: Path | None, command: Sequence[str], lifetime: float) -> KeySource | None:
    if file:
        return KeySource(partial(key_from_file, file), lifetime)
    return KeySource(partial(key_from_command, command), lifetime) if command else None
