"""
Packs a folder into a byte stream, and unpacks it in another sandbox: files, folders, links, modes and times.

Each entry: header length (4 bytes), header (a JSON object), and file data for the header's extents, without holes.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from typing import Any

_PIECE = 512 * 1024


def pack(root: str) -> Iterator[bytes]:
    """Nothing may write to the folder concurrently. Unreadable files are skipped."""
    links: dict[int, str] = {}  # first path by inode, for hard links
    folders = [""]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError):
            for entry in os.scandir(os.path.join(root, folder)):
                with contextlib.suppress(OSError):
                    path = os.path.join(folder, entry.name)
                    status = entry.stat(follow_symlinks=False)
                    header: dict[str, Any] = {
                        "path": path,
                        "mode": stat.S_IMODE(status.st_mode),
                        "times": [status.st_atime_ns, status.st_mtime_ns],
                    }
                    if entry.is_symlink():
                        yield _head({**header, "link": os.readlink(entry.path)})
                    elif entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, header["mode"] | stat.S_IRWXU)
                        yield _head({**header, "folder": True})
                        folders.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        if status.st_ino in links:
                            yield _head({**header, "same": links[status.st_ino]})
                            continue
                        if status.st_nlink > 1:
                            links[status.st_ino] = path
                        yield from _pack_file(entry.path, header, status.st_size)


def _pack_file(path: str, header: dict[str, Any], size: int) -> Iterator[bytes]:
    os.chmod(path, header["mode"] | stat.S_IRUSR)
    with open(path, "rb", buffering=0) as file:
        extents = _extents(file.fileno(), size)
        yield _head({**header, "size": size, "extents": extents})
        for start, end in extents:
            for offset in range(start, end, _PIECE):
                yield os.pread(file.fileno(), min(_PIECE, end - offset), offset)


def _extents(fd: int, size: int) -> list[tuple[int, int]]:
    extents: list[tuple[int, int]] = []
    end = 0
    with contextlib.suppress(OSError):
        while end < size:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
            extents.append((start, end))
    return extents


def _head(header: dict[str, Any]) -> bytes:
    data = json.dumps(header).encode()
    return len(data).to_bytes(4, "big") + data


class Unpacker:
    def __init__(self, root: str) -> None:
        self._root = root
        self._data = bytearray()
        self._finish: list[tuple[str, dict[str, Any]]] = []  # folders, whose modes and times are set last
        self._file: int | None = None
        self._header: dict[str, Any] = {}
        self._extents: list[list[int]] = []

    def feed(self, data: bytes) -> None:
        self._data += data
        while self._write_data() if self._file is not None else self._read_head():
            pass

    def close(self) -> None:
        for path, header in reversed(self._finish):
            self._set(path, header)

    def _read_head(self) -> bool:
        """Return False if more data is needed."""
        size = int.from_bytes(self._data[:4], "big")
        if len(self._data) < 4 or len(self._data) < 4 + size:
            return False
        header = json.loads(self._data[4 : 4 + size])
        del self._data[: 4 + size]
        path = os.path.join(self._root, header["path"])
        if "link" in header:
            os.symlink(header["link"], path)
        elif "folder" in header:
            os.mkdir(path)
            self._finish.append((path, header))
        elif "same" in header:
            os.link(os.path.join(self._root, header["same"]), path)
        else:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._file, header["size"])
            self._header, self._extents = header, header["extents"]
        return True

    def _write_data(self) -> bool:
        """Return False if more data is needed."""
        assert self._file is not None
        while self._extents:
            if not self._data:
                return False
            start, end = self._extents[0]
            written = os.pwrite(self._file, self._data[: end - start], start)
            del self._data[:written]
            self._extents[0][0] += written
            if start + written == end:
                self._extents.pop(0)
        os.close(self._file)
        self._file = None
        self._set(os.path.join(self._root, self._header["path"]), self._header)
        return True

    @staticmethod
    def _set(path: str, header: dict[str, Any]) -> None:
        os.chmod(path, header["mode"])
        os.utime(path, ns=tuple(header["times"]))
