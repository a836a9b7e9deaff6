"""Responses that are files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.responses import StreamingResponse


def file_download(content: AsyncIterator[bytes], filename: str, length: int | None = None) -> StreamingResponse:
    """Return a file that no browser renders as a page of this server's origin, whatever was uploaded or written."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(filename)}",
        "x-content-type-options": "nosniff",
        **({} if length is None else {"content-length": str(length)}),
    }
    return StreamingResponse(content, headers=headers, media_type="application/octet-stream")
