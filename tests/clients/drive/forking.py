"""
Run a Python driver repeatedly, each time in a forked process with its packages already imported.

    python forking.py driver.py

Each line on standard input is a request: `arguments`, `env`, `cwd`, and the output files `out` and `err`. The answer
has two lines: the process id and its exit code. Later runs start with the modules that a run imported late.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

OWN = {"__main__", "scenarios"}  # modules with a run's environment


def packages(driver: Path) -> Iterator[str]:
    """Yield the modules that a driver imports first."""
    for statement in ast.parse(driver.read_text()).body:
        match statement:
            case ast.Import():
                yield from (alias.name for alias in statement.names)
            case ast.ImportFrom(module=str(module)):
                yield module
            case ast.Expr(ast.Constant()):
                continue
            case _:
                return


def run(driver: Path, request: dict[str, Any]) -> int:
    """Run the driver in this process, and return the exit code."""
    os.setsid()
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(driver), *request["arguments"]]
    try:
        runpy.run_path(str(driver), run_name="__main__")
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else exit.code is not None
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def share(names: Iterable[str]) -> None:
    """Import the modules of earlier runs, for the next runs."""
    for name in names:
        if name not in OWN:
            with suppress(Exception):  # some are made by others, and cannot be imported
                importlib.import_module(name)


def main() -> None:
    driver, late = Path(sys.argv[1]), Path("late").absolute()
    for name in packages(driver):
        if name not in OWN:
            importlib.import_module(name)
    while line := sys.stdin.readline():
        gc.freeze()  # keep shared memory from being copied
        sys.stdout.flush()
        known = {*sys.modules}
        if not (child := os.fork()):
            code = 1
            try:
                code = run(driver, json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
                late.write_text("\n".join(sys.modules.keys() - known))
            finally:
                os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        if late.exists():
            share(late.read_text().splitlines())
            late.unlink()


if __name__ == "__main__":
    main()
