"""Imports objects by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def import_object(name: str, table: Mapping[str, str] | None = None) -> Any:
    """
    Import an object by its name in `table`, or by its path `package.module:attribute`.

    Raises `ImportError` or `AttributeError`.
    """
    module, _, attribute = (table or {}).get(name, name).partition(":")
    return getattr(importlib.import_module(module), attribute)
