"""Copies of container files in object storage, for downloads after the container's end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from app.tools.code_interpreter.bubblewrap import Bubblewrap
from tests.support.file_databases import ObjectFiles
from tests.support.logs import records_of
from tests.support.s3_server import S3Server
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.code_interpreter.test_code_interpreter import AUTO, commands, runs, says
from tests.tools.code_interpreter.test_code_interpreter import SHELL as SHELL_TOOL
from tests.tools.files.conftest import openai_client

WRITE = "open('/mnt/data/report.csv', 'w').write('a,b')"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def files(bubblewrap: Bubblewrap, tmp_path: Path) -> ObjectFiles:
    return ObjectFiles(tmp_path / "files.db")


@contextlib.asynccontextmanager
async def server(
    files: ObjectFiles, *scripts: list[Any], table: dict[str, object] | None = None, **options: Any
) -> AsyncIterator[tuple[AsyncOpenAI, AsyncOpenAI]]:
    """Run a server, and return the clients of two keys. Containers end with the server."""
    tools = {
        "code_interpreter": {"provider": "bubblewrap", "call_seconds": 20, "disk": "4MiB", **options},
        "file_search": {**files.settings, **(table or {})},
    }
    async with (
        antiphon(Scripted(*scripts, says("Done.")), tools=tools, api_keys="ada,bob") as url,
        openai_client(url) as ada,
        openai_client(url, "bob") as bob,
    ):
        yield ada, bob


async def write(client: AsyncOpenAI, tool: Any = AUTO) -> str:
    """Let the model write a file, and return the id of its container."""
    response: Any = await client.responses.create(model="m", input="Go.", tools=[tool])
    call = response.output[0]
    return str(call.container_id if tool is AUTO else call.environment.container_id)


@pytest.mark.parametrize(
    ("tool", "script"), [(AUTO, runs(WRITE)), (SHELL_TOOL, commands("printf a,b > /mnt/data/report.csv"))]
)
async def test_container_file_is_read_from_s3_after_its_container_has_ended(
    s3: S3Server, files: ObjectFiles, monkeypatch: pytest.MonkeyPatch, tool: Any, script: list[Any]
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    table = {"content_url": s3.patient_url}
    async with server(files, script, table=table) as (ada, _):
        container = await write(ada, tool)
        (file,) = (await ada.containers.files.list(container)).data
    async with server(files, table=table) as (ada, bob):
        with pytest.raises(openai.NotFoundError):
            await ada.containers.retrieve(container)
        assert (await ada.containers.files.list(container)).data == [file]
        retrieved = await ada.containers.files.retrieve(file.id, container_id=container)
        assert retrieved.model_dump() == file.model_dump()
        content = await ada.containers.files.content.retrieve(file.id, container_id=container)
        assert content.read() == b"a,b"
        for refused in (
            bob.containers.files.list(container),
            bob.containers.files.retrieve(file.id, container_id=container),
            bob.containers.files.content.retrieve(file.id, container_id=container),
            bob.containers.files.delete(file.id, container_id=container),
            bob.containers.delete(container),
            ada.containers.files.retrieve(file.id, container_id="cntr_other"),
        ):
            with pytest.raises(openai.NotFoundError):
                await refused
        await ada.containers.files.delete(file.id, container_id=container)
        for gone in (ada.containers.files.list(container), ada.containers.delete(container)):
            with pytest.raises(openai.NotFoundError):
                await gone


async def test_container_file_that_is_written_again_has_one_copy(files: ObjectFiles) -> None:
    again = runs("open('/mnt/data/report.csv', 'w').write('a,b,c')")
    async with server(files, runs(WRITE), again) as (ada, _):
        container = await write(ada)
        (file,) = (await ada.containers.files.list(container)).data
    store = files.open()
    await store.sweep()
    assert files.pieces() == 1
    await store.aclose()
    async with server(files) as (ada, _):
        content = await ada.containers.files.content.retrieve(file.id, container_id=container)
        assert content.read() == b"a,b,c"
        await ada.containers.delete(container)
    store = files.open()
    await store.sweep()
    assert files.pieces() == 0
    await store.aclose()


async def test_container_file_expires_after_the_days_of_the_settings(files: ObjectFiles) -> None:
    async with server(files, runs(WRITE), kept_days=2) as (ada, _):
        await write(ada)
    store = files.open()
    for days, left in ((1, 1), (1, 0)):
        files.advance(days * 86_400 + 1)
        await store.sweep()
        assert files.pieces() == left
    await store.aclose()


async def test_container_file_is_not_kept_without_days_or_above_the_limit(
    files: ObjectFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(files, runs(WRITE), kept_days=0) as (ada, _):
        await write(ada)
    assert files.pieces() == 0
    with caplog.at_level(logging.WARNING):
        async with server(files, runs(WRITE), table={"max_key_bytes": 2}) as (ada, _):
            await write(ada)
    assert files.pieces() == 0
    assert "container file not kept" in [record.message for record in records_of(caplog, "app.tools")]


async def test_container_file_counts_against_the_limit_of_its_key(files: ObjectFiles) -> None:
    async with server(files, runs(WRITE), table={"max_key_bytes": 5}) as (ada, bob):
        await write(ada)
        with pytest.raises(openai.APIStatusError, match="storage limit"):
            await ada.files.create(file=("a.txt", b"abc"), purpose="user_data")
        await bob.files.create(file=("a.txt", b"abc"), purpose="user_data")
