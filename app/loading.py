"""Objects named by import path, optional dependencies, and messages for values that fail validation."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def import_object(name: str, table: Mapping[str, str] | None = None) -> Any:
    """
    Import an object by its name in `table`, or by its path `package.module:attribute`.

    Raises `ImportError` or `AttributeError`.
    """
    module, _, attribute = (table or {}).get(name, name).partition(":")
    return getattr(importlib.import_module(module), attribute)


DISTRIBUTION = "antiphon"


def require_packages(packages: Iterable[str], *extras: str) -> None:
    """Raise `ValueError` with the install command for these extras if a package is missing."""
    try:
        installed = all(map(find_spec, packages))
    except ModuleNotFoundError:  # parent package not found
        installed = False
    if not installed:
        raise ValueError(f"requires more packages: {install_command(*extras)}")


def install_command(*extras: str) -> str:
    """
    Return the shell command to add extras to this installation.

    The command depends on the installation's origin: a clone, a file, a repository or an index. See the PyPA's
    specification for `direct_url.json`.
    """
    names = f"[{','.join(extras)}]"
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"{_pip_install()} -e '{_relative(clone)}{names}'"
    origin = _origin()
    return f"{_pip_install()} '{DISTRIBUTION}{names}{f' @ {origin}' if origin else ''}'"


def _origin() -> str | None:
    """None for an index."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if text is None:
        return None
    origin = json.loads(text)
    if repository := origin.get("vcs_info"):
        return f"{repository['vcs']}+{origin['url']}@{repository['commit_id']}"
    return str(origin["url"])


def _pip_install() -> str:
    """This Python is not always the shell's first."""
    found = shutil.which("pip")
    if found and Path(found).parent == Path(sysconfig.get_path("scripts")):
        return "pip install"
    python = shlex.quote(_relative(Path(sys.executable)))
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _relative(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


_WORDS = {
    "missing": "is missing",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of fewer digits",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer, without a fraction",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}
# TOML calls these a table, JSON an object.
_TABLES = {"dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"}


def describe(detail: Mapping[str, Any], table: str = "table") -> str:
    """
    Describe the rule for an invalid value, never the value, from a detail of pydantic's `ValidationError`.

    `table` is the format's word for a mapping.
    """
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _TABLES:
        return f"must be a {table}"
    if kind == "string_too_short" and context["min_length"] == 1:
        return "must not be empty"
    if kind == "literal_error" and " or " not in context["expected"]:
        return f"must be {context['expected']}"
    if words := _WORDS.get(kind):
        bounds = {
            name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound
            for name, bound in context.items()
        }
        return words.format_map(bounds)
    return as_rule(str(detail["msg"]))


_SHOULD = re.compile("(?:Input|String|List|Dictionary|Tuple|Set|Value|Data|Number) should ")


def as_rule(message: str) -> str:
    """Convert a pydantic message into a rule with "must": `must be a valid string`."""
    rule = message.removeprefix("Value error, ").partition(", unable to parse")[0].partition(" or instance of ")[0]
    return _SHOULD.sub("must ", rule, count=1).replace("be a valid dictionary", "be an object")
