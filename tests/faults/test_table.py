"""docs/faults.md matches these tests, and names all of them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from tests.faults import test_backend, test_bugs, test_files, test_objects, test_store

HERE = Path(__file__)
LINES = (HERE.parent.parent.parent / "docs" / "faults.md").read_text().splitlines()
NAMES = [name for line in LINES for name in re.findall(r"\| `([\w/]*test_\w+\.py::[^`]+)` \|$", line)]
TABLES = (test_backend, test_store, test_files, test_objects, test_bugs)


def test_rows_are_those_of_the_tests() -> None:
    for table in TABLES:
        name = table.__name__.rpartition(".")[2]
        rows = [line for line in LINES if re.search(rf"`{name}\.py::\w+\[", line)]
        assert rows == [fault.row for fault in table.FAULTS]


def test_rows_and_tests_name_each_other() -> None:
    tests = {
        f"{file.name}::{name}"
        for file in HERE.parent.glob("test_*.py")
        for name in vars(importlib.import_module(f"tests.faults.{file.stem}"))
        if name.startswith("test_") and file != HERE
    }
    assert {name.partition("[")[0] for name in NAMES if "/" not in name} == tests
    assert len(set(NAMES)) == len(NAMES)


def test_rows_of_tools_name_tests_that_exist() -> None:
    of_tools = [name.split("::") for name in NAMES if "/" in name]
    assert len(of_tools) > 20
    for file, test in of_tools:
        assert re.search(rf"^(async )?def {test}\(", (HERE.parent.parent / file).read_text(), re.MULTILINE), test
