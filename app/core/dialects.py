"""
Event names and heartbeats in which the spec and OpenAI differ, by client.

OpenAI's SDKs throw at unknown events, and Codex's idle timer ignores SSE comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from app.core.stream import event_types
from app.core.stream.event_types import PartType


class Dialect(NamedTuple):
    content: tuple[PartType, ...]  # raw reasoning as content, or in the form that the client shows
    both: tuple[PartType, ...]  # `content`, plus a summary
    heartbeat: str  # `comment`, or `keepalive`: an event with that name
    tool_usage: bool = True  # responses have OpenAI's `tool_usage`
    compacting: bool = False  # whether the client knows `response.compaction.compacting`

    def reasoning(self, shown: str) -> tuple[PartType, ...]:
        """`shown` is `content`, `summary`, or `both`."""
        if shown == "summary":
            return event_types.SUMMARY_REASONING
        return self.both if shown == "both" else self.content

    def translate(self, data: bytes) -> bytes:
        """Rename the reasoning events in an encoded stream."""
        row = self.both[0]
        names = {b"delta": row.delta.encode(), b"done": row.done.encode()}

        def renamed(match: re.Match[bytes]) -> bytes:
            name = names[match[1]]
            return b'event: %b\ndata: {"type":"%b"' % (name, name)

        return _REASONING.sub(renamed, data)


# Without `^`, which is much slower: only an event starts with `event:` followed by `data:`.
_REASONING = re.compile(
    rb'event: response\.reasoning(?:_text)?\.(delta|done)\ndata: \{"type":"response\.reasoning(?:_text)?\.\1"'
)


DIALECTS = {
    "openresponses": Dialect(event_types.CONTENT_REASONING, event_types.BOTH_REASONING, "comment", tool_usage=False),
    # For unknown clients: almost all read OpenAI's names, and strict enums, for example in Rust, reject `keepalive`.
    "openai-comments": Dialect(event_types.OPENAI_CONTENT_REASONING, event_types.OPENAI_BOTH_REASONING, "comment"),
    "openai": Dialect(event_types.OPENAI_CONTENT_REASONING, event_types.OPENAI_BOTH_REASONING, "keepalive"),
    "openai-compacting": Dialect(
        event_types.OPENAI_CONTENT_REASONING, event_types.OPENAI_BOTH_REASONING, "keepalive", compacting=True
    ),
    # For clients that drop raw reasoning; `both` if clients with the same user agent drop summaries.
    "openai-summary": Dialect(event_types.SUMMARY_REASONING, event_types.OPENAI_BOTH_REASONING, "keepalive"),
    "openai-both": Dialect(event_types.OPENAI_BOTH_REASONING, event_types.OPENAI_BOTH_REASONING, "keepalive"),
}

# For other client APIs, which show raw reasoning once.
TRANSLATED = Dialect(event_types.CONTENT_REASONING, event_types.CONTENT_REASONING, "comment", tool_usage=False)

# By user agent; the first match applies.
_CLIENTS = tuple(
    (re.compile(words, re.IGNORECASE), name)
    for words, name in (
        # The AI SDK's `openai` and `azure`, opencode (which includes them), the Agents SDK and LangChain for Node,
        # LiteLLM's chat, VS Code.
        (
            r"ai-sdk[-/](?:openai|azure)/|opencode/|agents/javascript|langchainjs-|litellm/|GitHubCopilotChat/",
            "openai-summary",
        ),
        # Codex versions that only show summaries, but do not request them for unknown models.
        (r"\bcodex\w*/0\.(?:\d\d?|1[01]\d)\.", "openai-summary"),
        # The AI SDK without a stream, which does not name its provider.
        (r"(?<![\w-])ai/\d", "openai-both"),
        # OpenAI's SDK for Python, from 3.20.
        (r"\b(?:async)?openai/python (?:3\.[2-9]\d|[4-9]\.|\d\d)", "openai-compacting"),
        # OpenAI's SDKs and libraries that use them (LangChain, LlamaIndex, llm), Agents, the AI SDK's `open-responses`,
        # Codex.
        (r"openai|agents/|ai-sdk|codex|langchain|litellm|pydantic-ai", "openai"),
        (r"@openrouter/", "openai-comments"),
        # Manual requests, web pages, and the official compliance suite, which runs on Bun.
        (r"^(?:curl|Mozilla|Bun)/", "openresponses"),
    )
)


# From OpenAI's SDKs, Codex, and Open WebUI if it identifies its users.
_OPENAI_HEADERS = frozenset({"x-stainless-lang", "originator", "x-openwebui-user-id"})

_SPEC_HEADER = "openresponses-version"

_NEEDS_STRINGS = re.compile(r"ai-sdk/open-responses/|(?<![\w-])ai/\d", re.IGNORECASE)


def dialect_of(headers: Mapping[str, str], configured: str = "auto") -> Dialect:
    if configured != "auto":
        return DIALECTS[configured]
    # The compliance suite's WebSocket handshake has a media type, but no user agent (Bun).
    is_suite = "sec-websocket-key" in headers and "user-agent" not in headers and "content-type" in headers
    if is_suite or _SPEC_HEADER in headers:
        return DIALECTS["openresponses"]
    name = _client(_agent(headers))
    if name in (None, "openresponses") and not _OPENAI_HEADERS.isdisjoint(headers):
        name = "openai"
    return DIALECTS[name or "openai-comments"]


@lru_cache(maxsize=256)
def _client(agent: str) -> str | None:
    return next((name for words, name in _CLIENTS if words.search(agent)), None)


def needs_strings(headers: Mapping[str, str]) -> bool:
    """Whether the client shows an error's message only if all other fields are strings."""
    return bool(_NEEDS_STRINGS.search(_agent(headers)))


def _agent(headers: Mapping[str, str]) -> str:
    return headers.get("user-agent", "")[:512]  # untrusted, with any length
