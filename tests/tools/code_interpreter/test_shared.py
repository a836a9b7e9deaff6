"""Containers shared by workers: a worker has the sandboxes, and the others use them through it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from app.errors import APIError
from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.containers import Container, SandboxChannel
from app.tools.code_interpreter.files import FileCopies
from app.tools.code_interpreter.settings import CodeSettings
from app.tools.code_interpreter.shared import SharedContainers
from app.tools.code_interpreter.skills import Skill
from tests.support.file_databases import ObjectFiles
from tests.tools.code_interpreter.conftest import limited

Worker = Callable[[], SharedContainers]


@pytest_asyncio.fixture
async def worker(bubblewrap: Bubblewrap, tmp_path: Path) -> AsyncIterator[Worker]:
    """Start another worker of the same server."""
    async with contextlib.AsyncExitStack() as stack:

        def start() -> SharedContainers:
            made = SharedContainers(
                limited(bubblewrap, CodeSettings(provider="bubblewrap", max_containers=3)), tmp_path
            )
            stack.push_async_callback(made.aclose)
            return made

        yield start


async def run(containers: SharedContainers, container: Container, code: str) -> str:
    async with containers.use(container) as sandbox:
        return await logs(sandbox, code)


async def logs(sandbox: SandboxChannel, code: str) -> str:
    answer = await sandbox.request("python", within=60, code=code, timeout=60, limit=1000)
    return str(answer["logs"])


async def test_container_is_the_same_from_every_worker(worker: Worker) -> None:
    host, other = worker(), worker()
    made = await host.create("ada", name="mine")
    seen = await other.get("ada", made.id)
    assert seen.resource() == made.resource()
    assert await run(other, seen, "x = 6") == ""
    assert await run(host, made, "x * 7") == "42\n"
    second = await other.create("ada", name="theirs", idle_minutes=5)
    assert [one["id"] for one in await host.list("ada")] == [made.id, second.id]
    assert await other.list("ada", "mine") == [made.resource()]
    assert (await other.delete("ada", made.id))["deleted"]
    with pytest.raises(APIError) as error:
        await host.get("ada", made.id)
    assert error.value.status == 404


async def test_skill_that_one_worker_was_sent_is_in_the_container_of_another(worker: Worker, tmp_path: Path) -> None:
    host, other = worker(), worker()
    await host.create("ada")  # which makes it the host
    (tmp_path / "skill").mkdir()
    (tmp_path / "skill" / "SKILL.md").write_text("Read on.")
    skill = Skill("plotter", "Draws plots.", str(tmp_path / "skill"))
    made = await other.for_conversation("ada", "chain", [], skills=[skill])
    assert made.skills == [skill]
    assert (await other.get("ada", made.id)).skills == [skill]
    assert await run(other, made, "print(open('/mnt/skills/plotter/SKILL.md').read())") == "Read on.\n"


async def test_containers_are_summed_up_for_an_owner_and_for_all_from_every_worker(worker: Worker) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"12345"

    host, other = worker(), worker()
    made = await host.create("ada", name="secret")
    await host.add_file(made, "a.txt", content())
    theirs = await other.create("bob")
    own, *more = await other.summaries("ada", 10)
    assert not more and "secret" not in str(own)
    assert (own["id"], own["owner"], own["files"], own["bytes"], own["running"]) == (made.id, "ada", 1, 5, True)
    assert await host.summaries("ada", 10) == [own]
    assert [one["id"] for one in await other.summaries(None, 10)] == [theirs.id, made.id]
    assert [one["id"] for one in await host.summaries(None, 1)] == [theirs.id]


async def test_conversation_has_one_container_whichever_worker_answers(worker: Worker) -> None:
    host, other = worker(), worker()
    first = await host.for_conversation("ada", "chain", [])
    again = await other.for_conversation("ada", "chain", [])
    apart = await other.for_conversation("bob", "chain", [first.id])
    assert first.id == again.id != apart.id


async def test_files_are_read_and_written_from_every_worker(worker: Worker) -> None:
    async def content(data: bytes) -> AsyncIterator[bytes]:
        yield data

    host, other = worker(), worker()
    made = await host.create("ada")
    seen = await other.get("ada", made.id)
    large = bytes(range(256)) * 8000
    added = await other.add_file(seen, "a.bin", content(large))
    assert [file["id"] for file in await host.files("ada", made.id)] == [added["id"]]
    _, pieces = await other.file("ada", seen.id, added["id"])
    assert b"".join([piece async for piece in pieces]) == large
    async with other.use(seen) as sandbox:
        await logs(sandbox, "open('b.txt', 'w').write('b')")
        assert [file.filename for file in await other.changes(seen, sandbox)] == ["b.txt"]
    await other.delete_file(seen.owner, seen.id, added["id"])
    assert [file["path"] for file in await host.files("ada", made.id)] == ["/mnt/data/b.txt"]


async def test_copies_of_an_ended_container_are_found_by_every_worker(worker: Worker, tmp_path: Path) -> None:
    store = ObjectFiles(tmp_path / "files.db").open()
    assert store.attachments
    host, other = worker(), worker()
    host.copies = other.copies = FileCopies(store.attachments, days=1, max_owner_bytes=None)
    made = await host.create("ada")
    async with host.use(made) as sandbox:
        await logs(sandbox, "open('a.txt', 'w').write('a')")
        await host.copy_files(made, sandbox, await host.changes(made, sandbox))
    await host.delete("ada", made.id)
    for containers in (host, other):
        [file] = await containers.files("ada", made.id)
        _, pieces = await containers.file("ada", made.id, str(file["id"]))
        assert b"".join([piece async for piece in pieces]) == b"a"
    await store.aclose()


async def test_errors_are_those_of_the_host(worker: Worker) -> None:
    host, other = worker(), worker()
    made = await host.create("ada")
    for attempt, status, code, param in (
        (other.get("bob", made.id), 404, "not_found", "container_id"),
        (other.delete("bob", made.id), 404, "not_found", "container_id"),
        (other.create("ada", memory_limit="64g"), 400, "invalid_value", "memory_limit"),
        (other.file("ada", made.id, "cfile_unknown"), 404, "not_found", "file_id"),
    ):
        with pytest.raises(APIError) as error:
            await attempt
        assert (error.value.status, error.value.code, error.value.param) == (status, code, param)
    assert error.value.message.startswith("File with id")


async def test_callers_of_any_worker_take_turns(worker: Worker) -> None:
    host, other = worker(), worker()
    made = await host.create("ada")
    async with host.use(made) as sandbox:
        waiting = asyncio.create_task(run(other, await other.get("ada", made.id), "print(y)"))
        await logs(sandbox, "import time; time.sleep(0.2); y = 1")
        assert not waiting.done()
    assert await waiting == "1\n"


async def test_caller_that_leaves_stops_the_code_and_gives_the_container_back(worker: Worker) -> None:
    host, other = worker(), worker()
    made = await host.create("ada")
    seen = await other.get("ada", made.id)
    running = asyncio.create_task(run(other, seen, "open('begun', 'w'); import time; time.sleep(600)"))
    while not made.lock.locked():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # it may be starting or running: both end
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await run(host, made, "1 + 1") == "2\n"


async def test_worker_takes_over_from_a_host_that_has_gone(worker: Worker) -> None:
    host, other = worker(), worker()
    made = await host.create("ada")
    seen = await other.get("ada", made.id)
    await run(host, made, "x = 1")
    with pytest.raises(APIError) as failure:
        async with other.use(seen) as sandbox:
            await host.aclose()
            await logs(sandbox, "x")
    assert failure.value.code == "container_failed"
    with pytest.raises(APIError) as error:
        await other.get("ada", made.id)
    assert error.value.status == 404
    assert await run(other, await other.create("ada"), "6 * 7") == "42\n"


async def test_invalid_message_ends_its_connection_alone(worker: Worker, tmp_path: Path) -> None:
    host, other = worker(), worker()
    made = await host.create("ada")
    for line in (b"no json\n", b"{}\n", b'{"operation": "get", "fields": {"owner": "ada"}}\n'):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "containers.socket")
        writer.write(line)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert (await other.get("ada", made.id)).id == made.id
