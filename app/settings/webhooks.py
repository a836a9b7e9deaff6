"""Servers called by this server, in the TOML file: `[webhooks.NAME]` for events, `[hooks]` for policy decisions."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from app.settings.loading import variable
from app.settings.validation import WebURL
from app.tools import SettingsTable

WebhookEvent = Literal[
    "response.completed",
    "response.failed",
    "response.incomplete",
    "response.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
SECRET_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)  # required by Standard Webhooks


def signing_key(secret: str) -> bytes:
    """Decode a secret (`whsec_` and base64); raises `ValueError`."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(SECRET_PREFIX) or len(key) not in _KEY_BYTES:
        raise ValueError(
            "must be `whsec_` and 24 to 64 bytes in base64, as `echo whsec_$(openssl rand -base64 32)` prints it"
        )
    return key


def _secret(secret: SecretStr) -> SecretStr:
    signing_key(secret.get_secret_value())
    return secret


class WebhookSettings(SettingsTable):
    """A server that receives events about background responses and batches."""

    url: WebURL
    """URL for events, sent by POST."""
    secret: Annotated[SecretStr, AfterValidator(_secret)] | None = None
    """`whsec_` and a base64 key: signs events like OpenAI's webhooks."""
    secret_env: str | None = None
    """Name of the variable, in the environment or `.env`, with the secret; instead of `secret`."""
    events: list[WebhookEvent] = [*get_args(WebhookEvent)]
    """The events to send; by default all."""

    _key: bytes = PrivateAttr(b"")

    @field_validator("secret_env")
    @classmethod
    def _is_set(cls, name: str | None) -> str | None:
        if name:
            signing_key(variable(name))
        return name

    @model_validator(mode="after")
    def _with_key(self) -> WebhookSettings:
        if (self.secret is None) == (self.secret_env is None):
            raise ValueError("must have either `secret` or `secret_env`")
        self._key = signing_key(self.signing_secret)
        return self

    @property
    def signing_secret(self) -> str:
        return self.secret.get_secret_value() if self.secret else variable(self.secret_env or "")

    @property
    def key(self) -> bytes:
        return self._key


class HookSettings(SettingsTable):
    """A policy service for the input and output of models."""

    input_url: WebURL | None = None
    """Where input is sent by POST before a model sees it: requests, results and lists of tools, descriptions of images.
    Files are not reviewed while they are indexed."""
    output_url: WebURL | None = None
    """URL for output items, sent by POST before the caller receives them."""
    mode: Literal["block", "observe"] = "block"
    """`block`: wait for the decision and apply it. `observe`: only log it."""
    timeout: Annotated[float, Field(gt=0, le=60)] = 2.0
    """Timeout for a decision, in seconds."""
    fail: Literal["closed", "open"] = "closed"
    """Result without a decision: `closed` rejects with a 503, `open` allows."""

    @model_validator(mode="after")
    def _has_url(self) -> HookSettings:
        if not (self.input_url or self.output_url):
            raise ValueError("must have `input_url` or `output_url`")
        return self
