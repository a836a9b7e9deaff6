from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.responses import StreamingResponse


async def file_download(content: AsyncIterator[bytes], filename: str, length: int | None = None) -> StreamingResponse:
    """
    A download that browsers never render as a page of this server's origin.

    Reads the first chunk before sending the status, so that unreadable files become errors.
    """
    first = await anext(content, b"")

    async def pieces() -> AsyncIterator[bytes]:
        if first:
            yield first
        async for piece in content:
            yield piece

    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(filename)}",
        "x-content-type-options": "nosniff",
        **({} if length is None else {"content-length": str(length)}),
    }
    return StreamingResponse(pieces(), headers=headers, media_type="application/octet-stream")
