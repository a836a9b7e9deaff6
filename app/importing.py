"""Objects that the settings name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def import_object(name: str, table: Mapping[str, str] | None = None) -> Any:
    """
    Return the object that `table` has a path for under this name; other names are such paths themselves.

    A path is `package.module:attribute`. Raises `ImportError` and `AttributeError`.
    """
    module, _, attribute = (table or {}).get(name, name).partition(":")
    return getattr(importlib.import_module(module), attribute)
