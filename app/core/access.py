"""What an API key may do. It is computed when the settings are read; a request looks it up."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from app.errors import PermissionDenied

_OWNER_ID = re.compile(r"[0-9a-f]{32}")


class KeyLimits(NamedTuple):
    """The rate limits of one key. None: those of all keys; 0: no limit."""

    requests: int | None = None  # per minute
    tokens: int | None = None  # per minute
    streams: int | None = None  # responses at once


_DEFAULT_LIMITS = KeyLimits()


class BudgetLimit(NamedTuple):
    """What a key may use in a day or a month of UTC."""

    name: str  # `tokens_per_day`, `money_per_day`, `tokens_per_month` or `money_per_month`
    amount: int  # tokens, or nanos: see `app.core.prices`


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """What one key may do, and under which names it is known."""

    name: str = "anonymous"  # in logs and usage
    owner: str = "anonymous"  # to whom the objects belong that the key stores
    counted_as: str = "everybody"  # the name of its rate limits
    models: tuple[str, ...] = ("*",)  # globs
    tools: tuple[str, ...] = ("*",)  # globs of types of hosted tools, or `mcp:LABEL`
    limits: KeyLimits = _DEFAULT_LIMITS
    budget: tuple[BudgetLimit, ...] = ()
    expires: float = math.inf  # Unix time
    admin: bool = False  # sees the usage of all keys
    configured: bool = False  # whether the settings have a table for it

    def allows_model(self, model: str) -> bool:
        """Return whether requests may name this model."""
        return self.models == ("*",) or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check_model(self, model: str) -> None:
        """Raise `PermissionDenied` if requests may not name this model."""
        if not self.allows_model(model):
            models = _listed(self.models, "models")
            message = f"The key '{self.name}' may not use the model '{model}'. It may use {models}."
            raise PermissionDenied(message, param="model", code="model_not_allowed")

    def allows_tool(self, *names: str) -> bool:
        """Return whether one of these names of a hosted tool (its type, its table, `mcp:LABEL`) is allowed."""
        return self.tools == ("*",) or any(fnmatchcase(name, pattern) for name in names for pattern in self.tools)

    def check_tool(self, *names: str, param: str | None = None) -> None:
        """Raise `PermissionDenied` if the hosted tool with these names is not allowed; the first is shown."""
        if not self.allows_tool(*names):
            tools = _listed(self.tools, "tools of this server")
            message = f"The key '{self.name}' may not use the tool '{names[0]}'. It may use {tools}."
            raise PermissionDenied(message, param=param, code="tool_not_allowed")

    def check_admin(self) -> None:
        """Raise `PermissionDenied` for a key whose table does not say `admin = true`."""
        if self.configured and not self.admin:
            message = f"The key '{self.name}' may not do this: it takes one with `admin = true` in its settings."
            raise PermissionDenied(message, code="insufficient_permissions")


UNRESTRICTED = KeyAccess(admin=True)  # for callers of a server without keys


def hosted_names(tool: Mapping[str, Any], *more: str) -> tuple[str, ...]:
    """Return the names by which the declaration of a hosted tool can be allowed, beside `more`."""
    label = tool.get("server_label") or tool.get("connector_id")
    return (*([f"{tool['type']}:{label}"] if label else []), str(tool["type"]), *more)


def owner_id(owner: str) -> str:
    """
    Return the id of an owner that the settings name.

    32 hexadecimal digits are the id itself: that of a key without a table is the start of its SHA-256.
    """
    return owner if _OWNER_ID.fullmatch(owner) else hashlib.sha256(f"owner:{owner}".encode()).hexdigest()[:32]


def _listed(patterns: tuple[str, ...], what: str) -> str:
    return ", ".join(patterns) if patterns else f"no {what}"
