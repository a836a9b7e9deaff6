"""
Identify a conversation's requests, to route them to the server with its prompt cache.

Agents resend the whole conversation without an id, but the instructions, the tools and the first user message stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from app.core.types import JSONMapping

# Limits: messages, parts per message, characters per part, tools.
_MESSAGES, _PARTS, _CHARACTERS, _TOOLS = 8, 8, 4000, 256
# Claude Code's line before its system prompt, which can change with each request.
_BILLING = "x-anthropic-billing-header:"
_BILLING_LINE = re.compile(rf"{_BILLING}[^\n]*\n?")


def conversation_key(instructions: object, tools: Iterable[object], messages: Sequence[JSONMapping]) -> str:
    """
    A key shared by all requests in a conversation; "" if its start has no text.

    `messages`, oldest first, can come from any API.
    """
    texts = [*_texts(instructions), *_beginning(messages)]
    if not texts:
        return ""
    digest = blake2b(digest_size=8)
    for text in (*texts, *_names(tools)):
        digest.update(text.encode("utf-8", "replace") + b"\0")
    return digest.hexdigest()


def session_id(conversation: str) -> str:
    """Hash a conversation key for other servers: it can be a caller's own text."""
    return blake2b(conversation.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _beginning(messages: Sequence[JSONMapping]) -> list[str]:
    texts: list[str] = []
    for message in messages[:_MESSAGES]:
        if not isinstance(message, dict):
            continue
        texts += _texts(message.get("content"))
        if isinstance(summary := message.get("encrypted_content"), str):
            texts.append(summary[:_CHARACTERS])
        if message.get("role") == "user":
            break
    return texts


def _texts(content: object) -> list[str]:
    texts: list[str] = []
    for part in content[:_PARTS] if isinstance(content, list) else (content,):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            continue
        if _BILLING in text[:_CHARACTERS]:
            text = _BILLING_LINE.sub("", text[: 2 * _CHARACTERS])
        if text:
            texts.append(text[:_CHARACTERS])
    return texts


def _names(tools: Iterable[object]) -> Iterator[str]:
    """Names or types, without deferred tools."""
    for _, tool in zip(range(_TOOLS), tools, strict=False):
        if isinstance(tool, dict) and not tool.get("defer_loading"):
            function = tool.get("function")
            named = function if isinstance(function, dict) else tool
            name = named.get("name") or named.get("server_label") or named.get("type")
            if isinstance(name, str):
                yield name[:_CHARACTERS]
