"""Files and vector stores in PostgreSQL: differences from SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.check import check_connectivity
from app.errors import NotFound
from app.tools.files import FilesUnavailable, Page, VectorsUnsupported
from app.tools.files.postgres import PostgresFileStore
from app.tools.files.postgres.vector_stores import NEAREST
from app.tools.files.records import FileStore
from app.tools.files.vector_stores.records import Candidate, EmbeddedText, NewStoreFile, VectorStore
from tests.faults.servers import server as served
from tests.support.build import finish
from tests.support.file_databases import FILE_DATABASES, file_database_of, need_pgvector
from tests.support.postgres_server import PostgresError, PostgresServer
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, settings
from tests.tools.files.conftest import add_file, claim_next, openai_client
from tests.tools.files.corpus import corpus
from tests.tools.files.embedding_server import EmbeddingServer

STORE = VectorStore("vs_1", "ada", "notes", None, {}, None, 1, 1)


@pytest.fixture(scope="module")
def private() -> Iterator[PostgresServer]:
    """A server for tests that stop, restart and break it; each leaves it running."""
    need_pgvector()
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def store(private: PostgresServer) -> AsyncIterator[FileStore]:
    private.clear()
    store = PostgresFileStore.from_url(private.patient_url)
    yield store
    await store.aclose()


async def fill(store: FileStore, *texts: str) -> None:
    """Make the vector store, with a file and chunk per text."""
    await store.vector_stores.create(STORE)
    for number, text in enumerate(texts):
        id = f"file-{number}"
        await add_file(store, id, text.encode(), name=f"{number}.txt")
        await store.vector_stores.add(STORE, [NewStoreFile(id)])
        assert await store.vector_stores.complete(await claim_next(store), [EmbeddedText(text)])


async def test_concurrent_starts_make_the_tables_once(private: PostgresServer) -> None:
    for _ in range(3):
        private.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        stores = [PostgresFileStore.from_url(private.patient_url) for _ in range(6)]
        await asyncio.gather(*(store.vector_stores.prepare_vectors() for store in stores))
        await asyncio.gather(*(store.contents.write(f"file-{n}", 0, b"x") for n, store in enumerate(stores)))
        assert private.sql("SELECT count(*) FROM antiphon_pieces").strip() == "6"
        assert private.sql("SELECT extname FROM pg_extension WHERE extname = 'vector'").strip() == "vector"
        await asyncio.gather(*(store.aclose() for store in stores))


async def test_tables_of_a_later_version_are_left_alone(private: PostgresServer, store: FileStore) -> None:
    await store.check()
    version = private.sql("SELECT version FROM antiphon_files_schema").strip()
    private.sql("UPDATE antiphon_files_schema SET version = 1000")
    later = PostgresFileStore.from_url(private.patient_url)
    with pytest.raises(FilesUnavailable) as unavailable:
        await later.check()
    assert f"the tables have version 1000, and this server knows {version}" in unavailable.value.__notes__[0]
    private.sql(f"UPDATE antiphon_files_schema SET version = {version}")
    await later.check()
    await later.aclose()


async def test_crash_keeps_files_unnoticed(private: PostgresServer, store: FileStore) -> None:
    await fill(store, "bread needs yeast", "choirs sing")
    await asyncio.to_thread(private.stop, signal.SIGQUIT)
    await asyncio.to_thread(private.start)
    assert [piece async for piece in store.content("file-0")] == [b"bread needs yeast"]
    assert [found.text for found in await store.vector_stores.search(STORE, EmbeddedText("yeast"), 5)] == [
        "bread needs yeast"
    ]


async def test_files_and_responses_may_be_in_one_database(private: PostgresServer) -> None:
    private.clear()
    backend = Scripted([finish("stop")])
    tools = {"file_search": {"store_url": private.patient_url}}
    async with antiphon(backend, tools=tools, store_url=private.patient_url) as at, openai_client(at) as client:
        response = await client.responses.create(model="m", input="Hello")
        file = await client.files.create(file=("a.txt", b"a"), purpose="user_data")
        assert (await client.responses.retrieve(response.id)).id == response.id
        assert (await client.files.content(file.id)).content == b"a"


async def test_upload_to_one_replica_is_read_from_another(private: PostgresServer, tmp_path: Path) -> None:
    private.clear()
    tools = json.dumps({"file_search": {"store_url": private.patient_url}})
    with served(tools=tools) as one, served(tools=tools) as other:
        async with openai_client(one.url) as first, openai_client(other.url) as second:
            store = await first.vector_stores.create()
            file = await first.files.create(file=("a.txt", b"bread needs yeast"), purpose="assistants")
            assert (await second.files.content(file.id)).content == b"bread needs yeast"
            await second.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
            page = await first.vector_stores.search(store.id, query="yeast")
            assert [result.filename for result in page.data] == ["a.txt"]
            await second.files.delete(file.id)
            assert (await first.vector_stores.search(store.id, query="yeast")).data == []


# Users who may create tables but no extension; and a server without pgvector, or with it hidden.
def limited(server: PostgresServer) -> str:
    """Return the URL of a user who may create tables and no extension, in a database without `vector`."""
    server.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public; DROP EXTENSION IF EXISTS vector")
    with contextlib.suppress(PostgresError):  # it is there
        server.sql("CREATE ROLE limited LOGIN")
    server.sql("GRANT ALL ON SCHEMA public TO limited; REVOKE CREATE ON DATABASE antiphon FROM PUBLIC, limited")
    return server.patient_url.replace("antiphon@", "limited@")


async def test_embeddings_without_the_extension_are_refused_in_one_sentence(private: PostgresServer) -> None:
    store = PostgresFileStore.from_url(limited(private))
    with pytest.raises(VectorsUnsupported) as refused:
        await store.vector_stores.prepare_vectors()
    assert "the extension `vector` (pgvector)" in str(refused.value)
    assert "CREATE EXTENSION vector" in str(refused.value)
    await fill(store, "bread needs yeast")  # which needs no extension
    assert await store.vector_stores.search(STORE, EmbeddedText("yeast"), 5)
    with pytest.raises(FilesUnavailable) as unavailable:
        await store.vector_stores.search(STORE, EmbeddedText("yeast", bytes(16), "m"), 5)
    assert "the extension `vector` (pgvector)" in unavailable.value.__notes__[0]
    private.sql("CREATE EXTENSION vector; GRANT ALL ON SCHEMA public TO limited")
    await store.vector_stores.prepare_vectors()  # after somebody has created it
    assert await store.vector_stores.search(STORE, EmbeddedText("yeast", bytes(16), "m"), 5)
    await store.aclose()


async def test_server_with_embeddings_without_the_extension_does_not_start(
    private: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = limited(private)
    async with EmbeddingServer() as backend:
        table = {"store_url": url, "embeddings": {"model": "toy"}}
        options = [f"--backend-url={backend.url}", "--port=0"]
        environment = {"ANTIPHON_TOOLS": json.dumps({"file_search": table}), "PATH": "/usr/bin:/bin"}
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "app", "serve", *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert line.startswith("tools.file_search: embeddings need the extension `vector` (pgvector)")
        given = settings(backend_url=backend.url, tools={"file_search": table})
        assert not await check_connectivity(given)
        assert "file_search store: embeddings need the extension `vector`" in capsys.readouterr().out


async def test_url_may_be_in_a_variable(private: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    private.clear()
    monkeypatch.setenv("FILES_URL", private.patient_url)
    async with antiphon(Scripted(), tools={"file_search": {"store_url_env": "FILES_URL"}}) as at:
        async with openai_client(at) as client:
            await client.files.create(file=("a.txt", b"a"), purpose="user_data")
    assert private.sql("SELECT filename FROM antiphon_files").strip() == "a.txt"


async def test_rejected_transaction_is_rolled_back_on_a_connection_that_stays(store: FileStore) -> None:
    await fill(store, "bread")
    process = "SELECT pg_backend_pid()"
    before = await store.tables.fetch(process)
    with pytest.raises(NotFound):
        await store.vector_stores.add(STORE, [NewStoreFile("file-0"), NewStoreFile("missing")], "vsfb_1")
    assert await store.tables.fetch(process) == before
    with pytest.raises(NotFound):
        await store.vector_stores.batch(STORE, "vsfb_1")
    assert (await store.vector_stores.file(STORE, "file-0")).status == "completed"


async def test_text_that_postgresql_cannot_hold_is_no_outage(store: FileStore) -> None:
    odd = "a\0b\ud800"
    assert await store.file("ada", odd) is None
    assert not await store.delete("ada", odd)
    assert await store.files("ada", Page(), odd) == ([], False)
    with pytest.raises(NotFound):
        await store.vector_stores.get("ada", odd)
    await fill(store, "bread\0 and yeast")
    (found,) = await store.vector_stores.search(STORE, EmbeddedText(f"yeast {odd}"), 5)
    assert found.text == "bread\ufffd and yeast"
    assert await store.vector_stores.update("ada", STORE.id, {"name": odd, "metadata": {"a": odd}})
    stored = await store.vector_stores.get("ada", STORE.id)
    assert (stored.name, stored.metadata) == ("a\ufffdb?", {"a": odd})
    assert await store.vector_stores.set_attributes(STORE, "file-0", {"a": odd})
    assert not await store.vector_stores.cancel_batch(STORE, odd)


@pytest.mark.parametrize("database", FILE_DATABASES, indirect=True)
async def test_word_that_most_chunks_have_counts(database: Any) -> None:
    store = database.open()
    await fill(store, *["bread bread"] * 3, "bread and salt", "bread")
    found = await store.vector_stores.search(STORE, EmbeddedText("bread salt"), 10)
    best = max(found, key=lambda one: one.text_score)
    assert best.text == "bread and salt"
    assert len(found) == 5
    await store.aclose()


async def test_databases_rank_alike(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    entries, questions = corpus()
    ranks: list[list[list[tuple[str, float]]]] = []
    for kind in ("sqlite", "postgres"):
        request.param = kind  # type: ignore[attr-defined]
        store = file_database_of(request, tmp_path).open()
        await fill(store, *entries.values())

        async def ranked(query: str, store: FileStore = store) -> list[tuple[str, float]]:
            found: list[Candidate] = await store.vector_stores.search(STORE, EmbeddedText(query), 5)
            return sorted(((one.file.id, one.text_score or 0.0) for one in found), key=lambda one: (-one[1], one[0]))

        ranks.append([await ranked(question.text) for question in questions[:40]])
        await store.aclose()
    same = 0
    for in_sqlite, in_postgres in zip(*ranks, strict=True):
        assert in_sqlite[0][0] == in_postgres[0][0]
        assert in_postgres[0][1] == pytest.approx(in_sqlite[0][1], abs=0.03)
        same += [id for id, _ in in_sqlite] == [id for id, _ in in_postgres]
    assert same >= 36


async def test_query_vector_is_parsed_once_per_search(store: FileStore) -> None:
    assert isinstance(store, PostgresFileStore)
    await store.vector_stores.prepare_vectors()
    plan = "\n".join(
        row[0] for row in await store._tables.fetch(f"EXPLAIN {NEAREST}", "[1,0]", "vs_1", "toy 2", None, 5)
    )
    assert plan.count("InitPlan") == 1  # evaluated once, unlike a cast in the sort key
    assert "(vectors.vector <=> $" in plan or "(vectors.vector <=> (InitPlan 1).col1)" in plan


async def test_claim_is_renewed_while_chunks_are_stored(private: PostgresServer, store: FileStore) -> None:
    await add_file(store, "file-0")
    await store.vector_stores.create(STORE, [NewStoreFile("file-0")])
    job = await claim_next(store)
    begun, renewed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def chunks() -> Iterator[EmbeddedText]:
        for number in range(200):
            if number == 100:  # in the second batch, of which the first is stored
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(renewed.wait(), loop).result(60)
            yield EmbeddedText(f"chunk {number}")

    completing = asyncio.create_task(store.vector_stores.complete(job, chunks()))
    await begun.wait()
    assert await store.vector_stores.renew(job, 1000)
    assert await store.vector_stores.search(STORE, EmbeddedText("chunk"), 5) == []
    renewed.set()
    assert await completing
    assert len(await store.vector_stores.text(STORE, "file-0")) == 200


async def test_backlog_that_is_large_is_erased_in_batches(private: PostgresServer, store: FileStore) -> None:
    await store.check()
    private.sql(
        "INSERT INTO antiphon_files (id, owner, filename, purpose, bytes, created_at, expires_at)"
        " SELECT 'file-' || n, 'ada', 'a.txt', 'user_data', 1, 1, 1 FROM generate_series(1, 250) n;"
        "INSERT INTO antiphon_pieces (file, number, data)"
        " SELECT 'file-' || n, m, 'x' FROM generate_series(1, 250) n, generate_series(0, 4) m"
    )
    other = PostgresFileStore.from_url(private.patient_url)
    await asyncio.gather(store.sweep(), other.sweep(), store.sweep())
    await store.sweep()
    counts = (private.sql(f"SELECT count(*) FROM antiphon_{table}").strip() for table in ("files", "pieces", "removed"))
    assert [*counts] == ["0", "0", "0"]
    await other.aclose()


async def test_url_that_is_invalid_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValueError, match=r"^The store URL") as refused:
        PostgresFileStore.from_url("postgresql://ada:s3cret@host:port/db")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("path", ["files/a%00b", "files/a%00b/content", "vector_stores/a%00b"])
async def test_id_with_a_nul_is_not_found(private: PostgresServer, path: str) -> None:
    async with antiphon(Scripted(), tools={"file_search": {"store_url": private.patient_url}}) as at:
        async with httpx.AsyncClient(base_url=f"{at}/v1", trust_env=False, timeout=60) as http:
            answer = await http.get(f"/{path}")
    assert answer.status_code == 404
