"""Names in `docs/architecture.md` exist: files and folders by path, and names in the code."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", MAP.partition("## Custom implementations")[0])  # names in other packages
PATH = re.compile(r"[\w./-]*\w(?:/|\.(?:py|toml|md))")
NAME = re.compile(r"@?(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w+)(?:\(.*\))?")


@cache
def path_endings() -> set[str]:
    """The paths of all files and folders, each also without the folders above it; a folder ends with a slash."""
    folders = [ROOT / name for name in ("app", "verify", "tests", "docs")]
    found = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    whole = [f"{path.relative_to(ROOT).as_posix()}{'/' * path.is_dir()}" for path in found]
    return {"/".join(path.split("/")[depth:]) for path in whole for depth in range(path.count("/") + 1)}


@cache
def words() -> set[str]:
    """All names in the code of the application and its tests."""
    folders = [ROOT / name for name in ("app", "verify", "tests")]
    code = [path for folder in folders for path in folder.rglob("*.py") if path != Path(__file__)]
    return {word for path in code for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def test_paths_on_the_map_exist() -> None:
    paths = {quoted for quoted in QUOTED if PATH.fullmatch(quoted) and not quoted.startswith("/")}
    assert len(paths) > 100
    assert sorted(paths - path_endings()) == []


def test_names_on_the_map_exist() -> None:
    found = [NAME.fullmatch(quoted) for quoted in QUOTED if not PATH.fullmatch(quoted)]
    names = {match[1] for match in found if match}
    assert len(names) > 80
    assert sorted(names - words()) == []


def test_map_has_every_folder_and_module_directly_below_the_application() -> None:
    here = [path for path in (ROOT / "app").iterdir() if not path.name.startswith("__")]
    inside = {f"app/{path.name}/" if path.is_dir() else f"app/{path.name}" for path in here}
    layout = MAP.partition("## Layout")[2].partition("\n## ")[0]
    assert sorted(inside - {*re.findall(r"`([^`\n]+)`", layout)}) == []


SMALL_MODULE = 60  # lines
TESTED_BY = tomllib.loads((ROOT / "tests" / "tested_by.toml").read_text(encoding="utf-8"))


@cache
def names_of_test_files() -> dict[str, str]:
    """Return the names of all test files by path below `tests/`, without `.py`."""
    tests = ROOT / "tests"
    return {path.relative_to(tests).as_posix(): path.stem for path in tests.rglob("test_*.py")}


def has_tests_of_its_name(module: Path) -> bool:
    """Return whether a test file is named after a module: `test_redis.py` for `stores/redis/__init__.py`."""
    name = module.parent.name if module.stem == "__init__" else module.stem
    names = {f"test_{each}" for each in (name, f"{name}s", name.rstrip("s"), f"{module.parent.name}_{name}")}
    return any(test in names or test.startswith(f"test_{name}_") for test in names_of_test_files().values())


def test_module_has_a_test_file_of_its_name_or_in_the_table() -> None:
    app = ROOT / "app"
    modules = [path for path in app.rglob("*.py") if path.read_text(encoding="utf-8").count("\n") > SMALL_MODULE]
    untested = {path.relative_to(app).as_posix() for path in modules if not has_tests_of_its_name(path)}
    assert len(modules) > 200
    assert sorted(untested - TESTED_BY.keys()) == []
    assert sorted(name for name in TESTED_BY if not (app / name).is_file() or has_tests_of_its_name(app / name)) == []
    assert sorted({*TESTED_BY.values()} - names_of_test_files().keys()) == []
