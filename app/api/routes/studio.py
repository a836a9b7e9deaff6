"""Web pages: the studio at `/studio` and the API reference at `/docs`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from app.api.openapi import LazyRoute
from app.errors import NotFound
from app.studio import SERVED_FOLDERS, Asset, Assets

# No other hosts, no inline scripts or styles, no framing by other pages. Model output becomes markup only through
# DOMPurify.
STUDIO_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
# Model-written HTML, SVG or diagrams. Scripts run in a frame without origin and network; the studio's `frame-src`
# prevents it from navigating elsewhere.
PREVIEW_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:; media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "sandbox allow-scripts"
)
# Swagger UI sets inline styles.
DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Vary": "Accept-Encoding",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_REVALIDATED = "no-cache"
_IMMUTABLE = "public, max-age=31536000, immutable"  # for versioned URLs


_READ = ["GET", "HEAD"]


def studio_routes() -> APIRouter:
    router = APIRouter(route_class=LazyRoute, include_in_schema=False)
    assets = Assets()

    @router.api_route("/", methods=_READ)
    async def root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise NotFound(f"{request.method} / not found. The API is under /v1.", code="unknown_url")
        return RedirectResponse("studio")

    @router.api_route("/studio", methods=_READ)
    async def studio(request: Request) -> Response:
        if "modules" in request.query_params:  # separate files, for debugging
            return await _file(assets, "index.html", request, policy=STUDIO_POLICY)
        return _response((await asyncio.to_thread(assets.studio)).page, request, policy=STUDIO_POLICY)

    @router.get("/studio/")
    async def with_slash() -> Response:
        return RedirectResponse("../studio")

    @router.get("/studio/preview")
    async def preview(request: Request) -> Response:
        response = await _file(assets, "preview/index.html", request, policy=PREVIEW_POLICY)
        response.headers["X-Frame-Options"] = "SAMEORIGIN"
        return response

    @router.api_route("/studio/v/{version}/{name:path}", methods=_READ)
    async def versioned(request: Request, version: str, name: str) -> Response:
        """Other versions are served, but not cached."""
        studio = await asyncio.to_thread(assets.studio)
        caching = _IMMUTABLE if version == studio.version else _REVALIDATED
        if made := studio.files.get(name):
            return _response(made, request, caching)
        return await served(request, name, caching)

    @router.api_route("/studio/{name:path}", methods=_READ)
    async def unversioned(request: Request, name: str) -> Response:
        return await served(request, name, _REVALIDATED)

    async def served(request: Request, name: str, caching: str) -> Response:
        if name != "icon.svg" and name.partition("/")[0] not in SERVED_FOLDERS:
            raise HTTPException(404)
        return await _file(assets, name, request, caching)

    return router


def docs_routes() -> APIRouter:
    router = APIRouter(route_class=LazyRoute, include_in_schema=False)
    assets = Assets()

    @router.api_route("/docs", methods=_READ)
    async def docs(request: Request) -> Response:
        return await _file(assets, "docs/index.html", request, policy=DOCS_POLICY)

    @router.get("/docs/")
    async def with_slash() -> Response:
        return RedirectResponse("../docs")

    @router.api_route("/docs/page/{name:path}", methods=_READ)
    async def page(request: Request, name: str) -> Response:
        return await _file(assets, f"docs/{name}", request)

    @router.api_route("/docs/swagger-ui/{name:path}", methods=_READ)
    async def swagger_ui(request: Request, name: str) -> Response:
        return await _file(assets, f"vendor/swagger-ui-dist/{name}", request)

    return router


async def _file(
    assets: Assets, name: str, request: Request, caching: str = _REVALIDATED, policy: str | None = None
) -> Response:
    try:
        asset = await asyncio.to_thread(assets.file, name)
    except OSError as error:
        raise HTTPException(404) from error
    return _response(asset, request, caching, policy)


def _response(asset: Asset, request: Request, caching: str = _REVALIDATED, policy: str | None = None) -> Response:
    """A file, compressed if the client accepts gzip, or a 304 if the client's copy is current."""
    sent = {**_HEADERS, "Cache-Control": caching, "ETag": asset.etag}
    if policy:
        sent["Content-Security-Policy"] = policy
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    if asset.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        sent["Content-Encoding"] = "gzip"
        return Response(asset.compressed, headers=sent, media_type=asset.media_type)
    return Response(asset.body, headers=sent, media_type=asset.media_type)
