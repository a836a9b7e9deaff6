"""JSON responses, encoded by orjson."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.core.bounded_json import dumps, pieces_sized
from app.core.size import Size
from app.off_loop import off_loop


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return a 200 response with a small `value` as its JSON body."""
    return Response(dumps(value), headers=headers, media_type="application/json")


async def sized_response(value: object, headers: Mapping[str, str] | None = None, size: Size | None = None) -> Response:
    """
    Return a 200 with `value` as its JSON body; a large one is encoded off the event loop, and sent in pieces.

    `size` is its size, if that is known.
    """
    size = Size.of(value) if size is None else size
    pieces = await off_loop(size, pieces_sized, value, size)
    if len(pieces) == 1:
        return Response(pieces[0], headers=headers, media_type="application/json")
    return LargeResponse(pieces, headers)


class LargeResponse(Response):
    """A 200 with JSON that is sent in pieces, each of which is freed when it is sent."""

    def __init__(self, pieces: list[bytes], headers: Mapping[str, str] | None = None) -> None:
        length = str(sum(map(len, pieces)))
        super().__init__(None, headers={**(headers or {}), "content-length": length}, media_type="application/json")
        pieces.reverse()
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while self._pieces:
            piece = self._pieces.pop()
            await send({"type": "http.response.body", "body": piece, "more_body": bool(self._pieces)})
            await asyncio.sleep(0)  # for other requests
