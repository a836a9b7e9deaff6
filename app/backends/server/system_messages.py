"""
Chat templates that accept a system message only at the start: Qwen since 3.5, and others.

Agents such as Claude Code send system messages within the conversation.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

from app.core.request.roles import SYSTEM, as_note, merge
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError

SYSTEM_FIRST = "messages[].system"  # all system messages but the first
SYSTEM_WARNING = "This backend supports system messages only at the start; later ones were sent as user notes."

_REFUSED = re.compile(
    r"system (?:message|prompt|role)s? (?:must|should|can only|has to|may only) (?:only )?(?:be|come|appear|occur)"
    r" (?:at the (?:very )?(?:beginning|start)|first|the first)"  # Qwen (vLLM, llama.cpp, Ollama), MiniMax
    r"|(?:only|just) (?:one|a single|the first) (?:system message|message (?:can|may) be (?:a )?system)",
    re.IGNORECASE,
)


def refuses_later_system(error: BackendError, body: JSONMapping) -> bool:
    asked = error.status in (400, 422) or error.answered == 500  # 500: llama.cpp and Ollama
    return asked and bool(_REFUSED.search(error.message)) and has_later_system(body)


def has_later_system(body: JSONMapping) -> bool:
    return any(_is_system(message) for message in _messages(body)[1:])


def with_system_first(body: JSONObject) -> JSONObject:
    """Merge system messages at the start; later ones become notes in the user's turn."""
    messages = _messages(body)
    lead = list(takewhile(_is_system, messages))
    rest = [
        {**message, "role": "user", "content": as_note(message["content"])} if _is_system(message) else message
        for message in messages[len(lead) :]
    ]
    return {**body, "messages": [*([merge(lead)] if lead else []), *rest]}


def _messages(body: JSONMapping) -> list[Any]:
    messages = body.get("messages")
    return messages if isinstance(messages, list) else []


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in SYSTEM
