"""The header of a reverse proxy: trusted from its addresses alone, and only if it is sent once."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.auth.identity import identify_by_proxy, namespaced_owner
from app.api.uvicorn import PEER_KEY
from app.core.access import owner_id
from app.errors import InvalidToken, PermissionDenied
from app.settings.auth import ProxySettings


def proxy(**fields: Any) -> ProxySettings:
    settings = {"addresses": ["10.0.0.0/8", "fd00::/8"], "header": "X-Forwarded-Email", **fields}
    return ProxySettings(**settings)


def scope(*headers: tuple[str, str], peer: str | None = "10.1.2.3", client: str = "10.1.2.3") -> dict[str, Any]:
    encoded = [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers]
    state = {PEER_KEY: (peer, 4711)} if peer else {}
    return {"type": "http", "headers": encoded, "client": (client, 4711), "state": state}


ALICE = ("X-Forwarded-Email", "alice@example.org")


@pytest.mark.parametrize("peer", ["10.1.2.3", "fd00::1", "::ffff:10.1.2.3", "fd00::1%eth0"])
def test_header_from_a_listed_address_identifies_the_caller(peer: str) -> None:
    identity = identify_by_proxy(proxy(), scope(ALICE, peer=peer))
    assert identity and (identity.table, identity.name) == (None, "alice@example.org")
    assert identity.owner == namespaced_owner("proxy", "alice@example.org")
    assert identity.owner != owner_id("alice@example.org")


@pytest.mark.parametrize("peer", ["192.168.0.1", "11.0.0.1", "::1", "::ffff:192.168.0.1", None])
def test_header_from_another_address_is_ignored_whatever_it_forwards(peer: str | None) -> None:
    assert identify_by_proxy(proxy(), scope(ALICE, peer=peer, client="10.1.2.3")) is None


def test_request_without_the_header_has_no_identity() -> None:
    assert identify_by_proxy(proxy(), scope(("X-Forwarded-User", "alice"))) is None


@pytest.mark.parametrize(
    "headers",
    [
        [ALICE, ("X-Forwarded-Email", "bob@example.org")],
        [ALICE, ("x-forwarded-email", "alice@example.org")],
        [("X-Forwarded-Email", "bob@example.org, alice@example.org")],
        [("X-Forwarded-Email", "")],
        [("X-Forwarded-Email", "   ")],
        [("X-Forwarded-Email", "alice\x07")],
        [("X-Forwarded-Email", "\udcff")],
        [("X-Forwarded-Email", "a" * 201)],
    ],
)
def test_header_that_is_repeated_or_invalid_is_refused(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidToken):
        identify_by_proxy(proxy(), scope(*headers))


def test_groups_select_the_key_table() -> None:
    settings = {"groups": {"research": "team-r", "ops": "team-o"}}
    by_groups, with_default = proxy(**settings), proxy(**settings, key="all")
    groups = ("X-Forwarded-Groups", "x, ops,research")
    identity = identify_by_proxy(by_groups, scope(ALICE, groups))
    assert identity and identity.table == "team-r"
    identity = identify_by_proxy(with_default, scope(ALICE))
    assert identity and identity.table == "all"
    with pytest.raises(PermissionDenied):
        identify_by_proxy(by_groups, scope(ALICE))
    with pytest.raises(InvalidToken):
        identify_by_proxy(by_groups, scope(ALICE, groups, groups))
