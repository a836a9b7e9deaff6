"""
A journal of usage that is not in the store yet, in files, so that no usage is lost if a process is killed.

A batch is a file with one line per response, and is deleted once the batch is in the store. A process locks its files,
so unlocked files belong to processes that have died. The name of a file is the id of its batch, which the store counts
once.
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
from app.stores.usage import UsageRow, add_row

try:
    import fcntl
except ImportError:  # Windows, where the settings do not allow a journal
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_SUFFIX = ".usage"


def default_directory(store_url: str) -> Path | None:
    """
    Return the directory of the journal for a store; None for a store in memory, and where files cannot be locked.

    It is beside the file of SQLite, and in a directory of this user for temporary files for a store on a server.
    """
    url = urlsplit(store_url)
    if fcntl is None or url.scheme == "memory":
        return None
    if url.scheme == "sqlite":
        return Path(f"{unquote(url.path)[1:]}-usage")
    # Whoever uses the same store recovers it, also after its password has been changed.
    store = hashlib.sha256(f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"antiphon-{os.getuid()}" / f"usage-{store}"


class UsageJournal:
    """The journal files of one process, in a directory that several processes may share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, int] = {}  # descriptors by batch
        self._failed = False

    def prepare(self, batch: str) -> None:
        """Create a batch's file ahead of time, in a thread: a slow disk would block the event loop."""
        try:
            self._files[batch] = self._open(batch)
        except OSError as error:
            self._log(error)

    def append(self, batch: str, names: Sequence[str], counts: Sequence[int]) -> None:
        """Append a record to the file of a batch. Errors are not raised; the first one is logged."""
        try:
            if (file := self._files.get(batch)) is None:
                file = self._files[batch] = self._open(batch)
            os.write(file, dumps([*names, *counts]) + b"\n")
        except OSError as error:
            self._log(error)

    def _log(self, error: OSError) -> None:
        if not self._failed:
            logger.error("usage journal not written: %s", error.strerror)
        self._failed = True

    def delete(self, batch: str) -> None:
        """Delete the file of a batch that is in the store."""
        if (file := self._files.pop(batch, None)) is not None:
            with contextlib.suppress(OSError):
                self._path(batch).unlink()
            os.close(file)

    def abandoned(self) -> Iterator[tuple[str, list[UsageRow]]]:
        """Yield the batches of processes that have died, each locked until `delete`."""
        with contextlib.suppress(OSError):
            for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
                if path.stem not in self._files and (file := self._lock(path)) is not None:
                    self._files[path.stem] = file
                    yield path.stem, _rows(path.read_bytes())

    def close(self) -> None:
        """Close the remaining files, which another process can then recover, and delete the empty ones."""
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
            except OSError:  # the file system has no locks
                os.close(file)
                self._path(batch).unlink()
                raise
            if os.fstat(file).st_nlink:
                return file
            os.close(file)  # another process deleted it as an abandoned file before it was locked

    def _lock(self, path: Path) -> int | None:
        """Lock a file and return its descriptor; None if another process holds the lock, or has deleted the file."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(file)
            if status.st_nlink and status.st_uid == os.getuid():  # others may write to a directory for temporary files
                return file
        except OSError:
            pass
        os.close(file)
        return None

    def _path(self, batch: str) -> Path:
        return self._directory / f"{batch}{_SUFFIX}"


def _rows(content: bytes) -> list[UsageRow]:
    """Return the rows of a file; incomplete lines are skipped."""
    rows: dict[tuple[str, ...], UsageRow] = {}
    for line in content.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            row = UsageRow(*orjson.loads(line))
            add_row(rows, row[:4], row)
    return [*rows.values()]
