"""Database faults for files, vector stores and `file_search`: the caller's outcome."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from app.tools.files.postgres import PostgresFileStore
from tests.faults import faulty_stores
from tests.support.build import finish
from tests.support.file_databases import need_pgvector
from tests.support.logs import records_of
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.files.conftest import openai_client

AWAY = "503 `store_unavailable`"
WORKS = "works"


class Fault(NamedTuple):
    """A row: the database's fault, and the outcome meanwhile."""

    name: str
    database: type[faulty_stores.FaultyStore]
    during: str = WORKS

    @property
    def row(self) -> str:
        """The line in docs/faults.md."""
        test = f"test_files.py::test_file_store_fault_ends_as_documented[{self.name}]"
        return f"| {self.name} | {self.during} | completed | `{test}` |"


FAULTS = [
    Fault("Files in PostgreSQL: killed", faulty_stores.PostgresKilled, AWAY),
    Fault("Files in PostgreSQL: restarted", faulty_stores.PostgresRestarted),
    Fault("Files in PostgreSQL: hung", faulty_stores.PostgresHung, AWAY),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_file_store_fault_ends_as_documented(
    fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    need_pgvector()
    async with AsyncExitStack() as stack:
        database = fault.database()
        await database.open(stack, tmp_path)
        store = PostgresFileStore.from_url(database.url.partition("?")[0] + "?timeout=60&connect_timeout=60")
        await store.vector_stores.prepare_vectors()  # the tables are there: nobody makes them under short timeouts
        await store.aclose()
        tools = {"file_search": {"store_url": database.url, "lease": 5}}
        backend = Scripted([finish("stop")])
        url = await stack.enter_async_context(antiphon(backend, tools=tools))
        client = await stack.enter_async_context(openai_client(url))
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"{url}/v1", headers={"authorization": "Bearer ada"}, trust_env=False, timeout=60
            )
        )

        vector_store = await client.vector_stores.create()
        known = await client.vector_stores.files.upload_and_poll(
            vector_store_id=vector_store.id, file=("known.txt", b"bread"), poll_interval_ms=20
        )
        ids = [(await client.files.create(file=("a.txt", b"salt"), purpose="assistants")).id for _ in range(3)]
        batch = await client.vector_stores.file_batches.create(vector_store.id, file_ids=ids)

        with caplog.at_level(logging.INFO, logger="app.storage"):
            await database.harm()
            tool: Any = {"type": "file_search", "vector_store_ids": [vector_store.id]}
            requests = [
                ("POST", "/files", {"files": {"file": ("a.txt", b"a")}, "data": {"purpose": "user_data"}}),
                ("GET", "/files", {}),
                ("GET", f"/files/{known.id}/content", {}),
                ("GET", f"/vector_stores/{vector_store.id}", {}),
                ("POST", f"/vector_stores/{vector_store.id}/search", {"json": {"query": "bread"}}),
                ("POST", "/responses", {"json": {"model": "m", "input": "x", "tools": [tool]}}),
            ]
            asking = [http.request(method, path, **options) for method, path, options in requests]
            for answer in (*await asyncio.gather(*asking), await http.delete(f"/files/{known.id}")):
                if fault.during == WORKS:
                    assert answer.status_code == 200, answer.text
                    continue
                error = answer.json()["error"]
                assert (answer.status_code, error["type"], error["code"]) == (503, "server_error", "store_unavailable")
                assert answer.headers["retry-after"] == "1"
            plain = await http.post("/responses", json={"model": "m", "input": "x"})
            assert plain.json()["status"] == "completed"  # others are not affected
            await database.heal()

            async with asyncio.timeout(120):
                while True:
                    with contextlib.suppress(openai.InternalServerError):  # not back yet
                        counts = (
                            await client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=vector_store.id)
                        ).file_counts
                        if not counts.in_progress:
                            break
                    await asyncio.sleep(0.05)
        assert (counts.completed, counts.total) == (3, 3)
        page = await client.vector_stores.search(vector_store.id, query="salt")
        assert len(page.data) == 3
        logged = [(record.getMessage(), record.__dict__["store"]) for record in records_of(caplog, "app.storage")]
        if fault.during == AWAY:
            messages = {message for message, name in logged if name.startswith("the file store in PostgreSQL")}
            assert {"store unavailable", "store recovered"} <= messages
