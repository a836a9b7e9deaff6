from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from app.core.profile import Profile

INHERITS = "inherits"


def load_profile(name: str) -> Profile:
    """Raises `ValueError` for unknown names."""
    if name not in profile_names():
        raise ValueError(f"profile {name!r} not found; available: {', '.join(profile_names())}")
    return _load(name)


def profile_names() -> tuple[str, ...]:
    return tuple(_table())


@cache
def _table() -> dict[str, dict[str, object]]:
    text = files("app.backends.profiles").joinpath("profiles.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _load(name: str) -> Profile:
    options = dict(_table()[name])
    parent = options.pop(INHERITS, None)
    profile = _load(parent) if parent else Profile()
    return profile.override({**options, "name": name})
