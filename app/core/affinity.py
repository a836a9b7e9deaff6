"""
Which requests belong to one conversation, so that they reach the server that has its prompt in the cache.

Agents that send the whole conversation again name none. What all their turns have in common is the beginning: the
instructions, the tools and the first message of the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from app.core.types import JSONMapping

# How much of the beginning is read: messages, parts of each, characters of each part, tools.
_MESSAGES, _PARTS, _CHARACTERS, _TOOLS = 8, 8, 4000, 256
# A line that Claude Code puts before its system prompt, and that may differ in each request.
_BILLING = "x-anthropic-billing-header:"
_BILLING_LINE = re.compile(rf"{_BILLING}[^\n]*\n?")


def conversation_key(instructions: object, tools: Iterable[object], messages: Sequence[JSONMapping]) -> str:
    """
    Return the same key for all requests of a conversation, by its beginning; "" if that has no text.

    `instructions` are a text, or parts with texts. The messages are items of the Responses API, or messages of Chat
    Completions or of the Messages API, oldest first; what is not one of these is passed over.
    """
    texts = [*_texts(instructions), *_beginning(messages)]
    if not texts:
        return ""
    digest = blake2b(digest_size=8)
    for text in (*texts, *_names(tools)):
        digest.update(text.encode("utf-8", "replace") + b"\0")
    return digest.hexdigest()


def session_id(conversation: str) -> str:
    """Return the id under which other servers may know a conversation, whose key may be a caller's own text."""
    return blake2b(conversation.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _beginning(messages: Sequence[JSONMapping]) -> list[str]:
    """Return the texts of the messages up to the user's first one, or of a summary that stands in their place."""
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
    """Yield the names of tools, or their types; tools that are only loaded later are not at the beginning."""
    for _, tool in zip(range(_TOOLS), tools, strict=False):
        if isinstance(tool, dict) and not tool.get("defer_loading"):
            function = tool.get("function")
            named = function if isinstance(function, dict) else tool
            name = named.get("name") or named.get("server_label") or named.get("type")
            if isinstance(name, str):
                yield name[:_CHARACTERS]
