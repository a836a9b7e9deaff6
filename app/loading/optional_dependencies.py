"""Optional dependencies and their install command."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "antiphon"


def require_packages(packages: Iterable[str], *extras: str) -> None:
    """Raise `ValueError` with the install command for these extras if a package is missing."""
    if not all(map(_is_installed, packages)):
        raise ValueError(f"requires more packages: {install_command(*extras)}")


def install_command(*extras: str) -> str:
    """
    Return the shell command to add extras to this installation.

    The command depends on the installation's origin: a clone, a file, a repository or an index. See the PyPA's
    specification for `direct_url.json`.
    """
    names = f"[{','.join(extras)}]"
    clone = Path(__file__).parents[2]
    if (clone / "pyproject.toml").is_file():
        return f"{_pip_install()} -e '{_relative(clone)}{names}'"
    origin = _origin()
    return f"{_pip_install()} '{DISTRIBUTION}{names}{f' @ {origin}' if origin else ''}'"


def _is_installed(package: str) -> bool:
    with suppress(ModuleNotFoundError):  # parent package not found
        return find_spec(package) is not None
    return False


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
