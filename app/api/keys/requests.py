"""Request bodies for key endpoints."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from app.core.types.request import WITHOUT_NUL
from app.settings.keys import BudgetSettings, KeyName

MAX_GRACE = 30 * 86_400  # seconds

_Glob = Annotated[str, StringConstraints(min_length=1, max_length=512), WITHOUT_NUL]
_Globs = Annotated[list[_Glob], Field(max_length=1000)]
_Limit = Annotated[int, Field(ge=0, le=10**15, strict=True)]


class UpdateKey(BaseModel):
    """`null` resets a field to its default; absent fields stay unchanged."""

    # A misspelled field would leave a key without its restriction.
    model_config = ConfigDict(extra="forbid")

    owner: Annotated[str, StringConstraints(min_length=1, max_length=200), WITHOUT_NUL] | None = None
    """Owner of objects stored with the key; by default the key's name."""
    models: _Globs | None = None
    """Globs for allowed models; by default all."""
    tools: _Globs | None = None
    """Globs for allowed hosted tools, for example `web_search` or `mcp:LABEL`; by default all."""
    admin: Annotated[bool, Field(strict=True)] | None = None
    """Whether the key can manage keys and read all keys' usage and activity."""
    requests_per_minute: _Limit | None = None
    """0: no limit. null, here and below: the server's default limit."""
    tokens_per_minute: _Limit | None = None
    max_concurrent: _Limit | None = None
    """Concurrent responses."""
    budgets: BudgetSettings | None = None
    """`tokens_per_day`, `tokens_per_month`, `money_per_day`, `money_per_month`, in UTC; by default none."""
    max_stored_bytes: _Limit | None = None
    """Maximum bytes in the owner's stored responses and conversations."""
    expires_at: _Limit | None = None
    """Unix time when the key expires; by default never."""

    @field_validator("expires_at")
    @classmethod
    def _is_later(cls, expires_at: int | None) -> int | None:
        if expires_at is not None and not time.time() < expires_at < 10**11:
            raise ValueError(f"must be a Unix time in seconds, in the future, not {expires_at}")
        return expires_at


class CreateKey(UpdateKey):
    name: KeyName
    """Identifies the key in logs and usage: up to 64 letters, digits and any of `_ . @ -`."""


class RotateKey(BaseModel):
    """The current secret works until the grace period ends."""

    model_config = ConfigDict(extra="forbid")

    grace_period: Annotated[int, Field(ge=0, le=MAX_GRACE, strict=True)] = 86_400
    """Seconds until the current secret stops working; 0: at once."""
