"""IP addresses and loopback names in hosts."""

from __future__ import annotations

import pytest

from app.core.http.addresses import is_loopback, parse_address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "app.localhost"])
def test_loopback_host_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "notlocalhost", "127.0.0.1.x"])
def test_other_host_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_name_is_not_an_address() -> None:
    assert parse_address("example.com") is parse_address("[::1]") is None
    assert str(parse_address("::1")) == "::1"
