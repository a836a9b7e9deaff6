"""Settings for a backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from app.backends import PASSTHROUGH
from app.backends.apis import check_api
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.loading import describe
from app.settings.loading import suggestion, variable
from app.settings.validation import (
    ApiKey,
    BackendName,
    BackendURL,
    CommandLine,
    ProfileName,
    Seconds,
    check_backend_url,
    check_header_value,
)
from app.tools import SettingsTable


def _names(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        yield name
        yield from (f"{name}.{inner}" for inner in _names(value)) if isinstance(value, dict) else ()


def merged_profile(name: str, overrides: Mapping[str, object]) -> Profile:
    """Override a profile's options; raises `ValueError` with the invalid options."""
    try:
        profile = load_profile(name).override(overrides)
    except ValidationError as error:
        problems: dict[str, str] = {}
        for detail in error.errors(include_url=False, include_input=False):
            # For a union, pydantic adds the member's name to the location.
            option = ".".join(str(part) for part in detail["loc"] if str(part).islower() and "[" not in str(part))
            message = describe(detail)
            if detail["type"] == "unexpected_keyword_argument":
                message = f"unknown option{suggestion(option, [*_names(asdict(Profile()))])}"
            problems.setdefault(option, message)
        raise ValueError("; ".join(f"{option}: {message}" for option, message in problems.items())) from None
    check_api(profile)
    return profile


def _passable(type_: str) -> str:
    if type_ in ("function", "custom", "namespace", "mcp"):
        raise ValueError(f"must not contain {type_}: the client or this server runs these tools")
    return type_


def with_default_url(fields: Any, prefix: str = "") -> Any:
    """Add the profile's base URL to fields without a URL; `prefix` begins their names."""
    url, profile = f"{prefix}url", f"{prefix}profile"
    if not isinstance(fields, dict) or fields.get(url) or fields.get(f"{prefix}backend", "auto") == "demo":
        return fields
    with suppress(ValueError):  # an unknown profile is reported with its own field
        if default := load_profile(str(fields.get(profile, "default"))).transport.base_url:
            return {**fields, url: default}
    return fields


_KEYS = ("api_key", "api_key_env", "api_key_file", "api_key_command")


class BackendSettings(SettingsTable):
    """A table `[backends.NAME]` in the TOML file, or the single-backend variables."""

    backend: BackendName = "openai"
    """Backend kind: `openai` (any model server; its profile names the API), `demo`, or an import path
    `package.module:Class`."""
    url: BackendURL = ""
    """Base URL, usually `.../v1`. Unset: the profile's URL, if it has one (`gemini`)."""
    api_key: ApiKey | None = None
    """Sent to the backend as a bearer token; `passthrough` forwards the caller's key."""
    api_key_env: str | None = None
    """Name of the variable, in the environment or `.env`, with the key; instead of `api_key`."""
    api_key_file: Path | None = None
    """File with an expiring key, for example an access token; instead of `api_key`."""
    api_key_command: CommandLine = []
    """Command that prints an expiring key, as a list or a string: `gcloud auth print-access-token`; instead of
    `api_key`. It runs without a shell."""
    api_key_lifetime: Seconds = Field(180, gt=0)
    """Seconds between reads of the key file or runs of the key command. A 401 from the backend also renews the key."""
    models: list[str] = ["*"]
    """Globs for model names. The first backend that matches serves a model."""
    aliases: dict[str, str] = {}
    """Model aliases: the name in requests to the name sent to the backend."""
    profile: ProfileName = "default"
    """Built-in profile with the backend's differences from OpenAI's API."""
    overrides: dict[str, object] = {}
    """Profile options to override, by dotted name."""
    passes: list[Annotated[str, AfterValidator(_passable)]] = []
    """Native tool types of this server, for example `web_search`: their declarations, items and events are forwarded
    unchanged. For servers with the Responses API (`transport.api`)."""
    passthrough: Literal["auto", "always", "never"] = "auto"
    """Whether `/chat/completions` and `/messages` requests are passed through to this backend or translated into
    responses. `auto`: passed through if the backend has the endpoint and the request names no hosted tool of this
    server."""
    retries: int = Field(2, ge=0)
    """Number of retries if the backend fails before its answer starts."""
    replicas: list[Annotated[str, AfterValidator(check_backend_url)]] = []
    """Base URLs of identical servers in addition to `url`. A conversation stays on one server."""
    fallbacks: list[str] | None = None
    """Backends to try when this one fails. Unset: later backends with the same model, except those that need the
    caller's own key, and those that match only by `*` if this one does not."""
    max_concurrency: int | None = Field(None, ge=1)
    """Concurrent requests per server; further requests wait."""
    max_queue: int = Field(100, ge=0)
    """Maximum number of waiting requests; further requests get a 429."""
    queue_timeout: Seconds = Field(60, gt=0)
    """Seconds after which a waiting request gets a 429."""
    max_failures: int = Field(5, ge=1)
    """Consecutive failures after which a server is suspended."""
    recovery: Seconds = 30
    """Seconds of suspension; a successful health check ends it earlier."""
    check_interval: Seconds = 2
    """Seconds between health checks of a suspended server; 0 for none."""

    @model_validator(mode="before")
    @classmethod
    def _with_url(cls, fields: Any) -> Any:
        return with_default_url(fields)

    _key: SecretStr | None = PrivateAttr(None)  # compared, so a reload notices a changed variable

    @field_validator("api_key_env")
    @classmethod
    def _is_set(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and info.data.get("api_key"):
            raise ValueError("must be left out if there is an api_key")
        if name:
            check_header_value(SecretStr(variable(name)))
        return name

    @model_validator(mode="after")
    def _with_key(self) -> BackendSettings:
        """Read the key once: a later change in `.env` must not affect a running server."""
        names = [name for name in _KEYS if getattr(self, name)]
        if len(names) > 1:
            raise ValueError(f"{names[1]} must be left out if there is an {names[0]}")
        self._key = SecretStr(variable(self.api_key_env)) if self.api_key_env else self.api_key
        return self

    @field_validator("overrides")
    @classmethod
    def _override_profile(cls, overrides: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        if "profile" in info.data:
            merged_profile(info.data["profile"], overrides)
        return overrides

    @field_validator("replicas")
    @classmethod
    def _have_urls(cls, urls: list[str], info: ValidationInfo) -> list[str]:
        if urls and not all((info.data.get("url"), *urls)):
            raise ValueError("must be base URLs in addition to `url`")
        return urls

    @property
    def key(self) -> SecretStr | None:
        """None to send no key, `passthrough` for the caller's key."""
        return self._key

    @property
    def forwards_caller_key(self) -> bool:
        return self.key is not None and self.key.get_secret_value() == PASSTHROUGH

    @property
    def explicit(self) -> frozenset[str]:
        return frozenset(self.model_fields_set)

    def each(self) -> list[BackendSettings]:
        """Separate settings for each server: `url` and its replicas."""
        return [
            self.model_copy(update={"url": url, "replicas": []}) for url in dict.fromkeys([self.url, *self.replicas])
        ]

    def options(self) -> Profile:
        transport: dict[str, object] = {"transport.base_url": self.url} if self.url else {}
        if self.key and not self.forwards_caller_key:
            transport["transport.api_key"] = self.key.get_secret_value()
        if self.passthrough != "auto":
            transport["transport.passthrough"] = self.passthrough
        passes: dict[str, object] = {"request.passes": self.passes} if self.passes else {}
        profile = merged_profile(self.profile, {**transport, **passes, **self.overrides})
        if not self.aliases:
            return profile
        names = profile.request.model_map
        aliases = {alias: names.get(model, model) for alias, model in self.aliases.items()}
        return profile.override({"request.model_map": names | aliases})
