from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from app.tools.files import File
from app.tools.files.records import FileStore
from app.tools.files.vector_stores.records import Job
from tests.support.file_databases import FILE_DATABASES, FileDatabase, file_database_of
from tests.support.serving import antiphon


@pytest.fixture(params=FILE_DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> FileDatabase:
    """Each database for files and vector stores, empty."""
    return file_database_of(request, tmp_path)


@pytest_asyncio.fixture
async def server(database: FileDatabase) -> AsyncIterator[str]:
    """A server with files and two callers, `ada` and `bob`."""
    tools = {"file_search": {**database.settings, "max_file_bytes": 10 * 1024 * 1024}}
    async with antiphon(api_keys="ada,bob", tools=tools) as url:
        yield url


@pytest_asyncio.fixture
async def client(server: str) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(server) as client:
        yield client


@pytest_asyncio.fixture
async def http(server: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer ada"}
    async with httpx.AsyncClient(base_url=f"{server}/v1", headers=headers, timeout=60, trust_env=False) as client:
        yield client


def openai_client(url: str, key: str = "ada") -> AsyncOpenAI:
    """OpenAI's own client, which asks once."""
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


async def add_file(
    store: FileStore, file_id: str, content: bytes = b"x", *, owner: str = "ada", name: str = "a.txt"
) -> None:
    await store.contents.write(file_id, 0, content)
    await store.contents.finish(file_id)
    await store.add(File(file_id, owner, name, "assistants", len(content), 1))


async def claim_next(store: FileStore, lease: float = 1000) -> Job:
    """Claim a file for longer than any test."""
    job = await store.vector_stores.claim(lease)
    assert job
    return job


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece
