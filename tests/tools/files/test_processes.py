"""Files and vector stores with several processes: crashes, concurrency and memory."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx

from app.tools.files import PIECE
from tests.faults.servers import LINUX, server
from tests.support.file_databases import FileDatabase
from tests.tools.files.conftest import openai_client
from tests.tools.files.documents import pdf
from tests.tools.files.embedding_server import EmbeddingServer

MANY = 100 * PIECE


def tools(database: FileDatabase, **table: Any) -> str:
    return json.dumps({"file_search": {**database.settings, **table}})


async def test_process_that_is_killed_while_it_reads_loses_no_file(database: FileDatabase) -> None:
    contents = {
        "a.txt": b"The first file tells of apples.",
        "b.md": b"The second file tells of bread. " * 5000,
        "c.pdf": pdf(*["The third file tells of cider."] * 20),
    }
    async with EmbeddingServer() as backend:
        backend.hangs = True
        settings = {"backend_url": backend.url, "tools": tools(database, lease=2, embeddings={"model": "toy"})}
        with server(**settings) as served:
            async with openai_client(served.url) as client:
                store = await client.vector_stores.create()
                ids = [
                    (await client.files.create(file=(name, content), purpose="assistants")).id
                    for name, content in contents.items()
                ]
                batch = await client.vector_stores.file_batches.create(store.id, file_ids=ids)
                while not backend.requests:  # until it is in the middle of it
                    await asyncio.sleep(0.01)
            served.process.kill()
            served.process.wait()
        backend.hangs = False
        with server(**settings) as served:
            async with openai_client(served.url) as client:
                read = await client.vector_stores.file_batches.poll(
                    batch.id, vector_store_id=store.id, poll_interval_ms=50
                )
                assert read.file_counts.completed == 3
                for word, name in (("apples", "a.txt"), ("bread", "b.md"), ("cider", "c.pdf")):
                    page = await client.vector_stores.search(store.id, query=word)
                    assert page.data[0].filename == name
                for id, content in zip(ids, contents.values(), strict=True):
                    assert (await client.files.content(id)).content == content


async def test_concurrent_workers_share_what_there_is_to_read(tmp_path: Path, database: FileDatabase) -> None:
    settings = {"workers": 2, "store_url": f"sqlite:///{tmp_path}/antiphon.db", "tools": tools(database)}
    with server(**settings) as served:
        # Each client has its own connection, so both workers are used.
        async with openai_client(served.url) as one, openai_client(served.url) as other:
            store = await one.vector_stores.create()
            files = [(f"{n}.txt", f"number{n} of the files".encode()) for n in range(20)]
            batch = await other.vector_stores.file_batches.upload_and_poll(store.id, files=files, poll_interval_ms=50)
            assert batch.file_counts.completed == 20
            for client in (one, other):
                page = await client.vector_stores.search(store.id, query="number7")
                assert [result.filename for result in page.data][:1] == ["7.txt"]


@LINUX
async def test_memory_stays_flat_while_a_large_file_is_uploaded_and_downloaded(
    tmp_path: Path, database: FileDatabase
) -> None:
    path = tmp_path / "large.bin"
    piece = os.urandom(PIECE)
    with path.open("wb") as out:
        for _ in range(MANY // PIECE):
            out.write(piece)
    with server(tools=tools(database)) as served:
        async with openai_client(served.url) as client:
            # A first upload, to initialize everything.
            await client.files.create(file=("small.bin", piece * 2), purpose="user_data")
            before = served.memory()
            with path.open("rb") as large:
                form = {"purpose": (None, "user_data"), "file": ("large.bin", large)}
                async with httpx.AsyncClient(base_url=served.url, timeout=300, trust_env=False) as http:
                    made = await asyncio.to_thread(
                        lambda: httpx.post(f"{served.url}/v1/files", files=form, timeout=300, trust_env=False)
                    )
                    file = made.json()
                    assert (file["bytes"], file["filename"]) == (MANY, "large.bin")
                    received = 0
                    async with http.stream("GET", f"/v1/files/{file['id']}/content") as answer:
                        async for data in answer.aiter_raw():
                            received += len(data)
                    assert received == MANY
        assert served.memory() - before < MANY / 4
