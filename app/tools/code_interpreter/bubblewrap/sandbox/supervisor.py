"""
PID 1 in a sandbox. Answers requests: one JSON object per line.

Between calls, it stops all other processes (SIGSTOP), so that a sandbox uses CPU only during a call. A seccomp filter
prevents these processes from resuming each other.

Code runs as the same user, but cannot open the supervisor's memory or files (not dumpable), and the kernel discards its
signals to PID 1.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from .archive import Unpacker, pack

_DATA = "/mnt/data"
_MAX_REPLY = 24 * 1024 * 1024  # bytes, with images
_MAX_FILES = 1000  # in a file list
_MAX_DEPTH = 16  # nested folders in a file list
_PIECE = 65536
_FREEZE_SECONDS = 3.0  # for all processes to stop
_POLL_INTERVAL = 0.001  # seconds
_EXITING = 0x4  # PF_EXITING in a thread's kernel flags
_CODE_FILTER = "/run/sandbox/code.seccomp"
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 4, 22, 2
_TGKILL = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
_libc = ctypes.CDLL(None, use_errno=True)


class _Output:
    def __init__(self, fd: int, limit: int) -> None:
        os.set_blocking(fd, False)
        self.fd, self._limit = fd, limit
        self._data = bytearray()
        self.cut = False

    def read(self) -> bool:
        """Return False at the end of the stream."""
        for _ in range(64):
            try:
                data = os.read(self.fd, _PIECE)
            except BlockingIOError:
                return True
            if not data:
                return False
            left = self._limit - len(self._data)
            self.cut = self.cut or len(data) > left
            self._data += data[:left]
        return True

    def text(self) -> str:
        return self._data.decode("utf-8", "replace")


class _Worker:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        program = os.path.join(os.path.dirname(__file__), "worker.py")
        command = [sys.executable, "-u", "-I", program, str(theirs.fileno())]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            cwd=_DATA,
            pass_fds=[theirs.fileno()],
            preexec_fn=confine,
        )
        theirs.close()
        os.close(write)
        self.channel, self.output = ours, read

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.channel.close()
        os.close(self.output)


class _Supervisor:
    def __init__(self, control: int, answers: int) -> None:
        self._control, self._answers = control, answers
        self._buffer = b""
        self._worker: _Worker | None = None
        self._lost = ""  # since the latest call: `variables`, or `files` (which includes variables)
        self._paths: dict[str, str] = {}  # actual paths in the latest file list, by their listed UTF-8 form
        self._packed: Iterator[bytes] = iter(())
        self._unpacker: Unpacker | None = None
        self._ended, write = os.pipe()  # readable after a child process has ended
        for fd in (self._ended, write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, the wakeup descriptor is not written
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def serve(self) -> None:
        while True:
            line = self._line()
            if line is None:
                return
            request = json.loads(line)
            try:
                reply = getattr(self, f"do_{request['op']}")(request)
            except OSError as error:
                reply = {"error": error.strerror or "failed"}
            self._answer(reply)

    def _line(self) -> bytes | None:
        while b"\n" not in self._buffer:
            data = os.read(self._control, _PIECE)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _answer(self, reply: dict[str, object]) -> None:
        data = memoryview(json.dumps(reply).encode() + b"\n")
        while data:
            data = data[os.write(self._answers, data) :]

    def _stop_requested(self) -> bool:
        """Read a request during another; True for `stop` and at EOF."""
        line = self._line()
        return line is None or json.loads(line).get("op") == "stop"

    def do_stop(self, request: dict[str, object]) -> dict[str, object]:
        """For a stop that arrives when no call is running."""
        return {"idle": True}

    def _reap(self, *started: subprocess.Popen[bytes]) -> None:
        """Reap ended processes, also orphans inherited by PID 1. The worker and `started` retain their exit codes."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._ended, _PIECE)
        known = [*started, *([self._worker.process] if self._worker else [])]
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                running = (process for process in known if process.returncode is None)
                if process := next((process for process in running if process.pid == ended.si_pid), None):
                    process.poll()
                else:
                    os.waitpid(ended.si_pid, 0)

    def do_python(self, request: dict[str, Any]) -> dict[str, object]:
        self._reap()
        signal_all(signal.SIGCONT)
        if self._worker and self._worker.process.poll() is not None:
            self._drop_worker()  # killed between calls
        lost, self._lost = self._lost, ""
        self._worker = worker = self._worker or _Worker()
        output = _Output(worker.output, request["limit"])
        worker.channel.setblocking(True)
        worker.channel.sendall(json.dumps({"code": request["code"]}).encode() + b"\n")
        worker.channel.setblocking(False)
        reply, ended, channel = bytearray(), "", worker.channel.fileno()
        deadline = time.monotonic() + request["timeout"]
        waited = [channel, worker.output, self._control, self._ended]
        while not ended:
            left = deadline - time.monotonic()
            ready = select.select(waited, [], [], max(0, left))[0]
            if self._ended in ready:
                self._reap()
            if worker.output in ready and not output.read():
                waited.remove(worker.output)
            if channel in ready:
                data = worker.channel.recv(_PIECE)
                reply += data
                if not data:
                    ended = "died"
                elif len(reply) > _MAX_REPLY:
                    ended = "too_large"
                elif data.endswith(b"\n"):
                    ended = "done"
            if self._control in ready and self._stop_requested():
                ended = "stopped"
            elif not ended and left <= 0:
                ended = "timeout"
        if ended == "done" and not freeze():
            ended = "not_frozen"
        code = self._kill() if ended != "done" else None
        output.read()
        answer = {"ended": ended, "logs": output.text(), "cut": output.cut, "exit_code": code, "lost": lost}
        if ended == "done":
            answer["images"] = json.loads(reply).get("images", [])
        else:
            self._drop_worker()
            self._lost = ""
        return answer

    def _kill(self) -> int | None:
        """Kill all other processes; return the worker's exit code, or None if it ends slowly."""
        signal_all(signal.SIGKILL)  # an exiting process keeps its own exit code
        deadline = time.monotonic() + _FREEZE_SECONDS
        while _running_threads() and time.monotonic() < deadline:  # large processes end slowly
            time.sleep(_POLL_INTERVAL)
        return self._worker.process.poll() if self._worker else None

    def _drop_worker(self) -> None:
        if self._worker:
            self._worker.close()
            self._worker, self._lost = None, self._lost or "variables"

    def do_shell(self, request: dict[str, Any]) -> dict[str, object]:
        self._reap()
        signal_all(signal.SIGCONT)
        process = subprocess.Popen(
            ["/bin/sh" if not os.path.exists("/bin/bash") else "/bin/bash", "-c", request["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=_DATA,
            start_new_session=True,
            preexec_fn=confine,
        )
        assert process.stdout and process.stderr
        outputs = [_Output(pipe.fileno(), request["limit"]) for pipe in (process.stdout, process.stderr)]
        open_ = {output.fd: output for output in outputs}
        ended, deadline = "", time.monotonic() + request["timeout"]
        while not ended:
            left = deadline - time.monotonic()
            ready = select.select([*open_, self._control, self._ended], [], [], max(0, left))[0]
            if self._ended in ready:
                self._reap(process)
            for fd in [fd for fd in ready if fd in open_]:
                if not open_[fd].read():
                    del open_[fd]
            if self._control in ready and self._stop_requested():
                ended = "stopped"
            elif process.poll() is not None:
                ended = "done"
            elif left <= 0:
                ended = "timeout"
        if ended == "timeout":
            os.killpg(process.pid, signal.SIGKILL)
        if ended == "stopped" or not freeze():
            self._kill()
            self._drop_worker()
        code = process.wait()
        for output in outputs:
            output.read()
        answer = {
            "ended": ended,
            "exit_code": code,
            "stdout": outputs[0].text(),
            "stderr": outputs[1].text(),
            "lost": self._lost,
        }
        self._lost = self._lost and "variables"  # reported by the next Python call
        process.stdout.close()
        process.stderr.close()
        return answer

    def do_files(self, request: dict[str, object]) -> dict[str, object]:
        """Symbolic links are neither listed nor followed."""
        files: list[dict[str, object]] = []
        self._paths.clear()
        folders = [(_DATA, 0)]
        while folders and len(files) < _MAX_FILES:
            folder, depth = folders.pop()
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
                    folders.append((entry.path, depth + 1))
                elif entry.is_file(follow_symlinks=False) and len(files) < _MAX_FILES:
                    status = entry.stat(follow_symlinks=False)
                    path = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
                    self._paths[path] = entry.path
                    files.append({"path": path, "bytes": status.st_size, "changed": status.st_mtime_ns})
        return {"files": files}

    def _path(self, request: dict[str, Any]) -> str:
        path: str = request["path"]
        return self._paths.get(path, path)

    def do_read(self, request: dict[str, Any]) -> dict[str, object]:
        fd = os.open(self._path(request), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return {"error": "not a file"}
            data = os.pread(fd, request["size"], request["offset"])
        finally:
            os.close(fd)
        return {"data": base64.b64encode(data).decode()}

    def do_write(self, request: dict[str, Any]) -> dict[str, object]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= os.O_APPEND if request["append"] else os.O_TRUNC
        fd = os.open(request["path"], flags, 0o644)
        try:
            data = memoryview(base64.b64decode(request["data"]))
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        return {}

    def do_pack(self, request: dict[str, Any]) -> dict[str, object]:
        """The next part of a stream with all files; without `data` at the end."""
        if request["first"]:
            self._packed = pack(_DATA)
        data = bytearray()
        while len(data) < request["size"] and (piece := next(self._packed, None)) is not None:
            data += piece
        return {"data": base64.b64encode(data).decode()} if data else {}

    def do_unpack(self, request: dict[str, Any]) -> dict[str, object]:
        """Write the next part of a stream; a request without `data` ends it."""
        self._unpacker = self._unpacker or Unpacker(_DATA)
        if "data" in request:
            self._unpacker.feed(base64.b64decode(request["data"]))
        else:
            self._unpacker.close()
            self._unpacker = None
        return {}

    def do_resumed(self, request: dict[str, Any]) -> dict[str, object]:
        """Lost state is reported in the next call's answer."""
        self._lost = request["lost"]
        return {}

    def do_delete(self, request: dict[str, Any]) -> dict[str, object]:
        os.unlink(self._path(request))
        return {}


def signal_all(number: int) -> None:
    """Signal all other processes, including new forks."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def freeze() -> bool:
    """
    Stop all other processes; False if some still run after `_FREEZE_SECONDS`.

    One signal is not enough: while a process's first thread is in `vfork`, its other threads do not receive it, and an
    ending process can resume stopped ones (SIGCONT to an orphaned process group, or when a terminal closes). So threads
    are signalled until two consecutive checks find none running.
    """
    deadline, still = time.monotonic() + _FREEZE_SECONDS, 0
    while still < 2:
        signal_all(signal.SIGSTOP)
        running = _running_threads()
        still = 0 if running else still + 1
        if running:
            if time.monotonic() > deadline:
                return False
            for pid, thread in running:
                _libc.syscall(_TGKILL, pid, thread, int(signal.SIGSTOP))
            time.sleep(_POLL_INTERVAL)
    return True


def _running_threads() -> list[tuple[int, int]]:
    """(Process id, thread id) of the other processes' running threads."""
    threads: list[tuple[int, int]] = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                    # D (uninterruptible): in `vfork`, so it stops on return, or exiting.
                    if fields[0] not in "TtZX" and (fields[0] != "D" or int(fields[6]) & _EXITING):
                        threads.append((int(pid), int(thread)))
    return threads


class _Instructions(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_: ClassVar = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def confine() -> None:
    """Prevent this process from resuming stopped processes."""
    with open(_CODE_FILTER, "rb") as file:
        program = file.read()
    instructions = _Instructions(len(program) // 8, program)
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(instructions), 0, 0):
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")


def _set_limits(options: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_AS: options["memory"],
        resource.RLIMIT_FSIZE: options["disk"],
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NOFILE: options["open_files"],
        resource.RLIMIT_NPROC: options["processes"],
        resource.RLIMIT_SIGPENDING: 1024,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))


def supervise() -> None:
    options = json.loads(sys.argv[1])
    control, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if os.getpid() != 1 or _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("the supervisor is not protected from code with the same user")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel discards signals that PID 1 does not catch
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _set_limits(options)
    supervisor = _Supervisor(control, answers)
    supervisor._answer({"ready": True})
    supervisor.serve()
