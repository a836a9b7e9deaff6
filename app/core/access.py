from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from app.errors import InvalidRequest, PermissionDenied

MAX_MODEL_NAME = 512  # characters; the spec has no limit
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAMES_MODELS = re.compile("model|fallback|deployment", re.IGNORECASE)
_EXTRA_BODY = "extra_body"
_OWNER_ID = re.compile(r"[0-9a-f]{32}")


class KeyLimits(NamedTuple):
    """None applies the default limit; 0 means unlimited."""

    requests: int | None = None  # per minute
    tokens: int | None = None  # per minute
    streams: int | None = None  # concurrent responses


_DEFAULT_LIMITS = KeyLimits()


class BudgetLimit(NamedTuple):
    """An amount per day or month, in UTC."""

    name: str  # `tokens_per_day`, `money_per_day`, `tokens_per_month` or `money_per_month`
    amount: int  # tokens, or nanos: see `app.core.prices`


@dataclass(frozen=True, slots=True)
class KeyAccess:
    name: str = "anonymous"  # in logs and usage
    owner: str = "anonymous"  # for stored objects
    counted_as: str = "everybody"  # for rate limits
    models: tuple[str, ...] = ("*",)  # globs
    tools: tuple[str, ...] = ("*",)  # globs of hosted tool types, or `mcp:LABEL`
    limits: KeyLimits = _DEFAULT_LIMITS
    budget: tuple[BudgetLimit, ...] = ()
    max_stored_bytes: int | None = None  # per owner; None and 0 as in `KeyLimits`
    expires: float = math.inf  # Unix time
    admin: bool = False  # can see all keys' usage and activity
    configured: bool = False  # has a settings table
    table: str = ""  # the table with permissions, for callers without their own key

    def allows_model(self, model: str) -> bool:
        return self.models == ("*",) or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check_model(self, model: str, param: str = "model") -> None:
        """
        Raises `PermissionDenied` for a model that the key cannot use.

        Raises `InvalidRequest` for names that are unsafe in backend requests, logs or the usage ledger.
        """
        if _CONTROL.search(model) or model.strip() != model:
            message = "Invalid 'model': must not contain control characters, or start or end with a space."
            raise InvalidRequest(message, param="model", code="invalid_value")
        if len(model) > MAX_MODEL_NAME:
            message = f"Invalid 'model': must have at most {MAX_MODEL_NAME} characters."
            raise InvalidRequest(message, param="model", code="string_above_max_length")
        if not self.allows_model(model):
            models = _listed(self.models, "models")
            message = f"The key '{self.name}' may not use the model '{model}'. It may use {models}."
            raise PermissionDenied(message, param=param, code="model_not_allowed")

    def check_fields(self, fields: Mapping[str, object], path: str = "") -> None:
        """
        Raises `PermissionDenied` if backend fields name a model that the key cannot use.

        Servers accept further models in `models`, `fallbacks` or `draft_model`, and any field again in `extra_body`.
        """
        if self.models == ("*",):
            return
        for name, value in fields.items():
            param = f"{path}{name}"
            if name == _EXTRA_BODY and isinstance(value, Mapping):
                self.check_fields(value, f"{param}.")
            elif (name != "model" or path) and _NAMES_MODELS.search(name):
                for model in value if isinstance(value, list) else [value]:
                    if isinstance(model, str):
                        self.check_model(model, param)
                    elif isinstance(model, (Mapping, list)):
                        raise self._unchecked(param)

    def check_unread_field(self, name: str) -> None:
        """Raises `PermissionDenied` if the field's value can name a model."""
        if self.models != ("*",) and _NAMES_MODELS.search(name):
            raise self._unchecked(name)

    def _unchecked(self, field: str) -> PermissionDenied:
        message = f"The key '{self.name}' is limited to certain models, and '{field}' cannot be checked. Omit it."
        return PermissionDenied(message, param=field, code="model_not_allowed")

    def allows_tool(self, *names: str) -> bool:
        """`names`: a hosted tool's type, its table, or `mcp:LABEL`."""
        return self.tools == ("*",) or any(fnmatchcase(name, pattern) for name in names for pattern in self.tools)

    def check_tool(self, *names: str, param: str | None = None) -> None:
        """Raises `PermissionDenied` unless a name is allowed. Empty `names` mean that no tool is used."""
        if names and not self.allows_tool(*names):
            tools = _listed(self.tools, "tools of this server")
            message = f"The key '{self.name}' may not use the tool '{names[0]}'. It may use {tools}."
            raise PermissionDenied(message, param=param, code="tool_not_allowed")

    def check_admin(self) -> None:
        if self.configured and not self.admin:
            message = "This endpoint requires an admin key (`admin = true`)."
            raise PermissionDenied(message, code="insufficient_permissions")


UNRESTRICTED = KeyAccess(admin=True)


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def hash_of(key: str) -> str:
    """The key's hash as in the settings: `sha256:9f86d0...`."""
    return f"sha256:{digest_of(key)}"


def owner_id(owner: str) -> str:
    """Owners of 32 hexadecimal digits already are ids, of keys without a table."""
    return owner if _OWNER_ID.fullmatch(owner) else hashlib.sha256(f"owner:{owner}".encode()).hexdigest()[:32]


def _listed(patterns: tuple[str, ...], noun: str) -> str:
    return ", ".join(patterns) if patterns else f"no {noun}"
