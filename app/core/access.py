"""The permissions and limits of API keys: computed when the settings are read, looked up for each request."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from app.errors import InvalidRequest, PermissionDenied

MAX_MODEL_NAME = 512  # characters; no limit in the spec
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAMES_MODELS = re.compile("model|fallback|deployment", re.IGNORECASE)
_EXTRA_BODY = "extra_body"
_OWNER_ID = re.compile(r"[0-9a-f]{32}")


class KeyLimits(NamedTuple):
    """The rate limits of one key. None applies the default limit; 0 means no limit."""

    requests: int | None = None  # per minute
    tokens: int | None = None  # per minute
    streams: int | None = None  # concurrent responses


_DEFAULT_LIMITS = KeyLimits()


class BudgetLimit(NamedTuple):
    """One limit of a budget: an amount per day or month, in UTC."""

    name: str  # `tokens_per_day`, `money_per_day`, `tokens_per_month` or `money_per_month`
    amount: int  # tokens, or nanos: see `app.core.prices`


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """The permissions of one key, and its names in logs, usage and limits."""

    name: str = "anonymous"  # in logs and usage
    owner: str = "anonymous"  # the owner of the objects that the key stores
    counted_as: str = "everybody"  # the name under which its rate limits are counted
    models: tuple[str, ...] = ("*",)  # globs
    tools: tuple[str, ...] = ("*",)  # globs of types of hosted tools, or `mcp:LABEL`
    limits: KeyLimits = _DEFAULT_LIMITS
    budget: tuple[BudgetLimit, ...] = ()
    max_stored_bytes: int | None = None  # of its owner; None applies the default limit, 0 means no limit
    expires: float = math.inf  # Unix time
    admin: bool = False  # whether it may see what all keys use and do
    configured: bool = False  # whether the settings have a table for it
    table: str = ""  # of a caller without a key of its own: the name of the table from which it has its rights

    def allows_model(self, model: str) -> bool:
        """Return whether the key may use this model."""
        return self.models == ("*",) or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check_model(self, model: str, param: str = "model") -> None:
        """Raise `InvalidRequest` if no model can have this name, `PermissionDenied` if the key may not use it."""
        check_model_name(model)
        if not self.allows_model(model):
            models = _listed(self.models, "models")
            message = f"The key '{self.name}' may not use the model '{model}'. It may use {models}."
            raise PermissionDenied(message, param=param, code="model_not_allowed")

    def check_fields(self, fields: Mapping[str, object], path: str = "") -> None:
        """
        Raise `PermissionDenied` if fields for the backend, beside `model`, name a model that the key may not use.

        Servers take further models: in `models`, `fallbacks` or `draft_model`, or any field again in `extra_body`. What
        is not a name, or a list of names, cannot be checked.
        """
        if self.models == ("*",):
            return
        for name, value in fields.items():
            place = f"{path}{name}"
            if name == _EXTRA_BODY and isinstance(value, Mapping):
                self.check_fields(value, f"{place}.")
            elif (name != "model" or path) and _NAMES_MODELS.search(name):
                for model in value if isinstance(value, list) else [value]:
                    if isinstance(model, str):
                        self.check_model(model, place)
                    elif isinstance(model, (Mapping, list)):
                        raise self._unchecked(place)

    def check_unread_field(self, name: str) -> None:
        """Raise `PermissionDenied` as `check_fields` if a field whose value is not read here may name a model."""
        if self.models != ("*",) and _NAMES_MODELS.search(name):
            raise self._unchecked(name)

    def _unchecked(self, field: str) -> PermissionDenied:
        message = f"The key '{self.name}' is limited to certain models, and '{field}' cannot be checked. Leave it out."
        return PermissionDenied(message, param=field, code="model_not_allowed")

    def allows_tool(self, *names: str) -> bool:
        """Return whether a hosted tool is allowed by any of its names: its type, its table, or `mcp:LABEL`."""
        return self.tools == ("*",) or any(fnmatchcase(name, pattern) for name in names for pattern in self.tools)

    def check_tool(self, *names: str, param: str | None = None) -> None:
        """
        Raise `PermissionDenied` if the hosted tool with these names is not allowed; the error shows the first.

        Without names there is no tool, which every key may use.
        """
        if names and not self.allows_tool(*names):
            tools = _listed(self.tools, "tools of this server")
            message = f"The key '{self.name}' may not use the tool '{names[0]}'. It may use {tools}."
            raise PermissionDenied(message, param=param, code="tool_not_allowed")

    def check_admin(self) -> None:
        """Raise `PermissionDenied` for a key whose table does not set `admin = true`."""
        if self.configured and not self.admin:
            message = "This endpoint requires an admin key (`admin = true`)."
            raise PermissionDenied(message, code="insufficient_permissions")


def check_model_name(model: str) -> None:
    """
    Raise `InvalidRequest` for a name with control characters, with spaces around it, or one that is too long.

    Names of models go to backends, into logs and into the ledger of usage, whoever sends them and on whatever way.
    """
    if _CONTROL.search(model) or model.strip() != model:
        message = "Invalid 'model': must not contain control characters, or start or end with a space."
        raise InvalidRequest(message, param="model", code="invalid_value")
    if len(model) > MAX_MODEL_NAME:
        message = f"Invalid 'model': must have at most {MAX_MODEL_NAME} characters."
        raise InvalidRequest(message, param="model", code="string_above_max_length")


UNRESTRICTED = KeyAccess(admin=True)  # for callers of a server without keys


def digest_of(key: str) -> str:
    """Return the SHA-256 of a key as hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


def hash_of(key: str) -> str:
    """Return the hash of a key in the format of the settings, such as `sha256:9f86d0...`."""
    return f"sha256:{digest_of(key)}"


def owner_id(owner: str) -> str:
    """
    Return the id of an owner in the settings.

    A value of 32 hexadecimal digits is an id already: the start of the SHA-256 of a key without a table.
    """
    return owner if _OWNER_ID.fullmatch(owner) else hashlib.sha256(f"owner:{owner}".encode()).hexdigest()[:32]


def _listed(patterns: tuple[str, ...], noun: str) -> str:
    return ", ".join(patterns) if patterns else f"no {noun}"
