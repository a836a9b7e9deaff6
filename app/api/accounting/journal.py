"""
A journal of unstored usage, for recovery after a process was killed.

Each batch is a file with a line per response, deleted once stored. Unlocked files belong to dead processes. The file
name is the batch id, by which the store deduplicates.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson

from app.core.bounded_json import dumps
from app.stores import UsageRow, add_row

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_SUFFIX = ".usage"


def default_directory(store_url: str) -> Path | None:
    """Return None for memory stores, and without file locks."""
    url = urlsplit(store_url)
    if fcntl is None or url.scheme == "memory":
        return None
    if url.scheme == "sqlite":
        return Path(f"{unquote(url.path)[1:]}-usage")
    # Password changes must not orphan files.
    store = hashlib.sha256(f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"antiphon-{os.getuid()}" / f"usage-{store}"


class UsageJournal:
    """A process's journal files in a shared directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, int] = {}  # descriptors by batch
        self._failed = False

    def prepare(self, batch: str) -> None:
        """Called in a thread: a slow disk would block the event loop."""
        try:
            self._files[batch] = self._open(batch)
        except OSError as error:
            self._log(error)

    def append(self, batch: str, names: Sequence[str], counts: Sequence[int]) -> None:
        """Errors are not raised; the first is logged."""
        try:
            if (file := self._files.get(batch)) is None:
                file = self._files[batch] = self._open(batch)
            os.write(file, dumps([*names, *counts]) + b"\n")
        except OSError as error:
            self._log(error)

    def _log(self, error: OSError) -> None:
        if not self._failed:
            logger.error("usage journal not written", extra={"reason": error.strerror})
        self._failed = True

    def delete(self, batch: str) -> None:
        if (file := self._files.pop(batch, None)) is not None:
            with contextlib.suppress(OSError):
                self._path(batch).unlink()
            os.close(file)

    def abandoned(self) -> Iterator[tuple[str, list[UsageRow]]]:
        """Yield dead processes' batches, each locked until `delete`."""
        with contextlib.suppress(OSError):
            for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
                if path.stem not in self._files and (file := self._lock(path)) is not None:
                    self._files[path.stem] = file
                    yield path.stem, _rows(path.read_bytes())

    def close(self) -> None:
        """Files with records are left to another process."""
        for batch, file in [*self._files.items()]:
            if os.fstat(file).st_size:
                os.close(file)
            else:
                self.delete(batch)
        self._files.clear()

    def _open(self, batch: str) -> int:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            file = os.open(self._path(batch), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # file system without locks
                os.close(file)
                self._path(batch).unlink()
                raise
            if os.fstat(file).st_nlink:
                return file
            os.close(file)  # deleted by another process before it was locked

    def _lock(self, path: Path) -> int | None:
        """Return None if another process locked or deleted the file."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(file)
            if status.st_nlink and status.st_uid == os.getuid():  # others can write to a temporary directory
                return file
        except OSError:
            pass
        os.close(file)
        return None

    def _path(self, batch: str) -> Path:
        return self._directory / f"{batch}{_SUFFIX}"


def _rows(content: bytes) -> list[UsageRow]:
    """Incomplete lines are skipped."""
    rows: dict[tuple[str, ...], UsageRow] = {}
    for line in content.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            row = UsageRow(*orjson.loads(line))
            add_row(rows, row[:4], row)
    return [*rows.values()]
