"""
The house keeps its order: imports go one way, the core is pure, and nothing grows too long to read.

    main -> api -> responses -> background, loop -> protocols of backends, stores, tools -> core -> errors
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.backends import BACKENDS
from app.stores import STORES
from app.tools.files import FILE_STORES

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"
MODULES = sorted(APP.rglob("*.py"))

LONGEST_MODULE = 600
LONGEST_FUNCTION = 60

# A layer may import what stands in its row, and itself. The most specific name counts: `app.backends` is the protocol,
# and `app.backends.*` are the backends and what they share.
PROTOCOLS = {"app.backends", "app.stores", "app.tools"}
BELOW = {"app", "app.core", "app.errors"}
WATCHERS = {"app.metrics", "app.tracing", "app.limits"}  # who is told of the course of responses
PARTS = {"app.loop", "app.background", "app.compaction", "app.conversations"}  # what responses are made of
LAYERS = {
    "app": set(),
    "app.errors": set(),
    "app.core": BELOW,
    **dict.fromkeys(PROTOCOLS, BELOW),
    "app.backends.*": BELOW | {"app.backends"},
    "app.stores.*": BELOW | {"app.stores"},
    "app.tools.*": BELOW | {"app.tools"},
    "app.tools.files": BELOW | {"app.tools"},  # a resource of its own, with routes
    "app.sealing": BELOW,
    "app.about": set(),
    "app.configure": set(),
    "app.course": BELOW,
    **dict.fromkeys(WATCHERS, BELOW | PROTOCOLS | {"app.about", "app.course"}),
    **dict.fromkeys(PARTS, BELOW | PROTOCOLS | {"app.sealing"}),
    "app.context": BELOW | PROTOCOLS | {"app.compaction", "app.conversations", "app.sealing"},
    "app.run": BELOW | PROTOCOLS | PARTS | {"app.context", "app.course"},
    "app.responses": BELOW | PROTOCOLS | PARTS | {"app.about", "app.context", "app.course", "app.run", "app.sealing"},
    # It looks at a server as the backends do.
    "app.probe": BELOW | {"app.backends", "app.backends.*"},
    # What a profile may hold is checked where the settings are read.
    "app.setting_types": BELOW | PROTOCOLS | {"app.backends.profiles"},
    "app.settings": {"app", "app.setting_types"},
    "app.logs": BELOW | {"app.about", "app.settings"},
    "app.api": BELOW
    | PROTOCOLS
    | PARTS
    | WATCHERS
    | {"app.about", "app.responses", "app.run", "app.settings"}
    | {"app.tools.files"},
}
TOP = {"app.main", "app.cli", "app.__main__"}  # they join the parts, and may import everything; nothing imports them

# The modules that the tables name: loaded by name, and imported by nobody. What stands beside them, several may share.
CONCRETE = {path.partition(":")[0] for path in (*BACKENDS.values(), *STORES.values(), *FILE_STORES.values())}

PURE = set(sys.stdlib_module_names) | {"app", "orjson", "pydantic", "pydantic_core", "typing_extensions"}
IMPURE = {"asyncio", "http", "multiprocessing", "os", "select", "selectors", "socket", "socketserver", "ssl"}
IMPURE |= {"subprocess", "tempfile", "threading", "urllib.request"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(path): path for path in MODULES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Every module that a tree imports, wherever the import stands, by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -(node.level - 1) or None] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{module}.{alias.name}"
                yield submodule if submodule in NAMES else module


def imported_by(path: Path) -> set[str]:
    name = name_of(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return set(imports(tree_of(path), package))


def layer_of(name: str) -> str:
    if name in LAYERS or name in TOP:
        return name
    parent = name.rpartition(".")[0]
    if f"{parent}.*" in LAYERS:
        return f"{parent}.*"
    return layer_of(parent) if parent else name


def violations(name: str, imported: set[str]) -> list[str]:
    """What a module imports of ours and must not."""
    layer = layer_of(name)
    if layer in TOP:
        return []
    if layer == "app" and name != "app":
        return [f"{name} has no place in the house"]
    below = LAYERS[layer]
    ours = sorted(one for one in imported if one == "app" or one.startswith("app."))
    allowed = {one for one in ours if one in below or layer_of(one) in below or layer_of(one) == layer} - CONCRETE
    return [f"{name} imports {one}" for one in ours if one not in allowed]


@pytest.mark.parametrize("name", NAMES)
def test_imports_go_one_way(name: str) -> None:
    assert violations(name, imported_by(NAMES[name])) == []


@pytest.mark.parametrize("name", [name for name in NAMES if layer_of(name) == "app.core"])
def test_the_core_imports_only_the_standard_library_and_what_makes_data(name: str) -> None:
    imported = imported_by(NAMES[name])
    assert {one.partition(".")[0] for one in imported} <= PURE
    assert not {one for one in imported if one in IMPURE or one.partition(".")[0] in IMPURE}


@pytest.mark.parametrize("name", [name for name in NAMES if layer_of(name) == "app.core"])
def test_the_core_never_waits(name: str) -> None:
    waits = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    assert [node.lineno for node in ast.walk(tree_of(NAMES[name])) if isinstance(node, waits)] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_module_is_too_long_to_read(name: str) -> None:
    assert len(NAMES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE


Function = ast.FunctionDef | ast.AsyncFunctionDef


def own_length(function: Function) -> int:
    """The lines of a function without those of the functions that are defined in it."""
    inner = [node for child in ast.iter_child_nodes(function) for node in outermost_functions(child)]
    return span(function) - sum(map(span, inner))


def span(node: Function) -> int:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or node.lineno) - first + 1


def outermost_functions(node: ast.AST) -> Iterator[Function]:
    if isinstance(node, Function):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from outermost_functions(child)


@pytest.mark.parametrize("name", NAMES)
def test_no_function_is_too_long_to_see(name: str) -> None:
    functions = (node for node in ast.walk(tree_of(NAMES[name])) if isinstance(node, Function))
    lengths = {node.name: own_length(node) for node in functions}
    assert {function: length for function, length in lengths.items() if length > LONGEST_FUNCTION} == {}


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("app.core.events", "app.loop"),
        ("app.core.events", "app.backends"),
        ("app.errors", "app.core.ids"),
        ("app.backends", "app.backends.openai"),
        ("app.backends.openai", "app.backends.demo"),
        ("app.backends.transport", "app.backends.openai"),
        ("app.backends.openai", "app.stores"),
        ("app.stores.redis", "app.stores.memory"),
        ("app.stores.redis", "app.settings"),
        ("app.loop", "app.backends.openai"),
        ("app.loop", "app.responses"),
        ("app.responses", "app.api.http"),
        ("app.responses", "app.stores.memory"),
        ("app.api.http", "app.stores.memory"),
        ("app.api.http", "app.main"),
        ("app.setting_types", "app.backends.openai"),
        ("app.helpers", "app.core.ids"),
    ],
)
def test_an_import_against_the_grain_is_seen(name: str, imported: str) -> None:
    assert violations(name, {imported}) != []


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("app.core.events", "app.core.ids"),
        ("app.core.events", "app.errors"),
        ("app.backends", "app.core.chat_stream"),
        ("app.backends.openai", "app.backends"),
        ("app.backends.openai", "app.backends.transport"),
        ("app.loop", "app.backends"),
        ("app.responses", "app.loop"),
        ("app.api.http", "app.api.auth"),
        ("app.api.http", "app.responses"),
        ("app.main", "app.stores.redis"),
        ("app.cli", "app.settings"),
    ],
)
def test_an_import_with_the_grain_is_not(name: str, imported: str) -> None:
    assert violations(name, {imported}) == []
