"""Validators for settings, and the annotated types that use them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection
from functools import partial
from ipaddress import ip_network
from pkgutil import resolve_name
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from app.backends import BACKENDS
from app.backends.apis import APIS
from app.backends.profiles import load_profile
from app.loading import require_packages
from app.stores import STORES


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def as_list(value: object) -> object:
    """Accept a single text for a list."""
    return [value] if isinstance(value, str) else value


def decode_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"must be a JSON object; {error}") from None


def _importable(path: str, *, or_one_of: Collection[str]) -> str:
    """Validate a name from `or_one_of` or an import path such as `package.module:Class`."""
    if path in or_one_of:
        return path
    if ":" not in path:
        names = f"one of {', '.join(or_one_of)}, or " if or_one_of else ""
        raise ValueError(f"must be {names}an import path, `package.module:Class`")
    try:
        resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot import {path!r}: {error}") from None
    return path


def check_backend_url(url: str) -> str:
    """Validate a base URL, and remove its trailing slash."""
    url = url.rstrip("/")
    if not url:
        return url
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port or an unbalanced bracket
        valid = False
    if not valid:
        raise ValueError("must be an http or https URL, such as http://localhost:8000/v1")
    if url.endswith(tuple(api.path for api in APIS.values())):
        raise ValueError("must be the base URL, such as http://localhost:8000/v1, without the endpoint's own path")
    return url


def _web_url(url: str) -> str:
    """Validate the URL of a server called by this server, other than a backend."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http or https URL, such as https://example.com/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain a user or a password")
    return url


def _required_by_openai(url: str, info: ValidationInfo) -> str:
    """Require a base URL for a backend with HTTP. The field `backend` is validated first."""
    if not url and info.data.get("backend") == "openai":
        raise ValueError("must be the base URL of a model server, such as http://localhost:8000/v1")
    return url


def matching(pattern: str, rule: str) -> AfterValidator:
    """A validator that matches the whole text; `rule` is its error."""

    def validate(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)
        return text

    return AfterValidator(validate)


def _host_name(name: str) -> str:
    """Validate a host name or a subdomain pattern, and convert it to lower case."""
    name = name.lower().removesuffix(".")
    if name != "*" and not re.fullmatch(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", name):
        raise ValueError("must be a host name without a port, such as chat.example; *.example for subdomains; or *")
    return name


def _size(value: object, read: ValidatorFunctionWrapHandler) -> ByteSize:
    try:
        size: ByteSize = read(value)
    except ValidationError as error:
        if error.errors()[0]["type"].startswith("byte_size"):
            raise ValueError("must be a number of bytes, or one with a unit, such as 64MiB") from None
        raise
    return size


def _store_url(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator and url.partition(":")[0] not in STORES:
        if not hasattr(resolve_name(_importable(url, or_one_of=())), "from_url"):
            raise ValueError("must be the import path of a class with a `from_url` method")
        return url
    if not separator or scheme not in STORES:
        raise ValueError(f"must begin with {', '.join(f'{name}://' for name in STORES)}, or be an import path")
    if scheme in {"postgresql", "postgres"}:
        require_packages(["asyncpg"], "postgres")
    return url


def _limit_store_url(url: str) -> str:
    scheme = _store_url(url).partition("://")[0] if url else ""
    if scheme == "sqlite":
        raise ValueError("must be a Redis, such as redis://localhost:6379/0, a PostgreSQL, or memory://")
    return url


def _access(value: object) -> str:
    """Accept a boolean or a page's access."""
    text = str(value).lower()
    return {"true": "open", "1": "open", "false": "off", "0": "off"}.get(text, text)


def check_header_value(key: SecretStr) -> SecretStr:
    """Validate a key for a header: printable ASCII only."""
    value = key.get_secret_value()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("must be printable ASCII: a header cannot contain anything else")
    return key


def _network(address: str) -> str:
    try:
        return address if address == "*" else str(ip_network(address, strict=False))
    except ValueError:
        raise ValueError("must be addresses or networks, such as 10.0.0.0/8; or * for any") from None


ApiKey: TypeAlias = Annotated[SecretStr, AfterValidator(check_header_value)]
ApiKeys: TypeAlias = Annotated[list[ApiKey], BeforeValidator(_split)]
Secrets: TypeAlias = Annotated[list[SecretStr], BeforeValidator(_split)]
Networks: TypeAlias = Annotated[list[Annotated[str, AfterValidator(_network)]], BeforeValidator(_split)]
HostNames: TypeAlias = Annotated[list[Annotated[str, AfterValidator(_host_name)]], BeforeValidator(_split)]
# Browsers send an origin without a path, so that any other form would never match.
_Origin: TypeAlias = Annotated[
    str,
    matching(
        r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+",
        "must be an origin without a slash or a path after it, such as https://chat.example; or *",
    ),
]
AllowedOrigins: TypeAlias = Annotated[list[_Origin], BeforeValidator(_split)]
PageAccess: TypeAlias = Annotated[Literal["open", "key", "off"], BeforeValidator(_access)]
Options: TypeAlias = Annotated[dict[str, object], BeforeValidator(decode_json)]
Bytes: TypeAlias = Annotated[ByteSize, WrapValidator(_size)]
Lifetime: TypeAlias = Annotated[int, Field(ge=1, le=10**12)]  # seconds; Redis counts in milliseconds, up to 2**63
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Split like a shell; an empty command has no arguments.
CommandLine: TypeAlias = Annotated[
    list[str], BeforeValidator(lambda command: shlex.split(command) if isinstance(command, str) else command)
]
BackendName: TypeAlias = Annotated[str, AfterValidator(partial(_importable, or_one_of=BACKENDS))]
SingleBackendName: TypeAlias = Annotated[str, AfterValidator(partial(_importable, or_one_of=["auto", *BACKENDS]))]
BackendURL: TypeAlias = Annotated[
    str, AfterValidator(check_backend_url), AfterValidator(_required_by_openai), Field(validate_default=True)
]
WebURL: TypeAlias = Annotated[str, AfterValidator(_web_url)]
StoreURL: TypeAlias = Annotated[str, AfterValidator(_store_url)]
LimitStoreURL: TypeAlias = Annotated[str, AfterValidator(_limit_store_url)]
ProfileName: TypeAlias = Annotated[str, AfterValidator(lambda name: load_profile(name).name)]
