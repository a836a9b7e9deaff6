"""More containers than may run at once: suspension and retained state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from app.core.access import KeyAccess
from app.errors import NotFound, TooManyRequests
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.containers import Container, Containers
from app.tools.code_interpreter.settings import CodeSettings
from tests.tools.code_interpreter.conftest import limited

Make = Callable[..., Containers]


@pytest_asyncio.fixture
async def make(bubblewrap: Bubblewrap) -> AsyncIterator[Make]:
    """Make containers with these settings."""
    made: list[Containers] = []

    def containers(**settings: Any) -> Containers:
        options = {"provider": "bubblewrap", "max_containers": 2, "max_key_containers": 2, "disk": 4 * 1024**2}
        made.append(Containers(limited(bubblewrap, CodeSettings(**{**options, **settings}))))
        return made[-1]

    yield containers
    for one in made:
        await one.aclose()


async def run(containers: Containers, container: Container, code: str) -> tuple[str, str]:
    """Run code; returns its output, and the earlier loss."""
    async with containers.use(container) as sandbox:
        answer = await sandbox.request("python", within=60, code=code, timeout=60, limit=10_000)
        await containers.changes(container, sandbox)
    return answer["logs"], answer["lost"]


def running(*containers: Container) -> list[bool]:
    return [bool(container.sandbox and container.sandbox.alive) for container in containers]


async def test_longest_idle_container_is_suspended_and_keeps_its_files(make: Make) -> None:
    containers = make()
    first, second, third = [await containers.create("ada") for _ in range(3)]
    code = """
import os
os.makedirs("/mnt/data/folder")
with open("/mnt/data/folder/a.txt", "w") as file: file.write("kept")
os.symlink("a.txt", "/mnt/data/folder/link")
x = 1
"""
    assert await run(containers, first, code) == ("", "")
    files = await containers.files(first.owner, first.id)
    await run(containers, second, "x = 2")
    assert running(first, second, third) == [True, True, False]

    await run(containers, third, "x = 3")
    assert running(first, second, third) == [False, True, True]
    assert (await containers.get("ada", first.id)).resource()["status"] == "running"

    assert await run(containers, first, "open('folder/link').read()") == ("'kept'\n", "variables")
    assert running(first, second, third) == [True, False, True]
    assert await run(containers, first, "'x' in globals()") == ("False\n", "")
    assert await containers.files(first.owner, first.id) == files  # with their ids and times
    assert await run(containers, second, "'x' in globals()") == ("False\n", "variables")


async def test_containers_that_run_alone_are_counted(make: Make) -> None:
    containers = make(max_containers=1)
    for _ in range(20):
        await containers.create("ada")
    assert len(await containers.list("ada")) == 20


async def test_containers_of_one_key_do_not_suspend_all_of_another(make: Make) -> None:
    containers = make(max_containers=3, max_key_containers=3)
    bobs = await containers.create("bob")
    adas = [await containers.create("ada") for _ in range(4)]
    await run(containers, bobs, "x = 1")
    for container in adas:
        await run(containers, container, "0")
    assert running(bobs, *adas) == [True, False, False, True, True]
    assert await run(containers, bobs, "x") == ("1\n", "")


@pytest.mark.parametrize(
    ("owner", "settings", "most"),
    [
        ("ada", {"max_containers": 4, "max_key_containers": None}, 3),
        ("ada", {"max_containers": 1, "max_key_containers": None}, 1),
        ("ada", {"max_containers": 4, "max_key_containers": 2}, 2),
        (KeyAccess().owner, {"max_containers": 4, "max_key_containers": None}, 4),  # a server without keys
    ],
)
async def test_containers_of_a_key_have_their_share(
    make: Make, owner: str, settings: dict[str, Any], most: int
) -> None:
    containers = make(**settings)
    made = [await containers.create(owner) for _ in range(most + 1)]
    for container in made:
        await run(containers, container, "0")
    assert running(*made) == [False] + [True] * most


async def test_container_waits_until_another_is_not_in_use(make: Make) -> None:
    containers = make(max_containers=1)
    first, second = await containers.create("ada"), await containers.create("bob")
    async with containers.use(first):
        waiting = asyncio.create_task(run(containers, second, "6 * 7"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
    assert await waiting == ("42\n", "")


async def test_containers_that_are_all_in_use_are_a_429(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    containers = make(max_containers=1, call_seconds=0.05)
    first, second = await containers.create("ada"), await containers.create("bob")
    async with containers.use(first):
        with monkeypatch.context() as patched, pytest.raises(TooManyRequests):
            patched.setattr("app.tools.code_interpreter.containers.STOP_GRACE", 0.01)
            await run(containers, second, "0")
    # From here on, the second container waits for the first one's files to be saved.
    monkeypatch.setattr("app.tools.code_interpreter.containers.STOP_GRACE", 60)
    assert (await run(containers, second, "1"))[0] == "1\n"


async def test_files_that_cannot_be_saved_are_reported_as_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    containers = make(max_containers=1)
    first, second = await containers.create("ada"), await containers.create("bob")
    await run(containers, first, "open('a', 'w').close()")
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    await run(containers, second, "0")
    assert await run(containers, first, "import os; os.listdir()") == ("[]\n", "files")
    assert await containers.files(first.owner, first.id) == []


async def test_saved_files_are_bounded(make: Make) -> None:
    containers = make(max_containers=1, saved_files=5_000_000)
    made = [await containers.create(owner) for owner in ("ada", "bob", "ada", "ada")]
    for container in made:
        await run(containers, container, "open('a', 'wb').write(bytes(2_000_000))")
    first, bobs, second, third = made
    with pytest.raises(NotFound):
        await containers.get("ada", first.id)  # of the owner with the most, the longest idle
    for container in (bobs, second, third):
        assert (await run(containers, container, "import os; os.path.getsize('a')"))[0] == "2000000\n"


async def test_deleted_container_frees_its_slot(make: Make) -> None:
    containers = make(max_containers=1)
    first, second = await containers.create("ada"), await containers.create("bob")
    async with containers.use(first):
        waiting = asyncio.create_task(run(containers, second, "6 * 7"))
        await containers.delete("ada", first.id)
        assert await waiting == ("42\n", "")


async def test_container_that_is_deleted_while_it_waits_does_not_start(make: Make) -> None:
    containers = make(max_containers=1)
    first, second = await containers.create("ada"), await containers.create("bob")
    async with containers.use(first):
        waiting = asyncio.create_task(run(containers, second, "0"))
        await asyncio.sleep(0)
        await containers.delete("bob", second.id)
    with pytest.raises(NotFound):
        await waiting
    assert (await run(containers, first, "1"))[0] == "1\n"


async def test_containers_used_in_turns_keep_their_files(make: Make) -> None:
    containers = make(max_containers=2)
    made = [await containers.create(f"owner {number % 3}") for number in range(6)]
    for turn in range(3):
        code = "open('count', 'a').write('x'); import os; os.path.getsize('count')"
        answers = await asyncio.gather(*(run(containers, container, code) for container in made))
        assert [logs for logs, _ in answers] == [f"{turn + 1}\n"] * 6
    assert sum(running(*made)) == 2
