"""
Keys of a backend that expire: read from a file or from the output of a command, and read again.

    source = KeySource(partial(key_from_command, ["gcloud", "auth", "print-access-token"]), lifetime=180)
    key = await source.current()
    ...                                   # the server answers 401
    if await source.renew(key): ...       # there is another key: send the request again
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from app.backends.server.errors.classification import failure
from app.errors import BackendError

logger = logging.getLogger(__name__)

_SECONDS = 30.0  # that a command may take
_RETRY = 10.0  # seconds after which a key that could not be read is read again
_LONGEST = 16_384  # characters of a key


class KeySource:
    """The key of one backend; it is read by one request at a time, while the others wait."""

    def __init__(
        self, read: Callable[[], Awaitable[str]], lifetime: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`read` returns the key, or raises `BackendError`. `lifetime` is in seconds; `clock` returns seconds."""
        self.key: str | None = None  # the last one
        self._read = read
        self._lifetime = lifetime
        self._clock = clock
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def current(self) -> str:
        """Return the key, which is read again after its lifetime; raises `BackendError` if there is none."""
        if self.key is None or self._clock() >= self._until:
            async with self._lock:
                if self.key is None or self._clock() >= self._until:
                    await self._read_again()
        assert self.key is not None
        return self.key

    async def renew(self, refused: str) -> bool:
        """Read the key again if it is the one that the server has refused; return whether there is another one."""
        async with self._lock:
            if self.key == refused:
                await self._read_again()
        return self.key != refused

    async def _read_again(self) -> None:
        """Read the key; the last one stays if that fails, since the server may still accept it."""
        try:
            self.key = _checked(await self._read())
            self._until = self._clock() + self._lifetime
        except BackendError as error:
            if self.key is None:
                raise
            self._until = self._clock() + _RETRY
            logger.warning("backend key not renewed: %s", error.explanation)


def _checked(text: str) -> str:
    key = text.strip()
    if not key or len(key) > _LONGEST or not (key.isascii() and key.isprintable()):
        raise _unreadable("must be one line of printable ASCII")
    return key


def _unreadable(reason: str) -> BackendError:
    error = failure("key", "This server's API key for the backend cannot be read.")
    error.add_note(reason)
    return error


async def key_from_file(path: Path) -> str:
    """Return the text of a file; raises `BackendError`."""
    try:
        return await asyncio.to_thread(_text_of, path)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(f"api_key_file: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def _text_of(path: Path) -> str:
    return path.expanduser().read_text("utf-8")


async def key_from_command(command: Sequence[str], seconds: float = _SECONDS) -> str:
    """Return the output of a command, which is never logged; raises `BackendError`."""
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=none, stdout=pipe, stderr=none)
    except OSError as error:
        raise _unreadable(f"api_key_command: {error.strerror}") from None
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        raise _unreadable(f"api_key_command: no output within {seconds:.0f} seconds") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise _unreadable(f"api_key_command: exit status {process.returncode}")
    return output.decode(errors="replace")


def key_source(file: Path | None, command: Sequence[str], lifetime: float) -> KeySource | None:
    """Return the source of a key that settings name; None if they name neither a file nor a command."""
    if file:
        return KeySource(partial(key_from_file, file), lifetime)
    return KeySource(partial(key_from_command, command), lifetime) if command else None
