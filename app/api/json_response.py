"""JSON responses, encoded by orjson."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.responses import Response

from app.core.types import request
from app.core.types.bounded_json import dumps_in_pieces
from app.core.types.response import is_large_response
from app.responses.off_loop import off_loop


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return a 200 response with `value` as its JSON body."""
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")


async def whole_response(response: request.Response, headers: Mapping[str, str] | None = None) -> Response:
    """Return a 200 with a response of the API as its JSON body; a large one is encoded off the event loop."""
    if not is_large_response(response):
        return json_response(response, headers)
    body = await off_loop(True, dumps_in_pieces, response)
    return Response(body, headers=headers, media_type="application/json")
