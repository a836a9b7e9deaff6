"""
Sandboxes by bubblewrap (`bwrap`): processes without network, host files or privileges.

The server talks to the supervisor in a sandbox over a pair of pipes, and does not trust its answers: their size is
limited, and paths are resolved only inside the sandbox. A sandbox is confined by its own namespaces, a seccomp filter,
rlimits, in-memory file systems of a fixed size, CPU affinity, and the server, which watches its memory and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from app.tools.code_interpreter.seccomp import seccomp_filter
from app.tools.code_interpreter.settings import CodeSettings

logger = logging.getLogger(__name__)

START_TIMEOUT = 20.0  # seconds until the first answer of a new sandbox
STOP_GRACE = 5.0  # seconds for the supervisor to answer after a call has timed out or was stopped
WATCH_INTERVAL = 0.1  # seconds between two measurements of memory
OPEN_FILES = 256  # per process
SHARED_MEMORY = 64 * 1024 * 1024  # bytes of /dev/shm
MAX_ANSWER = 32 * 1024 * 1024  # bytes of one answer of the supervisor
UNPRIVILEGED = 65534  # user and group id of a sandbox if the server runs as root
INSIDE = 1000  # user and group id inside the sandbox

_PASSWD = b"root:x:0:0::/:/bin/false\nsandbox:x:1000:1000::/tmp:/bin/sh\n"
_HELP = (
    "code needs bubblewrap and user namespaces. Install bubblewrap 0.8 or later (apt install bubblewrap), and allow "
    "user namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile for bwrap; in a container also its seccomp "
    "and AppArmor profiles. It runs on Linux only"
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
_SCRIPTS = Path(__file__).parent / "sandbox"


class SandboxUnavailable(ValueError):
    """This machine cannot run sandboxes; the message explains what to install or allow."""


class SandboxEnded(Exception):
    """The sandbox has ended, and its state and files are lost."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits of a sandbox; sizes in bytes."""

    memory: int
    disk: int
    processes: int
    cpus: int


class Bubblewrap:
    """Starts sandboxes."""

    def __init__(self, settings: CodeSettings) -> None:
        """Raises `SandboxUnavailable` if this machine lacks bubblewrap, a Python, or a seccomp filter."""
        self._program = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
        pythons = (settings.python,) if settings.python else ("/usr/bin/python3", "/usr/local/bin/python3")
        python = next((path for path in pythons if os.access(path, os.X_OK)), None)
        if self._program is None:
            raise SandboxUnavailable(f"there is no bwrap: {_HELP}")
        if python is None:
            raise SandboxUnavailable(f"there is no {' or '.join(pythons)}: containers need a Python under /usr")
        self._python = python
        try:
            self._filter = seccomp_filter()
        except ValueError as error:
            raise SandboxUnavailable(str(error)) from None

    def probe(self) -> None:
        """Run an empty sandbox once; raises `SandboxUnavailable`."""
        limits = SandboxLimits(memory=2**30, disk=2**20, processes=64, cpus=1)
        with self._files() as files:
            command = [*self._command(limits, files), "/usr/bin/true"]
            try:
                result = subprocess.run(
                    command, **_process_options(files), stdin=subprocess.DEVNULL, capture_output=True, timeout=20
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise SandboxUnavailable(f"bwrap cannot be run ({type(error).__name__}): {_HELP}") from None
        if result.returncode:
            reason = result.stderr.decode("utf-8", "replace").strip()[:300]
            raise SandboxUnavailable(f"bwrap failed ({reason}): {_HELP}")

    async def start(self, limits: SandboxLimits) -> Sandbox:
        """Start a sandbox; raises `SandboxEnded` if that fails."""
        options = {
            "memory": limits.memory,
            "disk": limits.disk,
            "processes": limits.processes,
            "open_files": OPEN_FILES,
        }
        with self._files() as files:
            command = [*self._command(limits, files), self._python, "-I", "/run/sandbox/supervisor.py"]
            cpus = sorted(os.sched_getaffinity(0))
            chosen = random.sample(cpus, min(limits.cpus, len(cpus)))
            process = await asyncio.create_subprocess_exec(
                *command,
                orjson.dumps(options).decode(),
                **_process_options(files),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                limit=MAX_ANSWER,
            )
        sandbox = Sandbox(process, limits.memory)
        try:
            # Inherited by all processes of the sandbox, which the seccomp filter stops from changing it.
            with contextlib.suppress(ProcessLookupError):
                for pid in (process.pid, *descendants(process.pid)):
                    os.sched_setaffinity(pid, chosen)
            async with asyncio.timeout(START_TIMEOUT):
                await sandbox.ready()
        except BaseException as error:
            await sandbox.aclose()
            if isinstance(error, TimeoutError):
                raise SandboxEnded from None
            raise
        return sandbox

    @contextlib.contextmanager
    def _files(self) -> Iterator[dict[str, int]]:
        """Open the files that are put into a sandbox, as descriptors that bwrap reads, by their paths."""
        contents = {
            "seccomp": self._filter,
            "/etc/passwd": _PASSWD,
            "/run/sandbox/fonts.conf": _FONTS,
            "/run/sandbox/matplotlibrc": b"",  # Debian has it in /etc
            "/run/sandbox/supervisor.py": (_SCRIPTS / "supervisor.py").read_bytes(),
            "/run/sandbox/worker.py": (_SCRIPTS / "worker.py").read_bytes(),
        }
        files: dict[str, int] = {}
        try:
            for name, data in contents.items():
                files[name] = os.memfd_create(name)
                os.write(files[name], data)
                os.lseek(files[name], 0, os.SEEK_SET)
            yield files
        finally:
            for fd in files.values():
                os.close(fd)

    def _command(self, limits: SandboxLimits, files: dict[str, int]) -> list[str]:
        assert self._program
        command = [self._program, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
        command += ["--cap-drop", "ALL", "--uid", str(INSIDE), "--gid", str(INSIDE), "--hostname", "sandbox"]
        command += ["--clearenv", *(word for pair in _ENVIRONMENT.items() for word in ("--setenv", *pair))]
        command += ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            if Path(f"/{name}").is_symlink():
                command += ["--symlink", f"usr/{name}", f"/{name}"]
            elif Path(f"/{name}").is_dir():
                command += ["--ro-bind", f"/{name}", f"/{name}"]
        # Debian's links from one library to another; they lead to /usr.
        command += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
        command += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"]
        command += ["--size", str(max(limits.disk // 2, 1)), "--tmpfs", "/tmp"]
        command += ["--size", str(limits.disk), "--tmpfs", "/mnt/data"]
        for path, fd in files.items():
            command += (
                ["--seccomp", str(fd)] if path == "seccomp" else ["--perms", "0444", "--ro-bind-data", str(fd), path]
            )
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/mnt/data", "--"]


def _process_options(files: dict[str, int]) -> dict[str, Any]:
    """Return the options to start bwrap: never as root, with an empty environment, since /proc/1/environ shows it."""
    options: dict[str, object] = {"env": {}, "pass_fds": [*files.values()], "cwd": "/"}
    if os.geteuid() == 0:
        options["preexec_fn"] = _drop_root  # uvloop does not support `user`
    return options


def _drop_root() -> None:
    os.setgroups([])
    os.setgid(UNPRIVILEGED)
    os.setuid(UNPRIVILEGED)


class Sandbox:
    """A running sandbox. The caller ensures that there is one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process, memory: int) -> None:
        self._process = process
        self._memory = memory

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return self._process.returncode is None

    async def ready(self) -> None:
        """Wait for the supervisor's first message; raises `SandboxEnded`."""
        await self._answer()

    async def request(self, op: str, *, within: float = STOP_GRACE, **fields: object) -> dict[str, Any]:
        """
        Send a request and return the answer; raises `SandboxEnded`.

        The sandbox is ended if a call takes more than `within` seconds plus `STOP_GRACE`, or is cancelled and does not
        stop. `over_memory` is true in the answer if the call was stopped for exceeding the memory limit.
        """
        await self._send({"op": op, **fields})
        answer = asyncio.create_task(self._answer())
        watch = asyncio.create_task(self._watch_memory())
        try:
            await asyncio.wait({answer, watch}, timeout=within + STOP_GRACE, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            over_memory = watch.done()
            reply = await self._stop(answer)
            return {**reply, "over_memory": over_memory}
        except asyncio.CancelledError:
            # If the call can be stopped, the sandbox keeps its state and files.
            try:
                with contextlib.suppress(SandboxEnded):
                    await asyncio.shield(asyncio.ensure_future(self._stop(answer)))
            except asyncio.CancelledError:
                self.kill()
            raise
        except SandboxEnded:
            await self.aclose()
            raise
        finally:
            watch.cancel()

    async def _stop(self, answer: asyncio.Task[dict[str, object]]) -> dict[str, object]:
        """Stop the running call, and return its answer; raises `SandboxEnded`."""
        try:
            await self._send({"op": "stop"})
            async with asyncio.timeout(STOP_GRACE):
                reply = await answer
                if reply.get("ended") != "stopped":
                    await self._answer()  # the call had already ended: this answers the stop
                return reply
        except (SandboxEnded, TimeoutError):
            answer.cancel()
            await self.aclose()
            raise SandboxEnded from None

    async def _send(self, request: dict[str, object]) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(orjson.dumps(request) + b"\n")
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError):
            await self.aclose()
            raise SandboxEnded from None

    async def _answer(self) -> dict[str, object]:
        assert self._process.stdout
        try:
            answer = orjson.loads(await self._process.stdout.readline())
        except ValueError:  # nothing, too much, or no JSON
            raise SandboxEnded from None
        if not isinstance(answer, dict):
            raise SandboxEnded
        return answer

    async def _watch_memory(self) -> None:
        """Return once the sandbox exceeds its memory limit."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            if sum(map(resident_bytes, descendants(self._process.pid))) > self._memory:
                return

    def kill(self) -> None:
        """Kill every process of the sandbox at once."""
        if self._process.returncode is not None:
            return
        # When the first process of a PID namespace dies, the kernel kills all others in it.
        for pid in (*descendants(self._process.pid), self._process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """End the sandbox, and wait until it is gone."""
        self.kill()
        await self._process.wait()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        with contextlib.suppress(RuntimeError):  # a request is reading it
            while await self._process.stdout.read(65536):
                pass


def descendants(pid: int) -> Sequence[int]:
    """Return the ids of all descendant processes, nearest first."""
    pids: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop(0)
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{parent}/task/{task}/children").read_text().split()
                pids += map(int, children)
                queue += map(int, children)
    return pids


def resident_bytes(pid: int) -> int:
    """Return the anonymous and shared resident memory of a process, in bytes; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(sizes) * 1024
