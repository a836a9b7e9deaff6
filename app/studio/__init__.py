"""
The studio: a page for talking to a model and inspecting its events.

Its files are compressed once. Browsers can run them unchanged; to save requests, a server concatenates modules and
style sheets when it first sends the page. Modules use a subset of the syntax, which `concatenated` checks: named
imports and exports at the start of a line, without cycles. Each module becomes a function that returns its exports;
vendored modules are imported as they are.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

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

    def file(self, name: str) -> Asset:
        """`name` is a path below the folder; raises `OSError`."""
        path = self.root / name
        if ".." in name.split("/") or not path.is_relative_to(self.root):
            raise FileNotFoundError(name)
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
        scripts, vendored = concatenated("js/main.js", read)
        texts = {**scripts, "css/studio.css": joined_styles(_STYLE_SHEET.findall(page), read)}
        made = {name: Asset.of(text.encode(), name) for name, text in texts.items()}
        return Studio(version, Asset.of(bundled_page(page, version, vendored).encode(), "index.html"), made)


_IMPORT = re.compile(r'^import\s+(?:(\{[^}]*\}|\*\s+as\s+\w+|\w+)\s+from\s+)?"([^"]+)";[ \t]*$', re.MULTILINE)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?(?:function\*?|class|const)\s+(\w+))", re.MULTILINE)
_DYNAMIC = re.compile(r'\bimport\("([^"]+)"\)')
_LEFT = re.compile(r"^(?:export|import)\b.*|.*\bimport\.meta\b.*", re.MULTILINE)
_BLOCK_COMMENT = re.compile(r"^[ \t]*/\*\*.*?\*/[ \t]*$", re.MULTILINE | re.DOTALL)
_RENAMED = re.compile(r"\s+as\s+")
_STYLE_SHEET = re.compile(r'[ \t]*<link rel="stylesheet" href="studio/([^"]+)">\n')


def concatenated(
    main: str, read: Callable[[str], str], *, script: str = "js/studio.js"
) -> tuple[dict[str, str], list[str]]:
    """
    Concatenate the module `main` and its imports into `script`; raises `ValueError`.

    Returns scripts by path, and the vendored modules that `script` imports. A module loaded with `import()` becomes
    another script at its own path, together with imports not contained in earlier scripts. Paths are relative to the
    page's root; `read` returns a file's text.
    """
    scripts: dict[str, str] = {}
    owners: dict[str, _Script] = {}
    first = _Script(script, read, owners)
    waiting = {main: first}
    while waiting:
        module, current = waiting.popitem()
        current.add(module)
        scripts[current.path] = current.text(None if module == main else module)
        for path in current.lazy:
            if path not in scripts:
                waiting[path] = _Script(path, read, owners)
    return scripts, [*first.vendored]


class _Script:
    """A script under construction. All scripts share `owners`: each module's script."""

    def __init__(self, path: str, read: Callable[[str], str], owners: dict[str, _Script]) -> None:
        self.path = path
        self.vendored: dict[str, str] = {}  # names by path
        self.lazy: list[str] = []  # modules loaded with `import()`
        self.exports: dict[str, list[str]] = {}  # by module
        self._read = read
        self._owners = owners
        self._shared: dict[str, list[str]] = {}  # imported modules' names by script
        self._code: list[str] = []
        self._pending: list[str] = []

    def add(self, path: str) -> str:
        """Add a module and its imports; returns the module's name."""
        if path.startswith("vendor/"):
            return self.vendored.setdefault(path, f"v{len(self.vendored)}")
        if path in self._pending:
            raise ValueError(f"{path} imports itself: {' -> '.join([*self._pending, path])}")
        owner = self._owners.get(path)
        if owner is None:
            self._pending.append(path)
            self._code.append(self._wrapped(path))
            self._pending.pop()
            self._owners[path] = self
        elif owner is not self and _name(path) not in (names := self._shared.setdefault(owner.path, [])):
            names.append(_name(path))
        return _name(path)

    def text(self, exported: str | None) -> str:
        """Join the code, with the exports of the module `exported`."""
        here = posixpath.dirname(self.path)
        vendored = [f'import * as {name} from "{_relative(path, here)}";' for path, name in self.vendored.items()]
        shared = [
            f'import {{ {", ".join(names)} }} from "{_relative(path, here)}";' for path, names in self._shared.items()
        ]
        exports = [f"export {{ {', '.join(map(_name, self.exports))} }};"]
        if exported:
            names = self._owners[exported].exports[exported]
            exports.append(f"export const {{ {', '.join(names)} }} = {_name(exported)};")
        return "\n".join([*vendored, *shared, *self._code, *exports, ""])

    def _wrapped(self, path: str) -> str:
        folder = posixpath.dirname(path)

        def place(target: str) -> str:
            return posixpath.normpath(posixpath.join(folder, target))

        def bound(match: re.Match[str]) -> str:
            names, target = match.groups()
            module = self.add(place(target))
            if names is None:
                return ""
            if names.startswith("{"):
                return f"const {_RENAMED.sub(': ', names)} = {module};"
            if names.startswith("*"):
                return f"const {names.split()[-1]} = {module};"
            return f"const {names} = {module}.default;"

        def lazy(match: re.Match[str]) -> str:
            target = place(match[1])
            if not target.startswith("vendor/"):
                self.lazy.append(target)
            return f'import("{_relative(target, posixpath.dirname(self.path))}")'

        body = _IMPORT.sub(bound, _BLOCK_COMMENT.sub("", self._read(path)))  # types in comments can be imports
        self.exports[path] = [name for _, name in _EXPORT.findall(body)]
        body = _DYNAMIC.sub(lazy, _EXPORT.sub(r"\1", body))
        if left := _LEFT.search(re.sub(r"^import\(", "", body, flags=re.MULTILINE)):
            raise ValueError(f"{path}: {left.group().strip()!r} cannot be concatenated")
        lines = body.splitlines()
        if not any(line.count("`") % 2 for line in lines):  # no multi-line template literal
            # A quarter of a module is indentation, blank lines and comments.
            body = "\n".join(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("//"))
        returned = f"return {{ {', '.join(self.exports[path])} }};"
        return f"// {path}\nconst {_name(path)} = (() => {{\n{body}\n{returned}\n}})();"


def _name(path: str) -> str:
    return re.sub(r"\W", "_", path.removesuffix(".js"))


def _relative(path: str, folder: str) -> str:
    relative = posixpath.relpath(path, folder)
    return relative if relative.startswith(".") else f"./{relative}"


def joined_styles(paths: list[str], read: Callable[[str], str], *, folder: str = "css") -> str:
    """Concatenate style sheets for a file in `folder`, adjusting relative URLs."""

    def moved(path: str) -> str:
        def url(match: re.Match[str]) -> str:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
            return f'url("{posixpath.relpath(target, folder)}")'

        return re.sub(r'url\("(?!data:)([^"]+)"\)', url, read(path))

    text = re.sub(r"/\*(?!!).*?\*/", "", "\n".join(map(moved, paths)), flags=re.DOTALL)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def bundled_page(page: str, version: str, vendored: list[str]) -> str:
    base = f"studio/v/{version}"
    sheet = f'  <link rel="stylesheet" href="{base}/css/studio.css">\n'
    first = _STYLE_SHEET.search(page)
    if first is None:
        raise ValueError("the page has no style sheet")
    page = page[: first.start()] + sheet + _STYLE_SHEET.sub("", page[first.start() :])
    preloads = "".join(f'  <link rel="modulepreload" href="{base}/{path}">\n' for path in vendored)
    page = page.replace(
        '<script type="module" src="studio/js/main.js">', f'<script type="module" src="{base}/js/studio.js">'
    )
    page = page.replace('  <script type="module"', f'{preloads}  <script type="module"', 1)
    return page.replace('"studio/vendor/', f'"{base}/vendor/').replace('"studio/icon.svg"', f'"{base}/icon.svg"')
