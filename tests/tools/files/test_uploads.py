"""Files are uploaded in parts, with OpenAI's own client and by hand."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Upload

from app.errors import InvalidRequest, NotFound
from app.tools.files import ABANDONED_AFTER, PIECE
from app.tools.files.records.uploads import ENDED_TTL, UPLOAD_LIFETIME
from app.tools.files.uploads import CompleteUpload, CreateUpload, MultipartUploads
from tests.support.file_databases import FileDatabase
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.files.conftest import openai_client, pieces

CONTENT = bytes(range(256)) * 10_000  # more than two pieces
THIRD = len(CONTENT) // 3


async def create(client: AsyncOpenAI, size: int = len(CONTENT)) -> Upload:
    return await client.uploads.create(bytes=size, filename="a.txt", mime_type="text/plain", purpose="user_data")


async def add(client: AsyncOpenAI, upload: Upload, data: bytes) -> str:
    return (await client.uploads.parts.create(upload.id, data=("part", data))).id


async def test_file_is_uploaded_in_chunks_by_the_client(client: AsyncOpenAI, tmp_path: Path) -> None:
    (tmp_path / "naïve.txt").write_bytes(CONTENT)
    upload = await client.uploads.upload_file_chunked(
        file=tmp_path / "naïve.txt",
        mime_type="text/plain",
        purpose="user_data",
        part_size=1_000_000,
        md5=hashlib.md5(CONTENT, usedforsecurity=False).hexdigest(),
    )
    assert (upload.object, upload.status, upload.bytes) == ("upload", "completed", len(CONTENT))
    assert upload.file
    assert (upload.file.filename, upload.file.bytes, upload.file.purpose) == ("naïve.txt", len(CONTENT), "user_data")
    assert await client.files.retrieve(upload.file.id) == upload.file
    assert (await client.files.content(upload.file.id)).content == CONTENT


async def test_parts_that_arrive_in_another_order_are_joined_in_that_of_the_request(client: AsyncOpenAI) -> None:
    upload = await create(client)
    assert (upload.status, upload.file, upload.expires_at) == ("pending", None, upload.created_at + UPLOAD_LIFETIME)
    third, first, second = await asyncio.gather(
        add(client, upload, CONTENT[2 * THIRD :]),
        add(client, upload, CONTENT[:THIRD]),
        add(client, upload, CONTENT[THIRD : 2 * THIRD]),
    )
    completed = await client.uploads.complete(upload.id, part_ids=[first, second, third])
    assert completed.file
    assert (await client.files.content(completed.file.id)).content == CONTENT


async def test_file_of_parts_is_searched(client: AsyncOpenAI) -> None:
    upload = await create(client, 24)
    parts = [await add(client, upload, data) for data in (b"the cellar ", b"has apples.  ")]
    file = (await client.uploads.complete(upload.id, part_ids=parts)).file
    assert file
    store = await client.vector_stores.create()
    await client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
    found = await client.vector_stores.search(store.id, query="apples")
    assert [result.content[0].text.strip() for result in found.data] == ["the cellar has apples."]


async def test_upload_that_is_completed_again_has_the_same_file(client: AsyncOpenAI) -> None:
    upload = await create(client, 3)
    part = await add(client, upload, b"abc")
    results = await asyncio.gather(*(client.uploads.complete(upload.id, part_ids=[part]) for _ in range(4)))
    results.append(await client.uploads.complete(upload.id, part_ids=[part]))
    assert len({result.file and result.file.id for result in results}) == 1
    assert len((await client.files.list()).data) == 1


async def swept(database: FileDatabase, pieces: int) -> None:
    """Sweep until so many pieces are left: the server of the test may just be erasing the others."""
    store = database.open()
    try:
        async with asyncio.timeout(60):
            while True:
                await store.sweep()
                if database.pieces() == pieces:
                    return
                await asyncio.sleep(0.05)
    finally:
        await store.aclose()


async def test_part_that_was_sent_again_is_left_out(client: AsyncOpenAI, database: FileDatabase) -> None:
    upload = await create(client, 3)
    _lost, part = await add(client, upload, b"abc"), await add(client, upload, b"abc")
    file = (await client.uploads.complete(upload.id, part_ids=[part])).file
    assert file
    assert (await client.files.content(file.id)).content == b"abc"
    await swept(database, 1)


OTHER_BYTES: list[tuple[dict[str, Any], str]] = [
    ({"part_ids": ["part_unknown"]}, "part_ids[0]"),
    ({"part_ids": []}, "part_ids"),
    ({"part_ids": ["FIRST"]}, "part_ids"),  # wrong size
    ({"part_ids": ["FIRST", "FIRST"]}, "part_ids"),
    ({"md5": "0" * 32}, "md5"),
    ({"md5": "no digest"}, "md5"),
]


async def test_upload_with_other_bytes_than_the_file_is_not_completed(
    client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    upload = await create(client, 6)
    parts = [await add(client, upload, b"abc"), await add(client, upload, b"def")]
    for change, param in OTHER_BYTES:
        body = {"part_ids": parts, **change}
        body["part_ids"] = [parts[0] if part == "FIRST" else part for part in body["part_ids"]]
        answer = await http.post(f"/uploads/{upload.id}/complete", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), change
        assert (await client.files.list()).data == [], change
    md5 = hashlib.md5(b"abcdef", usedforsecurity=False).hexdigest().upper()
    assert (await client.uploads.complete(upload.id, part_ids=parts, md5=md5)).status == "completed"


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"bytes": 0}, 400, "bytes"),
    ({"bytes": None}, 400, "bytes"),
    ({"bytes": 9 * 1024**3}, 413, "bytes"),
    ({"purpose": "fun"}, 400, "purpose"),
    ({"filename": ""}, 400, "filename"),
    ({"expires_after": {"anchor": "created_at", "seconds": 5}}, 400, "expires_after.seconds"),
]


async def test_upload_that_no_file_can_come_of_is_refused(http: httpx.AsyncClient) -> None:
    for change, status, param in REFUSED:
        body = {"bytes": 3, "filename": "a", "mime_type": "text/plain", "purpose": "user_data", **change}
        answer = await http.post("/uploads", json={name: value for name, value in body.items() if value is not None})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), change


async def test_file_expires_as_the_upload_says(client: AsyncOpenAI) -> None:
    upload = await client.uploads.create(
        bytes=1,
        filename="a",
        mime_type="text/plain",
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    file = (await client.uploads.complete(upload.id, part_ids=[await add(client, upload, b"a")])).file
    assert file
    assert file.expires_at == file.created_at + 3600


async def test_part_that_is_too_large_is_refused_before_it_is_read(
    client: AsyncOpenAI, http: httpx.AsyncClient, database: FileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await create(client, 2 * PIECE)
    with pytest.raises(openai.APIStatusError) as refusal:
        await add(client, upload, bytes(2 * PIECE + 1))
    assert (refusal.value.status_code, refusal.value.code, refusal.value.param) == (413, "request_too_large", "data")
    monkeypatch.setattr("app.api.routes.files.MAX_PART_BYTES", PIECE)
    answer = await http.post(f"/uploads/{upload.id}/parts", files={"data": ("part", bytes(2 * PIECE))})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    await swept(database, 0)


async def test_parts_of_many_times_the_file_are_refused(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tools.files.uploads.MAX_PART_BYTES", 10)
    upload = await create(client, 3)
    for _ in range(5):
        await add(client, upload, b"abc")
    with pytest.raises(openai.BadRequestError, match="in total"):
        await add(client, upload, b"abc")


async def test_cancelled_upload_takes_no_parts_and_is_erased(client: AsyncOpenAI, database: FileDatabase) -> None:
    upload = await create(client)
    part = await add(client, upload, CONTENT)
    assert database.pieces() in (1, 3)  # an object, or pieces of 1 MiB
    assert (await client.uploads.cancel(upload.id)).status == "cancelled"
    assert (await client.uploads.cancel(upload.id)).status == "cancelled"
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: add(client, upload, b"x"),
        lambda: client.uploads.complete(upload.id, part_ids=[part]),
    ]
    for attempt in attempts:
        with pytest.raises(openai.BadRequestError, match="cancelled"):
            await attempt()
    await swept(database, 0)


async def test_deleted_file_of_parts_is_erased(client: AsyncOpenAI, database: FileDatabase) -> None:
    upload = await create(client, 150 * 10)
    parts = [await add(client, upload, b"x" * 10) for _ in range(150)]
    file = (await client.uploads.complete(upload.id, part_ids=parts)).file
    assert file
    assert database.pieces() == 150
    await client.files.delete(file.id)
    store = database.open()
    assert [piece async for piece in store.content(file.id)] == []
    await store.aclose()
    await swept(database, 0)


async def test_upload_that_is_not_completed_in_time_expires(database: FileDatabase) -> None:
    store = database.open()
    uploads = MultipartUploads(store, max_bytes=100, max_owner_bytes=10, clock=database.now)
    body = CreateUpload(bytes=10, filename="a", mime_type="text/plain", purpose="user_data")
    upload = await uploads.create("ada", body)
    part = await uploads.add_part("ada", str(upload["id"]), pieces(bytes(10)))
    database.advance(ABANDONED_AFTER + 100)  # an upload with a part is not abandoned
    assert await store.stored_bytes("ada") == 0
    for sweeps in range(2):
        with pytest.raises(InvalidRequest, match="expired"):
            await uploads.complete("ada", str(upload["id"]), CompleteUpload(part_ids=[str(part["id"])]))
        await store.sweep()
        assert database.pieces() == 0, sweeps
    database.advance(ENDED_TTL + UPLOAD_LIFETIME)
    await store.sweep()
    with pytest.raises(NotFound):
        await store.uploads.get("ada", str(upload["id"]))
    await store.aclose()


async def test_uploads_count_against_the_storage_of_a_key_before_they_are_completed(database: FileDatabase) -> None:
    tools = {"file_search": {**database.settings, "max_key_bytes": 1000}}
    async with antiphon(Scripted(), tools=tools, api_keys="ada,bob") as url:
        async with openai_client(url) as ada, openai_client(url, "bob") as bob:
            upload = await create(ada, 600)
            refused: list[Callable[[], Awaitable[object]]] = [
                lambda: create(ada, 401),
                lambda: ada.files.create(file=("b", bytes(401)), purpose="user_data"),
            ]
            for attempt in refused:
                with pytest.raises(openai.APIStatusError) as refusal:
                    await attempt()
                assert (refusal.value.status_code, refusal.value.code) == (413, "storage_limit_exceeded")
            await create(bob, 1000)
            parts = [await add(ada, upload, bytes(300)) for _ in range(3)]  # includes a repetition
            with pytest.raises(openai.APIStatusError) as refusal:
                await add(ada, upload, bytes(101))
            assert (refusal.value.status_code, refusal.value.code) == (413, "storage_limit_exceeded")
            await ada.uploads.complete(upload.id, part_ids=parts[:2])
            await ada.files.create(file=("b", bytes(400)), purpose="user_data")


async def test_upload_of_another_key_does_not_exist(server: str, client: AsyncOpenAI) -> None:
    upload = await create(client, 3)
    part = await add(client, upload, b"abc")
    async with openai_client(server, "bob") as bob:
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: add(bob, upload, b"x"),
            lambda: bob.uploads.complete(upload.id, part_ids=[part]),
            lambda: bob.uploads.cancel(upload.id),
        ]
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError, match=f"No such Upload object: {upload.id}"):
                await attempt()
        own = await create(bob, 3)
        with pytest.raises(openai.BadRequestError, match="not found in the upload"):
            await bob.uploads.complete(own.id, part_ids=[part])
    assert (await client.uploads.complete(upload.id, part_ids=[part])).status == "completed"
