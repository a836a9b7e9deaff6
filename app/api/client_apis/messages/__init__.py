"""Anthropic's Messages API, for clients of any backend."""

from __future__ import annotations

from collections.abc import Mapping

from app.api.client_apis import ClientAPI
from app.api.client_apis.messages.hosted import named_types
from app.api.client_apis.messages.reader import read_messages
from app.api.client_apis.messages.writer import PING
from app.observability import log_context


def _headers() -> Mapping[str, str]:
    """Anthropic's SDKs log this header."""
    return {"request-id": request_id} if (request_id := log_context.request_id()) else {}


MESSAGES_API = ClientAPI(
    read=read_messages,
    hosted_types=named_types,
    heartbeat=PING,
    headers=_headers,
    counted=lambda tokens: {"input_tokens": tokens},
)
