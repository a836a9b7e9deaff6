"""
Control groups (cgroup v2) for sandboxes, if this process can create them.

The kernel freezes a container's processes between calls, and limits their total memory, including files and kernel
buffers.

Creating groups works as root, and in a systemd service with `Delegate=yes`. A group with processes cannot delegate
controllers, so a delegated group's processes are moved into its child group `server`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

_PREFIX = "antiphon-"
_CONTROLLERS = ("memory", "pids")
_REMOVE_ATTEMPTS, _REMOVE_INTERVAL = 250, 0.02
_MARGIN = 64 * 1024 * 1024  # bytes for bubblewrap, the supervisor, and kernel structures


class Group:
    def __init__(self, parent: Path, memory: int, processes: int) -> None:
        """`memory` is in bytes and includes files. Raises `OSError`."""
        self.directory = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        self.directory.mkdir()
        self._write("memory.max", str(memory + _MARGIN))
        self._write("memory.swap.max", "0")
        self._write("pids.max", str(processes + 4))

    def freeze(self) -> None:
        self._write("cgroup.freeze", "1")

    def thaw(self) -> None:
        self._write("cgroup.freeze", "0")

    def kill(self) -> None:
        self._write("cgroup.kill", "1")

    def memory_kills(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (self.directory / "memory.events").read_text().splitlines())
            return int(events["oom_kill"])
        return 0

    def remove(self) -> None:
        for _ in range(_REMOVE_ATTEMPTS):
            with contextlib.suppress(OSError):
                self.directory.rmdir()
            if not self.directory.exists():
                return
            time.sleep(_REMOVE_INTERVAL)

    def _write(self, name: str, value: str) -> None:
        with contextlib.suppress(OSError):  # missing in older kernels, or without the controller
            (self.directory / name).write_text(value)


def find_parent() -> Path | None:
    """The directory for new groups; None if this process cannot create groups. Removes groups of ended servers."""
    own = _own_directory()
    if own is None:
        return None
    parent = own.parent if _delegated(own.parent) else own  # a service may be in a child of the delegated group
    try:
        for directory in parent.glob(f"{_PREFIX}*-*"):
            pid = directory.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    directory.rmdir()
        _delegate_controllers(parent, own)
        group = Group(parent, memory=0, processes=0)  # to try it
    except OSError:
        return None
    usable = (group.directory / "cgroup.freeze").exists()
    group.remove()
    return parent if usable else None


def _own_directory() -> Path | None:
    try:
        path = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, system = line.partition(" - ")
            root, point = fields.split()[3:5]
            if system.split()[0] == "cgroup2" and Path(path).is_relative_to(root):
                return Path(point) / Path(path).relative_to(root)
    except (OSError, StopIteration):
        pass
    return None


def _delegated(directory: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return os.access(directory, os.W_OK)
    return False


def _delegate_controllers(base: Path, own: Path) -> None:
    present = (base / "cgroup.controllers").read_text().split()
    wanted = [name for name in _CONTROLLERS if name in present]
    enabled = (base / "cgroup.subtree_control").read_text().split()
    whole_tree = not (base / "cgroup.type").exists()  # the kernel's root group may contain both processes and groups
    if set(wanted) <= set(enabled) or not (whole_tree or _delegated(base)):
        return
    if base == own and not whole_tree:
        server = base / "server"
        server.mkdir(exist_ok=True)
        for pid in (base / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (server / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
