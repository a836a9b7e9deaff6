"""
The layers of `app/` and `verify/`.

Imports go one way, the core is pure, folders and functions stay small, names mean one thing.

    main -> api -> responses -> protocols of backends, stores, tools -> core -> errors
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from app.backends import BACKENDS
from app.backends.apis import APIS
from app.stores import STORES
from app.tools.files import FILE_STORES

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"
VERIFY = ROOT / "verify" / "openresponses_verify"  # a package of its own
MODULES = sorted([*APP.rglob("*.py"), *VERIFY.rglob("*.py")])

LONGEST_MODULE = 600
LARGEST_FOLDER = 12  # modules, beside `__init__`
LONGEST_FUNCTION = 60
MOST_PARAMETERS = 7  # without `self`; commands have a parameter per option

# Server and model names, which are forbidden in the core: differences belong to `backends/` and the profiles.
SERVERS = re.compile(
    r"vllm|ollama|llama\W?cpp|sglang|litellm|openrouter|copilot|anthropic|claude|gemini|deepseek|kimi|mistral|minimax"
    r"|groq\b|qwen",
    re.IGNORECASE,
)
# Options for servers, client names, and servers' wording of delays.
NAMES_SERVERS = {"app.core.profile", "app.core.dialects", "app.core.affinity", "app.core.http"}

# A layer may import its row and itself. The longest name applies: `app.backends` is the protocol, and `app.backends.*`
# are the backends and their shared modules.
PROTOCOLS = {"app.backends", "app.tools", "app.stores", "app.stores.keys"}
ROOMS = (
    "*",
    "charsets",
    "redaction",
    "ids",
    "bounded_json",
    "types",
    "usage",
    "items",
    "profile",
    "stream",
    "request",
    "history",
    "sse",
)
CORE = {f"app.core.{room}" for room in ROOMS}
ROOTS = {
    "app",
    "app.errors",
    "app.loading",
    "app.runtime",
}
BELOW = ROOTS | CORE
TYPES = {"app", "app.core.bounded_json", "app.core.ids", "app.core.types"}
TYPES |= {"app.errors"}
STREAM = TYPES | {"app.core.items"}
REQUEST = STREAM | {"app.core.charsets", "app.core.profile", "app.core.stream"}
LAYERS = {
    "app": set(),
    "app.errors": set(),
    "app.loading": {"app"},
    "app.runtime": {"app", "app.core.ids", "app.core.bounded_json"},
    "app.core": set(),
    "app.core.*": STREAM | {"app.core.stream"},
    "app.core.charsets": {"app"},
    "app.core.redaction": {"app"},
    "app.core.bounded_json": {"app"},
    "app.core.ids": {"app"},
    "app.core.types": {"app", "app.errors", "app.core.redaction", "app.core.bounded_json"},
    "app.core.usage": TYPES,
    "app.core.items": TYPES,
    "app.core.profile": {"app", "app.errors"},
    "app.core.stream": STREAM,
    "app.core.request": REQUEST,
    "app.core.history": REQUEST | {"app.core.request", "app.core.usage"},
    "app.core.sse": STREAM | {"app.core.*", "app.core.stream"},
    "app.storage": {"app", "app.errors"},
    **dict.fromkeys(PROTOCOLS, BELOW),
    "app.stores.keys": BELOW | {"app.stores"},
    "app.backends.*": BELOW | {"app.backends"},
    "app.stores.*": BELOW | {"app.stores", "app.stores.keys", "app.storage"},
    "app.tools.endpoint": BELOW | {"app.tools", "app.tools.*"},
    "app.tools.validation": BELOW,
    "app.tools.*": BELOW | {"app.tools", "app.tools.endpoint", "app.tools.validation"},
    # A resource of its own, with routes.
    "app.tools.files": BELOW
    | {
        "app.storage",
        "app.tools",
        "app.tools.endpoint",
        "app.tools.guard",
        "app.tools.validation",
    },
    # Also mounts files.
    "app.tools.code_interpreter": BELOW | {"app.tools", "app.tools.validation", "app.tools.files"},
    # Codex's search has a route.
    "app.tools.web_search": BELOW | {"app.tools", "app.tools.guard", "app.tools.validation"},
    # Profile values are validated with the settings.
    "app.settings": BELOW | PROTOCOLS | {"app.backends.apis", "app.backends.profiles"},
    "app.observability": BELOW | PROTOCOLS | {"app.settings"},
    "app.responses": BELOW | PROTOCOLS | {"app.observability"},
    "app.api": BELOW
    | PROTOCOLS
    | {"app.observability", "app.responses", "app.settings", "app.tools.files"}
    | {"app.tools.code_interpreter", "app.tools.web_search", "app.studio"},
    "app.studio": {"app"},
    # Independent of this server.
    "openresponses_verify": set(),
}
# They join the parts, and may import everything; nothing imports them.
TOP = {"app.main", "app.assembly", "app.cli", "app.__main__"}

# Modules in the tables are loaded by name, and imported nowhere. Modules next to them can be shared.
CONCRETE = {path.partition(":")[0] for path in (*BACKENDS.values(), *STORES.values(), *FILE_STORES.values())}
CONCRETE |= {api.implementation.partition(":")[0] for api in APIS.values()}

# Modules that run on import.
SCRIPTS = {"app.__main__"}

PURE = set(sys.stdlib_module_names) | {"app", "orjson", "pydantic", "pydantic_core", "typing_extensions"}
IMPURE = {"asyncio", "http", "multiprocessing", "os", "select", "selectors", "socket", "socketserver", "ssl"}
IMPURE |= {"subprocess", "tempfile", "threading", "urllib.request"}


def name_of(path: Path) -> str:
    folder = VERIFY.parent if path.is_relative_to(VERIFY) else ROOT
    return ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(path): path for path in MODULES}
CORE_NAMES = [name for name in NAMES if name.startswith("app.core")]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def imports(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    """All imported modules by full name, wherever the import stands."""
    for node in nodes:
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
    return set(imports(nodes_of(path), package))


def layer_of(name: str) -> str:
    if name in LAYERS or name in TOP:
        return name
    parent = name.rpartition(".")[0]
    if f"{parent}.*" in LAYERS:
        return f"{parent}.*"
    return layer_of(parent) if parent else name


def violations(name: str, imported: set[str]) -> list[str]:
    """A module's forbidden imports of our modules."""
    layer = layer_of(name)
    if layer in TOP:
        return []
    if layer == "app" and name != "app":
        return [f"{name} has no place in the house"]
    below = LAYERS[layer]
    ours = sorted(one for one in imported if one.partition(".")[0] in ("app", VERIFY.name))
    allowed = {one for one in ours if one in below or layer_of(one) in below or layer_of(one) == layer} - CONCRETE
    return [f"{name} imports {one}" for one in ours if one not in allowed]


def test_imports_go_one_way() -> None:
    assert [wrong for name, path in NAMES.items() for wrong in violations(name, imported_by(path))] == []


def test_core_imports_only_the_standard_library_and_what_makes_data() -> None:
    imported = [(name, one, one.partition(".")[0]) for name in CORE_NAMES for one in imported_by(NAMES[name])]
    assert [(name, one) for name, one, top in imported if top not in PURE] == []
    assert [(name, one) for name, one, top in imported if one in IMPURE or top in IMPURE] == []


def test_verify_imports_only_its_declared_dependencies() -> None:
    project = tomllib.loads((VERIFY.parent / "pyproject.toml").read_text())["project"]
    declared = {Requirement(one).name for one in project["dependencies"]}
    names = [name for name in NAMES if name.partition(".")[0] == VERIFY.name]
    assert len(names) > 20
    imported = {one.partition(".")[0] for name in names for one in imported_by(NAMES[name])}
    assert imported - set(sys.stdlib_module_names) == {VERIFY.name, *declared}


def test_core_names_no_servers() -> None:
    core = [NAMES[name] for name in CORE_NAMES if name not in NAMES_SERVERS]
    assert [path for path in core if SERVERS.search(path.read_text(encoding="utf-8"))] == []


def test_core_never_awaits() -> None:
    waits = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    nodes = [(name, node) for name in CORE_NAMES for node in nodes_of(NAMES[name])]
    assert [f"{name}:{node.lineno}" for name, node in nodes if isinstance(node, waits)] == []


def test_modules_are_short_enough() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in NAMES.items()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def own_length(function: Function) -> int:
    """A function's lines without nested functions."""
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


@cache
def functions() -> list[tuple[str, Function]]:
    """Return all functions, each with the name of its module."""
    nodes = ((name, node) for name, path in NAMES.items() for node in nodes_of(path))
    return [(name, node) for name, node in nodes if isinstance(node, Function)]


def test_functions_are_short_enough() -> None:
    long = [(name, node) for name, node in functions() if span(node) > LONGEST_FUNCTION]
    lengths = [(name, node.name, own_length(node)) for name, node in long]
    assert [too_long for too_long in lengths if too_long[2] > LONGEST_FUNCTION] == []


def parameters(function: Function) -> list[str]:
    """Parameter names without bound ones."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [one.arg for one in every if one and one.arg not in ("self", "cls")]


def is_command(function: Function) -> bool:
    """Whether a function is a click command: its decorator is a call to `command`."""
    decorators = (decorator for decorator in function.decorator_list if isinstance(decorator, ast.Call))
    return any(isinstance(each.func, ast.Attribute) and each.func.attr == "command" for each in decorators)


def test_functions_have_few_parameters() -> None:
    counts = [(name, node.name, len(parameters(node))) for name, node in functions() if not is_command(node)]
    assert [many for many in counts if many[2] > MOST_PARAMETERS] == []


def test_folders_hold_few_modules() -> None:
    counts = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > LARGEST_FOLDER} == {}


# Names that any module may define: its routes and logger, and type variables.
OWN = {"P", "T", "logger", "routes"}


def public_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_public_name_means_one_thing() -> None:
    modules: dict[str, list[str]] = {}
    for name, path in NAMES.items():
        package = name.partition(".")[0]
        for defined in set(public_names(tree_of(path))):
            if not defined.startswith("_") and defined not in OWN:
                modules.setdefault(f"{package}: {defined}", []).append(name)
    assert {defined: where for defined, where in modules.items() if len(where) > 1} == {}


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("app.core.stream.event_builder", "app.responses.generate"),
        ("app.core.stream.event_builder", "app.core.request.messages"),
        ("app.core.stream.event_builder", "app.backends"),
        ("app.core.types.request", "app.core.stream.event_types"),
        ("app.core.request.tools", "app.core.history.turns"),
        ("app.errors", "app.core.ids"),
        ("app.backends", "app.backends.server.client"),
        ("app.backends.server.client", "app.backends.demo"),
        ("app.backends.transport.connection", "app.backends.server.client"),
        ("app.backends.server.client", "app.stores"),
        ("app.stores.redis", "app.stores.memory"),
        ("app.stores.redis", "app.settings"),
        ("app.tools.guard", "app.responses"),
        ("app.responses.generate", "app.backends.server.client"),
        ("app.responses", "app.api.routes.responses"),
        ("app.responses", "app.stores.memory"),
        ("app.api.routes.responses", "app.stores.memory"),
        ("app.api.routes.responses", "app.main"),
        ("app.api.routes.responses", "app.assembly.parts"),
        ("app.settings.validation", "app.backends.server.client"),
        ("app.helpers", "app.core.ids"),
        ("app.api.routes.responses", "openresponses_verify.server"),
        ("openresponses_verify.checks.stream", "app.core.ids"),
    ],
)
def test_import_upward_is_seen(name: str, imported: str) -> None:
    assert violations(name, {imported}) != []


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("app.core.stream.event_builder", "app.core.ids"),
        ("app.core.request.messages", "app.core.stream.event_types"),
        ("app.core.stream.event_builder", "app.errors"),
        ("app.backends", "app.core.stream.delta_reader"),
        ("app.backends.server.client", "app.backends"),
        ("app.backends.server.client", "app.backends.transport"),
        ("app.responses.generate", "app.backends"),
        ("app.responses", "app.responses.generate"),
        ("app.api.routes.responses", "app.api.auth"),
        ("app.api.routes.responses", "app.responses"),
        ("app.main", "app.stores.redis"),
        ("app.assembly.parts", "app.stores.redis"),
        ("app.cli", "app.settings"),
        ("app.cli", "openresponses_verify.cli"),
        ("openresponses_verify.cli", "openresponses_verify.server"),
    ],
)
def test_import_downward_is_accepted(name: str, imported: str) -> None:
    assert violations(name, {imported}) == []


def module_level_exceptions(tree: ast.Module, module: ModuleType) -> list[str]:
    """Names in a module or its classes with an exception, or a container with exceptions, as value."""
    scopes = [(tree.body, vars(module))]
    scopes += [(node.body, vars(vars(module)[node.name])) for node in tree.body if isinstance(node, ast.ClassDef)]
    targets = [
        (target.id, values)
        for body, values in scopes
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]
    return [name for name, values in targets if any(isinstance(one, BaseException) for one in flat(values.get(name)))]


def flat(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from flat(one)
    else:
        yield value


def test_exceptions_are_created_where_they_are_raised() -> None:
    """A shared exception keeps the traceback frames from every raise: a leak per failing request."""
    names = [name for name in NAMES if name not in SCRIPTS]
    modules = {name: importlib.import_module(name) for name in names}
    shared = {name: module_level_exceptions(tree_of(NAMES[name]), module) for name, module in modules.items()}
    assert len(shared) > 300
    assert {name: found for name, found in shared.items() if found} == {}


@pytest.mark.parametrize(
    "source", ["X = ValueError('x')", "class A:\n    x: object = ValueError('x')", "X = {'a': (OSError(),)}"]
)
def test_shared_exception_is_found(source: str) -> None:
    module = ModuleType("example")
    exec(source, vars(module))
    assert len(module_level_exceptions(ast.parse(source), module)) == 1


def test_one_class_is_called_a_context() -> None:
    classes = {node.name for path in MODULES for node in nodes_of(path) if isinstance(node, ast.ClassDef)}
    assert {name for name in classes if name.endswith("Context")} == {"RequestContext"}
