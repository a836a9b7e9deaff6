"""
Files: upload, list, retrieve, read and delete; and multipart uploads, `/v1/uploads`. Results have OpenAI's shapes.

With a multipart upload, a large file is sent in several requests and completed from its parts. Each part is stored like
a file. A completed file is a list of parts, so no content is copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, StringConstraints, field_validator

from app.core.types.request import WITHOUT_NUL, RequestBody
from app.errors import InvalidRequest
from app.tools.files import BATCH_LIFETIME, File, Page, file_not_found, list_page, new_file_id
from app.tools.files.records import FileStore
from app.tools.files.records.contents import ContentWriter
from app.tools.files.records.uploads import UPLOAD_LIFETIME, MultipartUpload, UploadPart, storage_full

Purpose: TypeAlias = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
PURPOSES: tuple[str, ...] = get_args(Purpose)
MIN_LIFETIME, MAX_LIFETIME = 3600, 30 * 86400  # seconds; range for `expires_after`
MAX_FILENAME = 512  # characters


class Files:
    def __init__(
        self, store: FileStore, *, max_bytes: int, max_owner_bytes: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        """`max_bytes` limits a file, `max_owner_bytes` an owner's files in total; 0 means no limit."""
        self._store, self._clock = store, clock
        self.max_bytes, self.max_owner_bytes = max_bytes, max_owner_bytes or None

    @contextlib.asynccontextmanager
    async def upload(self, owner: str) -> AsyncIterator[ContentWriter]:
        """Receive a file's content, which is deleted on exit unless it was passed to `add`."""
        limits = [(self.max_bytes, upload_too_large(self.max_bytes))]
        if (limit := self.max_owner_bytes) is not None:
            limits.insert(0, (limit - await self._store.stored_bytes(owner), storage_full(limit, "file")))
        async with ContentWriter(self._store.contents, new_file_id(), limits) as content:
            yield content

    async def add(self, owner: str, content: ContentWriter, filename: str, purpose: str, lifetime: int | None) -> File:
        """Make an uploaded file visible; `lifetime` is in seconds. Raises `InvalidRequest`."""
        if purpose not in PURPOSES:
            raise InvalidRequest(f"Invalid 'purpose': must be one of {', '.join(PURPOSES)}.", param="purpose")
        if not content.bytes:
            raise InvalidRequest("Invalid 'file': must not be empty.", param="file")
        await content.flush()
        now = int(self._clock())
        expires_at = expiry_of(now, purpose, lifetime)
        file = File(content.id, owner, cleaned_filename(filename), purpose, content.bytes, now, expires_at)
        await self._store.add(file, self.max_owner_bytes)  # checks the quota again, because of concurrent uploads
        content.committed = True
        return file

    async def list(self, owner: str, page: Page, purpose: str | None) -> dict[str, object]:
        files, more = await self._store.files(owner, page, purpose)
        return list_page([file.resource() for file in files], more)

    async def file(self, owner: str, file_id: str) -> File:
        file = await self._store.file(owner, file_id)
        if file is None:
            raise file_not_found(file_id)
        return file

    def content(self, file: File) -> AsyncIterator[bytes]:
        return self._store.content(file.id)

    async def delete(self, owner: str, file_id: str) -> dict[str, object]:
        if not await self._store.delete(owner, file_id):
            raise file_not_found(file_id)
        return {"id": file_id, "object": "file", "deleted": True}


def expiry_of(created_at: int, purpose: str, lifetime: int | None) -> int | None:
    """`lifetime` is in seconds."""
    if lifetime is None and purpose == "batch":
        lifetime = BATCH_LIFETIME
    return None if lifetime is None else created_at + lifetime


def upload_too_large(limit: int, field: str = "file") -> InvalidRequest:
    message = f"The {'file' if field == 'file' else 'part'} is larger than {limit} bytes."
    return InvalidRequest(message, param=field, code="request_too_large", status=413)


def cleaned_filename(filename: str) -> str:
    """Return the last path segment, without control characters."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    name = "".join(char for char in name if char.isprintable())
    return name[-MAX_FILENAME:] or "file"


MAX_PART_BYTES = 64 * 1024 * 1024
MAX_PARTS_OF_FILE = 10_000


class FileExpiry(RequestBody):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=MIN_LIFETIME, le=MAX_LIFETIME)]


class CreateUpload(RequestBody):
    bytes: Annotated[int, Field(ge=1)]
    filename: Annotated[str, StringConstraints(min_length=1, max_length=4096), WITHOUT_NUL]
    mime_type: Annotated[str, StringConstraints(max_length=256)]  # ignored: the file name determines the type
    purpose: Purpose
    expires_after: FileExpiry | None = None


class CompleteUpload(RequestBody):
    part_ids: Annotated[
        list[Annotated[str, StringConstraints(max_length=128), WITHOUT_NUL]],
        Field(min_length=1, max_length=MAX_PARTS_OF_FILE),
    ]
    md5: Annotated[str, StringConstraints(pattern="^[0-9a-fA-F]{32}$")] | None = None

    @field_validator("part_ids")
    @classmethod
    def _are_different(cls, part_ids: list[str]) -> list[str]:
        if len(set(part_ids)) < len(part_ids):
            raise ValueError("must not contain duplicates")
        return part_ids


class MultipartUploads:
    def __init__(
        self, store: FileStore, *, max_bytes: int, max_owner_bytes: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        """`max_bytes` limits a file, `max_owner_bytes` an owner's files in total; 0 means no limit."""
        self._store, self._records = store, store.uploads
        self._max_bytes, self._max_owner_bytes, self._clock = max_bytes, max_owner_bytes or None, clock

    async def create(self, owner: str, body: CreateUpload) -> dict[str, object]:
        """The declared bytes count as stored immediately. Raises `InvalidRequest`."""
        if body.bytes > self._max_bytes:
            message = f"Invalid 'bytes': must be at most {self._max_bytes}."
            raise InvalidRequest(message, param="bytes", code="request_too_large", status=413)
        now = int(self._clock())
        lifetime = body.expires_after.seconds if body.expires_after else None
        upload = MultipartUpload(
            f"upload_{secrets.token_hex(16)}",
            owner,
            cleaned_filename(body.filename),
            body.purpose,
            body.bytes,
            now,
            now + UPLOAD_LIFETIME,
            lifetime,
        )
        await self._records.create(upload, self._max_owner_bytes)
        return upload.resource()

    async def add_part(self, owner: str, upload_id: str, data: AsyncIterable[bytes]) -> dict[str, object]:
        """Store a part on arrival; raises `InvalidRequest`."""
        upload = await self._records.get(owner, upload_id)
        _check_pending(upload)
        max_part_bytes = min(MAX_PART_BYTES, upload.bytes)
        limits = [(max_part_bytes, upload_too_large(max_part_bytes, "data"))]
        async with ContentWriter(self._store.contents, f"part_{secrets.token_hex(16)}", limits) as content:
            async for piece in data:
                await content.write(piece)
            if not content.bytes:
                raise InvalidRequest("Invalid 'data': must not be empty.", param="data")
            await content.flush()
            part = UploadPart(content.id, upload.id, content.bytes, int(self._clock()))
            # Twice the file size and more, since clients resend a part after losing the response.
            max_bytes = 2 * upload.bytes + MAX_PART_BYTES
            await self._records.add_part(part, max_bytes, self._max_owner_bytes)
            content.committed = True
        return part.resource()

    async def complete(self, owner: str, upload_id: str, body: CompleteUpload) -> dict[str, object]:
        """
        Create the file from the parts, in request order, and return the upload.

        Idempotent, for clients that did not receive the first response. Raises `InvalidRequest` if the parts do not
        match the upload, its size, or the request's MD5.
        """
        upload = await self._records.get(owner, upload_id)
        if upload.status != "pending":
            return await self._completed(upload)
        parts = await self._records.parts(upload.id)
        for index, part_id in enumerate(body.part_ids):
            if part_id not in parts:
                raise InvalidRequest(f"Part '{part_id}' not found in the upload.", param=f"part_ids[{index}]")
        size = sum(parts[part_id] for part_id in body.part_ids)
        if size != upload.bytes:
            message = f"The parts have {size} bytes in total; must be {upload.bytes}, as declared in the upload."
            raise InvalidRequest(message, param="part_ids")
        if body.md5:
            digest = hashlib.md5(usedforsecurity=False)
            for part_id in body.part_ids:
                async for piece in self._store.part_content(part_id):
                    await asyncio.to_thread(digest.update, piece)
            if digest.hexdigest() != body.md5.lower():
                raise InvalidRequest("The MD5 of the assembled parts does not match.", param="md5")
        now = int(self._clock())
        expires_at = expiry_of(now, upload.purpose, upload.lifetime)
        file = File(new_file_id(), owner, upload.filename, upload.purpose, size, now, expires_at)
        if not await self._records.complete(upload, body.part_ids, file):
            return await self._completed(await self._records.get(owner, upload_id))  # perhaps by a concurrent request
        return replace(upload, status="completed", file_id=file.id).resource(file)

    async def cancel(self, owner: str, upload_id: str) -> dict[str, object]:
        """Raises `InvalidRequest` if the upload was completed."""
        upload = await self._records.get(owner, upload_id)
        if upload.status == "cancelled":
            return upload.resource()
        _check_pending(upload)
        if not await self._records.cancel(upload):
            _check_pending(await self._records.get(owner, upload_id))
        return replace(upload, status="cancelled").resource()

    async def _completed(self, upload: MultipartUpload) -> dict[str, object]:
        if upload.status != "completed":
            _check_pending(upload)
        return upload.resource(await self._store.file(upload.owner, upload.file_id or ""))


def _check_pending(upload: MultipartUpload) -> None:
    if upload.status != "pending":
        raise InvalidRequest(f"The upload is {upload.status}. Create a new one.", param="upload_id")
