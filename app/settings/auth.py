"""The settings of identities from outside: the tables `[auth.jwt]` and `[auth.proxy]` of the TOML file."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from app.settings.keys import KeyName

_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_CREDENTIAL_HEADERS = {"authorization", "x-api-key", "api-key", "cookie"}

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


def web_url(url: str) -> str:
    """Check the URL of a server that this server calls; raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http or https URL, such as https://login.example.com/keys")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain a user or a password")
    return url


def _header(name: str) -> str:
    if not _HEADER.fullmatch(name) or name.lower() in _CREDENTIAL_HEADERS:
        raise ValueError("must be the name of a header that only the proxy sets, such as X-Forwarded-Email")
    return name.lower()


def _network(address: str) -> str:
    try:
        return str(ip_network(address, strict=False))
    except ValueError:
        raise ValueError("must be an address or a network, such as 10.0.0.0/8") from None


def _list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Claim = Annotated[str, Field(min_length=1, max_length=200)]
KeyOfGroup = dict[Annotated[str, Field(min_length=1)], KeyName]
HeaderName = Annotated[str, AfterValidator(_header)]


class JWTSettings(BaseModel):
    """How bearer tokens that are JSON Web Tokens are verified, and whom they identify: the table `[auth.jwt]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    issuer: Annotated[str, Field(min_length=1)]
    """The token's `iss`, exactly."""
    audience: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1), BeforeValidator(_list)]
    """The accepted `aud`: a text or a list. A token must have at least one of them."""
    jwks_url: Annotated[str, AfterValidator(web_url)] | None = None
    """Where the issuer publishes its public keys."""
    jwks_file: Path | None = None
    """A file with these keys, in place of `jwks_url`; it is read again when a token names an unknown key."""
    algorithms: Annotated[list[Algorithm], Field(min_length=1)] = ["RS256", "PS256", "ES256", "EdDSA"]
    """Accepted signature algorithms: asymmetric ones only."""
    leeway: Annotated[float, Field(ge=0, le=300)] = 30
    """Seconds by which the clocks of issuer and server may differ."""
    key_claim: Claim | None = None
    """Claim that contains the name of the table `[keys.NAME]` whose rights and limits apply."""
    groups: KeyOfGroup = {}
    """Names of tables by group; the first group of this map that the token has applies."""
    groups_claim: Claim = "groups"
    """Claim with the list of groups. A path such as `realm_access.roles` leads into objects."""
    key: KeyName | None = None
    """Table for tokens that `key_claim` and `groups` assign to none."""
    owner_claim: Claim = "sub"
    """Claim that identifies the owner of stored objects."""
    name_claim: Claim | None = None
    """Claim with the name in logs and usage; by default `owner_claim`."""
    namespace: Annotated[str, Field(max_length=200)] | None = None
    """Prefix of owners, by default the issuer, so that no subject is the owner of a key. `""`: the claim alone, so
    that a key with this `owner` reaches the same objects."""

    @model_validator(mode="after")
    def _has_keys(self) -> JWTSettings:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("must have either `jwks_url` or `jwks_file`")
        return self

    @property
    def tables(self) -> set[str]:
        """The names of key tables in these settings."""
        return {*self.groups.values(), *([self.key] if self.key else ())}


class ProxySettings(BaseModel):
    """A reverse proxy that authenticates people and sets a header with their identity: the table `[auth.proxy]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    addresses: Annotated[list[Annotated[str, AfterValidator(_network)]], Field(min_length=1), BeforeValidator(_list)]
    """Addresses or networks of the proxy. The header counts only on connections from them."""
    header: HeaderName
    """Header with the identity, such as `X-Forwarded-Email`."""
    groups_header: HeaderName = "x-forwarded-groups"
    """Header with groups, separated by commas; it is read if `groups` is set."""
    groups: KeyOfGroup = {}
    """Names of tables by group; the first group of this map that the person has applies."""
    key: KeyName | None = None
    """Table for people that `groups` assigns to none."""
    namespace: Annotated[str, Field(max_length=200)] = "proxy"
    """Prefix of owners, so that no identity is the owner of a key; `""`: the identity alone."""

    @property
    def tables(self) -> set[str]:
        """The names of key tables in these settings."""
        return {*self.groups.values(), *([self.key] if self.key else ())}


class AuthSettings(BaseModel):
    """Identities from outside; keys work in addition to them."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    jwt: JWTSettings | None = None
    proxy: ProxySettings | None = None

    @model_validator(mode="after")
    def _has_one(self) -> AuthSettings:
        if self.jwt is None and self.proxy is None:
            raise ValueError("must have a table [auth.jwt] or [auth.proxy]")
        return self

    @property
    def tables(self) -> set[str]:
        """The names of key tables in these settings."""
        return {name for settings in (self.jwt, self.proxy) if settings for name in settings.tables}
