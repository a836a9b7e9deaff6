"""Web pages: the studio at `/studio` and the API reference at `/docs`."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.api.openapi import LazyRoute
from app.errors import NotFound
from app.studio import PAGES, SERVED_FOLDERS, Asset, Assets

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


def studio_routes() -> APIRouter:
    router = APIRouter(route_class=LazyRoute, include_in_schema=False)
    assets = Assets()

    @router.head("/")
    @router.get("/")
    async def root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise NotFound(f"{request.method} / not found. The API is under /v1.", code="unknown_url")
        return RedirectResponse("studio")

    @router.head("/studio")
    @router.get("/studio")
    async def studio(request: Request) -> Response:
        if "modules" in request.query_params:  # separate files, for debugging
            page = await asyncio.to_thread(assets.file, PAGES / "index.html")
        else:
            page = (await asyncio.to_thread(assets.studio)).page
        return _page(page, request, STUDIO_POLICY)

    @router.get("/studio/")
    async def with_slash() -> Response:
        return RedirectResponse("../studio")

    @router.get("/studio/preview")
    async def preview(request: Request) -> Response:
        page = await asyncio.to_thread(assets.file, PAGES / "preview" / "index.html")
        response = _page(page, request, PREVIEW_POLICY)
        response.headers["X-Frame-Options"] = "SAMEORIGIN"
        return response

    @router.get("/studio/icon.svg")
    async def icon(request: Request) -> Response:
        return _response(await asyncio.to_thread(assets.file, PAGES / "icon.svg"), request.headers)

    router.routes.append(Mount("/studio/v", _VersionedFiles(assets)))
    for folder in SERVED_FOLDERS:
        if (PAGES / folder).is_dir():
            router.routes.append(Mount(f"/studio/{folder}", _Files(assets, PAGES / folder)))
    return router


def docs_routes() -> APIRouter:
    router = APIRouter(route_class=LazyRoute, include_in_schema=False)
    assets = Assets()

    @router.head("/docs")
    @router.get("/docs")
    async def docs(request: Request) -> Response:
        return _page(await asyncio.to_thread(assets.file, PAGES / "docs" / "index.html"), request, DOCS_POLICY)

    @router.get("/docs/")
    async def with_slash() -> Response:
        return RedirectResponse("../docs")

    router.routes.append(Mount("/docs/page", _Files(assets, PAGES / "docs")))
    router.routes.append(Mount("/docs/swagger-ui", _Files(assets, PAGES / "vendor" / "swagger-ui-dist")))
    return router


def _page(page: Asset, request: Request, policy: str) -> Response:
    response = _response(page, request.headers)
    response.headers["Content-Security-Policy"] = policy
    return response


def _response(asset: Asset, headers: Headers, caching: str = _REVALIDATED) -> Response:
    """A file, compressed if the client accepts gzip, or a 304 if the client's copy is current."""
    sent = {**_HEADERS, "Cache-Control": caching, "ETag": asset.etag}
    if asset.etag in headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    if asset.compressed is not None and "gzip" in headers.get("accept-encoding", ""):
        sent["Content-Encoding"] = "gzip"
        return Response(asset.compressed, headers=sent, media_type=asset.media_type)
    return Response(asset.body, headers=sent, media_type=asset.media_type)


class _Files(StaticFiles):
    def __init__(self, assets: Assets, directory: Path) -> None:
        super().__init__(directory=directory)
        self._assets = assets

    async def get_response(self, path: str, scope: Scope) -> Response:
        return await self._file(path, scope, _REVALIDATED)

    async def _file(self, path: str, scope: Scope, caching: str) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405)
        found, status = await asyncio.to_thread(self.lookup_path, path)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise HTTPException(404)
        return _response(await asyncio.to_thread(self._assets.file, Path(found)), Headers(scope=scope), caching)


class _VersionedFiles(_Files):
    """The studio's files and bundle at `/VERSION/PATH`. Other versions are served, but not cached."""

    def __init__(self, assets: Assets) -> None:
        super().__init__(assets, PAGES)

    async def get_response(self, path: str, scope: Scope) -> Response:
        version, _, name = path.partition("/")
        studio = await asyncio.to_thread(self._assets.studio)
        caching = _IMMUTABLE if version == studio.version else _REVALIDATED
        if scope["method"] in ("GET", "HEAD") and (asset := studio.files.get(name)):
            return _response(asset, Headers(scope=scope), caching)
        if name != "icon.svg" and name.partition("/")[0] not in SERVED_FOLDERS:
            raise HTTPException(404)
        return await self._file(name, scope, caching)
