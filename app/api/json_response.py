"""JSON responses, encoded by orjson."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from app.core.bounded_json import dumps


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(value), headers=headers, media_type="application/json")
