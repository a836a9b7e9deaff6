"""Web page files, compressed once; the studio's are concatenated and versioned."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from app.studio.bundle import bundled_page, concatenated, joined_styles, style_sheets

PAGES = Path(str(files("app.studio")))
SERVED_FOLDERS = ("css", "js", "preview", "vendor")
_TYPES = {
    ".html": "text/html",
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_BINARY_TYPES = {".woff2": "font/woff2"}


class Asset(NamedTuple):
    body: bytes
    media_type: str
    etag: str
    compressed: bytes | None = None  # gzip; None for incompressible files

    @classmethod
    def of(cls, body: bytes, name: str) -> Asset:
        suffix = Path(name).suffix
        etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        if suffix not in _TYPES:
            return cls(body, _BINARY_TYPES.get(suffix, "text/plain; charset=utf-8"), etag)
        return cls(body, f"{_TYPES[suffix]}; charset=utf-8", etag, gzip.compress(body, mtime=0))


class Studio(NamedTuple):
    version: str  # hash over all files
    page: Asset
    files: dict[str, Asset]  # by path


class Assets:
    """Caches the files below a folder; a changed file is read again."""

    def __init__(self, root: Path = PAGES) -> None:
        self.root = root
        self._files: dict[Path, tuple[tuple[int, int], Asset]] = {}
        self._studio: tuple[object, Studio] | None = None

    def file(self, path: Path) -> Asset:
        """Raises `OSError`."""
        status = path.stat()
        state = (status.st_mtime_ns, status.st_size)
        known = self._files.get(path)
        if known is None or known[0] != state:
            known = self._files[path] = (state, Asset.of(path.read_bytes(), path.name))
        return known[1]

    def studio(self) -> Studio:
        """Bundle the studio again after a change."""
        served = [path for folder in SERVED_FOLDERS for path in (self.root / folder).rglob("*") if path.is_file()]
        paths = sorted([self.root / "index.html", *served])
        state = [(path, path.stat().st_mtime_ns) for path in paths]
        if self._studio is None or self._studio[0] != state:
            self._studio = state, self._bundled(paths)
        return self._studio[1]

    def _bundled(self, paths: list[Path]) -> Studio:
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.relative_to(self.root)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
        version = digest.hexdigest()[:12]

        def read(path: str) -> str:
            return (self.root / path).read_text(encoding="utf-8")

        page = read("index.html")
        bundle = concatenated("js/main.js", read)
        texts = {**bundle.scripts, "css/studio.css": joined_styles(style_sheets(page), read)}
        made = {name: Asset.of(text.encode(), name) for name, text in texts.items()}
        return Studio(version, Asset.of(bundled_page(page, version, bundle.vendored).encode(), "index.html"), made)
