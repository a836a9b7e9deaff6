"""Resolves uploaded files in request input: replaces each `file_id` with the file's content."""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Sequence

from app.core.types import with_fields
from app.core.types.content import IMAGES
from app.core.types.request import Item, Part
from app.errors import InvalidRequest, NotFound, Warnings
from app.tools.files import File, file_not_found
from app.tools.files.records import FileStore

MAX_INPUT_FILE_BYTES = 32 * 1024 * 1024  # per request; held in memory and sent to the backend

_FIELDS = ("content", "output")
_PARTS = frozenset({"input_file", *IMAGES})
_IMAGES = (  # by file signature
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


class StoredFiles:
    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def resolve(self, items: Sequence[Item], new: Sequence[Item], owner: str, warnings: Warnings) -> list[Item]:
        """
        Return `items` with file contents; `items` is not modified.

        If a file is missing, an item in `new` raises `NotFound` with the field. In an item from an earlier turn, the
        file is omitted with a warning.
        """
        param_paths = {id(item): f"input[{index}]" for index, item in enumerate(new)}
        reader = _Reader(self._store, owner)
        resolved = []
        for item in items:
            changed = {}
            for field in _FIELDS:
                parts = item.get(field)
                if not isinstance(parts, list) or not any(map(_references_file, parts)):
                    continue
                param_path = param_paths.get(id(item))
                field_path = None if param_path is None else f"{param_path}.{field}"
                changed[field] = [
                    await reader.part(part, field_path and f"{field_path}[{index}].file_id", warnings)
                    for index, part in enumerate(parts)
                ]
            resolved.append(with_fields(item, changed) if changed else item)
        return resolved


def _references_file(part: object) -> bool:
    return (
        isinstance(part, dict)
        and bool(part.get("file_id"))
        and part.get("type") in _PARTS
        and not any(part.get(name) for name in ("file_data", "file_url", "image_url"))
    )


class _Reader:
    """Reads each file once, and at most `MAX_INPUT_FILE_BYTES` in total."""

    def __init__(self, store: FileStore, owner: str) -> None:
        self._store, self._owner = store, owner
        self._read: dict[str, tuple[File, bytes]] = {}
        self._budget = MAX_INPUT_FILE_BYTES

    async def part(self, part: Part, param: str | None, warnings: Warnings) -> Part:
        """`param` is the part's field for errors; None in an earlier turn."""
        if not _references_file(part):
            return part
        file_id = str(part["file_id"])
        try:
            return _with_content(part, *await self._content(file_id))
        except (NotFound, InvalidRequest) as error:
            if param is not None:
                error.param = param
                raise
            warnings.add(f"The file {file_id} of an earlier turn was omitted: it is no longer available.")
            return {"type": "input_text", "text": "(A file was omitted: it is no longer available.)"}

    async def _content(self, file_id: str) -> tuple[File, bytes]:
        if file_id not in self._read:
            file = await self._store.file(self._owner, file_id)
            if file is None:
                raise file_not_found(file_id)
            if file.bytes > self._budget:
                message = (
                    f"The files in a request must have at most {MAX_INPUT_FILE_BYTES} bytes in total. "
                    "Use file_search for larger files."
                )
                raise InvalidRequest(message, code="request_too_large")
            self._budget -= file.bytes
            self._read[file_id] = file, b"".join([piece async for piece in self._store.content(file_id)])
        return self._read[file_id]


def _with_content(part: Part, file: File, data: bytes) -> Part:
    resolved: Part = {**part}
    del resolved["file_id"]
    if part["type"] in IMAGES:
        media_type = next((media_type for signature, media_type in _IMAGES if signature.match(data)), None)
        if media_type is None:
            raise InvalidRequest("The file must be a PNG, JPEG, GIF or WebP image.")
        resolved["image_url"] = _data_url(media_type, data)
    else:
        resolved["filename"] = part.get("filename") or file.filename
        resolved["file_data"] = _data_url(mimetypes.guess_type(file.filename)[0] or "application/octet-stream", data)
    return resolved


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
