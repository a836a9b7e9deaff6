"""Sources of settings: environment variables, `.env` and a TOML file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from dotenv import dotenv_values

PREFIX = "ANTIPHON_"
ENV_FILE = ".env"
RELOADS_DIRECTORY = "_ANTIPHON_RELOADS_DIRECTORY"  # for the reports of all processes to `antiphon reload`
WORKERS_DIRECTORY = "_ANTIPHON_WORKERS_DIRECTORY"  # set for a server's workers by their parent process


class SettingsError(Exception):
    """Each of `problems` names a variable or TOML key and the valid form."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def environment() -> dict[str, str]:
    """All non-empty variables; the environment overrides `.env`."""
    sources = (dotenv_values(ENV_FILE, encoding="utf-8"), os.environ)
    return {name: value for source in sources for name, value in source.items() if value}


def variable(name: str) -> str:
    """Read a variable named by a setting; raises `ValueError` if it is not set."""
    if value := environment().get(name):
        return value
    raise ValueError(f"the environment variable {name} is not set")


def read_toml(path: Path, known: Collection[str]) -> dict[str, object]:
    """Raises `SettingsError` if the file is unreadable or has an unknown key."""
    try:
        table = tomllib.loads(path.expanduser().read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError([f"{PREFIX}CONFIG: cannot read {str(path)!r}: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: {error}"]) from None
    if unknown := [f"{name}: unknown key in {path}{suggestion(name, known)}" for name in table if name not in known]:
        raise SettingsError(unknown)
    return table


def suggestion(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
