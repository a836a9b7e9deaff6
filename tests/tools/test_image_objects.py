"""Generated images in object storage: they come and go with the records of the store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.assembly.image_objects import FIRST_CHECK, NEXT_CHECK, ImageObjectStore, with_image_objects
from app.stores import Change, ServerStore, images_partition
from app.stores.memory import MemoryStore
from app.tools.files.records.attachments import UNCHECKED_AFTER
from app.tools.files.sqlite import SQLiteFileStore
from tests.support.file_databases import ObjectFiles
from tests.support.logs import records_of
from tests.support.s3_server import S3Server
from tests.support.store_locations import TTL, StoreLocation, location_of
from tests.tools.test_stored_images import DRAW, EDIT, IMAGE, images_in, left, studio

BUCKET = "ada:c0ffee"
IMAGES = images_partition(BUCKET)
RECORD = b'{"ig_1":"' + IMAGE.encode() + b'"}'
TURN = Change(BUCKET, {"resp_1": b"a turn"})


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class Images:
    """A store with images in a folder and rows in SQLite."""

    def __init__(self, store: ServerStore, files: ObjectFiles) -> None:
        opened = files.open()
        assert isinstance(opened, SQLiteFileStore) and opened.attachments
        self.inner, self._files, self.opened = store, files, opened
        self.store = ImageObjectStore(store, opened.attachments)

    async def objects(self) -> int:
        """Return the number of objects after a sweep."""
        await self.opened.sweep()
        return self._files.pieces()


@contextlib.asynccontextmanager
async def images(location: StoreLocation, files: ObjectFiles) -> AsyncIterator[Images]:
    opened = Images(location.open(), files)
    yield opened
    await opened.store.aclose()
    await opened.opened.aclose()


@pytest.fixture
def files(tmp_path: Path) -> ObjectFiles:
    return ObjectFiles(tmp_path / "files.db")


async def test_generated_image_is_in_s3_as_long_as_its_response(
    s3: S3Server, location: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    table = {"store_url": f"sqlite:///{tmp_path}/files.db", "content_url": s3.patient_url}
    before = {*s3.objects()}
    async with studio(location.open(), *DRAW, *EDIT, tools={"file_search": table}) as at:
        first = await at.ask()
        assert images_in(first["output"]) == [IMAGE]
        (added,) = {*s3.objects()} - before
        assert added.startswith("files/object-") and not left(location)
        assert await at.get(f"/responses/{first['id']}") == first
        await at.ask(previous_response_id=first["id"])
        assert at.images.requests[-1][1]["image"]  # the stored image was edited
        await at.delete(f"/responses/{first['id']}")
        assert (await at.http.get(f"/responses/{first['id']}")).status_code == 404
    store = SQLiteFileStore.from_url(table["store_url"], opened_storage(s3))
    await store.sweep()
    await store.aclose()
    assert added not in s3.objects()


def opened_storage(s3: S3Server) -> Any:
    from app.storage.object_storage import ObjectStorage
    from app.tools.files import FilesUnavailable

    return ObjectStorage(s3.patient_url, s3.environment, FilesUnavailable)


async def test_image_record_is_a_reference_that_only_its_bucket_can_read(
    location: StoreLocation, files: ObjectFiles
) -> None:
    async with images(location, files) as at:
        assert await at.store.apply(TURN, Change(IMAGES, {"resp_1": RECORD}))
        assert await at.store.get(IMAGES, "resp_1") == RECORD
        assert await at.store.all(IMAGES) == {"resp_1": RECORD}
        assert await at.store.all(BUCKET) == {"resp_1": b"a turn"}
        reference = await at.inner.get(IMAGES, "resp_1")  # type: ignore[attr-defined]
        assert reference and len(reference) < 100
        for stranger in ("bob:c0ffee:images", "ada:decaf:images"):
            await at.inner.put(stranger, "resp_1", reference)  # type: ignore[attr-defined]
            assert await at.store.get(stranger, "resp_1") is None


async def test_image_of_a_change_that_is_not_made_is_deleted(location: StoreLocation, files: ObjectFiles) -> None:
    async with images(location, files) as at:
        assert not await at.store.apply(TURN._replace(requires="missing"), Change(IMAGES, {"resp_1": RECORD}))
        assert await at.objects() == 0


@pytest.mark.parametrize("how", ["delete", "change", "drop", "replace"])
async def test_image_is_deleted_with_its_record(location: StoreLocation, files: ObjectFiles, how: str) -> None:
    async with images(location, files) as at:
        await at.store.put(IMAGES, "resp_1", RECORD)
        await at.store.put(IMAGES, "resp_2", b'{"ig_2":"x"}')
        assert await at.objects() == 2
        match how:
            case "delete":
                assert await at.store.delete(IMAGES, "resp_1")
            case "change":
                await at.store.apply(Change(IMAGES, {}, delete=["resp_1"]))
            case "drop":
                assert await at.store.delete_partition(IMAGES)
            case "replace":
                await at.store.put(IMAGES, "resp_1", b'{"ig_1":"y"}')
        left = {"resp_2": b'{"ig_2":"x"}'}
        expected = {"drop": {}, "replace": {**left, "resp_1": b'{"ig_1":"y"}'}}.get(how, left)
        assert await at.store.all(IMAGES) == expected
        assert await at.objects() == len(expected)


async def test_image_of_an_expired_record_is_deleted_by_a_check(location: StoreLocation, files: ObjectFiles) -> None:
    async with images(location, files) as at:
        await at.store.put(IMAGES, "resp_1", RECORD)
        files.advance(FIRST_CHECK + 1)
        await at.store.delete_expired()
        assert await at.store.get(IMAGES, "resp_1") == RECORD
        location.advance(TTL * 1.1)
        await at.store.delete_expired()
        assert await at.objects() == 1  # until the next check
        files.advance(NEXT_CHECK + 1)
        await at.store.delete_expired()
        assert await at.objects() == 0


async def test_check_does_not_renew_the_record(location: StoreLocation, files: ObjectFiles) -> None:
    async with images(location, files) as at:
        await at.store.put(IMAGES, "resp_1", RECORD)
        location.advance(TTL * 0.6)
        files.advance(FIRST_CHECK + 1)
        await at.store.delete_expired()
        location.advance(TTL * 0.6)
        assert await at.store.get(IMAGES, "resp_1") is None


async def test_image_of_another_store_is_not_checked(
    location: StoreLocation, files: ObjectFiles, tmp_path: Path
) -> None:
    from app.stores.sqlite import SQLiteStore

    async with images(location, files) as at:
        await at.store.put(IMAGES, "resp_1", RECORD)
        files.advance(FIRST_CHECK + 1)
        other = Images(SQLiteStore(tmp_path / "other.db", ttl=TTL), files)
        await other.store.delete_expired()
        assert await at.objects() == 1
        files.advance(UNCHECKED_AFTER)
        assert await at.objects() == 0
        await other.store.aclose()
        await other.opened.aclose()


async def test_image_is_stored_with_its_response_in_an_outage(
    location: StoreLocation, files: ObjectFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.folder.write_text("not a folder")
    with pytest.raises(ValueError, match="cannot be opened"):
        files.open()
    files.folder.unlink()
    async with images(location, files) as at:
        files.folder.rmdir()
        files.folder.write_text("not a folder")
        with caplog.at_level(logging.WARNING):
            await at.store.put(IMAGES, "resp_1", RECORD)
        assert "image stored with its response" in [record.message for record in records_of(caplog, "app.assembly")]
        assert await at.store.get(IMAGES, "resp_1") == RECORD


async def test_quota_counts_images_in_object_storage(location: StoreLocation, files: ObjectFiles) -> None:
    async with images(location, files) as at:
        await at.store.stored_bytes("ada")
        await at.store.put(IMAGES, "resp_1", RECORD)
        assert len(RECORD) <= await at.store.stored_bytes("ada") < len(RECORD) + 10_000
        assert await at.store.stored_bytes("bob") < 10_000
        assert await at.opened.stored_bytes("ada") == 0  # files have a separate quota


def test_memory_of_a_process_keeps_its_images(files: ObjectFiles) -> None:
    store, opened = MemoryStore(ttl=TTL), files.open()
    assert with_image_objects(store, opened.attachments) is store  # type: ignore[attr-defined]
