"""An identity provider for tests: signing keys, tokens, and a server of its key set."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.support.upstream import Upstream, reply

ISSUER = "https://login.example.com"
AUDIENCE = "antiphon"


class Signer:
    """A key pair of an issuer."""

    def __init__(self, key_id: str, algorithm: str = "ES256") -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        self.private: Any = (
            ec.generate_private_key(ec.SECP256R1())
            if algorithm == "ES256"
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )

    def jwk(self, **fields: Any) -> dict[str, Any]:
        """The public key, as the issuer publishes it."""
        kind: Any = ECAlgorithm if self.algorithm == "ES256" else RSAAlgorithm
        return {**kind.to_jwk(self.private.public_key(), as_dict=True), "kid": self.key_id, "use": "sig", **fields}

    def token(self, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token, valid for five minutes; claims with None are omitted."""
        now = int(time.time())
        all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300, **claims}
        given_claims = {name: value for name, value in all_claims.items() if value is not None}
        sent = {"kid": self.key_id, "typ": "JWT", **(headers or {})}
        sent = {name: value for name, value in sent.items() if value is not None}
        return jwt.PyJWS().encode(json.dumps(given_claims).encode(), self.private, self.algorithm, sent)


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": [*keys]}).encode()


@contextlib.asynccontextmanager
async def key_server(*signers: Signer) -> AsyncIterator[Upstream]:
    """A server with these keys at `/jwks`; `publish` changes them."""
    async with Upstream() as server:
        publish(server, *signers)
        yield server


def publish(server: Upstream, *signers: Signer) -> None:
    server.always(reply(key_set(*(signer.jwk() for signer in signers))))
