"""All checks. Importing a module registers its checks."""

from __future__ import annotations

from importlib import import_module

from openresponses_verify.rows import CHECKS

_CHECKS = "openresponses_verify.checks"
_MODULES = (
    *(f"{_CHECKS}.{name}" for name in ("schema", "stream", "items", "state", "conversations", "tools", "structured")),
    *(f"{_CHECKS}.{name}" for name in ("errors", "inputs", "background", "websocket", "clients")),
    "openresponses_verify.suite",
)
CHECK_GROUPS = (
    *("schema", "stream", "items", "state", "conversations", "tools", "structured", "reasoning", "errors", "limits"),
    *("input", "background", "websocket", "compaction", "isolation", "clients", "suite"),
)

for _module in _MODULES:
    import_module(_module)

ALL_CHECKS = tuple(sorted(CHECKS, key=lambda row: CHECK_GROUPS.index(row.group)))
