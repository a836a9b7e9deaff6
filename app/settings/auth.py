"""External identities in the TOML file: `[auth.jwt]` and `[auth.proxy]`."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from app.settings.keys import KeyName
from app.settings.validation import WebURL, as_list
from app.tools import SettingsTable

_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_CREDENTIAL_HEADERS = {"authorization", "x-api-key", "api-key", "cookie"}

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


def _header(name: str) -> str:
    if not _HEADER.fullmatch(name) or name.lower() in _CREDENTIAL_HEADERS:
        raise ValueError("must be the name of a header that only the proxy sets, such as X-Forwarded-Email")
    return name.lower()


def _network(address: object) -> IPv4Network | IPv6Network:
    try:
        return ip_network(str(address), strict=False)
    except ValueError:
        raise ValueError("must be an address or a network, such as 10.0.0.0/8") from None


_Text = Annotated[str, Field(min_length=1)]
Claim = Annotated[str, Field(min_length=1, max_length=200)]
KeyOfGroup = dict[_Text, KeyName]
HeaderName = Annotated[str, AfterValidator(_header)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class JWTSettings(SettingsTable):
    """The table `[auth.jwt]`: verifies bearer tokens (JSON Web Tokens) and maps them to keys and owners."""

    issuer: _Text
    """The token's `iss`, exactly."""
    audience: Annotated[list[_Text], Field(min_length=1), BeforeValidator(as_list)]
    """The accepted `aud`: a string or a list. A token must have at least one of them."""
    jwks_url: WebURL | None = None
    """URL of the issuer's public keys."""
    jwks_file: Path | None = None
    """A file with these keys, instead of `jwks_url`; it is read again when a token names an unknown key."""
    algorithms: Annotated[list[Algorithm], Field(min_length=1)] = ["RS256", "PS256", "ES256", "EdDSA"]
    """Accepted signature algorithms, all asymmetric."""
    leeway: Annotated[float, Field(ge=0, le=300)] = 30
    """Permitted clock difference between issuer and server, in seconds."""
    key_claim: Claim | None = None
    """Claim with the name of the table `[keys.NAME]` for rights and limits."""
    groups: KeyOfGroup = {}
    """Table names by group; the first entry with a group in the token applies."""
    groups_claim: Claim = "groups"
    """Claim with the list of groups. A path such as `realm_access.roles` selects a nested claim."""
    key: KeyName | None = None
    """Table for tokens without a table from `key_claim` or `groups`."""
    owner_claim: Claim = "sub"
    """Claim that identifies the owner of stored objects."""
    name_claim: Claim | None = None
    """Claim with the name for logs and usage; by default `owner_claim`."""
    namespace: Annotated[str, Field(max_length=200)] | None = None
    """Prefix for owners, by default the issuer, so that subjects and keys never share an owner. `""`: the claim alone,
    so that a key with this `owner` can access the same objects."""

    @model_validator(mode="after")
    def _has_keys(self) -> JWTSettings:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("must have either `jwks_url` or `jwks_file`")
        return self


class ProxySettings(SettingsTable):
    """The table `[auth.proxy]`: a reverse proxy that authenticates people and sends their identity in a header."""

    addresses: Annotated[list[Network], Field(min_length=1), BeforeValidator(as_list)]
    """The proxy's addresses or networks. The header is ignored on other connections."""
    header: HeaderName
    """Header with the identity: `X-Forwarded-Email`."""
    groups_header: HeaderName = "x-forwarded-groups"
    """Header with comma-separated groups, used if `groups` is set."""
    groups: KeyOfGroup = {}
    """Table names by group; the first entry with a group of the person applies."""
    key: KeyName | None = None
    """Table for people without a table from `groups`."""
    namespace: Annotated[str, Field(max_length=200)] = "proxy"
    """Prefix for owners, so that identities and keys never share an owner; `""`: the identity alone."""


class AuthSettings(SettingsTable):
    """External identities, in addition to keys."""

    jwt: JWTSettings | None = None
    proxy: ProxySettings | None = None

    @model_validator(mode="after")
    def _has_one(self) -> AuthSettings:
        if self.jwt is None and self.proxy is None:
            raise ValueError("must have a table [auth.jwt] or [auth.proxy]")
        return self

    @property
    def tables(self) -> set[str]:
        """Names of tables `[keys.NAME]`."""
        sources = [source for source in (self.jwt, self.proxy) if source]
        return {name for source in sources for name in (*source.groups.values(), source.key) if name}
