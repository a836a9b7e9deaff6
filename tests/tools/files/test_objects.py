"""The contents of files in object storage: in a folder, and in a real S3 server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from app.storage.object_storage import PART, ObjectStorage
from app.tools import ToolHost
from app.tools.files import ABANDONED_AFTER, PIECE, File, FilesUnavailable
from app.tools.files.postgres import PostgresFileStore
from app.tools.files.records import FileStore
from app.tools.files.sqlite import SQLiteFileStore
from app.tools.files.tool import FileSearch
from app.tools.files.uploads import CompleteUpload, CreateUpload, MultipartUploads
from tests.support.file_databases import ObjectFiles, PostgresFiles, SQLiteFiles, need_pgvector
from tests.support.logs import all_text, records_of
from tests.support.postgres_server import PostgresServer
from tests.support.s3_server import CREDENTIALS, S3Server
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.files.conftest import add_file, openai_client, pieces

LARGE = os.urandom(2 * PART + 12345)  # three parts of a multipart upload
SECRET = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> ObjectFiles:
    return ObjectFiles(tmp_path / "files.db")


@pytest_asyncio.fixture
async def client(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncOpenAI]:
    """A client of a server with files in S3."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    table = {"store_url": f"sqlite:///{tmp_path}/files.db", "content_url": s3.patient_url}
    async with antiphon(Scripted(), api_keys="ada,bob", tools={"file_search": table}) as url:
        async with openai_client(url) as client:
            yield client


async def content_of(store: FileStore, file_id: str) -> bytes:
    return b"".join([piece async for piece in store.content(file_id)])


async def test_large_file_is_written_to_s3_in_parts_and_read_again(client: AsyncOpenAI, s3: S3Server) -> None:
    file = await client.files.create(file=("../plan.txt", LARGE), purpose="user_data")
    assert f"files/{file.id}" in s3.objects()  # object names contain no caller data
    assert (await client.files.content(file.id)).content == LARGE
    assert not s3.unfinished()
    async with openai_client(str(client.base_url).removesuffix("/v1/"), "bob") as other:
        with pytest.raises(openai.NotFoundError):
            await other.files.content(file.id)
    await client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(file.id)


async def test_upload_in_parts_has_an_object_for_each_part_in_s3(client: AsyncOpenAI, s3: S3Server) -> None:
    upload = await client.uploads.create(
        bytes=len(LARGE), filename="a.bin", mime_type="text/plain", purpose="user_data"
    )
    cut = PART + 7
    pieces = [LARGE[:cut], LARGE[cut:]]
    parts = [(await client.uploads.parts.create(upload.id, data=piece)).id for piece in pieces]
    with pytest.raises(openai.BadRequestError, match="MD5"):
        await client.uploads.complete(upload.id, part_ids=parts, md5=hashlib.md5(b"other").hexdigest())
    completed = await client.uploads.complete(upload.id, part_ids=parts, md5=hashlib.md5(LARGE).hexdigest())
    assert completed.file
    assert (await client.files.content(completed.file.id)).content == LARGE
    assert {f"files/{part}" for part in parts} <= {*s3.objects()}


async def test_upload_that_is_discarded_leaves_nothing_in_s3(s3: S3Server, tmp_path: Path) -> None:
    storage = ObjectStorage(s3.patient_url, s3.environment, FilesUnavailable)
    store = SQLiteFileStore(tmp_path / "files.db", storage)
    for number in range(2 * PART // PIECE):
        await store.contents.write("file-discarded", number, bytes(PIECE))
    assert s3.unfinished() == ["files/file-discarded"]
    await store.contents.discard("file-discarded")
    assert "files/file-discarded" not in [*s3.unfinished(), *s3.objects()]
    await store.aclose()


async def test_files_of_before_are_read_from_the_database(tmp_path: Path) -> None:
    before = SQLiteFiles(tmp_path / "files.db").open()
    await add_file(before, "file-before", b"in the database")
    await before.aclose()
    database = ObjectFiles(tmp_path / "files.db")
    store = database.open()
    await add_file(store, "file-after", b"in an object")
    assert await content_of(store, "file-before") == b"in the database"
    assert await content_of(store, "file-after") == b"in an object"
    assert [path.name for path in database.folder.iterdir()] == ["file-after"]
    assert await store.delete("ada", "file-before")
    await store.sweep()
    assert await content_of(store, "file-before") == b""
    await store.aclose()


async def test_upload_begun_in_the_database_ends_in_objects(tmp_path: Path) -> None:
    before, after = SQLiteFiles(tmp_path / "files.db").open(), ObjectFiles(tmp_path / "files.db").open()
    body = CreateUpload(bytes=6, filename="a", mime_type="text/plain", purpose="user_data")
    upload_id = str((await MultipartUploads(before, max_bytes=100).create("ada", body))["id"])
    parts = []
    for store, data in ((before, b"abc"), (after, b"def")):
        part = await MultipartUploads(store, max_bytes=100).add_part("ada", upload_id, pieces(data))
        parts.append(str(part["id"]))
    md5 = hashlib.md5(b"abcdef").hexdigest()
    uploads = MultipartUploads(after, max_bytes=100)
    completed: Any = await uploads.complete("ada", upload_id, CompleteUpload(part_ids=parts, md5=md5))
    assert await content_of(after, completed["file"]["id"]) == b"abcdef"
    await before.aclose()
    await after.aclose()


async def test_files_in_objects_are_unavailable_without_content_url(
    folder: ObjectFiles, caplog: pytest.LogCaptureFixture
) -> None:
    store = folder.open()
    await add_file(store, "file-a", b"in an object")
    await store.aclose()
    without = SQLiteFiles(folder.path).open()
    with pytest.raises(FilesUnavailable):
        await content_of(without, "file-a")
    with pytest.raises(FilesUnavailable) as raised:
        await without.check()
    assert "`content_url` is not set" in raised.value.explanation
    assert await without.delete("ada", "file-a")
    await without.sweep()  # the object remains until the storage is set again
    await without.aclose()
    store = folder.open()
    await store.sweep()
    assert not [*folder.folder.iterdir()]
    await store.aclose()


async def test_object_of_a_killed_upload_is_swept_after_an_hour(folder: ObjectFiles) -> None:
    killed = folder.open()
    await killed.contents.write("file-half", 0, bytes(PART + 1))
    half = folder.folder / "file-half#1"  # as obstore leaves it when the process is killed
    copy = half.read_bytes()
    await killed.contents.discard("file-half")
    half.write_bytes(copy)
    await killed.contents.write("file-whole", 0, b"x")
    await killed.contents.finish("file-whole")
    await killed.contents.write("file-half", 0, b"y")  # claimed again, and not finished
    await add_file(killed, "file-kept", b"kept")
    await killed.aclose()
    store = folder.open()
    await store.sweep()
    assert folder.folder.joinpath("file-whole").exists()
    folder.advance(ABANDONED_AFTER + 1)
    await store.sweep()
    assert [path.name for path in folder.folder.iterdir()] == ["file-kept"]
    assert await content_of(store, "file-kept") == b"kept"
    await store.aclose()


async def test_rows_in_postgresql_claim_objects(postgres_server: PostgresServer, tmp_path: Path) -> None:
    need_pgvector()
    postgres_server.clear()
    database = PostgresFiles(postgres_server)
    storage = ObjectStorage(f"file://{tmp_path}/contents", {}, FilesUnavailable)
    store = PostgresFileStore.from_url(database.url, storage)
    for number in range(2):
        await store.contents.write("file-abandoned", number, bytes(PIECE))
    await store.contents.finish("file-abandoned")
    await add_file(store, "file-kept", b"kept")
    await add_file(store, "file-deleted", b"deleted")
    await store.sweep()
    assert await store.delete("ada", "file-deleted")
    await store.sweep()
    names = sorted(path.name for path in (tmp_path / "contents").iterdir())
    assert names == ["file-abandoned", "file-kept"]
    database.advance(ABANDONED_AFTER + 1)
    await store.sweep()
    assert [path.name for path in (tmp_path / "contents").iterdir()] == ["file-kept"]
    assert await content_of(store, "file-kept") == b"kept"
    with pytest.raises(FilesUnavailable):
        await store.add(File("file-abandoned", "ada", "a.txt", "user_data", 1, 1))
    await store.aclose()


async def test_upload_that_was_swept_cannot_be_continued_or_added(folder: ObjectFiles) -> None:
    store = folder.open()
    file = File("file-a", "ada", "a.txt", "user_data", 1, 1)
    for finished in (True, False):
        await store.contents.write("file-a", 0, b"x")
        if finished:
            await store.contents.finish("file-a")
        folder.advance(ABANDONED_AFTER + 1)
        await store.sweep()
        with pytest.raises(FilesUnavailable):
            await (store.add(file) if finished else store.contents.finish("file-a"))
        await store.contents.discard("file-a")
    assert await store.file("ada", "file-a") is None
    assert not [*folder.folder.iterdir()]
    await store.aclose()


async def test_object_that_is_missing_is_unavailable(folder: ObjectFiles, caplog: pytest.LogCaptureFixture) -> None:
    store = folder.open()
    await add_file(store, "file-a", b"x")
    (folder.folder / "file-a").unlink()
    with pytest.raises(FilesUnavailable):
        await content_of(store, "file-a")
    (warning,) = records_of(caplog, "app.storage")
    assert "the object file-a does not exist" in warning.__dict__["reason"]
    assert await store.delete("ada", "file-a")
    await store.sweep()
    await store.aclose()


async def test_delete_waits_for_no_storage_and_is_repeated_by_the_sweep(s3: S3Server, tmp_path: Path) -> None:
    storage = ObjectStorage(s3.patient_url, s3.environment, FilesUnavailable)
    store = SQLiteFileStore(tmp_path / "files.db", storage)
    await add_file(store, "file-deleted", b"x")
    away = {**s3.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    cut_off = SQLiteFileStore(tmp_path / "files.db", ObjectStorage(s3.url, away, FilesUnavailable))
    assert await cut_off.delete("ada", "file-deleted")
    with pytest.raises(FilesUnavailable):
        await cut_off.sweep()
    assert "files/file-deleted" in s3.objects()
    await store.sweep()
    assert "files/file-deleted" not in s3.objects()
    await cut_off.aclose()
    await store.aclose()


def tool(content_url: str, environment: dict[str, str], directory: Path) -> FileSearch:
    table: dict[str, Any] = {"store_url": f"sqlite:///{directory}/files.db", "content_url": content_url}
    return FileSearch.from_settings(table, ToolHost(environment=environment))


async def test_check_reports_the_bucket(s3: S3Server, tmp_path: Path) -> None:
    works = tool(s3.patient_url, s3.environment, tmp_path)
    objects = s3.objects()
    assert await works.check() == {"store": None, "contents": None}
    assert s3.objects() == objects
    await works.aclose()
    missing = tool("s3://another-bucket?timeout=60", s3.environment, tmp_path)
    problem = (await missing.check())["contents"]
    assert problem and "s3://another-bucket" in problem and "NoSuchBucket" in problem
    await missing.aclose()
    away = {**s3.environment, "AWS_ENDPOINT_URL": f"http://user:{SECRET}@127.0.0.1:9"}
    gone = tool("s3://bucket/prefix", away, tmp_path)
    problem = (await gone.check())["contents"]
    assert problem and "error sending request" in problem and SECRET not in problem
    await gone.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "http://bucket",
        "s3://",
        "s3://key:s3cret@bucket/prefix",
        "s3://bucket/../other",
        "s3://bucket?key=s3cret",
        "s3://bucket?timeout=s3cret",
        "file://relative/s3cret",
        "file:///",
        "s3://[s3cret",
    ],
)
def test_content_url_that_is_invalid_is_refused_without_quoting_it(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="content_url") as raised:
        tool(url, {}, tmp_path)
    assert "s3cret" not in str(raised.value)


def test_storage_that_cannot_be_opened_names_the_variables(tmp_path: Path) -> None:
    credentials = {"GOOGLE_SERVICE_ACCOUNT_KEY": "s3cret"}
    for url, environment, variable in (
        ("az://container", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("gs://bucket", credentials, "GOOGLE_SERVICE_ACCOUNT_KEY"),
    ):
        with pytest.raises(ValueError, match=variable) as raised:
            tool(url, environment, tmp_path)
        assert "s3cret" not in str(raised.value)


async def test_credentials_are_in_no_log_and_no_error(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {**s3.environment, "AWS_ENDPOINT_URL": f"http://ada:{SECRET}@127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    table = {"store_url": f"sqlite:///{tmp_path}/files.db", "content_url": s3.url}
    with caplog.at_level(logging.DEBUG):
        async with antiphon(Scripted(), tools={"file_search": table}) as url:
            async with httpx.AsyncClient(base_url=f"{url}/v1", trust_env=False, timeout=60) as http:
                form: dict[str, Any] = {"files": {"file": ("a.txt", b"a")}, "data": {"purpose": "user_data"}}
                refused = await http.post("/files", **form)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
                about = (await http.get("/antiphon/about")).raise_for_status().text
    assert "unavailable" in caplog.text
    for text in (refused.text, about, all_text(caplog)):
        assert SECRET not in text and CREDENTIALS["AWS_ACCESS_KEY_ID"] not in text


async def test_uploads_at_once_are_written_apart(folder: ObjectFiles) -> None:
    store = folder.open()
    contents = {f"file-{number}": os.urandom(3 * PIECE) for number in range(8)}
    await asyncio.gather(*(add_file(store, file_id, content) for file_id, content in contents.items()))
    for file_id, content in contents.items():
        assert await content_of(store, file_id) == content
    await store.aclose()
