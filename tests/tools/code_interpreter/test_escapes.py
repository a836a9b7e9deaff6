"""Sandboxed code against the machine, its limits and its supervisor: see also `attacks.py`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.bubblewrap.process import Sandbox, SandboxEnded
from app.tools.code_interpreter.bubblewrap.watch import descendants, kill
from tests.tools.code_interpreter.conftest import LIMITS, MEBIBYTE, MEMORY, limited


async def python(sandbox: Sandbox, code: str, timeout: float = 20, limit: int = 10_000) -> dict[str, Any]:  # noqa: ASYNC109
    return await sandbox.request("python", within=timeout, code=textwrap.dedent(code), timeout=timeout, limit=limit)


async def assert_usable(sandbox: Sandbox) -> None:
    assert (await python(sandbox, "40 + 2"))["logs"] == "42\n"


async def test_host_server_is_not_reached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answer = await python(sandbox, f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
    assert "ConnectionRefusedError" in answer["logs"] or "OSError" in answer["logs"]


async def test_host_socket_file_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    answer = await python(sandbox, f"import os; os.path.exists({str(tmp_path)!r})")
    assert answer["logs"] == "False\n"


async def test_endless_loop_is_stopped(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "while True: pass", timeout=0.5)
    assert answer["ended"] == "timeout"
    await assert_usable(sandbox)


async def test_loop_that_ignores_signals_is_stopped(sandbox: Sandbox) -> None:
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


async def test_fork_bomb_is_stopped(sandbox: Sandbox) -> None:
    code = """
    import os
    while True:
        try: os.fork()
        except OSError: pass
    """
    assert (await python(sandbox, code, timeout=0.5))["ended"] == "timeout"
    await assert_usable(sandbox)


async def test_fork_bomb_of_the_shell_is_stopped(sandbox: Sandbox) -> None:
    answer = await sandbox.request("shell", within=1, command=":(){ :|:& };:; wait", timeout=1, limit=1000)
    assert answer["ended"] in ("done", "timeout")
    stopped = await python(sandbox, "1")  # there may be no process left for it
    assert stopped.get("ended") in ("done", "stopped") or stopped.get("error")


async def test_memory_of_one_process_is_bounded(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "data = []\nwhile True: data.append(bytearray(10_000_000))", timeout=60)
    assert answer["exceeded"] == "memory" or "MemoryError" in answer["logs"]
    await assert_usable(sandbox)


@pytest.mark.parametrize(
    ("folder", "most"), [("/mnt/data", LIMITS.disk), ("/tmp", LIMITS.disk), ("/dev/shm", 64 * MEBIBYTE)]
)
async def test_disk_is_bounded(sandbox: Sandbox, folder: str, most: int) -> None:
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


async def test_sparse_file_is_no_larger_than_the_disk(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "open('sparse', 'wb').truncate(10**12)")
    assert "Error" in answer["logs"]


async def test_output_that_is_large_is_cut(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "for _ in range(100): print('x' * 1_000_000)", limit=5000)
    assert (len(answer["logs"]), answer["cut"], answer["ended"]) == (5000, True, "done")


async def test_output_without_an_end_is_stopped(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "while True: print('x' * 10_000)", timeout=2, limit=5000)
    assert (answer["ended"], len(answer["logs"])) == ("timeout", 5000)
    await assert_usable(sandbox)


async def test_command_output_is_cut(sandbox: Sandbox) -> None:
    answer = await sandbox.request("shell", within=10, command="yes | head -c 10000000", timeout=10, limit=5000)
    assert len(answer["stdout"]) == 5000


async def test_links_lead_nowhere(sandbox: Sandbox) -> None:
    await python(
        sandbox, "import os\nos.symlink('/etc/passwd', 'a'); os.symlink('/', 'b'); os.symlink('/dev/zero', 'c')"
    )
    assert (await sandbox.request("files"))["files"] == []
    assert "error" in await sandbox.request("read", path="/mnt/data/a", offset=0, size=100)
    assert "error" in await sandbox.request("write", path="/mnt/data/a", data="", append=False)


async def test_special_files_are_not_read(sandbox: Sandbox) -> None:
    await python(sandbox, "import os; os.mkfifo('/mnt/data/pipe')")
    assert (await sandbox.request("files"))["files"] == []
    assert "error" in await sandbox.request("read", path="/mnt/data/pipe", offset=0, size=100)


async def test_deep_tree_of_folders_is_bounded(sandbox: Sandbox) -> None:
    await python(sandbox, "import os\nfor _ in range(200): os.mkdir('d'); os.chdir('d')\nopen('deep', 'w')")
    assert (await sandbox.request("files"))["files"] == []


async def test_list_of_files_is_bounded(sandbox: Sandbox) -> None:
    await python(sandbox, "for number in range(3000): open(str(number), 'w').close()")
    assert len((await sandbox.request("files"))["files"]) == 1000


async def test_code_that_runs_between_calls_is_ended(signalled: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    code = """
    import subprocess, sys
    kept = 42
    left = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    left.pid
    """
    await python(signalled, code)
    code_processes = below(signalled)[1:]
    assert [state(pid) for pid in code_processes] == ["T", "T"]  # the worker, and its leftover
    os.kill(code_processes[1], signal.SIGCONT)
    await gone(code_processes)
    assert "container code killed" in caplog.text
    answer = await python(signalled, "'kept' in globals()")
    assert (answer["logs"], answer["lost"]) == ("False\n", "variables")
    assert (await python(signalled, "1"))["lost"] == ""


async def test_processes_have_the_cpus_of_their_container(bubblewrap: Bubblewrap) -> None:
    sandboxes = await asyncio.gather(*(limited(bubblewrap).start(MEMORY) for _ in range(6)))
    try:
        for sandbox in sandboxes:
            for pid in (sandbox._process.pid, *below(sandbox)):
                assert len(os.sched_getaffinity(pid)) == LIMITS.cpus
    finally:
        for sandbox in sandboxes:
            await sandbox.aclose()


async def test_supervisor_ignores_all_signals_of_code(sandbox: Sandbox) -> None:
    code = """
    import os, signal
    kept = 42
    for number in {*range(1, 65)} - {signal.SIGCONT}: os.kill(1, number)
    """
    assert (await python(sandbox, code))["ended"] == "done"
    answer = await python(sandbox, "kept")
    assert (answer["logs"], answer["lost"]) == ("42\n", "")


@pytest.mark.parametrize("name", ["KILL", "STOP"])
async def test_signal_to_all_processes_leaves_the_supervisor_and_files(sandbox: Sandbox, name: str) -> None:
    await python(sandbox, "open('file', 'w').write('kept')")
    answer = await sandbox.request("shell", within=20, command=f"kill -{name} -1; echo sent", timeout=20, limit=100)
    assert answer["stdout"] == "sent\n"
    assert (await python(sandbox, "print(open('file').read())"))["logs"] == "kept\n"


async def test_supervisor_that_is_killed_takes_all_with_it(sandbox: Sandbox) -> None:
    await python(sandbox, "import subprocess\nleft = subprocess.Popen(['sleep', '600'], start_new_session=True)")
    pids = below(sandbox)
    assert len(pids) == 3
    os.kill(pids[0], signal.SIGKILL)
    await gone(pids)
    with pytest.raises(SandboxEnded):
        await python(sandbox, "1")


async def test_supervisor_that_is_stopped_ends_the_sandbox(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tools.code_interpreter.bubblewrap.process.STOP_GRACE", 0.2)
    os.kill(below(sandbox)[0], signal.SIGSTOP)
    with pytest.raises(SandboxEnded):
        await python(sandbox, "1", timeout=0.2)
    assert below(sandbox) == []


async def test_orphans_are_reaped_during_and_between_calls(sandbox: Sandbox) -> None:
    code = f"""
    import subprocess, time
    def started(command):
        while True:
            try:
                return subprocess.Popen(["sh", "-c", command], stderr=subprocess.DEVNULL)
            except BlockingIOError:  # too many orphans are left: the supervisor has not had the CPU yet
                time.sleep(0.01)
    for _ in range({5 * LIMITS.processes}):
        started("true & true").wait()
    left = [started("sleep 600 & sleep 600") for _ in range(4)]
    """
    answer = await python(sandbox, code)
    assert (answer["ended"], answer["logs"]) == ("done", "")
    left = below(sandbox)[2:]
    kill(left)
    await gone(left)
    assert (await python(sandbox, "1"))["lost"] == ""
    assert len(below(sandbox)) == 6  # the supervisor, the worker, and four children for which the worker has not waited


async def test_worker_that_is_killed_is_started_again(sandbox: Sandbox) -> None:
    answer = await python(sandbox, "import os; os._exit(3)")
    assert answer["ended"] == "died"
    await assert_usable(sandbox)


async def test_fork_that_goes_on_is_ended(sandbox: Sandbox) -> None:
    await python(sandbox, "import os; child = os.fork()")
    await assert_usable(sandbox)


async def test_cancelled_call_is_stopped_and_files_stay(sandbox: Sandbox) -> None:
    running = asyncio.create_task(python(sandbox, "open('kept', 'w').close()\nwhile True: pass", timeout=60))
    while not any(state(pid) == "R" for pid in below(sandbox)):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await assert_usable(sandbox)


_SERVER = """
import asyncio, sys
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.bubblewrap.watch import descendants
from app.tools.code_interpreter.settings import CodeSettings
import os

async def main():
    sandbox = await Bubblewrap(CodeSettings(provider="bubblewrap", disk=2**23, processes=24)).start(2**28)
    code = "import subprocess\\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\\nwhile True: pass"
    running = asyncio.create_task(sandbox.request("python", within=600, code=code, timeout=600, limit=10))
    while len(descendants(os.getpid())) < 4:
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
        sandbox = await limited(bubblewrap).start(MEMORY)
        await assert_usable(sandbox)
        await sandbox.aclose()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(use())


async def test_failed_start_does_not_block_the_event_loop(
    bubblewrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bubblewrap._groups is None:
        pytest.skip("this process cannot make control groups")
    groups: list[Path] = []
    slept: list[threading.Thread] = []
    left_behind = await asyncio.create_subprocess_exec("sleep", "600")

    async def fail(*command: str, **options: Any) -> None:
        groups.append(Path(next(json.loads(word)["group"] for word in command if '"group"' in word)))
        (groups[0] / "cgroup.procs").write_text(str(left_behind.pid))
        raise asyncio.CancelledError

    sleep = time.sleep
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    monkeypatch.setattr(time, "sleep", lambda seconds: (slept.append(threading.current_thread()), sleep(seconds)))
    with pytest.raises(asyncio.CancelledError):
        await limited(bubblewrap).start(MEMORY)
    async with asyncio.timeout(60):
        assert await left_behind.wait() == -signal.SIGKILL
    assert threading.current_thread() not in slept
    assert not groups[0].exists()


@pytest.mark.parametrize("loop", ["asyncio:SelectorEventLoop", "uvloop:Loop"])
def test_inheritable_listening_socket_is_not_passed_to_a_sandbox(bubblewrap: Bubblewrap, loop: str) -> None:
    module, _, name = loop.partition(":")
    factory = getattr(pytest.importorskip(module), name)

    async def open_files() -> list[str]:
        sandbox = await limited(bubblewrap).start(MEMORY)
        try:
            await assert_usable(sandbox)
            pids = [sandbox._process.pid, *below(sandbox)]
            assert len(pids) == 3
            return [os.readlink(f"/proc/{pid}/fd/{fd}") for pid in pids for fd in os.listdir(f"/proc/{pid}/fd")]
        finally:
            await sandbox.aclose()

    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=factory) as runner:
        listener.set_inheritable(True)
        inode = os.fstat(listener.fileno()).st_ino
        opened = runner.run(open_files())
    assert "/dev/null" in opened
    assert f"socket:[{inode}]" not in opened


async def test_sandboxes_of_a_killed_server_end(bubblewrap: Bubblewrap) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER, stdout=asyncio.subprocess.PIPE)
    assert server.stdout
    pids = [int(pid) for pid in (await server.stdout.readline()).split()]
    assert len(pids) >= 4
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await gone(pids)


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes lives."""
    async with asyncio.timeout(60):
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
