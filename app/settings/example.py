"""Generates `.env.example` from the settings."""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise

from pydantic import BaseModel

from app.settings import Settings
from app.settings.loading import PREFIX

_HEADINGS = {
    "config": "Several settings in one file",
    "host": "The server",
    "backend": "Backends and tools",
    "store_url": "The store",
    "api_keys": "API keys and secrets",
    "limit_requests_per_minute": "Limits",
    "strict": "Responses",
    "log_level": "Logs",
    "metrics": "Metrics and traces",
}


def env_example() -> str:
    """Every setting with its description and default, commented out."""
    lines = ["# Antiphon's settings and their defaults. Copy this file to `.env` and uncomment the lines you change."]
    docstrings = field_docstrings(Settings)
    for name, field in Settings.model_fields.items():
        if heading := _HEADINGS.get(name):
            lines += ["", "", f"### {heading}"]
        comment = docstrings[name].splitlines()
        lines += ["", *(f"# {line}" for line in comment), f"#{PREFIX}{name.upper()}={_format(field.default)}"]
    return "\n".join(lines) + "\n"


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Pydantic would read the source at every server start for these docstrings."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    docstrings: dict[str, str] = {}
    for field, text in pairwise(ast.iter_child_nodes(definition)):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(docstring))):
                docstrings[name] = inspect.cleandoc(docstring)
    return docstrings


def _format(default: object) -> str:
    match default:
        case None | []:
            return ""
        case list():
            return ",".join(map(str, default))
        case bool() | dict():
            return json.dumps(default)
        case _:
            return str(default)
