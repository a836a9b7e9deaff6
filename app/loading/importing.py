"""Import objects by their names in the settings."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def import_object(name: str, table: Mapping[str, str] | None = None) -> Any:
    """
    Import the object at the path that `table` has for a name; a name that is not in the table is itself a path.

    A path is `package.module:attribute`. Raises `ImportError` or `AttributeError`.
    """
    module, _, attribute = (table or {}).get(name, name).partition(":")
    return getattr(importlib.import_module(module), attribute)
