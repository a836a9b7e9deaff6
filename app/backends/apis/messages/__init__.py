"""Anthropic's Messages API."""

from __future__ import annotations

from app.backends.apis import Codec
from app.backends.apis.messages.decoder import MessagesDecoder
from app.backends.apis.messages.encoder import MESSAGES_CALLER_FIELDS, to_messages_request
from app.backends.apis.messages.token_counting import MessagesTokenizer

MESSAGES_CODEC = Codec(
    to_messages_request,
    MessagesDecoder,
    MESSAGES_CALLER_FIELDS,
    MessagesTokenizer,
    headers={"anthropic-version": "2023-06-01"},
)
