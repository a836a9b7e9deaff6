"""Bearer tokens: accepted tokens, and forgeries."""

from __future__ import annotations

import base64
import json
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest

from app.api.auth import tokens as tokens_module
from app.api.auth.identity import Identity, namespaced_owner
from app.api.auth.tokens import MAX_TOKEN, SigningKeys, TokenVerifier, claim_at, is_token
from app.core.access import owner_id
from app.errors import InvalidToken, PermissionDenied
from app.settings.auth import JWTSettings
from tests.support.tokens import AUDIENCE, ISSUER, Signer, key_set

EC, RSA, OTHER = Signer("ec"), Signer("rsa", "RS256"), Signer("other")


class Loader:
    """Loads a key set, and counts how often."""

    def __init__(self, *signers: Signer) -> None:
        self.loads = 0
        self.signers = signers

    async def __call__(self) -> bytes:
        self.loads += 1
        return key_set(*(signer.jwk() for signer in self.signers))


def verifier(loader: Loader | None = None, clock: Callable[[], float] = time.time, **fields: Any) -> TokenVerifier:
    settings = JWTSettings(**{"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "unused", **fields})
    return TokenVerifier(settings, SigningKeys(loader or Loader(EC, RSA)), clock)


async def test_token_of_the_issuer_is_identified_by_its_claims() -> None:
    token = EC.token(sub="u1", email="alice@example.org", antiphon_key="team")
    identity = await verifier(key_claim="antiphon_key", name_claim="email").identify(token)
    assert (identity.table, identity.name) == ("team", "alice@example.org")
    assert identity.owner == namespaced_owner(ISSUER, "u1")
    assert identity.usage_name == "team:alice@example.org"
    assert 0 < identity.expires - time.time() <= 330


def _part(fields: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()


def _claims(**fields: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 300, **fields}


def _hmac_with_public_key() -> str:
    """HS256 with the bytes of the public key as the secret, which PyJWT itself refuses to sign."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    secret = RSA.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{_part({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{_part(_claims())}"
    digest = hmac.digest(secret, signed.encode(), hashlib.sha256)
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _with_payload_of_another() -> str:
    head, _, signature = EC.token().split(".")
    return f"{head}.{_part(_claims(sub='bob'))}.{signature}"


NOW = int(time.time())

FORGED: dict[str, Callable[[], str]] = {
    "alg none": lambda: f"{_part({'alg': 'none', 'kid': 'ec'})}.{_part(_claims())}.",
    "alg None": lambda: f"{_part({'alg': 'None', 'kid': 'ec'})}.{_part(_claims())}.",
    "no alg": lambda: f"{_part({'kid': 'ec'})}.{_part(_claims())}.",
    "alg of another type": lambda: f"{_part({'alg': ['ES256'], 'kid': 'ec'})}.{_part(_claims())}.",
    "HS256 with the public key": _hmac_with_public_key,
    "RS256 with the id of an EC key": lambda: RSA.token({"kid": "ec"}),
    "ES256 with the id of an RSA key": lambda: EC.token({"kid": "rsa"}),
    "key of somebody else": lambda: OTHER.token({"kid": "ec"}),
    "own key in jwk": lambda: OTHER.token({"kid": "ec", "jwk": OTHER.jwk()}),
    "own keys at jku": lambda: OTHER.token({"jku": "https://evil.example/jwks"}),
    "own certificate at x5u": lambda: OTHER.token({"x5u": "https://evil.example/cert", "x5c": ["MIIB"]}),
    "kid that is a path": lambda: OTHER.token({"kid": "../../../dev/null"}),
    "kid that is SQL": lambda: OTHER.token({"kid": "ec' OR '1'='1"}),
    "kid of another type": lambda: f"{_part({'alg': 'ES256', 'kid': {'a': 1}})}.{_part(_claims())}.AAAA",
    "no kid with several keys": lambda: EC.token({"kid": None}),
    "unknown critical header": lambda: EC.token({"crit": ["exp2"], "exp2": 1}),
    "payload of another token": _with_payload_of_another,
    "truncated signature": lambda: EC.token()[:-6],
    "no signature": lambda: EC.token().rpartition(".")[0] + ".",
    "wrong issuer": lambda: EC.token(iss="https://evil.example"),
    "issuer with a slash": lambda: EC.token(iss=f"{ISSUER}/"),
    "no issuer": lambda: EC.token(iss=None),
    "issuers in a list": lambda: EC.token(iss=[ISSUER]),
    "wrong audience": lambda: EC.token(aud="another"),
    "part of the audience": lambda: EC.token(aud="anti"),
    "no audience": lambda: EC.token(aud=None),
    "audience of another type": lambda: EC.token(aud={"antiphon": True}),
    "no expiry": lambda: EC.token(exp=None),
    "expiry that is no number": lambda: EC.token(exp="tomorrow"),
    "endless expiry": lambda: EC.token(exp=math.inf),
    "not valid yet": lambda: EC.token(nbf=NOW + 3600),
    "issued in the future": lambda: EC.token(iat=NOW + 3600),
    "no subject": lambda: EC.token(sub=None),
    "empty subject": lambda: EC.token(sub=" "),
    "subject that is a list": lambda: EC.token(sub=["alice"]),
    "subject with a line break": lambda: EC.token(sub="alice\nlevel=info"),
    "subject with half a character": lambda: EC.token(sub="\ud800"),
    "long subject": lambda: EC.token(sub="a" * 201),
    "payload that is a list": lambda: jwt.PyJWS().encode(b"[]", EC.private, "ES256", {"kid": "ec"}),
    "payload that is deep": lambda: jwt.PyJWS().encode(b"[" * 8000, EC.private, "ES256", {"kid": "ec"}),
    "header that is deep": lambda: (
        base64.urlsafe_b64encode(b'{"alg":' + b"[" * 8000).decode().rstrip("=") + ".e30.AAAA"
    ),
    "long token": lambda: EC.token(filler="a" * MAX_TOKEN),
}


@pytest.mark.parametrize("make", FORGED.values(), ids=FORGED.keys())
async def test_token_that_is_forged_or_hostile_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises(InvalidToken) as refusal:
        await verifier().identify(make())
    assert refusal.value.code == "invalid_token"
    assert refusal.value.headers() == {"WWW-Authenticate": 'Bearer error="invalid_token"'}


async def test_token_that_has_expired_is_refused_after_the_leeway() -> None:
    inside, outside = EC.token(exp=int(time.time()) - 20), EC.token(exp=int(time.time()) - 40)
    await verifier().identify(inside)
    with pytest.raises(InvalidToken) as refusal:
        await verifier().identify(outside)
    assert refusal.value.code == "expired_token"
    with pytest.raises(InvalidToken):
        await verifier(leeway=0).identify(inside)


async def test_token_without_kid_is_verified_by_the_only_key() -> None:
    assert (await verifier(Loader(EC)).identify(EC.token({"kid": None}))).name == "alice"


async def test_algorithm_that_the_settings_leave_out_is_refused() -> None:
    await verifier().identify(RSA.token())
    with pytest.raises(InvalidToken):
        await verifier(algorithms=["ES256"]).identify(RSA.token())


async def test_verified_token_is_cached_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    loader = Loader(EC)
    check = verifier(loader, clock=lambda: now)
    token = EC.token(exp=int(now) + 60)
    first = await check.identify(token)
    assert await check.identify(token) is first
    assert token not in repr(check.__dict__)
    now += 91  # with the leeway; PyJWT's own clock still accepts it
    assert await check.identify(token) is not first


async def test_cache_of_verified_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "MAX_VERIFIED", 2)
    check = verifier()
    tokens = [EC.token(sub=str(number)) for number in range(3)]
    first = [await check.identify(token) for token in tokens]
    assert await check.identify(tokens[2]) is first[2]
    assert await check.identify(tokens[0]) is not first[0]


async def test_cached_token_is_refused_once_its_key_is_withdrawn() -> None:
    loader = Loader(EC, OTHER)
    check = verifier(loader)
    token = OTHER.token()
    await check.identify(token)
    loader.signers = (EC,)
    await check.keys.check()
    with pytest.raises(InvalidToken):
        await check.identify(token)


async def test_reason_of_a_refusal_is_logged_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = EC.token(aud="another")
    with pytest.raises(InvalidToken) as refusal:
        await verifier().identify(token)
    assert "udience" not in refusal.value.message
    assert [record.__dict__["reason"] for record in caplog.records] == ["InvalidAudienceError"]
    assert token not in caplog.text and token.split(".")[1] not in caplog.text


GROUPS = {"research": "team-r", "ops": "team-o"}


@pytest.mark.parametrize(
    ("fields", "claims", "table"),
    [
        ({}, {}, None),
        ({"key": "all"}, {}, "all"),
        ({"groups": GROUPS}, {"groups": ["x", "ops", "research"]}, "team-r"),
        ({"groups": GROUPS}, {"groups": "ops"}, "team-o"),
        ({"groups": GROUPS, "key": "all"}, {"groups": ["x"]}, "all"),
        ({"groups": GROUPS, "key": "all"}, {"groups": {"ops": 1}}, "all"),
        ({"groups": GROUPS, "groups_claim": "realm.roles"}, {"realm": {"roles": ["ops"]}}, "team-o"),
        ({"groups": GROUPS, "groups_claim": "https://a.b/c"}, {"https://a.b/c": ["ops"]}, "team-o"),
        ({"groups": GROUPS, "key_claim": "k"}, {"k": "mine", "groups": ["ops"]}, "mine"),
        ({"groups": GROUPS, "key_claim": "k"}, {"k": ["mine"], "groups": ["ops"]}, "team-o"),
    ],
)
async def test_claims_select_the_key_table(fields: dict[str, Any], claims: dict[str, Any], table: str | None) -> None:
    assert (await verifier(**fields).identify(EC.token(**claims))).table == table


@pytest.mark.parametrize(
    ("fields", "claims"),
    [
        ({"groups": GROUPS}, {}),
        ({"groups": GROUPS}, {"groups": ["x", ["ops"], None, {"a": 1}]}),
        ({"key_claim": "k"}, {"k": ""}),
        ({"key_claim": "k"}, {"k": 1}),
        ({"key_claim": "k.x"}, {"k": "team"}),
    ],
)
async def test_token_without_a_key_table_is_forbidden(fields: dict[str, Any], claims: dict[str, Any]) -> None:
    with pytest.raises(PermissionDenied):
        await verifier(**fields).identify(EC.token(**claims))


async def test_owner_cannot_be_that_of_a_key_unless_the_namespace_is_empty() -> None:
    digest = "0" * 32  # owner id
    for subject in ("alice", digest, f"{ISSUER}:alice"):
        identity = await verifier().identify(EC.token(sub=subject))
        assert identity.owner not in (owner_id(subject), subject)
    shared = await verifier(namespace="").identify(EC.token(sub="alice"))
    assert shared.owner == owner_id("alice")
    assert (await verifier(namespace="").identify(EC.token(sub=digest))).owner != digest


def test_form_of_a_token_is_distinguished_from_keys() -> None:
    assert is_token(EC.token())
    assert not any(map(is_token, ["sk-antiphon-abc", "eyJ", "eyJhbGciOiJub25lIn0", "eyJ.a.b.c", "a.b.c", ""]))


def test_claim_is_found_by_name_before_path() -> None:
    claims = {"a.b": 1, "a": {"b": 2, "c": 3}}
    assert [claim_at(claims, path) for path in ("a.b", "a.c", "a.d", "x.y")] == [1, 3, None, None]


def test_usage_name_of_an_identity_is_never_that_of_a_key() -> None:
    assert [Identity(table, "alice", "o").usage_name for table in ("team", None)] == ["team:alice", "_user:alice"]
