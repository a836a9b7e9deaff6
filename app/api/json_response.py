"""JSON responses, encoded by orjson."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from app.core.bounded_json import dumps

_CONTENT_TYPE = (b"content-type", b"application/json")


def json_response(value: object, headers: Mapping[str, str] = {}) -> Response:
    return _JSONResponse(dumps(value), headers)


class _JSONResponse(Response):
    """Sets the headers without Starlette's checks for other types."""

    def __init__(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.status_code, self.background, self.body = 200, None, body
        self.raw_headers = [
            *[(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            (b"content-length", b"%d" % len(body)),
            _CONTENT_TYPE,
        ]
