"""Allow-lists for passthrough headers, in both directions."""

from __future__ import annotations

import pytest

from app.backends.server.passthrough import answer_headers, request_headers

# Headers that a backend must not set for this server.
PRIVATE_ANSWER_HEADERS = [
    *(b"X-Antiphon-Warning", b"X-Antiphon-Budget-Remaining", b"Idempotent-Replayed", b"X-Request-Id", b"Set-Cookie"),
    *(
        b"Refresh",
        b"Link",
        b"Location",
        b"Service-Worker-Allowed",
        b"Clear-Site-Data",
        b"NEL",
        b"Report-To",
        b"Alt-Svc",
    ),
    *(b"Access-Control-Allow-Origin", b"Content-Security-Policy", b"Strict-Transport-Security", b"Server", b"Date"),
    *(b"X-RateLimit-Limit-Requests", b"Anthropic-RateLimit-Tokens-Limit", b"Anthropic-Organization-Id"),
    *(
        b"OpenAI-Organization",
        b"OpenAI-Processing-Ms",
        b"Transfer-Encoding",
        b"Upgrade",
        b"Trailer",
        b"WWW-Authenticate",
    ),
]
PRIVATE_REQUEST_HEADERS = [
    *(b"Authorization", b"X-Api-Key", b"Api-Key", b"X-Goog-Api-Key", b"Cookie", b"Proxy-Authorization"),
    *(b"Host", b"Origin", b"Referer", b"Forwarded", b"X-Forwarded-For", b"X-Real-IP", b"True-Client-IP"),
    *(b"X-HTTP-Method-Override", b"X-Original-URL", b"X_Rewrite_Url", b"X-Model", b"X-LiteLLM-Tags", b"User_Agent"),
    *(b"Content-Length", b"Content-Type", b"Content-Encoding", b"Accept-Encoding", b"Expect", b"TE", b"Upgrade"),
]


@pytest.mark.parametrize("name", PRIVATE_ANSWER_HEADERS, ids=bytes.decode)
def test_private_answer_header_is_not_forwarded(name: bytes) -> None:
    assert answer_headers([(name, b"x"), (b"Content-Type", b"a/b")]) == [(b"content-type", b"a/b")]


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("name", PRIVATE_REQUEST_HEADERS, ids=bytes.decode)
def test_private_request_header_is_not_forwarded(name: bytes, messages: bool) -> None:
    sent = [(name, b"x"), (b"User-Agent", b"a")]
    assert request_headers(sent, messages=messages, own_account=False) == [(b"user-agent", b"a")]


@pytest.mark.parametrize(
    ("name", "messages", "expected"),
    [
        (b"anthropic-beta", True, True),
        (b"anthropic-beta", False, False),
        (b"x-claude-code-session-id", True, True),
        (b"x-app", False, False),
        (b"openai-beta", False, True),
        (b"x-stainless-lang", False, True),
    ],
)
def test_request_header_is_forwarded_to_its_own_api(name: bytes, messages: bool, expected: bool) -> None:
    assert bool(request_headers([(name, b"x")], messages=messages, own_account=True)) == expected


@pytest.mark.parametrize("name", [b"openai-organization", b"openai-project", b"anthropic-workspace-id"])
@pytest.mark.parametrize("messages", [True, False])
def test_account_header_is_forwarded_only_with_the_callers_credentials(name: bytes, messages: bool) -> None:
    assert request_headers([(name, b"x")], messages=messages, own_account=True) == []
    assert request_headers([(name, b"x")], messages=messages, own_account=False) == [(name, b"x")]


def test_header_listed_in_connection_is_not_forwarded() -> None:
    sent = [(b"Connection", b"keep-alive, X-Title"), (b"X-Title", b"1"), (b"Accept", b"*/*")]
    assert request_headers(sent, messages=False, own_account=True) == [(b"accept", b"*/*")]
    assert answer_headers([(b"Connection", b"etag"), (b"ETag", b"1"), (b"Vary", b"*")]) == [(b"vary", b"*")]
