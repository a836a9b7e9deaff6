"""CORS: which web pages can read responses."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from app.api.errors import error_response
from app.api.middleware.origins import is_local_page
from app.errors import InvalidRequest


class Cors(CORSMiddleware):
    """Also allows local pages, usually in development."""

    def is_allowed_origin(self, origin: str) -> bool:
        return super().is_allowed_origin(origin) or is_local_page(origin)

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        message = f"{bytes(response.body).decode()}; ANTIPHON_CORS_ORIGINS lists the allowed origins."
        return error_response(InvalidRequest(message, code="origin_not_allowed", status=403))
