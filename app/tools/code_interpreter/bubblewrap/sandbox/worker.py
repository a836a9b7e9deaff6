"""
Runs the model's code like notebook cells: variables persist, and a final expression's value is printed.

Matplotlib figures shown or left open are returned as PNG.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import linecache
import os
import socket
import sys
import traceback
import types
from collections.abc import Sequence

_NAME = "sandbox_figures"
_MAX_IMAGES = 10  # per cell
_MAX_IMAGE_BYTES = 16 * 1024 * 1024  # per cell, base64-encoded

_BACKEND = f"""
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas
from matplotlib.backend_bases import FigureManagerBase as FigureManager

def show(*args, **kwargs):
    import sys
    sys.modules["{_NAME}"].__collect__()
"""

images: list[str] = []


class FigureBackend(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == _NAME else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__collect__"] = collect_figures
        exec(_BACKEND, module.__dict__)


def collect_figures() -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        if len(images) < _MAX_IMAGES:
            buffer = io.BytesIO()
            pyplot.figure(number).savefig(buffer, format="png")
            encoded = base64.b64encode(buffer.getvalue()).decode()
            if sum(map(len, images)) + len(encoded) <= _MAX_IMAGE_BYTES:
                images.append(encoded)
            else:
                print("(A figure was omitted because it is too large.)", file=sys.stderr)
    pyplot.close("all")


def run_cell(code: str, name: str, variables: dict[str, object]) -> None:
    """Run code as if from a file with this name, and print its errors."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), variables)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), variables)
            if value is not None:
                variables["_"] = value
                print(repr(value))
        collect_figures()
    except SystemExit as error:
        if error.code not in (None, 0):
            print(f"SystemExit: {error.code}", file=sys.stderr)
    except BaseException as error:
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        unparsed = isinstance(error, SyntaxError) and error.filename == name  # the cell has no frame yet
        traceback.print_exception(type(error), error, None if unparsed else frames)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def run_cells() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    sys.argv = [""]
    sys.path.insert(0, os.getcwd())
    sys.meta_path.insert(0, FigureBackend())
    module, process = types.ModuleType("__main__"), os.getpid()
    sys.modules["__main__"] = module
    for number, line in enumerate(channel.makefile("rb"), 1):
        run_cell(json.loads(line)["code"], f"<cell {number}>", module.__dict__)
        if os.getpid() != process:
            os._exit(0)  # a fork that the code left running
        channel.sendall(json.dumps({"images": images}).encode() + b"\n")
        images.clear()


if __name__ == "__main__":
    run_cells()
