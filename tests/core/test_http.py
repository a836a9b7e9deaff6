"""Hosts and waits in HTTP headers."""

from __future__ import annotations

import pytest

from app.core.http import is_loopback, parse_address, retry_after


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "app.localhost"])
def test_loopback_host_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "notlocalhost", "127.0.0.1.x"])
def test_other_host_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_name_is_not_an_address() -> None:
    assert parse_address("example.com") is parse_address("[::1]") is None
    assert str(parse_address("::1")) == "::1"


NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 400}, 366 * 86400),
        ({"retry-after": "Wed, 99999 Oct 20155555555555 07:28:00 GMT"}, None),
        ({"retry-after": "20s"}, 20),
        ({"retry-after": "1m30s"}, 90),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon", "x-ratelimit-reset": "1700000005"}, 5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 1),
        ({"x-ratelimit-reset-requests": "20ms", "x-ratelimit-remaining-requests": "3"}, 0.02),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "3",
                "x-ratelimit-reset-tokens": "1h2m3s",
                "x-ratelimit-remaining-tokens": "0",
            },
            3723,
        ),
        ({"x-ratelimit-reset": "1700000012000"}, 12),
        ({"x-ratelimit-reset": "1700000005"}, 5),
        ({"ratelimit-reset": "9"}, 9),
        ({"anthropic-ratelimit-tokens-reset": "2023-11-14T22:13:45Z"}, 25),
        ({"x-ratelimit-reset-requests": "?"}, None),
    ],
)
def test_retry_after_in_headers_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=NOW) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 7.66s. Visit", 7.66),
        ("Please retry in 34.0s.", 34),
        ("please TRY AGAIN IN 1m2s", 62),
        ("Try again in 20ms", 0.02),
        ('{"retryDelay": "34s"}', 34),
        ("Please retry after 6 seconds.", 6),
        ("Try again in 1 minute 30 seconds", 90),
        ("Please try again in 250 milliseconds, or", 0.25),
        ("Please wait 42 seconds before retrying.", 42),
        ("Please wait for 2 minutes.", 120),
        ('{"error": {"message": "slow", "retry_after": 12}}', 12),
        ('{"retryAfter": "7.5"}', 7.5),
        ('{"retry_after_seconds":3}', 3),
        ('{"retry_after": null}', None),
        ("Retry after 3 months", None),
        ("Try again later", None),
    ],
)
def test_retry_after_in_words_is_read(text: str, seconds: float | None) -> None:
    assert retry_after({}, text) == seconds


def test_retry_after_in_headers_quoted_by_the_body_is_read() -> None:
    def quoted(remaining: str) -> str:
        return (
            '{"error": {"code": 429, "metadata": {"headers": {"X-RateLimit-Limit": "20", '
            f'"X-RateLimit-Remaining": "{remaining}", "X-RateLimit-Reset": "1700000012000"}}}}}}}}'
        )

    assert retry_after({}, quoted("0"), NOW) == 12
    assert retry_after({"retry-after": "3"}, quoted("0"), NOW) == 3


def test_retry_after_of_several_limits_is_the_longest() -> None:
    headers = {
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-tokens": "6m0s",
        "x-ratelimit-remaining-tokens": "0",
    }
    assert retry_after(headers, now=NOW) == 360
