"""
The studio's own modules as one script and its style sheets as one sheet, so that a page needs few requests.

There is no build: the files run in a browser as they are, and are concatenated when a server first sends the page.
Modules use a subset of the syntax, which `concatenated` checks: named imports and exports at the start of a line,
without cycles. Each module becomes a function that returns its exports; vendored modules are imported as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_IMPORT = re.compile(r'^import\s+(?:(\{[^}]*\}|\*\s+as\s+\w+|\w+)\s+from\s+)?"([^"]+)";[ \t]*$', re.MULTILINE)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?(?:function\*?|class|const)\s+(\w+))", re.MULTILINE)
_DYNAMIC = re.compile(r'\bimport\("([^"]+)"\)')
_LEFT = re.compile(r"^(?:export|import)\b.*|.*\bimport\.meta\b.*", re.MULTILINE)
_BLOCK_COMMENT = re.compile(r"^[ \t]*/\*\*.*?\*/[ \t]*$", re.MULTILINE | re.DOTALL)
_RENAMED = re.compile(r"\s+as\s+")
_STYLE_SHEET = re.compile(r'[ \t]*<link rel="stylesheet" href="studio/([^"]+)">\n')


class BundleError(Exception):
    """A module that cannot be concatenated."""


def concatenated(main: str, read: Callable[[str], str], *, folder: str = "js") -> tuple[str, list[str]]:
    """
    Concatenate the module `main` and its imports; return the code, and the paths of the vendored modules it imports.

    Paths are relative to the root of the page's files, from which `read` returns a text. The result is for a file in
    `folder`. Raises `BundleError`.
    """
    modules: dict[str, str] = {}
    vendored: dict[str, str] = {}
    code: list[str] = []
    pending: list[str] = []

    def name_of(path: str) -> str:
        if path in pending:
            raise BundleError(f"{path} imports itself: {' -> '.join([*pending, path])}")
        if path not in modules:
            pending.append(path)
            code.append(_wrapped(path, read(path), import_from, modules))
            pending.pop()
        return modules[path]

    def import_from(path: str) -> str:
        if not path.startswith("vendor/"):
            return name_of(path)
        return vendored.setdefault(path, f"v{len(vendored)}")

    name_of(main)
    imports = [f'import * as {name} from "{posixpath.relpath(path, folder)}";' for path, name in vendored.items()]
    return "\n".join([*imports, *code, ""]), [*vendored]


def _wrapped(path: str, source: str, import_from: Callable[[str], str], modules: dict[str, str]) -> str:
    """Return a module as a function that returns its exports, and enter its name into `modules`."""
    folder = posixpath.dirname(path)

    def place(target: str) -> str:
        return posixpath.normpath(posixpath.join(folder, target))

    def bound(match: re.Match[str]) -> str:
        names, target = match.groups()
        module = import_from(place(target))
        if names is None:
            return ""
        if names.startswith("{"):
            return f"const {_RENAMED.sub(': ', names)} = {module};"
        if names.startswith("*"):
            return f"const {names.split()[-1]} = {module};"
        return f"const {names} = {module}.default;"

    body = _IMPORT.sub(bound, source)
    exports = [name for _, name in _EXPORT.findall(body)]
    body = _EXPORT.sub(r"\1", body)
    body = _DYNAMIC.sub(lambda match: f'import("{posixpath.relpath(place(match[1]), "js")}")', body)
    if left := _LEFT.search(re.sub(r"^import\(", "", body, flags=re.MULTILINE)):
        raise BundleError(f"{path}: {left.group().strip()!r} cannot be concatenated")
    name = modules[path] = re.sub(r"\W", "_", path.removesuffix(".js"))
    body = _shortened(body)
    return f"// {path}\nconst {name} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"


def _shortened(source: str) -> str:
    """Return code without indentation, blank lines and comments that fill their lines; a quarter of a module."""
    source = _BLOCK_COMMENT.sub("", source)
    lines = source.splitlines()
    if any(line.count("`") % 2 for line in lines):  # a text over several lines
        return source
    return "\n".join(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("//"))


def style_sheets(page: str) -> list[str]:
    """Return the paths of the style sheets of a page, in their order."""
    return _STYLE_SHEET.findall(page)


def joined_styles(paths: list[str], read: Callable[[str], str], *, folder: str = "css") -> str:
    """Return style sheets as one for a file in `folder`; their relative URLs still lead to the same files."""

    def moved(path: str) -> str:
        def url(match: re.Match[str]) -> str:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
            return f'url("{posixpath.relpath(target, folder)}")'

        return re.sub(r'url\("(?!data:)([^"]+)"\)', url, read(path))

    text = re.sub(r"/\*(?!!).*?\*/", "", "\n".join(map(moved, paths)), flags=re.DOTALL)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def bundled_page(page: str, version: str, vendored: list[str]) -> str:
    """Return the page with links to the bundle instead of the single files."""
    base = f"studio/v/{version}"
    sheet = f'  <link rel="stylesheet" href="{base}/css/studio.css">\n'
    first = _STYLE_SHEET.search(page)
    if first is None:
        raise BundleError("the page has no style sheet")
    page = page[: first.start()] + sheet + _STYLE_SHEET.sub("", page[first.start() :])
    preloads = "".join(f'  <link rel="modulepreload" href="{base}/{path}">\n' for path in vendored)
    page = page.replace(
        '<script type="module" src="studio/js/main.js">', f'<script type="module" src="{base}/js/studio.js">'
    )
    page = page.replace('  <script type="module"', f'{preloads}  <script type="module"', 1)
    return page.replace('"studio/vendor/', f'"{base}/vendor/').replace('"studio/icon.svg"', f'"{base}/icon.svg"')
