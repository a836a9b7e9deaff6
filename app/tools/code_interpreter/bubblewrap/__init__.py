"""
Sandboxes run by bubblewrap (`bwrap`): processes without network, host files or privileges.

A sandbox is confined by namespaces, seccomp filters, rlimits, in-memory file systems with fixed sizes, CPU affinity,
and a control group if this process can create one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from app.tools.code_interpreter.bubblewrap.cgroups import Group, find_parent
from app.tools.code_interpreter.bubblewrap.process import MAX_ANSWER, Sandbox, SandboxEnded
from app.tools.code_interpreter.bubblewrap.seccomp import code_filter, seccomp_filter
from app.tools.code_interpreter.bubblewrap.watch import FILE_BYTES, SandboxMonitor
from app.tools.code_interpreter.settings import CodeSettings
from app.tools.code_interpreter.skills import MOUNT

logger = logging.getLogger(__name__)

START_TIMEOUT = 20.0  # seconds
OPEN_FILES = 256  # per process
SHARED_MEMORY = 64 * 1024 * 1024  # bytes in /dev/shm
UNPRIVILEGED = 65534  # user and group id outside the sandbox, if the server runs as root
INSIDE = 1000  # inside the sandbox

_PASSWD = b"root:x:0:0::/:/bin/false\nsandbox:x:1000:1000::/tmp:/bin/sh\n"
_HELP = (
    "code needs bubblewrap and user namespaces. Install bubblewrap 0.8 or later (apt install bubblewrap), and allow "
    "user namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile for bwrap; in a container also its seccomp "
    "and AppArmor profiles. Only Linux is supported"
)
_FONTS = b"<fontconfig><dir>/usr/share/fonts</dir><cachedir>/tmp/fontconfig</cachedir></fontconfig>"
_ENVIRONMENT = {
    "FONTCONFIG_FILE": "/run/sandbox/fonts.conf",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MPLBACKEND": "module://sandbox_figures",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "MATPLOTLIBRC": "/run/sandbox/matplotlibrc",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "MALLOC_ARENA_MAX": "2",
}
_PROGRAMS = Path(__file__).parent / "sandbox"
_SUPERVISOR = "import sys; sys.path.insert(0, '/run/sandbox'); from sandbox.supervisor import supervise; supervise()"
_LAUNCH = Path(__file__).parent / "launch.py"


class Bubblewrap:
    def __init__(self, settings: CodeSettings) -> None:
        """Raises `ValueError` if bubblewrap, a Python, or the seccomp filter is missing."""
        self.settings = settings
        self._program = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
        pythons = (settings.python,) if settings.python else ("/usr/bin/python3", "/usr/local/bin/python3")
        python = next((path for path in pythons if os.access(path, os.X_OK)), None)
        if self._program is None:
            raise ValueError(f"bwrap not found: {_HELP}")
        if python is None:
            raise ValueError(f"{' or '.join(pythons)} not found: containers need a Python under /usr")
        self._python = python
        self._monitor = SandboxMonitor()
        self._groups: Path | None = None  # control groups
        self._filters = {"seccomp": seccomp_filter(), "/run/sandbox/code.seccomp": code_filter()}

    def probe(self) -> None:
        """Run an empty sandbox, with a control group if possible. Raises `ValueError` with the remedy."""
        self._groups = find_parent()
        try:
            self._run_empty()
        except ValueError:
            if self._groups is None:
                raise
            self._groups = None  # cannot move processes into groups
            self._run_empty()
        logger.info("container freezer selected", extra={"method": "cgroup" if self._groups else "SIGSTOP"})

    def _run_empty(self) -> None:
        group = self._new_group(2**30)
        with self._files({}) as files:
            command = [*_launch(group, files), *self._command(files), "/usr/bin/true"]
            try:
                result = subprocess.run(
                    command, **_process_options(files), stdin=subprocess.DEVNULL, capture_output=True, timeout=20
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise ValueError(f"bwrap cannot be run ({type(error).__name__}): {_HELP}") from None
            finally:
                if group:
                    group.remove()
        if result.returncode:
            reason = result.stderr.decode("utf-8", "replace").strip()[:300]
            raise ValueError(f"bwrap failed ({reason}): {_HELP}")

    async def start(self, memory: int, skills: Mapping[str, bytes] | None = None) -> Sandbox:
        """
        Start a sandbox; raises `SandboxEnded`.

        `memory` is in bytes; `skills` are read-only files by path.
        """
        disk, processes = self.settings.disk, self.settings.processes
        options = {"memory": memory, "disk": disk, "processes": processes, "open_files": OPEN_FILES}
        cpus = sorted(os.sched_getaffinity(0))
        chosen = random.sample(cpus, min(self.settings.cpus, len(cpus)))
        group = self._new_group(memory)
        try:
            with self._files(skills or {}) as files:
                command = [*_launch(group, files, cpus=chosen), *self._command(files)]
                command += [self._python, "-I", "-c", _SUPERVISOR]
                process = await asyncio.create_subprocess_exec(
                    *command,
                    orjson.dumps(options).decode(),
                    **_process_options(files),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    limit=MAX_ANSWER,
                )
        except BaseException:
            if group:
                group.kill()
                await asyncio.to_thread(group.remove)  # waits for the processes to end
            raise
        sandbox = Sandbox(process, memory, disk // FILE_BYTES, self._monitor, group)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await sandbox.ready()
        except BaseException as error:
            await sandbox.aclose()
            if isinstance(error, TimeoutError):
                raise SandboxEnded from None
            raise
        return sandbox

    def _new_group(self, memory: int) -> Group | None:
        if self._groups is None:
            return None
        files = self.settings.disk + self.settings.disk // 2 + SHARED_MEMORY
        return Group(self._groups, memory + files, self.settings.processes)

    @contextlib.contextmanager
    def _files(self, skills: Mapping[str, bytes]) -> Iterator[dict[str, int]]:
        """The sandbox's initial files as descriptors, by path."""
        contents = {
            **self._filters,
            "/etc/passwd": _PASSWD,
            "/run/sandbox/fonts.conf": _FONTS,
            "/run/sandbox/matplotlibrc": b"",  # Debian has it in /etc
            **{f"/run/sandbox/sandbox/{path.name}": path.read_bytes() for path in _PROGRAMS.glob("*.py")},
            **skills,
        }
        files: dict[str, int] = {}
        try:
            for name, data in contents.items():
                files[name] = os.memfd_create("file")
                with open(files[name], "wb", closefd=False) as file:
                    file.write(data)
                os.lseek(files[name], 0, os.SEEK_SET)
            yield files
        finally:
            for fd in files.values():
                os.close(fd)

    def _command(self, files: dict[str, int]) -> list[str]:
        assert self._program
        command = [self._program, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
        command += ["--as-pid-1"]  # bubblewrap's own init is dumpable, so code with the same user could rewrite it
        command += ["--cap-drop", "ALL", "--uid", str(INSIDE), "--gid", str(INSIDE), "--hostname", "sandbox"]
        command += ["--clearenv", *(word for pair in _ENVIRONMENT.items() for word in ("--setenv", *pair))]
        command += ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            if Path(f"/{name}").is_symlink():
                command += ["--symlink", f"usr/{name}", f"/{name}"]
            elif Path(f"/{name}").is_dir():
                command += ["--ro-bind", f"/{name}", f"/{name}"]
        # Links in Debian with targets in /usr.
        command += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
        command += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"]
        # /dev/full reads as zeros but cannot be mapped; a shared mapping of /dev/zero is memory charged to no process.
        command += ["--dev-bind", "/dev/full", "/dev/zero"]
        command += ["--size", str(self.settings.disk // 2), "--tmpfs", "/tmp"]
        command += ["--size", str(self.settings.disk), "--tmpfs", "/mnt/data"]
        for path, fd in files.items():
            # Many mounts are slow, so skills are files in the root, which becomes read-only.
            how = "--file" if path.startswith(f"{MOUNT}/") else "--ro-bind-data"
            command += ["--seccomp", str(fd)] if path == "seccomp" else ["--perms", "0444", how, str(fd), path]
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/mnt/data", "--"]


def _launch(group: Group | None, files: dict[str, int], **options: object) -> list[str]:
    options["files"] = [*files.values()]
    if group:
        options["group"] = str(group.directory)
    if os.geteuid() == 0:
        options["user"] = UNPRIVILEGED
    return [sys.executable, "-I", "-S", str(_LAUNCH), orjson.dumps(options).decode()]


def _process_options(files: dict[str, int]) -> dict[str, Any]:
    """The environment is empty, since /proc/1/environ exposes it to the sandbox."""
    return {"env": {}, "pass_fds": [*files.values()], "cwd": "/"}
