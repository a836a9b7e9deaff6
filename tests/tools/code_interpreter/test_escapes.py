"""
What code in a sandbox tries against the machine, its own limits and its supervisor: each attempt is refused or bounded.

An attempt prints `escaped` where it worked; it may be refused by any error, or stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from app.tools.code_interpreter.bubblewrap import Bubblewrap, Sandbox, SandboxEnded, descendants
from tests.tools.code_interpreter.conftest import LIMITS, MEBIBYTE

_CALL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    number = {"x86_64": x86, "aarch64": arm}[platform.machine()]
    arguments = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return libc.syscall(ctypes.c_long(number), *arguments)
def refused(result):
    print("refused" if result < 0 else "escaped", ctypes.get_errno())
"""

# Each prints `escaped` only if it got what it wanted.
REFUSED = {
    "connects to another machine": "import socket; socket.create_connection(('1.1.1.1', 53), 2); print('escaped')",
    "resolves a name": "import socket; socket.getaddrinfo('example.com', 80); print('escaped')",
    "sends a datagram": "import socket; socket.socket(2, 2).sendto(b'x', ('8.8.8.8', 53)); print('escaped')",
    "sees a network interface": "n = [line for line in open('/proc/net/dev') if ':' in line and 'lo:' not in line]\n"
    "print('escaped' if n else 'none')",
    "opens a socket to the hypervisor": "import socket; socket.socket(40, 1, 0); print('escaped')",
    "opens a netlink socket": "import socket; socket.socket(16, 3, 0); print('escaped')",
    "opens a raw socket": "import socket; socket.socket(2, 3, 1); print('escaped')",
    "reads the host's passwords": "print('escaped' if 'root:x:0:0:root' in open('/etc/passwd').read() else 'own')",
    "reads the host's shadow": "open('/etc/shadow'); print('escaped')",
    "lists homes": "import os; print('escaped' if os.path.exists('/home') or os.path.exists('/root') else 'none')",
    "reads the environment of the first process": "print('escaped' if open('/proc/1/environ').read() else 'no')",
    "reads its own environment": "import os; print('escaped' if 'ANTIPHON_CANARY' in os.environ else 'clean')",
    "leaves through another process's root": "import os\nfor pid in (1, 2):\n"
    "    try: print('escaped' if 'home' in os.listdir(f'/proc/{pid}/root') else 'same')\n"
    "    except OSError as error: print(error)",
    "sees processes of the host": "import os\npids = [int(p) for p in os.listdir('/proc') if p.isdigit()]\n"
    "print('escaped' if len(pids) > 4 else 'own')",
    "signals the first process": "import os, signal, time; os.kill(1, signal.SIGKILL); time.sleep(0.2)\n"
    "os.kill(1, 0); print('lives')",
    "writes to the supervisor's memory": "open('/proc/2/mem', 'r+b'); print('escaped')",
    "takes the supervisor's pipes": "import os; os.listdir('/proc/2/fd'); print('escaped')",
    "writes to /usr": "open('/usr/escaped', 'w'); print('escaped')",
    "writes to the root": "open('/escaped', 'w'); print('escaped')",
    "writes to /dev": "open('/dev/escaped', 'w'); print('escaped')",
    "replaces the worker": "open('/run/sandbox/worker.py', 'w'); print('escaped')",
    "sets a kernel setting": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh'); print('escaped')",
    "triggers sysrq": "open('/proc/sysrq-trigger', 'w').write('b'); print('escaped')",
    "reads the kernel's memory": "open('/proc/kcore', 'rb').read(1); print('escaped')",
    "opens a disk": "import os, stat\nos.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0)); print('escaped')",
    "becomes root": "import os; os.setuid(0); print('escaped')",
    "uses a setuid program": "import subprocess as s\nr = s.run(['su', '-c', 'id'], capture_output=True, text=True)\n"
    "print('escaped' if 'uid=0' in r.stdout else 'refused')",
    "changes its root": "import os; os.chroot('/tmp'); print('escaped')",
    "raises its limits": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999)); print('escaped')",
    "takes more CPUs": "import os; os.sched_setaffinity(0, range(os.cpu_count()))\nprint('escaped')",
    "gains priority": "import os; os.nice(-5); print('escaped')",
    "traces a process": _CALL + "refused(call(101, 117, 16, 2, 0, 0))",
    "mounts": _CALL + "refused(call(165, 40, b'none', b'/tmp', b'tmpfs', 0, None))",
    "unmounts": _CALL + "refused(call(166, 39, b'/mnt/data', 2))",
    "makes a user namespace": _CALL + "refused(call(272, 97, 0x10000000))",
    "clones into a namespace": _CALL + "refused(call(56, 220, 0x10000011, 0, 0, 0, 0))",
    "uses clone3": _CALL + "refused(call(435, 435, ctypes.create_string_buffer(88), 88))",
    "joins a namespace": _CALL + "refused(call(308, 268, 0, 0))",
    "uses io_uring": _CALL + "refused(call(425, 425, 8, ctypes.create_string_buffer(120)))",
    "loads a program into the kernel": _CALL + "refused(call(321, 280, 0, ctypes.create_string_buffer(120), 120))",
    "asks for a key": _CALL + "refused(call(250, 219, 0, -3, 1))",
    "makes memory that is nobody's": _CALL + "refused(call(319, 279, b'x', 0))",
    "makes a System V segment": _CALL + "refused(call(29, 194, 0, 1 << 20, 0o1600))",
    "reads another's memory": _CALL + "refused(call(310, 270, 2, 0, 0, 0, 0, 0))",
    "restarts the machine": _CALL + "refused(call(169, 142, 0xfee1dead, 672274793, 0x1234567, 0))",
    "uses the other ABI": _CALL
    + "refused(libc.syscall(ctypes.c_long(0x40000000 + 39)) if platform.machine() == 'x86_64' else -1)",
    "sets the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0); print('escaped')",
}


async def python(sandbox: Sandbox, code: str, timeout: float = 20, limit: int = 10_000) -> dict[str, Any]:  # noqa: ASYNC109
    return await sandbox.request("python", within=timeout, code=textwrap.dedent(code), timeout=timeout, limit=limit)


async def assert_usable(sandbox: Sandbox) -> None:
    assert (await python(sandbox, "40 + 2"))["logs"] == "42\n"


@pytest.mark.parametrize("attempt", REFUSED.values(), ids=REFUSED)
async def test_an_attempt_is_refused(sandbox: Sandbox, attempt: str) -> None:
    os.environ["ANTIPHON_CANARY"] = "secret"
    try:
        answer = await python(sandbox, attempt)
    finally:
        del os.environ["ANTIPHON_CANARY"]
    assert answer["ended"] == "done"
    assert answer["logs"].strip()
    assert not any(line.startswith("escaped") for line in answer["logs"].splitlines())
    await assert_usable(sandbox)


async def test_a_server_on_the_host_is_not_reached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answer = await python(sandbox, f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
    assert "ConnectionRefusedError" in answer["logs"] or "OSError" in answer["logs"]


async def test_a_socket_file_of_the_host_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    answer = await python(sandbox, f"import os; os.path.exists({str(tmp_path)!r})")
    assert answer["logs"] == "False\n"


async def test_an_endless_loop_is_stopped(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "while True: pass", timeout=0.5)
    assert answer["ended"] == "timeout"
    await assert_usable(sandbox)


async def test_a_loop_that_ignores_signals_is_stopped(sandbox: Sandbox) -> None:
    code = """
    import signal
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True:
        try:
            while True: pass
        except BaseException: pass
    """
    assert (await python(sandbox, code, timeout=0.5))["ended"] == "timeout"
    await assert_usable(sandbox)


async def test_processes_are_bounded(sandbox: Sandbox) -> None:
    code = """
    import os, time
    count = 0
    try:
        while count < 1000:
            if os.fork() == 0:
                time.sleep(600)
            count += 1
    except OSError:
        print(count)
    """
    answer = await python(sandbox, code)
    assert 0 < int(answer["logs"]) < LIMITS.processes


async def test_a_fork_bomb_is_stopped(sandbox: Sandbox) -> None:
    code = """
    import os
    while True:
        try: os.fork()
        except OSError: pass
    """
    assert (await python(sandbox, code, timeout=0.5))["ended"] == "timeout"
    await assert_usable(sandbox)


async def test_a_fork_bomb_of_the_shell_is_stopped(sandbox: Sandbox) -> None:
    answer = await sandbox.request("shell", within=1, command=":(){ :|:& };:; wait", timeout=1, limit=1000)
    assert answer["ended"] in ("done", "timeout")
    stopped = await python(sandbox, "1")  # there may be no process left for it
    assert stopped["ended"] in ("done", "stopped") or stopped.get("error")


async def test_one_process_cannot_take_all_memory(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "data = []\nwhile True: data.append(bytearray(10_000_000))", timeout=60)
    assert answer.get("over_memory") or "MemoryError" in answer["logs"]
    await assert_usable(sandbox)


async def test_many_processes_together_cannot_take_all_memory(sandbox: Sandbox) -> None:
    code = f"""
    import subprocess, sys
    take = "data = bytearray({100 * MEBIBYTE}); import time; time.sleep(600)"
    for _ in range(8): subprocess.Popen([sys.executable, "-c", take])
    import time; time.sleep(600)
    """
    answer = await python(sandbox, code, timeout=60)
    assert answer["over_memory"]
    await assert_usable(sandbox)


async def test_shared_memory_counts(sandbox: Sandbox) -> None:
    code = f"""
    import mmap, os, time
    for _ in range(8):
        if os.fork() == 0:
            shared = mmap.mmap(-1, {100 * MEBIBYTE})
            for place in range(0, len(shared), 4096): shared[place] = 1
            time.sleep(600)
    time.sleep(600)
    """
    assert (await python(sandbox, code, timeout=60))["over_memory"]


@pytest.mark.parametrize(
    ("folder", "most"), [("/mnt/data", LIMITS.disk), ("/tmp", LIMITS.disk), ("/dev/shm", 64 * MEBIBYTE)]
)
async def test_a_disk_cannot_be_filled(sandbox: Sandbox, folder: str, most: int) -> None:
    code = f"""
    written = 0
    try:
        for number in range(1000):
            with open(f"{folder}/{{number}}", "wb", buffering=0) as file:
                for _ in range(1024): written += file.write(bytes(65536))
    except OSError as error:
        print(written)
    """
    answer = await python(sandbox, code)
    assert 0 < int(answer["logs"]) <= most


async def test_a_file_without_content_is_no_larger_than_the_disk(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "open('sparse', 'wb').truncate(10**12)")
    assert "Error" in answer["logs"]


async def test_large_output_is_cut(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "for _ in range(100): print('x' * 1_000_000)", limit=5000)
    assert (len(answer["logs"]), answer["cut"], answer["ended"]) == (5000, True, "done")


async def test_endless_output_is_stopped(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "while True: print('x' * 10_000)", timeout=0.5, limit=5000)
    assert (answer["ended"], len(answer["logs"])) == ("timeout", 5000)
    await assert_usable(sandbox)


async def test_output_of_a_command_is_cut(sandbox: Sandbox) -> None:
    answer = await sandbox.request("shell", within=10, command="yes | head -c 10000000", timeout=10, limit=5000)
    assert len(answer["stdout"]) == 5000


async def test_links_lead_nowhere(sandbox: Sandbox) -> None:
    await python(
        sandbox, "import os\nos.symlink('/etc/passwd', 'a'); os.symlink('/', 'b'); os.symlink('/dev/zero', 'c')"
    )
    assert (await sandbox.request("files"))["files"] == []
    assert "error" in await sandbox.request("read", path="/mnt/data/a", offset=0, size=100)
    assert "error" in await sandbox.request("write", path="/mnt/data/a", data="", append=False)


async def test_what_is_no_file_is_not_read(sandbox: Sandbox) -> None:
    await python(sandbox, "import os; os.mkfifo('/mnt/data/pipe')")
    assert (await sandbox.request("files"))["files"] == []
    assert "error" in await sandbox.request("read", path="/mnt/data/pipe", offset=0, size=100)


async def test_a_deep_tree_of_folders_is_bounded(sandbox: Sandbox) -> None:
    await python(sandbox, "import os\nfor _ in range(200): os.mkdir('d'); os.chdir('d')\nopen('deep', 'w')")
    assert (await sandbox.request("files"))["files"] == []


async def test_the_list_of_files_is_bounded(sandbox: Sandbox) -> None:
    await python(sandbox, "for number in range(3000): open(str(number), 'w').close()")
    assert len((await sandbox.request("files"))["files"]) == 1000


async def test_what_is_left_behind_does_not_run_between_calls(sandbox: Sandbox) -> None:
    code = """
    import subprocess, sys
    left = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    """
    await python(sandbox, code)
    async with asyncio.timeout(20):
        while [state(pid) for pid in below(sandbox)].count("T") != 2:  # the worker, and what it has left behind
            await asyncio.sleep(0.01)


async def test_a_killed_supervisor_takes_all_with_it(sandbox: Sandbox) -> None:
    pids = below(sandbox)
    with pytest.raises(SandboxEnded):
        await python(sandbox, "import os, signal, time; os.kill(2, signal.SIGKILL); time.sleep(600)")
    await gone(pids)


async def test_a_stopped_supervisor_ends_the_sandbox(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tools.code_interpreter.bubblewrap.STOP_GRACE", 0.2)
    with pytest.raises(SandboxEnded):
        await python(sandbox, "import os, signal\nos.kill(2, signal.SIGSTOP)\nwhile True: pass", timeout=0.2)
    assert below(sandbox) == []


async def test_a_killed_worker_is_started_again(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "import os; os._exit(3)")
    assert answer["ended"] == "died"
    await assert_usable(sandbox)


async def test_a_fork_that_goes_on_is_ended(sandbox: Sandbox) -> None:
    await python(sandbox, "import os; child = os.fork()")
    await assert_usable(sandbox)


async def test_a_cancelled_call_is_stopped_and_files_stay(sandbox: Sandbox) -> None:
    running = asyncio.create_task(python(sandbox, "open('kept', 'w').close()\nwhile True: pass", timeout=60))
    while not any(state(pid) == "R" for pid in below(sandbox)):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await assert_usable(sandbox)


_SERVER = """
import asyncio, sys
from app.tools.code_interpreter.bubblewrap import Bubblewrap, SandboxLimits, descendants
from app.tools.code_interpreter.settings import CodeSettings
import os

async def main():
    sandbox = await Bubblewrap(CodeSettings(provider="bubblewrap")).start(SandboxLimits(2**28, 2**23, 24, 1))
    code = "import subprocess\\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\\nwhile True: pass"
    running = asyncio.create_task(sandbox.request("python", within=600, code=code, timeout=600, limit=10))
    while len(descendants(os.getpid())) < 5:
        await asyncio.sleep(0.01)
    print(*descendants(os.getpid()), flush=True)
    await running

asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio:SelectorEventLoop", "uvloop:Loop"])
def test_sandboxes_start_on_every_event_loop(bubblewrap: Bubblewrap, loop: str) -> None:
    module, _, name = loop.partition(":")
    factory = getattr(pytest.importorskip(module), name)

    async def use() -> None:
        sandbox = await bubblewrap.start(LIMITS)
        await assert_usable(sandbox)
        await sandbox.aclose()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(use())


async def test_no_process_survives_a_server_that_is_killed(bubblewrap: Bubblewrap) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER, stdout=asyncio.subprocess.PIPE)
    assert server.stdout
    pids = [int(pid) for pid in (await server.stdout.readline()).split()]
    assert len(pids) >= 5
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await gone(pids)


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes lives."""
    async with asyncio.timeout(20):
        while any(state(pid) not in ("", "Z") for pid in pids):
            await asyncio.sleep(0.01)


def below(sandbox: Sandbox) -> list[int]:
    return [*descendants(sandbox._process.pid)]


def state(pid: int) -> str:
    """The letter of a process's state; nothing where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
