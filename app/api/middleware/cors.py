"""Which web pages may read the answers, as browsers want to know it (CORS)."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from app.api.errors import answer
from app.api.middleware.origins import is_local_page
from app.errors import InvalidRequest


class Cors(CORSMiddleware):
    """Allows the origins that it is given, and pages of this machine, which are under development as a rule."""

    def is_allowed_origin(self, origin: str) -> bool:
        """Tell whether a page may read the answers."""
        return super().is_allowed_origin(origin) or is_local_page(origin)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to a preflight; a refusal is in the API's shape."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        message = f"{bytes(response.body).decode()}; ANTIPHON_CORS_ORIGINS names the pages that may use this server."
        return answer(InvalidRequest(message, code="origin_not_allowed", status=403))
