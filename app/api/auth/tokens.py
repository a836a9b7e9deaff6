"""Bearer tokens in JWT format (RFC 7519), cached until they expire, and an issuer's public keys (RFC 7517)."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from app.api.auth.identity import Identity, checked_name, namespaced_owner, table_of
from app.core.access import digest_of
from app.errors import APIError, InvalidToken
from app.runtime.outbound import RequestFailed, send_request
from app.runtime.tasks import end
from app.settings.auth import JWTSettings

if TYPE_CHECKING:
    import httpx


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
        # By generation of the keys, in which a key may have been removed, and SHA-256; oldest first.
        self._verified: OrderedDict[tuple[int, str], Identity] = OrderedDict()

    async def identify(self, token: str) -> Identity:
        """
        Raises `InvalidToken`, `PermissionDenied` if no key is assigned, and `APIError` (503) until the issuer's keys
        were fetched.
        """
        if len(token) > MAX_TOKEN:
            raise InvalidToken("The token is too long.")
        digest = digest_of(token)
        known = self._verified.get((self.keys.generation, digest))
        if known and known.expires > self._clock():
            return known
        identity = self._identity(await self._claims(token))
        self._verified[self.keys.generation, digest] = identity
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
        return Identity(
            table=self._table(claims),
            name=checked_name(claim_at(claims, name_claim), name_claim),
            owner=namespaced_owner(namespace, owner),
            expires=claims["exp"] + settings.leeway,
        )

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


KEYS_MAX_AGE = 3600.0  # seconds until keys are fetched again, which invalidates removed keys
MIN_INTERVAL = 30.0  # seconds between fetches for unknown key ids: tokens can contain any id
FETCH_RETRY = 5.0  # seconds
FETCH_TIMEOUT = 5.0  # seconds
MAX_KEY_SET_BYTES = 1024 * 1024
MAX_KEYS = 100


class SigningKey(NamedTuple):
    """Without `algorithm`, for any algorithm of the key's type."""

    key_id: str | None
    algorithm: str | None
    public_key: Any  # from `cryptography`


class SigningKeys:
    """`load` returns the key set's JSON or raises `ValueError`. After a failure the previous keys remain valid."""

    def __init__(
        self,
        load: Callable[[], Awaitable[bytes]],
        clock: Callable[[], float] = time.monotonic,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._close = close
        self.generation = 0
        self._load = load
        self._clock = clock
        self._source = b""
        self._keys: list[SigningKey] = []
        self._fetched = 0.0
        self._due = clock()
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> SigningKey | None:
        """
        Without `key_id`, the only key; None if not found.

        An unknown id causes a fetch, at most every `MIN_INTERVAL` seconds. Raises `APIError` (503) until keys were
        fetched.
        """
        key = self._find(key_id)
        if key is None:
            if task := self._begin():
                await asyncio.shield(task)
            key = self._find(key_id)
        elif self._clock() - self._fetched > KEYS_MAX_AGE:
            self._begin()
        if not self._keys:
            message = "The identity provider's keys are temporarily unavailable."
            raise APIError(message, code="identity_provider_unavailable", status=503, retry_after=FETCH_RETRY)
        return key

    def _find(self, key_id: str | None) -> SigningKey | None:
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.key_id == key_id), None)

    async def check(self) -> int:
        """Number of fetched keys; raises `ValueError`."""
        self._use(await self._load())
        return len(self._keys)

    async def aclose(self) -> None:
        await end(self._fetching)
        if self._close:
            await self._close()

    def _begin(self) -> asyncio.Task[None] | None:
        if self._fetching is None and self._clock() >= self._due:
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        wait = FETCH_RETRY
        try:
            self._use(await self._load())
            wait = MIN_INTERVAL
        except ValueError as error:
            logger.warning("signing key request failed", extra={"reason": str(error)})
        except Exception:
            logger.exception("signing key request failed")
        finally:
            self._due = self._clock() + wait
            self._fetching = None

    def _use(self, source: bytes) -> None:
        if source != self._source:
            self._keys = parsed_keys(source)
            self._source = source
            self.generation += 1
        self._fetched = self._clock()


def parsed_keys(source: bytes) -> list[SigningKey]:
    """Raises `ValueError` without a public signature key."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    try:
        document = orjson.loads(source)
    except orjson.JSONDecodeError:
        raise ValueError("the key set is not JSON") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    keys: list[SigningKey] = []
    for entry in listed[:MAX_KEYS] if isinstance(listed, list) else ():
        # A symmetric key is a secret: if published, anyone can sign.
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue
        try:
            keys.append(SigningKey(_text(entry, "kid"), _text(entry, "alg"), PyJWK(entry).key))
        except (PyJWTError, ValueError, TypeError, AttributeError):
            continue  # unsupported algorithm
    if not keys:
        raise ValueError("the key set has no public key for signatures")
    return keys


def _text(entry: dict[str, Any], name: str) -> str | None:
    return value if isinstance(value := entry.get(name), str) else None


def key_file(path: Path) -> Callable[[], Awaitable[bytes]]:
    path = path.expanduser()

    async def load() -> bytes:
        try:
            return await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise ValueError(f"cannot read {str(path)!r}: {error.strerror}") from None

    return load


def key_url(url: str, http: httpx.AsyncBaseTransport) -> Callable[[], Awaitable[bytes]]:
    """`http` must limit response size and must not follow redirects."""

    async def load() -> bytes:
        import httpx

        request = httpx.Request("GET", url, headers={"Accept": "application/json", "User-Agent": "antiphon"})
        try:
            response = await send_request(http, request, FETCH_TIMEOUT)
        except RequestFailed as failure:
            raise ValueError(f"{failure}: {failure.__cause__ or ''}".rstrip(": ")) from None
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code}")
        return response.content

    return load
