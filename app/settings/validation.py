"""
What a setting may hold: the checks, the types made of them, and the settings of one backend.

A check says what would be right and never repeats the value, which may be a secret.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from ipaddress import ip_network
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from app.backends import BACKENDS, PASSTHROUGH
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.stores import STORES

ENV_FILE = ".env"


def environment() -> dict[str, str]:
    """Return the variables of the environment, over those of `.env`; the empty ones left out."""
    variables = {**dotenv_values(ENV_FILE, encoding="utf-8"), **os.environ}
    return {name: value for name, value in variables.items() if value}


def _split(value: object) -> object:
    """Take a list as a variable holds it, separated by commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def decode_json(value: object) -> object:
    """Take an object as a variable holds it, in JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"should be a JSON object; {error}") from None


def _importable(path: str, *, or_one_of: Collection[str]) -> str:
    """Check a name of a table, or an import path such as `package.module:Class`."""
    if path in or_one_of:
        return path
    if ":" not in path:
        names = f"one of {', '.join(or_one_of)}, or " if or_one_of else ""
        raise ValueError(f"should be {names}an import path, `package.module:Class`")
    try:
        resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot import {path!r}: {error}") from None
    return path


def _backend(name: str) -> str:
    return _importable(name, or_one_of=BACKENDS)


def _single_backend(name: str) -> str:
    return name if name == "auto" else _importable(name, or_one_of=["auto", *BACKENDS])


def _backend_url(url: str) -> str:
    """Check a base URL, and drop the slash at its end."""
    url = url.rstrip("/")
    if not url:
        return url
    if not _is_web_address(url):
        raise ValueError("should be an http or https URL, such as http://localhost:8000/v1")
    if url.endswith(("/chat/completions", "/responses")):
        raise ValueError("should be the base URL, such as http://localhost:8000/v1, without the endpoint's own path")
    return url


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, or half a bracket
        return False


def _origin(origin: str) -> str:
    """Check an origin: browsers send it without a path, and any other spelling would never be met."""
    if origin not in {"*", "null"} and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", origin):
        raise ValueError("should be an origin, such as https://chat.example, without a slash or a path behind it; or *")
    return origin


def _size(value: object, read: ValidatorFunctionWrapHandler) -> ByteSize:
    try:
        size: ByteSize = read(value)
    except ValidationError as error:
        if error.errors()[0]["type"].startswith("byte_size"):
            raise ValueError("should be a number of bytes, or one with a unit, such as 64MiB") from None
        raise
    return size


def _store_url(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator and url.partition(":")[0] not in STORES:
        return _importable(url, or_one_of=())
    if not separator or scheme not in STORES:
        raise ValueError(f"should begin with {', '.join(f'{name}://' for name in STORES)}, or be an import path")
    if scheme in {"postgresql", "postgres"} and find_spec("asyncpg") is None:
        raise ValueError("needs more packages: pip install 'antiphon[postgres]'")
    return url


def _limit_store_url(url: str) -> str:
    scheme = _store_url(url).partition("://")[0] if url else ""
    if scheme == "sqlite":
        raise ValueError("should be a Redis, such as redis://localhost:6379/0, a PostgreSQL, or memory://")
    return url


def _no_such(option: str) -> str:
    close = get_close_matches(option, [*_names(Profile().model_dump())], n=1)
    return f"there is no such option{f'; did you mean {close[0]}?' if close else ''}"


def _names(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        yield name
        yield from (f"{name}.{inner}" for inner in _names(value)) if isinstance(value, dict) else ()


def merged_profile(name: str, overrides: Mapping[str, Any]) -> Profile:
    """Load a profile and change it; a `ValueError` names the options at fault."""
    try:
        return load_profile(name).override(overrides)
    except ValidationError as error:
        problems: dict[str, str] = {}
        for detail in error.errors(include_url=False, include_input=False, include_context=False):
            # Where an option may have several shapes, pydantic adds the shape's name to its location.
            option = ".".join(str(part) for part in detail["loc"] if str(part).islower() and "[" not in str(part))
            problems.setdefault(option, _no_such(option) if detail["type"] == "extra_forbidden" else detail["msg"])
        raise ValueError("; ".join(f"{option}: {message}" for option, message in problems.items())) from None


def _profile_name(name: str) -> str:
    load_profile(name)
    return name


def _access(value: Any) -> Any:
    """Return who may see a page, for what may be a boolean, as it once was."""
    return {"true": "open", "1": "open", "false": "off", "0": "off"}.get(
        str(value).lower(), value.lower() if isinstance(value, str) else value
    )


PageAccess: TypeAlias = Annotated[
    Literal["open", "key", "off"],
    BeforeValidator(_access),
]
AllowedOrigins: TypeAlias = Annotated[list[Annotated[str, AfterValidator(_origin)]], NoDecode, BeforeValidator(_split)]


def _api_key(key: SecretStr) -> SecretStr:
    """Check a key that is sent in a header: these hold nothing but ASCII."""
    value = key.get_secret_value()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("should be printable ASCII: a header cannot hold anything else")
    return key


def _network(address: str) -> str:
    try:
        return address if address == "*" else str(ip_network(address, strict=False))
    except ValueError:
        raise ValueError("should be addresses or networks, such as 10.0.0.0/8; or * for any") from None


ApiKey: TypeAlias = Annotated[SecretStr, AfterValidator(_api_key)]
ApiKeys: TypeAlias = Annotated[list[ApiKey], NoDecode, BeforeValidator(_split)]
Networks: TypeAlias = Annotated[list[Annotated[str, AfterValidator(_network)]], NoDecode, BeforeValidator(_split)]
Secrets: TypeAlias = Annotated[list[SecretStr], NoDecode, BeforeValidator(_split)]
Options: TypeAlias = Annotated[dict[str, Any], NoDecode, BeforeValidator(decode_json)]
Size: TypeAlias = Annotated[ByteSize, WrapValidator(_size)]
Lifetime: TypeAlias = Annotated[int, Field(ge=1, le=10**12)]  # seconds; Redis counts in milliseconds, up to 2**63
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
BackendName: TypeAlias = Annotated[str, AfterValidator(_backend)]
SingleBackendName: TypeAlias = Annotated[str, AfterValidator(_single_backend)]
BackendURL: TypeAlias = Annotated[str, AfterValidator(_backend_url), Field(validate_default=True)]
StoreURL: TypeAlias = Annotated[str, AfterValidator(_store_url)]
LimitStoreURL: TypeAlias = Annotated[str, AfterValidator(_limit_store_url)]
ProfileName: TypeAlias = Annotated[str, AfterValidator(_profile_name)]


class BackendSettings(BaseModel):
    """One backend: a table `[backends.NAME]` of the TOML file, or the single-backend variables."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)

    backend: BackendName = "openai"
    """What it is: `openai` (any Chat Completions server), `demo`, or an import path `package.module:Class`."""
    url: BackendURL = ""
    """Base URL, `.../v1` as a rule."""
    api_key: ApiKey | None = None
    """Sent upstream as a bearer token; `passthrough` forwards the caller's."""
    api_key_env: str | None = None
    """The variable, of the environment or `.env`, that holds the key, in place of `api_key`."""
    models: list[str] = ["*"]
    """Globs of the models' names it serves. The first backend that matches serves the model."""
    aliases: dict[str, str] = {}
    """Other names for models: from the name a caller uses to the name sent upstream."""
    profile: ProfileName = "default"
    """Name of the built-in profile that says how the server differs from OpenAI's."""
    overrides: dict[str, Any] = {}
    """Options of the profile to change, by dotted name."""
    retries: int = Field(2, ge=0)
    """How often to ask again when the backend refuses before it answers."""
    replicas: list[Annotated[str, AfterValidator(_backend_url)]] = []
    """Base URLs of more servers that are just like the one at `url`. A conversation stays with one of them."""
    fallbacks: list[str] | None = None
    """Names of the backends to ask when this one cannot answer. Unset: those further down that serve the model, too;
    but none that serves it by `*` alone if this one does not, and none that takes the callers' own keys."""
    max_concurrency: int | None = Field(None, ge=1)
    """How many requests each of its servers may work on at once; more of them wait."""
    max_queue: int = Field(100, ge=0)
    """How many requests may wait; beyond them it answers 429."""
    queue_timeout: Seconds = Field(60, gt=0)
    """Seconds for which a request may wait; then it is answered with 429."""
    max_failures: int = Field(5, ge=1)
    """Failures in a row after which a server is left alone for a while."""
    recovery: Seconds = 30
    """Seconds for which it is left alone, unless it answers a check before."""
    check_interval: Seconds = 2
    """Seconds between checks of a server that is left alone; 0 for none."""

    _key: SecretStr | None = PrivateAttr(None)  # which settings that are read anew are compared by, too

    @field_validator("url")
    @classmethod
    def _has_url(cls, url: str, info: ValidationInfo) -> str:
        if not url and info.data.get("backend") == "openai":
            raise ValueError("should be the base URL of a Chat Completions server, such as http://localhost:8000/v1")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_set(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and info.data.get("api_key"):
            raise ValueError("should be left out where there is an api_key")
        if name and not environment().get(name):
            raise ValueError(f"the environment variable {name} is not set")
        if name:
            _api_key(SecretStr(environment()[name]))
        return name

    @model_validator(mode="after")
    def _with_key(self) -> BackendSettings:
        """Read the key, once: `.env` may change, and what runs does not change with it."""
        self._key = SecretStr(environment()[self.api_key_env]) if self.api_key_env else self.api_key
        return self

    @field_validator("overrides")
    @classmethod
    def _fit(cls, overrides: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "profile" in info.data:
            merged_profile(info.data["profile"], overrides)
        return overrides

    @field_validator("replicas")
    @classmethod
    def _have_urls(cls, urls: list[str], info: ValidationInfo) -> list[str]:
        if urls and not all((info.data.get("url"), *urls)):
            raise ValueError("should be base URLs, beside that of `url`")
        return urls

    @property
    def key(self) -> SecretStr | None:
        """The key to send upstream, wherever it is kept; None to send none, `passthrough` to send the caller's."""
        return self._key

    @property
    def passes_keys(self) -> bool:
        """Whether callers have to show a key of this backend's."""
        return self.key is not None and self.key.get_secret_value() == PASSTHROUGH

    @property
    def given(self) -> frozenset[str]:
        """The names of the settings that were given, and not left at their defaults."""
        return frozenset(self.model_fields_set)

    def each(self) -> list[BackendSettings]:
        """Return the settings of each of its servers."""
        return [
            self.model_copy(update={"url": url, "replicas": []}) for url in dict.fromkeys([self.url, *self.replicas])
        ]

    def options(self) -> Profile:
        """Return the profile with the overrides, and the URL, the key and the aliases in its place for them."""
        transport: dict[str, Any] = {"transport.base_url": self.url} if self.url else {}
        if self.key and not self.passes_keys:
            transport["transport.api_key"] = self.key.get_secret_value()
        profile = merged_profile(self.profile, {**transport, **self.overrides})
        if not self.aliases:
            return profile
        names = profile.request.model_map
        aliases = {alias: names.get(model, model) for alias, model in self.aliases.items()}
        return profile.override({"request.model_map": names | aliases})
