"""Suspended containers' files: opaque streams packed by their supervisors, in unnamed temporary files."""

from __future__ import annotations

import asyncio
import base64
import binascii
import tempfile
from typing import IO

from app.tools.code_interpreter.bubblewrap.process import Sandbox, SandboxEnded

_PIECE = 1024 * 1024  # bytes per request
_TIMEOUT = 60.0  # seconds per request


class SavedFiles:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0  # bytes

    @classmethod
    async def save(cls, sandbox: Sandbox, max_bytes: int) -> SavedFiles:
        """Raises `SandboxEnded`, and `OSError` above `max_bytes`."""
        saved = cls(await asyncio.to_thread(tempfile.TemporaryFile, prefix="antiphon-container-"))
        try:
            while data := await _packed(sandbox, first=not saved.size):
                saved.size += len(data)
                if saved.size > max_bytes:
                    raise OSError("container files are too large to save")
                await asyncio.to_thread(saved._file.write, data)
        except BaseException:
            saved.close()
            raise
        return saved

    async def restore(self, sandbox: Sandbox) -> None:
        """Raises `SandboxEnded` and `OSError`."""
        await asyncio.to_thread(self._file.seek, 0)
        data = b"-"
        while data:
            data = await asyncio.to_thread(self._file.read, _PIECE)
            piece = {"data": base64.b64encode(data).decode()} if data else {}
            answer = await sandbox.request("unpack", within=_TIMEOUT, **piece)
            if "error" in answer:
                raise OSError(f"container files could not be restored: {str(answer['error'])[:100]}")

    def close(self) -> None:
        self._file.close()


async def _packed(sandbox: Sandbox, *, first: bool) -> bytes:
    answer = await sandbox.request("pack", within=_TIMEOUT, first=first, size=_PIECE)
    try:
        return base64.b64decode(str(answer.get("data", "")), validate=True)
    except binascii.Error:
        raise SandboxEnded from None
