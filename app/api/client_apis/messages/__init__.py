"""Anthropic's Messages API, for clients of any backend."""

from __future__ import annotations

from app.api.client_apis import ClientAPI
from app.api.client_apis.messages.hosted import named_types
from app.api.client_apis.messages.reader import read_messages
from app.api.client_apis.messages.writer import PING
from app.observability import log_context

MESSAGES_API = ClientAPI(
    read=read_messages,
    hosted_types=named_types,
    heartbeat=PING,
    # Logged by Anthropic's SDKs.
    headers=lambda: {"request-id": request_id} if (request_id := log_context.request_id()) else {},
)
