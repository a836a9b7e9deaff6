from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from app.core.profile import Profile

INHERITS = "inherits"


@cache
def load_profile(name: str) -> Profile:
    """Raises `ValueError` for unknown names."""
    if name not in _table():
        raise ValueError(f"profile {name!r} not found; available: {', '.join(profile_names())}")
    options = dict(_table()[name])
    parent = options.pop(INHERITS, None)
    profile = load_profile(str(parent)) if parent else Profile()
    return profile.override({**options, "name": name})


def profile_names() -> tuple[str, ...]:
    return tuple(_table())


@cache
def _table() -> dict[str, dict[str, object]]:
    text = files("app.backends.profiles").joinpath("profiles.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
