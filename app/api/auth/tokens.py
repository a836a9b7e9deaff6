"""Bearer tokens in JWT format (RFC 7519), cached until they expire."""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.api.auth.identity import Identity, checked_name, namespaced_owner, table_of
from app.api.auth.jwks import SigningKeys
from app.core.access import digest_of
from app.errors import InvalidToken
from app.settings.auth import JWTSettings

logger = logging.getLogger(__name__)

MAX_TOKEN = 16 * 1024  # characters
MAX_VERIFIED = 10_000  # cached tokens, about 500 bytes each
MAX_GROUPS = 1000  # per token

_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")  # `{"` in base64, and two more parts


def is_token(credential: str) -> bool:
    return _TOKEN.fullmatch(credential) is not None


class TokenVerifier:
    """Only `kid` in a token's header selects the issuer's key; `jwk`, `jku`, `x5c` and `x5u` are ignored."""

    def __init__(self, settings: JWTSettings, keys: SigningKeys, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns Unix time."""
        self.keys = keys
        self._settings = settings
        self._clock = clock
        self._verified: OrderedDict[str, Identity] = OrderedDict()  # by SHA-256, oldest first
        self._generation = 0  # of the keys that verified `_verified`

    async def identify(self, token: str) -> Identity:
        """
        Raises `InvalidToken`, `PermissionDenied` if no key is assigned, and `APIError` (503) until the issuer's keys
        were fetched.
        """
        if len(token) > MAX_TOKEN:
            raise InvalidToken("The token is too long.")
        digest = digest_of(token)
        known = self._verified.get(digest)
        if known and known.expires > self._clock() and self._generation == self.keys.generation:
            return known
        identity = self._identity(await self._claims(token))
        if self._generation != self.keys.generation:  # a key may have been removed
            self._verified.clear()
            self._generation = self.keys.generation
        self._verified[digest] = identity
        if len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)
        return identity

    async def _claims(self, token: str) -> dict[str, Any]:
        import jwt

        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in settings.algorithms:
                raise jwt.InvalidAlgorithmError
            key = await self.keys.find(header.get("kid"))
            if key is None or key.algorithm not in (None, algorithm):
                raise jwt.InvalidKeyError
            claims: dict[str, Any] = jwt.decode(
                token,
                key.public_key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
            return {**claims, "exp": int(claims["exp"])}
        except jwt.ExpiredSignatureError:
            raise InvalidToken("The token has expired.", code="expired_token") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            logger.info("token rejected", extra={"reason": type(error).__name__})
            raise InvalidToken("The token is not valid for this server.") from None

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        settings = self._settings
        owner = checked_name(claim_at(claims, settings.owner_claim), settings.owner_claim)
        name_claim = settings.name_claim or settings.owner_claim
        namespace = settings.issuer if settings.namespace is None else settings.namespace
        identity = Identity(
            table=self._table(claims),
            name=checked_name(claim_at(claims, name_claim), name_claim),
            owner=namespaced_owner(namespace, owner),
        )
        return replace(identity, expires=claims["exp"] + settings.leeway)

    def _table(self, claims: Mapping[str, Any]) -> str | None:
        settings = self._settings
        named = claim_at(claims, settings.key_claim) if settings.key_claim else None
        if isinstance(named, str) and named:
            return named
        groups = claim_at(claims, settings.groups_claim) if settings.groups else None
        found = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        restricts = bool(settings.key_claim or settings.groups)
        return table_of(settings.groups, found[:MAX_GROUPS], settings.key, restricts=restricts)


def claim_at(claims: Mapping[str, Any], path: str) -> Any:
    """Find a claim by name or by a path such as `realm_access.roles`; None if absent."""
    if path in claims:  # names can contain dots: https://example.com/groups
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
