"""Files are uploaded, listed, read and deleted, with OpenAI's own client and by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from app.errors import InvalidRequest
from app.tools.files import ABANDONED_AFTER, PIECE, File, FilesUnavailable, Page
from app.tools.files.records import FileStore
from app.tools.files.sqlite import SQLiteFileStore
from app.tools.files.uploads import Files
from tests.support.file_databases import FileDatabase
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.files.conftest import add_file, openai_client

FORM = "multipart/form-data; boundary=x"


async def test_file_is_uploaded_and_read_again(client: AsyncOpenAI) -> None:
    content = bytes(range(256)) * 20_000  # five pieces, with boundaries and line ends of every kind
    began = int(time.time())
    file = await client.files.create(file=("naïve plan.txt", content), purpose="user_data")
    assert file.id.startswith("file-")
    assert (file.object, file.filename, file.bytes, file.purpose) == (
        "file",
        "naïve plan.txt",
        len(content),
        "user_data",
    )
    assert (file.status, file.expires_at) == ("processed", None)
    assert began <= file.created_at <= time.time()
    assert await client.files.retrieve(file.id) == file
    assert (await client.files.content(file.id)).content == content
    assert [one.id async for one in await client.files.list()] == [file.id]


async def test_file_that_is_deleted_is_not_found(client: AsyncOpenAI) -> None:
    file = await client.files.create(file=("a.txt", b"a"), purpose="assistants")
    deleted = await client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {file.id}"):
            await ask(file.id)


async def test_file_list_has_pages_an_order_and_purposes(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    made = [
        (await client.files.create(file=(f"{n}.txt", b"x"), purpose="vision" if n == 3 else "user_data")).id
        for n in range(5)
    ]
    assert [file.id async for file in await client.files.list()] == made[::-1]
    assert [file.id async for file in await client.files.list(limit=2, order="asc")] == made
    assert [file.id async for file in await client.files.list(purpose="vision")] == [made[3]]
    first = (await http.get("/files", params={"limit": 2})).json()
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, made[4], made[3])
    last = (await http.get("/files", params={"limit": 3, "after": made[3]})).json()
    assert ([file["id"] for file in last["data"]], last["has_more"]) == (made[2::-1], False)


async def test_file_expires(database: FileDatabase) -> None:
    store = database.open()
    files = Files(store, max_bytes=100, clock=database.now)
    async with files.upload("ada") as upload:
        await upload.write(b"x")
        file = await files.add("ada", upload, "a.txt", "user_data", 3600)
    assert file.expires_at == file.created_at + 3600
    database.advance(3500)
    assert await store.file("ada", file.id)
    assert await store.stored_bytes("ada") == 1
    database.advance(200)
    assert await store.stored_bytes("ada") == 0
    assert await store.file("ada", file.id) is None
    assert await store.files("ada", Page()) == ([], False)
    assert not await store.delete("ada", file.id)
    await store.sweep()
    assert [piece async for piece in store.content(file.id)] == []
    assert database.pieces() == 0
    await store.aclose()


async def test_file_expiry_is_a_field_of_the_form(client: AsyncOpenAI) -> None:
    expires: Any = {"anchor": "created_at", "seconds": 3600}
    file = await client.files.create(file=("a.txt", b"a"), purpose="user_data", expires_after=expires)
    assert file.expires_at == file.created_at + 3600
    batch = await client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    assert batch.expires_at == batch.created_at + 30 * 86400


INVALID_FORMS: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"purpose": "user_data"}, {}, "file"),
    ({}, {"file": ("a", b"a")}, "purpose"),
    ({"purpose": "fun"}, {"file": ("a", b"a")}, "purpose"),
    ({"purpose": "user_data"}, {"file": ("a", b"")}, "file"),
    ({"purpose": "user_data", "expires_after[seconds]": "5"}, {"file": ("a", b"a")}, "expires_after[seconds]"),
    ({"purpose": "user_data", "expires_after[seconds]": "soon"}, {"file": ("a", b"a")}, "expires_after[seconds]"),
    (
        {"purpose": "user_data", "expires_after[anchor]": "created_at"},
        {"file": ("a", b"a")},
        "expires_after[seconds]",
    ),
    (
        {"purpose": "user_data", "expires_after[seconds]": "3600", "expires_after[anchor]": "now"},
        {"file": ("a", b"a")},
        "expires_after[anchor]",
    ),
    ({"purpose": "x" * 5000}, {"file": ("a", b"a")}, "purpose"),
]


async def test_form_that_is_invalid_is_refused(http: httpx.AsyncClient) -> None:
    for fields, files, param in INVALID_FORMS:
        answer = await http.post("/files", data=fields, files=files or {"other": ("a", b"a")})
        assert answer.status_code == 400, fields
        assert answer.json()["error"]["param"] == param, fields
        assert (await http.get("/files")).json()["data"] == [], fields


async def test_form_with_several_files_is_refused(http: httpx.AsyncClient) -> None:
    files = [("file", ("a.txt", b"a")), ("file", ("b.txt", b"b"))]
    answer = await http.post("/files", data={"purpose": "user_data"}, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


NO_FORMS = [
    (b"{}", "application/json", 415, "unsupported_content_type"),
    (b"{}", "multipart/form-data", 415, "unsupported_content_type"),
    (b"no form at all", FORM, 400, "invalid_body"),
    (b"--x\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\nabc", FORM, 400, "invalid_body"),
    (b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--\r\n", FORM, 400, "invalid_body"),
    (b"--x\r\n" + b"A: b\r\n" * 1000 + b"\r\nabc\r\n--x--\r\n", FORM, 400, "invalid_body"),
    (
        b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\nabc\r\n" * 100 + b"--x--\r\n",
        FORM,
        400,
        "invalid_body",
    ),
]


async def test_body_that_is_no_form_is_refused(http: httpx.AsyncClient) -> None:
    for body, content_type, status, code in NO_FORMS:
        answer = await http.post("/files", content=body, headers={"content-type": content_type})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), body
        assert (await http.get("/files")).json()["data"] == [], body


async def test_file_that_is_too_large_is_refused_before_it_is_read(http: httpx.AsyncClient) -> None:
    files = {"file": ("big.bin", bytes(11 * 1024 * 1024))}
    answer = await http.post("/files", data={"purpose": "user_data"}, files=files)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


async def test_file_that_turns_out_too_large_leaves_nothing(http: httpx.AsyncClient, database: FileDatabase) -> None:
    async def form() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(11):
            yield bytes(PIECE)
        yield b"\r\n--x--\r\n"

    answer = await http.post("/files", content=form(), headers={"content-type": FORM})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    await until_no_pieces(database)


async def until_no_pieces(database: FileDatabase) -> None:
    """Wait until everything is erased: a sweep can leave work to the next sweep."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(database.pieces):
            await asyncio.sleep(0.01)


async def test_upload_whose_client_disconnects_leaves_nothing(server: str, database: FileDatabase) -> None:
    host, port = server.removeprefix("http://").split(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ada\r\nContent-Type: {FORM}\r\n"
    begin = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    begin += bytes(7 * PIECE)  # objects are written in parts of 5 MiB
    writer.write(f"{head}Content-Length: {9 * PIECE}\r\n\r\n".encode() + begin)
    await writer.drain()
    while not await asyncio.to_thread(database.pieces):
        await asyncio.sleep(0.01)
    writer.close()
    await writer.wait_closed()
    await until_no_pieces(database)


async def test_upload_that_was_abandoned_is_swept(database: FileDatabase) -> None:
    store = database.open()
    await store.contents.write("file-a", 0, b"all of it, and never added")
    await store.contents.finish("file-a")
    database.advance(ABANDONED_AFTER - 100)
    await store.sweep()
    assert database.pieces() == 1
    database.advance(200)
    await store.sweep()
    assert database.pieces() == 0
    await store.aclose()


async def test_files_are_shared_by_several_workers(database: FileDatabase) -> None:
    stores = [database.open() for _ in range(4)]

    async def use(number: int, store: FileStore) -> None:
        for n in range(10):
            await add_file(store, f"file-{number}-{n}")

    await asyncio.gather(*(use(number, store) for number, store in enumerate(stores)))
    for store in stores:
        assert len((await store.files("ada", Page(100)))[0]) == 40
        await store.aclose()


async def test_file_list_may_end_before_an_entry(database: FileDatabase) -> None:
    store = database.open()
    for n in range(6):
        await store.contents.write(f"file-{n}", 0, b"x")
        await store.add(File(f"file-{n}", "ada", "a.txt", "user_data", 1, n))
    newest, more = await store.files("ada", Page(2, descending=True, before="file-1"))
    assert ([file.id for file in newest], more) == (["file-3", "file-2"], True)
    between, more = await store.files("ada", Page(9, descending=False, after="file-1", before="file-4"))
    assert ([file.id for file in between], more) == (["file-2", "file-3"], False)
    for cursor in ("file-9", "file-0"):
        with pytest.raises(InvalidRequest, match="not found in this list"):
            await store.files("bob", Page(after=cursor))
    await store.aclose()


async def test_file_store_that_is_unavailable_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "files.db").write_bytes(b"this is no database" * 100)
    store = SQLiteFileStore.from_url(f"sqlite:///{tmp_path}/files.db")
    with pytest.raises(FilesUnavailable):
        await store.check()
    (tmp_path / "files.db").unlink()
    await store.check()
    await store.aclose()


async def test_file_name_is_no_path(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    file = await client.files.create(file=("../../etc/pass\nwd", b"a"), purpose="user_data")
    assert "/" not in file.filename
    answer = await http.get(f"/files/{file.id}/content")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


async def test_file_of_another_key_is_not_found(server: str, client: AsyncOpenAI) -> None:
    file = await client.files.create(file=("a.txt", b"secret"), purpose="user_data")
    async with openai_client(server, "bob") as bob:
        assert [one.id async for one in await bob.files.list()] == []
        for ask in (bob.files.retrieve, bob.files.content, bob.files.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(file.id)
    assert (await client.files.content(file.id)).content == b"secret"


async def test_files_of_a_key_are_bounded_and_deleting_makes_room(database: FileDatabase) -> None:
    tools = {"file_search": {**database.settings, "max_key_bytes": 1000}}
    async with antiphon(Scripted(), tools=tools, api_keys="ada,bob") as url:
        async with openai_client(url) as ada, openai_client(url, "bob") as bob:
            first = await ada.files.create(file=("a", bytes(600)), purpose="user_data")
            with pytest.raises(openai.APIStatusError) as refusal:
                await ada.files.create(file=("b", bytes(401)), purpose="user_data")
            assert (refusal.value.status_code, refusal.value.code) == (413, "storage_limit_exceeded")
            assert [file.id async for file in await ada.files.list()] == [first.id]
            await bob.files.create(file=("b", bytes(1000)), purpose="user_data")
            await ada.files.create(file=("b", bytes(400)), purpose="user_data")
            await ada.files.delete(first.id)
            await ada.files.create(file=("c", bytes(600)), purpose="user_data")


async def test_concurrent_uploads_do_not_exceed_the_limit_together(database: FileDatabase) -> None:
    files = Files(database.open(), max_bytes=100, max_owner_bytes=100)
    async with files.upload("ada") as one, files.upload("ada") as other:
        await one.write(bytes(60))
        await other.write(bytes(60))
        adding = [files.add("ada", content, "a.txt", "user_data", None) for content in (one, other)]
        ends = await asyncio.gather(*adding, return_exceptions=True)
        (refusal,) = [end for end in ends if not isinstance(end, File)]
        assert isinstance(refusal, InvalidRequest)
        assert "100 bytes" in refusal.message
    page = await files.list("ada", Page(), None)
    assert len(page["data"]) == 1  # type: ignore[arg-type]
    await files._store.aclose()


async def test_storing_and_searching_counts_against_rate_limits(tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(Scripted(), tools=tools, limit_requests_per_minute=4) as url:
        async with openai_client(url) as client:
            file = await client.files.create(file=("a.txt", b"apples"), purpose="assistants")
            store = await client.vector_stores.create()
            await client.vector_stores.files.create(store.id, file_id=file.id)
            await client.vector_stores.files.poll(file.id, vector_store_id=store.id, poll_interval_ms=10)
            await client.vector_stores.search(store.id, query="apples")
            for attempt in (
                lambda: client.vector_stores.search(store.id, query="apples"),
                lambda: client.files.create(file=("b.txt", b"b"), purpose="assistants"),
            ):
                with pytest.raises(openai.RateLimitError) as refusal:
                    await attempt()
                assert int(refusal.value.response.headers["retry-after"]) > 0
            assert (await client.files.retrieve(file.id)).id == file.id  # to look costs nothing
