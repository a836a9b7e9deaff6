"""Files are read into vector stores in the background, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from app.core.profile import TransportOptions
from app.core.types import Usage
from app.errors import TooManyRequests
from app.tools import Account
from app.tools.files import File, FilesUnavailable, Page
from app.tools.files.embeddings import Embeddings
from app.tools.files.ingestion import ATTEMPTS, RETRY, STEP_RETRIES, Ingestion
from app.tools.files.parsing import extract
from app.tools.files.postgres import PostgresVectorStores
from app.tools.files.records import FileStore
from app.tools.files.settings import EmbeddingsSettings
from app.tools.files.sqlite import SQLiteVectorStores
from app.tools.files.vector_stores.records import (
    EmbeddedText,
    Job,
    NewStoreFile,
    StoreFile,
    VectorStore,
)
from app.tools.files.vector_stores.sql import VectorStoreRecords
from tests.support.file_databases import FileDatabase
from tests.tools.files.conftest import add_file, claim_next
from tests.tools.files.documents import pdf
from tests.tools.files.embedding_server import EmbeddingServer


class Paid:
    """An account with enough budget, or with a given number of refusals."""

    def __init__(self, *refusals: TooManyRequests) -> None:
        self.refusals = [*refusals]
        self.charged: list[tuple[str, str, int]] = []

    async def check_limits(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)

    def charge_request(self, model: str, backend: str, usage: Usage) -> None:
        self.charged.append((model, backend, usage["total_tokens"]))


PAID = Paid()
LEASE = 1000.0  # seconds: longer than any test
STORE = VectorStore("vs_1", "ada", "notes", None, {}, None, 1, 1)


@asynccontextmanager
async def opened(database: FileDatabase) -> AsyncIterator[FileStore]:
    store = database.open()
    try:
        yield store
    finally:
        await store.aclose()


async def upload(store: FileStore, name: str, content: bytes, owner: str = "ada") -> str:
    id = f"file-{name}"
    await add_file(store, id, content, owner=owner, name=name)
    return id


async def filled(store: FileStore, owner: str, *names: str) -> VectorStore:
    """Return an owner's vector store with these files, to be indexed."""
    vector_store = replace(STORE, id=f"vs_{owner}", owner=owner)
    ids = [await upload(store, name, b"Some words.", owner) for name in names]
    await store.vector_stores.create(vector_store, [NewStoreFile(id, key=f"key of {owner}") for id in ids])
    return vector_store


@asynccontextmanager
async def reading(
    store: FileStore, embeddings: Embeddings | None = None, account: Account = PAID, **options: Any
) -> AsyncIterator[Ingestion]:
    ingestion = Ingestion(store, store.vector_stores, embeddings, **options)
    ingestion.start(lambda key: account)
    try:
        yield ingestion
    finally:
        await ingestion.aclose()


@asynccontextmanager
async def model(server: EmbeddingServer, **options: Any) -> AsyncIterator[Embeddings]:
    embeddings = Embeddings(TransportOptions(base_url=server.url), EmbeddingsSettings(model="toy", **options))
    try:
        yield embeddings
    finally:
        await embeddings.aclose()


async def settled(store: FileStore, file_id: str, vector_store: VectorStore = STORE) -> StoreFile:
    """Wait until a file has been read, or cannot be."""
    while True:
        file = await store.vector_stores.file(vector_store, file_id)
        if file.status != "in_progress":
            return file
        await asyncio.sleep(0.01)


async def texts(store: FileStore, words: str) -> list[str]:
    return [one.text for one in await store.vector_stores.search(STORE, EmbeddedText(words), 10)]


async def test_files_added_while_no_reader_ran_are_read_at_start(database: FileDatabase) -> None:
    async with opened(database) as store:
        ids = [await upload(store, f"{n}.txt", f"words {n}".encode()) for n in range(5)]
        await store.vector_stores.create(STORE, [NewStoreFile(id) for id in ids])
    async with opened(database) as store, reading(store):
        for id in ids:
            assert (await settled(store, id)).status == "completed"
        assert len(await texts(store, "words")) == 5


async def test_file_added_to_a_vector_store_deleted_meanwhile_is_not_queued(database: FileDatabase) -> None:
    async with opened(database) as store:
        vector_store = await filled(store, "ada", "one.txt")
        assert await store.vector_stores.delete("ada", vector_store.id)
        await store.vector_stores.add(vector_store, [NewStoreFile("file-one.txt")], "vsfb_1")
        assert await store.vector_stores.claim(LEASE) is None


@pytest.mark.parametrize("steps", range(5))
async def test_ingestion_closed_as_readers_wake_up_ends(database: FileDatabase, steps: int) -> None:
    """Cancel a reader in each event loop step of its wake-up."""
    async with opened(database) as store:
        async with asyncio.timeout(60), reading(store) as ingestion:
            await asyncio.sleep(0.2)  # the readers have found nothing to read, and wait
            ingestion.wake()
            for _ in range(steps):
                await asyncio.sleep(0)


async def test_claim_is_one_readers_alone_until_it_ends(database: FileDatabase) -> None:
    async with opened(database) as store, opened(database) as other:
        id = await upload(store, "a.txt", b"words")
        records = store.vector_stores
        await records.create(STORE, [NewStoreFile(id)])
        first = await claim_next(store)
        assert await other.vector_stores.claim(LEASE) is None
        database.advance(LEASE - 100)
        assert await records.renew(first, LEASE)
        database.advance(LEASE - 100)
        assert await other.vector_stores.claim(LEASE) is None
        database.advance(200)
        second = await claim_next(other)
        assert (second.row, second.attempt) == (first.row, 2)
        # Who was taken for dead has no say any more.
        assert not await records.renew(first, LEASE)
        assert not await records.complete(first, [EmbeddedText("of the first")])
        await records.fail(first, "server_error", "of the first")
        assert await texts(store, "first") == []
        assert await records.complete(second, [EmbeddedText("of the second")])
        assert await texts(store, "of the second") == ["of the second"]
        assert database.chunks() == 1


async def test_concurrent_readers_never_claim_the_same_file(database: FileDatabase) -> None:
    async with opened(database) as store, AsyncExitStack() as stack:
        ids = [await upload(store, f"{n}.txt", b"words") for n in range(20)]
        await store.vector_stores.create(STORE, [NewStoreFile(id) for id in ids])
        readers = [await stack.enter_async_context(opened(database)) for _ in range(4)]

        async def claim_all(reader: FileStore) -> list[str]:
            found = []
            while job := await reader.vector_stores.claim(LEASE):
                found.append(job.file_id)
            return found

        found = await asyncio.gather(*map(claim_all, readers))
        assert sorted(id for ids in found for id in ids) == sorted(ids)


async def test_owners_take_turns_with_the_files_of_their_queues(database: FileDatabase) -> None:
    async with opened(database) as store:
        await filled(store, "ada", "a1", "a2", "a3", "a4")
        await filled(store, "bob", "b1", "b2")
        await filled(store, "eve", "e1")
        jobs = [await claim_next(store) for _ in range(7)]
        assert [job.filename for job in jobs] == ["a1", "b1", "e1", "a2", "b2", "a3", "a4"]
        assert {(job.owner, job.key) for job in jobs} == {(name, f"key of {name}") for name in ("ada", "bob", "eve")}


async def test_files_of_the_earlier_common_queue_are_moved_to_their_owners(database: FileDatabase) -> None:
    async with opened(database) as store:
        await filled(store, "ada", "a1", "a2")
        await filled(store, "bob", "b1")
    database.undo_queues()
    async with opened(database) as store:
        jobs = [await claim_next(store) for _ in range(3)]
        assert [(job.filename, job.owner, job.key) for job in jobs] == [
            ("a1", "ada", ""),
            ("b1", "bob", ""),
            ("a2", "ada", ""),
        ]


async def test_files_of_excluded_owners_are_left_in_the_queue(database: FileDatabase) -> None:
    async with opened(database) as store:
        await filled(store, "ada", "a1", "a2")
        await filled(store, "bob", "b1")
        job = await store.vector_stores.claim(LEASE, ["ada", "eve"])
        assert job and job.filename == "b1"
        assert await store.vector_stores.claim(LEASE, ["ada"]) is None
        assert (await claim_next(store)).filename == "a1"


async def test_file_that_was_put_back_is_claimed_by_others_first(database: FileDatabase) -> None:
    async with opened(database) as store:
        await filled(store, "ada", "a1", "a2")
        await store.vector_stores.release(await claim_next(store))
        await filled(store, "bob", "b1")
        assert [(await claim_next(store)).filename for _ in range(3)] == ["b1", "a1", "a2"]


def extract_unless_slow(source: str, target: str, filename: str, max_tokens: int, overlap: int) -> None:
    if filename.startswith("slow"):
        time.sleep(3600)
    extract(source, target, filename, max_tokens, overlap)


async def test_slow_files_of_one_owner_hold_up_no_file_of_another(
    database: FileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tools.files.ingestion.extract", extract_unless_slow)
    monkeypatch.setattr("app.tools.files.ingestion.is_simple", lambda path, filename: False)
    async with opened(database) as store:
        slow = await filled(store, "ada", *(f"slow{n}.txt" for n in range(6)))
        async with reading(store):
            quick = await filled(store, "bob", "quick1.txt", "quick2.txt")
            for name in ("quick1.txt", "quick2.txt"):
                assert (await settled(store, f"file-{name}", quick)).status == "completed"
            files, _ = await store.vector_stores.files(slow, Page())
            assert {file.status for file in files} == {"in_progress"}


async def test_embeddings_of_a_file_are_charged_to_the_key_that_added_it(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        embeddings = await stack.enter_async_context(model(server))
        added = await filled(store, "ada", "a.txt")
        account = Paid()
        async with reading(store, embeddings, account):
            assert (await settled(store, "file-a.txt", added)).status == "completed"
        assert account.charged == [("toy", "default", 2)]


async def test_file_of_a_key_at_its_rate_limit_waits_without_an_attempt(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        embeddings = await stack.enter_async_context(model(server))
        added = await filled(store, "ada", "a.txt")
        account = Paid(*[TooManyRequests("Rate limit reached.", retry_after=0.01)] * (ATTEMPTS + 1))
        async with reading(store, embeddings, account) as ingestion:
            while account.refusals:
                ingestion.wake()
                await asyncio.sleep(0.01)
            ingestion.wake()
            assert (await settled(store, "file-a.txt", added)).status == "completed"


async def test_file_of_a_key_whose_budget_is_used_up_fails(database: FileDatabase) -> None:
    class NoBudget(TooManyRequests):
        code = "insufficient_quota"

    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        embeddings = await stack.enter_async_context(model(server))
        added = await filled(store, "ada", "a.txt")
        account = Paid(NoBudget("The key 'ada' has used its budget."))
        async with reading(store, embeddings, account):
            file = await settled(store, "file-a.txt", added)
        assert file.error == ("server_error", "The key 'ada' has used its budget.")
        assert server.requests == []


async def test_file_whose_embeddings_take_too_long_fails(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.hangs = True
        embeddings = await stack.enter_async_context(model(server))
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        async with reading(store, embeddings, index_timeout=3):
            file = await settled(store, id)
        assert file.error == ("server_error", "The file takes too long to index.")


async def leave_behind(store: FileStore, job: Job, text: str) -> None:
    """Store a chunk like a process that dies before it has marked the file as read."""
    records = store.vector_stores
    if isinstance(records, SQLiteVectorStores):
        records._index(STORE.id).replace(job.row, [EmbeddedText(text)], range(job.row + 1))
    else:
        assert isinstance(records, PostgresVectorStores)
        assert await records._store_chunks(job, iter([EmbeddedText(text)]))


async def test_file_is_not_found_before_all_of_it_is_stored(database: FileDatabase) -> None:
    async with opened(database) as store:
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])

        def broken() -> Any:
            for _ in range(100):
                yield EmbeddedText("the first half")
            raise OSError("no more")

        with pytest.raises(FilesUnavailable):
            await store.vector_stores.complete(await claim_next(store), broken())
        assert await texts(store, "first half") == []

        database.advance(LEASE + 100)
        await leave_behind(store, await claim_next(store), "left behind")
        assert database.chunks() == 1
        assert await texts(store, "left behind") == []
        database.advance(LEASE + 100)
        await store.vector_stores.complete(await claim_next(store), [EmbeddedText("the words")])
        assert await texts(store, "left behind the words") == ["the words"]
        assert database.chunks() == 1


async def test_file_that_was_removed_meanwhile_is_not_stored(database: FileDatabase) -> None:
    async with opened(database) as store:
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        job = await claim_next(store)
        assert await store.delete("ada", id)
        assert not await store.vector_stores.renew(job, 10)
        assert not await store.vector_stores.complete(job, [EmbeddedText("words")])
        assert await texts(store, "words") == []
        assert await store.vector_stores.files(STORE, Page()) == ([], False)


async def test_file_that_kills_its_parser_fails(database: FileDatabase) -> None:
    async with opened(database) as store:
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        for _ in range(ATTEMPTS):
            await claim_next(store)
            database.advance(LEASE + 100)
        async with reading(store):
            file = await settled(store, id)
        assert (file.status, file.error and file.error[0]) == ("failed", "server_error")


class Unrenewable:
    """Records in which a bug is met by whoever renews a claim."""

    def __init__(self, records: VectorStoreRecords) -> None:
        self._records = records
        self.renewals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def renew(self, job: Job, lease: float) -> bool:
        self.renewals += 1
        raise RuntimeError("a bug")


async def test_reading_of_a_file_whose_renewal_fails_ends(
    database: FileDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.hangs = True
        embeddings = await stack.enter_async_context(model(server))
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        records: Any = Unrenewable(store.vector_stores)
        ingestion = Ingestion(store, records, embeddings, lease=3)
        ingestion.start(lambda key: PAID)
        while "file indexing failed" not in caplog.text:
            await asyncio.sleep(0.01)
        assert records.renewals and server.requests
        assert not [task for task in asyncio.all_tasks() if "Ingestion._ingest_or_fail()" in repr(task)]
        await ingestion.aclose()


async def test_file_of_a_stopped_reader_is_left_to_the_next(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.hangs = True
        embeddings = await stack.enter_async_context(model(server))
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        async with reading(store, embeddings):
            while not server.requests:
                await asyncio.sleep(0.01)
            assert await store.vector_stores.claim(10) is None
        job = await store.vector_stores.claim(10)
        assert job
        assert job.attempt == 1  # a stop is not the file's failure


async def test_document_that_takes_too_long_fails(database: FileDatabase) -> None:
    async with opened(database) as store:
        id = await upload(store, "a.pdf", pdf("Some words."))
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        async with reading(store, parse_timeout=0.001):
            file = await settled(store, id)
        assert file.error == ("invalid_file", "The file takes too long to read.")


async def test_document_that_ends_its_process_fails(database: FileDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tools.files.ingestion.extract", exit_now)
    async with opened(database) as store:
        id = await upload(store, "a.pdf", pdf("Some words."))
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        async with reading(store):
            file = await settled(store, id)
        assert file.error == ("invalid_file", "The file takes too much memory to read.")


def exit_now(*_: object) -> None:
    import os

    os._exit(1)


async def test_pages_are_read_in_another_process(database: FileDatabase) -> None:
    async with opened(database) as store:
        id = await upload(store, "a.pdf", pdf("Some words.", "Other words."))
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        async with reading(store):
            assert (await settled(store, id)).status == "completed"
        assert "Other words." in (await texts(store, "other"))[0]


async def test_chunks_have_vectors(database: FileDatabase) -> None:
    async with EmbeddingServer([["car", "automobile"]]) as server, opened(database) as store, AsyncExitStack() as stack:
        embeddings = await stack.enter_async_context(model(server, document_prefix="doc: ", query_prefix="query: "))
        long = await upload(store, "a.txt", ("The garden is green. " * 8000).encode())
        short = await upload(store, "b.txt", b"A car drives by.")
        await store.vector_stores.create(STORE, [NewStoreFile(long), NewStoreFile(short)])
        async with reading(store, embeddings):
            for id in (long, short):
                assert (await settled(store, id)).status == "completed"
        assert all(text.startswith("doc: ") for text in server.texts)
        assert max(len(request.json["input"]) for request in server.requests) == 64
        query = EmbeddedText("automobile", (await embeddings.queries(["automobile"]))[0], embeddings.model)
        assert server.texts[-1] == "query: automobile"
        found = await store.vector_stores.search(STORE, query, 3)
        best = max(found, key=lambda one: one.similarity or 0)
        assert (best.text, best.text_score) == ("A car drives by.", None)


async def test_file_without_its_embeddings_is_tried_again(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.refusals = [400]
        embeddings = await stack.enter_async_context(model(server))
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        async with reading(store, embeddings):
            while server.refusals:
                await asyncio.sleep(0.01)
        file = await store.vector_stores.file(STORE, id)
        assert file.status == "in_progress"
        database.advance(RETRY + 1)
        async with reading(store, embeddings):
            assert (await settled(store, id)).status == "completed"


LONG = " ".join(f"Garden {number} is green." for number in range(20_000)).encode()  # some batches


async def indexed(
    server: EmbeddingServer, store: FileStore, embeddings: Embeddings, account: Account = PAID
) -> StoreFile:
    id = await upload(store, "a.txt", LONG)
    await store.vector_stores.create(STORE, [NewStoreFile(id)])
    async with reading(store, embeddings, account):
        return await settled(store, id)


@pytest.mark.parametrize("code", [429, 503])
async def test_file_waits_as_long_as_the_embeddings_request(database: FileDatabase, code: int) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.refusals, server.refusal_headers = [200, *[code] * (len(STEP_RETRIES) + 2)], {"Retry-After-Ms": "10"}
        embeddings = await stack.enter_async_context(model(server))
        account = Paid()
        file = await indexed(server, store, embeddings, account)
        assert (file.status, server.refusals) == ("completed", [])
        assert len(server.texts) == len({*server.texts}) > 128
        assert len(account.charged) == len(server.requests) - len(STEP_RETRIES) - 2


async def test_file_whose_embeddings_are_refused_for_hours_fails(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.refusals, server.refusal_headers = [200, 429], {"Retry-After": "7200"}
        embeddings = await stack.enter_async_context(model(server))
        file = await indexed(server, store, embeddings)
        assert file.error == ("server_error", "The backend returned no embeddings: status 429.")
        assert len(server.requests) == 2


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tools.files.ingestion.STEP_RETRIES", [0.01] * 2)


@pytest.mark.usefixtures("quick_retries")
async def test_batches_that_are_embedded_are_kept_after_a_failure(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.refusals = [200, 500, 400, 200, 429]
        embeddings = await stack.enter_async_context(model(server))
        account = Paid()
        file = await indexed(server, store, embeddings, account)
        assert file.status == "completed"
        assert len(server.texts) == len({*server.texts}) > 128
        assert len(account.charged) == len(server.requests) - 3


@pytest.mark.usefixtures("quick_retries")
async def test_file_whose_embeddings_fail_in_every_attempt_fails(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        server.refusals = [200, 400, 400, 400]
        embeddings = await stack.enter_async_context(model(server))
        file = await indexed(server, store, embeddings)
        assert file.error == ("server_error", "The backend returned no embeddings: status 400.")
        assert len(server.requests) == 4


class Incomplete:
    """Records whose store fails when the first file is completed."""

    def __init__(self, records: VectorStoreRecords) -> None:
        self._records = records
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def complete(self, *arguments: Any) -> bool:
        if not self.failed:
            self.failed = True
            raise FilesUnavailable()
        return await self._records.complete(*arguments)


@pytest.mark.usefixtures("quick_retries")
async def test_file_that_could_not_be_stored_is_not_embedded_again(database: FileDatabase) -> None:
    async with EmbeddingServer() as server, opened(database) as store, AsyncExitStack() as stack:
        embeddings = await stack.enter_async_context(model(server))
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        records: Any = Incomplete(store.vector_stores)
        ingestion = Ingestion(store, records, embeddings)
        ingestion.start(lambda key: PAID)
        assert (await settled(store, id)).status == "completed"
        assert (records.failed, len(server.requests)) == (True, 1)
        await ingestion.aclose()


async def test_store_that_expires_is_emptied(database: FileDatabase) -> None:
    async with opened(database) as store:
        id = await upload(store, "a.txt", b"words")
        now = int(database.now())
        expiring = VectorStore("vs_1", "ada", "notes", None, {}, 1, now, now)
        await store.vector_stores.create(expiring, [NewStoreFile(id)])
        await store.vector_stores.complete(await claim_next(store), [EmbeddedText("words")])
        database.advance(86400 - 1000)
        await store.sweep()
        assert await texts(store, "words") == ["words"]
        assert database.chunks() == 1
        database.advance(2000)
        await store.sweep()
        assert database.chunks() == 0
        found = await store.vector_stores.get("ada", "vs_1")
        assert (found.resource(database.now())["status"], found.counts.completed) == ("expired", 0)
        assert await store.file("ada", id)


@pytest.mark.parametrize(
    "how", ["file deleted", "file expired", "file removed", "store deleted", "batch cancelled", "failed"]
)
async def test_removed_files_leave_no_piece_and_no_chunk(database: FileDatabase, how: str) -> None:
    async with opened(database) as store:
        records = store.vector_stores
        await records.create(STORE)
        ids = [f"file-{number}" for number in range(3)]
        expires = int(database.now()) + 1000 if how == "file expired" else None
        for id in ids:
            for number in range(3):
                await store.contents.write(id, number, b"words")
            await store.contents.finish(id)
            await store.add(File(id, "ada", "a.txt", "assistants", 15, 1, expires))
        await records.add(STORE, [NewStoreFile(id) for id in ids], "vsfb_1")
        chunks = [EmbeddedText(f"words {number}", bytes(16), "model") for number in range(100)]
        for _ in ids[1:]:
            assert await records.complete(await claim_next(store), chunks)
        last = await claim_next(store)
        await leave_behind(store, last, "words")
        stored = database.pieces()
        assert stored in (3, 9) and database.chunks() == 201  # an object for each file, or three pieces
        pieces, left = 0, 0
        match how:
            case "file deleted":
                for id in ids:
                    assert await store.delete("ada", id)
            case "file expired":
                database.advance(2000)
            case "file removed":
                for id in ids:
                    assert await records.remove(STORE, id)
                pieces = stored
            case "store deleted":
                assert await records.delete("ada", STORE.id)
                pieces = stored
            case "batch cancelled":
                assert await records.cancel_batch(STORE, "vsfb_1")
                assert not await records.complete(last, chunks)
                pieces, left = stored, 200
            case "failed":
                await records.fail(last, "server_error", "no")
                pieces, left = stored, 200
        if how != "file expired":
            assert len(await texts(store, "words")) == (10 if left else 0)
        await store.sweep()
        assert len(await texts(store, "words")) == (10 if left else 0)
        assert (database.pieces(), database.chunks()) == (pieces, left)


async def test_vectors_of_another_model_are_not_compared(database: FileDatabase) -> None:
    async with opened(database) as store:
        id = await upload(store, "a.txt", b"words")
        await store.vector_stores.create(STORE, [NewStoreFile(id)])
        vector = bytes(4 * 8)
        await store.vector_stores.complete(await claim_next(store), [EmbeddedText("words", vector, "one")])
        for query in (EmbeddedText("words", vector, "other"), EmbeddedText("words", bytes(4 * 16), "one")):
            (found,) = await store.vector_stores.search(STORE, query, 10)
            assert (found.similarity, bool(found.text_score)) == (None, True)
        (found,) = await store.vector_stores.search(STORE, EmbeddedText("words", vector, "one"), 10)
        assert found.similarity is not None
