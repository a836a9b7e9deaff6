"""An issuer's keys: fetched once, refreshed for an unknown key, and kept while the issuer is down."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.api.auth.tokens import (
    FETCH_RETRY,
    KEYS_MAX_AGE,
    MIN_INTERVAL,
    SigningKeys,
    key_file,
    key_url,
    parsed_keys,
)
from app.errors import APIError
from app.tools.guard import GuardedTransport
from tests.support.tokens import Signer, key_server, key_set, publish
from tests.support.upstream import reply, status

A, B = Signer("a"), Signer("b")


class Issuer:
    """Publishes keys, or fails; `now` is the clients' time."""

    def __init__(self, *signers: Signer) -> None:
        self.signers = signers
        self.fetches = 0
        self.now = 1000.0
        self.down = False
        self.may_answer: asyncio.Event | None = None
        self.keys = SigningKeys(self.load, lambda: self.now)

    async def load(self) -> bytes:
        self.fetches += 1
        if self.may_answer:
            await self.may_answer.wait()
        if self.down:
            raise ValueError("HTTP 500")
        return key_set(*(signer.jwk() for signer in self.signers))


async def test_keys_are_fetched_once_for_all_tokens() -> None:
    issuer = Issuer(A, B)
    issuer.may_answer = asyncio.Event()
    finds = [asyncio.ensure_future(issuer.keys.find(key_id)) for key_id in "abab"]
    await asyncio.sleep(0)
    issuer.may_answer.set()
    assert [key.key_id for key in await asyncio.gather(*finds) if key] == ["a", "b", "a", "b"]
    assert issuer.fetches == 1


async def test_unknown_ids_cause_one_fetch_an_interval() -> None:
    issuer = Issuer(A)
    assert await issuer.keys.find("a")
    for number in range(50):
        assert await issuer.keys.find(f"invented-{number}") is None
    assert issuer.fetches == 1
    issuer.signers = (A, B)
    issuer.now += MIN_INTERVAL
    assert await issuer.keys.find("b")
    assert issuer.fetches == 2


async def test_issuer_that_is_down_does_not_invalidate_known_keys() -> None:
    issuer = Issuer(A)
    assert await issuer.keys.find("a")
    issuer.down = True
    issuer.now += KEYS_MAX_AGE + 1
    assert await issuer.keys.find("a")
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert issuer.fetches == 2
    assert await issuer.keys.find("a")
    assert await issuer.keys.find("unknown") is None


async def test_keys_that_are_old_are_refreshed_without_waiting() -> None:
    issuer = Issuer(A, B)
    assert await issuer.keys.find("b")
    issuer.signers, issuer.may_answer = (A,), asyncio.Event()
    issuer.now += KEYS_MAX_AGE + 1
    assert await issuer.keys.find("b")  # the fetch has not been answered
    issuer.may_answer.set()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert await issuer.keys.find("b") is None


async def test_server_whose_issuer_was_never_up_answers_503_and_recovers() -> None:
    issuer = Issuer(A)
    issuer.down = True
    for _ in range(3):
        with pytest.raises(APIError) as failure:
            await issuer.keys.find("a")
        assert (failure.value.status, failure.value.code) == (503, "identity_provider_unavailable")
    assert issuer.fetches == 1
    issuer.down = False
    issuer.now += FETCH_RETRY
    assert await issuer.keys.find("a")


async def test_request_that_ends_does_not_end_the_fetch_of_others() -> None:
    issuer = Issuer(A)
    issuer.may_answer = asyncio.Event()
    leaving, staying = (asyncio.ensure_future(issuer.keys.find("a")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    issuer.may_answer.set()
    assert await staying


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [1, null, {"kty": "unknown"}, {"kty": "RSA"}, {"kty": "oct", "k": "AAAA", "kid": "a"}]}',
        key_set(A.jwk(use="enc")),
    ],
)
def test_key_set_without_public_signature_keys_is_refused(source: bytes) -> None:
    with pytest.raises(ValueError):
        parsed_keys(source)


def test_key_set_keeps_the_keys_that_can_be_used() -> None:
    keys = parsed_keys(key_set({"kty": "new"}, A.jwk(alg="ES256"), B.jwk(use="enc")))
    assert [(key.key_id, key.algorithm) for key in keys] == [("a", "ES256")]


async def test_key_set_in_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    with pytest.raises(ValueError, match="No such file"):
        await key_file(path)()
    path.write_bytes(key_set(A.jwk()))
    now = 0.0
    keys = SigningKeys(key_file(path), lambda: now)
    assert await keys.find("a")
    path.write_bytes(key_set(B.jwk()))
    now = MIN_INTERVAL
    assert await keys.find("b")


async def test_key_set_is_fetched_over_http() -> None:
    http = GuardedTransport("any", max_bytes=1000)
    async with key_server(A) as server:
        load = key_url(f"{server.url}/jwks", http)
        assert await load() == key_set(A.jwk())
        for answer, reason in [
            (status(500, {}), "HTTP 500"),
            (reply(b"", status=302, headers={"location": "http://127.0.0.1/"}), "HTTP 302"),
            (reply(b"x" * 2000), "Outbound"),
        ]:
            server.say(answer)
            with pytest.raises(ValueError, match=reason):
                await load()
        publish(server, B)
        assert await load() == key_set(B.jwk())
    with pytest.raises(ValueError):
        await load()
    await http.aclose()
