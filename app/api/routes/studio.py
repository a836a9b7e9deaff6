"""Web pages: the studio at `/studio` and the API reference at `/docs`. All of their files are in the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from app.api.routes.lazy_route import LazyRoute
from app.errors import NotFound

PAGES = Path(str(files("app.studio")))

# Nothing is loaded from other hosts, there are no inline scripts or styles, and no other page may frame this one.
# Model output becomes markup only through DOMPurify.
STUDIO_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
# Swagger UI sets inline styles.
DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_TYPES = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def studio_routes() -> APIRouter:
    """Return the routes of the studio."""
    router = APIRouter(route_class=LazyRoute, include_in_schema=False)

    @router.head("/")
    @router.get("/")
    async def root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise NotFound(f"There is no {request.method} / here; the API is under /v1.", code="unknown_url")
        return RedirectResponse("studio")

    @router.head("/studio")
    @router.get("/studio")
    async def studio() -> Response:
        return _page("index.html", STUDIO_POLICY)

    @router.get("/studio/")
    async def with_slash() -> Response:
        return RedirectResponse("../studio")

    @router.get("/studio/icon.svg")
    async def icon() -> Response:
        return FileResponse(PAGES / "icon.svg", headers=_HEADERS)

    for folder in ("css", "js", "vendor"):
        router.routes.append(Mount(f"/studio/{folder}", _Files(directory=PAGES / folder)))
    return router


def docs_routes() -> APIRouter:
    """Return the routes of the API reference."""
    router = APIRouter(route_class=LazyRoute, include_in_schema=False)

    @router.head("/docs")
    @router.get("/docs")
    async def docs() -> Response:
        return _page("docs/index.html", DOCS_POLICY)

    @router.get("/docs/")
    async def with_slash() -> Response:
        return RedirectResponse("../docs")

    router.routes.append(Mount("/docs/page", _Files(directory=PAGES / "docs")))
    router.routes.append(Mount("/docs/swagger-ui", _Files(directory=PAGES / "vendor" / "swagger-ui-dist")))
    return router


def _page(name: str, policy: str) -> Response:
    return FileResponse(PAGES / name, headers={**_HEADERS, "Content-Security-Policy": policy})


class _Files(StaticFiles):
    """The static files of a page, with the headers of the page."""

    def file_response(self, full_path: Any, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        response.headers.update(_HEADERS)
        if media_type := _TYPES.get(Path(full_path).suffix):  # the system's table of MIME types may differ
            response.headers["Content-Type"] = f"{media_type}; charset=utf-8"
        return response
