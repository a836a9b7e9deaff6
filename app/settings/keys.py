"""Named API keys in the TOML file: `[keys.NAME]`, budgets and prices."""

from __future__ import annotations

import json
import re
import secrets
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from app.core.access import BudgetLimit, digest_of
from app.core.prices import NANO, Price
from app.settings.loading import variable
from app.settings.validation import Bytes, as_list, check_header_value, matching
from app.stores.keys import StoredKey
from app.tools import SettingsTable

KEY_PREFIX = "sk-antiphon-"  # logs redact strings with this prefix
ID_PREFIX = "settings:"  # of the API's key ids

# In logs and usage, the excluded names mean keys without a table.
_NAME = re.compile(r"(?!(?:anonymous|unnamed|other|key_[0-9a-f]{8})$)[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


def generate_key() -> str:
    return f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"


def check_key_name(name: str) -> str:
    """Raises `ValueError` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            "must be up to 64 letters, digits and any of _ . @ -, and none of: anonymous, unnamed, other, key_ with "
            "eight digits"
        )
    return name


KeyName = Annotated[str, AfterValidator(check_key_name)]
_Hash = Annotated[
    str,
    matching(
        r"sha256:[0-9a-f]{64}",
        "must be `sha256:` and 64 hexadecimal digits, as `antiphon key new NAME` prints it; never the key itself",
    ),
]
_Limit = Annotated[int | None, Field(ge=0)]
Money = Annotated[Decimal, Field(ge=0, le=10**9, decimal_places=6, allow_inf_nan=False)]


class BackendPriceSettings(SettingsTable):
    """A table `[prices."GLOB".backends.NAME]`: model prices at one backend."""

    input: Money
    output: Money
    cached_input: Money | None = None
    cache_write: Money | None = None
    batch: Annotated[Decimal, Field(ge=0, le=1, decimal_places=3)] = Decimal(1)  # in `/v1/batches`

    def price(self) -> Price:
        return Price.per_million(self.input, self.output, self.cached_input, self.cache_write, self.batch)


class PriceSettings(BackendPriceSettings):
    """A table `[prices."GLOB"]`: model prices per million tokens, in any currency."""

    backends: dict[str, BackendPriceSettings] = {}
    """Prices for the same models at other backends, for example a more expensive fallback."""


class BudgetSettings(SettingsTable):
    """A key's budget per day and month, in UTC, and in the currency of the prices."""

    tokens_per_day: int | None = Field(None, ge=0)
    tokens_per_month: int | None = Field(None, ge=0)
    money_per_day: Money | None = None
    money_per_month: Money | None = None

    @property
    def needs_prices(self) -> bool:
        return self.money_per_day is not None or self.money_per_month is not None

    def limits(self) -> tuple[BudgetLimit, ...]:
        return tuple(
            BudgetLimit(name, int(amount * NANO) if name.startswith("money") else int(amount))
            for name, amount in self
            if amount is not None
        )


class KeySettings(SettingsTable):
    """One named key."""

    hash: Annotated[list[_Hash], BeforeValidator(as_list)] = []
    """`sha256:` and the key's SHA-256, as printed by `antiphon key new NAME`; a list during a key rotation. With
    `[auth.jwt]` or `[auth.proxy]`, a table without `hash` and `env` defines the rights of people."""
    env: str | None = None
    """Name of the variable, in the environment or `.env`, with the key; instead of `hash`. Several keys are
    comma-separated."""
    description: str = ""
    """A note for readers of the file."""
    owner: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Owner of the key's stored objects; by default the key's name. Keys with the same owner can access the same
    objects. 32 hexadecimal digits are an owner's id: for a key in `ANTIPHON_API_KEYS`, the start of its SHA-256."""
    models: list[str] = ["*"]
    """Globs for the models that the key can use."""
    tools: list[str] = ["*"]
    """Globs for the hosted tools that the key can use: types such as `web_search`, or `mcp:LABEL`. The client's own
    tools are not affected."""
    requests_per_minute: _Limit = None
    """Requests per minute; 0 for no limit. Unset, here and below: `ANTIPHON_LIMIT_...` applies."""
    tokens_per_minute: _Limit = None
    """Input and output tokens per minute."""
    streams: _Limit = None
    """Concurrent responses, streamed or not."""
    budget: BudgetSettings = BudgetSettings()
    """Maximum usage: `tokens_per_day`, `tokens_per_month`, `money_per_day`, `money_per_month`, in UTC."""
    max_stored_bytes: Bytes | None = None
    """Bytes for the owner's responses and conversations, or with a unit; 0 for no limit. Unset:
    `ANTIPHON_MAX_STORED_BYTES` applies."""
    expires: datetime | None = None
    """Expiry of the key: a date or a time, by default in UTC."""
    admin: bool = False
    """Whether the key can see all keys' usage and activity, and `/metrics` if that needs a key. It never shows other
    keys' content."""

    _keys: tuple[SecretStr, ...] = PrivateAttr(())  # compared, so a reload notices a changed variable

    @field_validator("env")
    @classmethod
    def _is_set(cls, name: str | None) -> str | None:
        if name:
            variable(name)
        return name

    @field_validator("expires")
    @classmethod
    def _in_utc(cls, expires: datetime | None) -> datetime | None:
        return expires.replace(tzinfo=UTC) if expires and expires.tzinfo is None else expires

    @model_validator(mode="after")
    def _with_keys(self) -> KeySettings:
        """Read the keys once: a later change in `.env` must not affect a running server."""
        if self.hash and self.env:
            raise ValueError("must have either `hash` or `env`; `antiphon key new NAME` prints a table")
        if self.env:
            keys = [SecretStr(key.strip()) for key in variable(self.env).split(",") if key.strip()]
            self._keys = tuple(check_header_value(key) for key in keys)
        return self

    @property
    def secrets(self) -> list[SecretStr]:
        return [*self._keys]

    @property
    def digests(self) -> list[str]:
        """SHA-256 as hexadecimal digits."""
        hashes = [digest.removeprefix("sha256:") for digest in self.hash]
        return [*hashes, *(digest_of(key.get_secret_value()) for key in self._keys)]

    def as_stored(self, name: str) -> StoredKey:
        """The key in the form of the store's keys, without secrets."""
        return StoredKey(
            f"{ID_PREFIX}{name}",
            name,
            self.owner or name,
            models=self.models,
            tools=self.tools,
            admin=self.admin,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            max_concurrent=self.streams,
            budgets={limit.name: limit.amount for limit in self.budget.limits()},
            max_stored_bytes=self.max_stored_bytes,
            expires_at=int(self.expires.timestamp()) if self.expires else None,
        )


def key_table(name: str, digest: str, **fields: object) -> str:
    """Format a table `[keys.NAME]` for a TOML file; `fields` are additional strings."""
    quoted = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
    # JSON strings are valid TOML, except for DEL.
    strings = {field: json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f") for field, text in fields.items()}
    lines = [f"[keys.{quoted}]", f'hash = "{digest}"', *(f"{field} = {text}" for field, text in strings.items())]
    return "\n".join(lines) + "\n"
