"""
Allow-lists for headers of forwarded requests and answers.

They exclude credentials, cookies, client addresses, and gateway headers that select a URL, model or account; from
answers also rate limits, redirects, and headers with an effect in browsers.
"""

from __future__ import annotations

from collections.abc import Iterable

Header = tuple[bytes, bytes]

_REQUEST = frozenset(
    {
        b"accept",
        b"accept-language",
        b"baggage",
        b"http-referer",  # OpenRouter: the caller's site and title
        b"idempotency-key",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-client-request-id",
        b"x-ms-client-request-id",
        b"x-openrouter-title",
        b"x-request-id",
        b"x-session-affinity",
        b"x-session-id",
        b"x-smg-routing-key",
        b"x-title",
    }
)
_REQUEST_PREFIXES = (b"x-stainless-",)
_MESSAGES_REQUEST = _REQUEST | {b"x-app"}
_MESSAGES_REQUEST_PREFIXES = (*_REQUEST_PREFIXES, b"anthropic-", b"x-claude-")
# These select an account; forwarded only with the caller's own credentials.
_ACCOUNT = frozenset(
    {b"anthropic-organization-id", b"anthropic-workspace-id", b"openai-organization", b"openai-project"}
)

_ANSWER = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-range",
        b"content-type",
        b"etag",
        b"last-modified",
        b"openai-model",
        b"openai-version",
        b"request-id",
        b"retry-after",
        b"retry-after-ms",
        b"vary",
        b"x-should-retry",
    }
)


def request_headers(headers: Iterable[Header], *, messages: bool, own_account: bool) -> list[Header]:
    """`messages`: the endpoint belongs to Anthropic's API. `own_account`: the credentials are the operator's."""
    names = _MESSAGES_REQUEST if messages else _REQUEST
    prefixes = _MESSAGES_REQUEST_PREFIXES if messages else _REQUEST_PREFIXES
    return [
        (name, value)
        for name, value in _end_to_end(headers)
        if (not own_account if name in _ACCOUNT else name in names or name.startswith(prefixes))
    ]


def answer_headers(headers: Iterable[Header]) -> list[Header]:
    return [(name, value) for name, value in _end_to_end(headers) if name in _ANSWER]


def _end_to_end(headers: Iterable[Header]) -> list[Header]:
    """Remove headers that `Connection` lists (RFC 9110, 7.6.1); names become lower case."""
    lowered = [(name.lower(), value) for name, value in headers]
    listed = {item.strip().lower() for name, value in lowered if name == b"connection" for item in value.split(b",")}
    return [(name, value) for name, value in lowered if name not in listed]
