"""
What differs between the spec's words and OpenAI's, and which clients know which.

OpenAI's SDKs throw at events that they do not know, and Codex's idle timer ignores the comments of SSE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from app.core.stream import event_types
from app.core.stream.event_types import PartType


class Dialect(NamedTuple):
    """One row of the table."""

    content: tuple[PartType, ...]  # raw reasoning, as content, or as what the client shows of it
    both: tuple[PartType, ...]  # the same, and as a summary besides
    heartbeat: str  # `comment`, or `keepalive`: an event of that name
    schema: bool = True  # is the schema of an answer told again in the response? in the spec it is null there

    def reasoning(self, shown: str) -> tuple[PartType, ...]:
        """Return the forms in which to show raw reasoning: as `content`, as `summary`, or as `both`."""
        return {"content": self.content, "summary": event_types.SUMMARY_REASONING, "both": self.both}[shown]


DIALECTS = {
    "openresponses": Dialect(event_types.CONTENT_REASONING, event_types.BOTH_REASONING, "comment", schema=False),
    "openai": Dialect(event_types.OPENAI_CONTENT_REASONING, event_types.OPENAI_BOTH_REASONING, "keepalive"),
    # For clients that drop raw reasoning; where several share a user agent and one of them drops summaries: both.
    "openai-summary": Dialect(event_types.SUMMARY_REASONING, event_types.OPENAI_BOTH_REASONING, "keepalive"),
    "openai-both": Dialect(event_types.OPENAI_BOTH_REASONING, event_types.OPENAI_BOTH_REASONING, "keepalive"),
}

# By user agent, the first that matches.
_CLIENTS = tuple(
    (re.compile(words, re.IGNORECASE), name)
    for words, name in (
        # The AI SDK's provider `openai`, opencode, which has it inside, the Agents SDK for Node, LiteLLM in its chat.
        (r"ai-sdk[-/]openai/|opencode/|agents/javascript|litellm/", "openai-summary"),
        # Codex, before it asked for a summary also of models that it has not heard of. It shows nothing else.
        (r"\bcodex\w*/0\.(?:\d\d?|1[01]\d)\.", "openai-summary"),
        # The AI SDK where it does not stream, and does not say by which provider it asks.
        (r"(?<![\w-])ai/\d", "openai-both"),
        # OpenAI's SDKs (and what is built on them: LangChain, LlamaIndex, llm), Agents, the AI SDK's provider
        # `open-responses`, Codex.
        (r"openai|agents/|ai-sdk|codex|langchain|litellm|pydantic-ai", "openai"),
    )
)


# The AI SDK's provider `open-responses`, and the SDK where it does not say by which provider it asks.
_NEEDS_STRINGS = re.compile(r"ai-sdk/open-responses/|(?<![\w-])ai/\d", re.IGNORECASE)


def dialect_of(headers: Mapping[str, str], configured: str = "auto") -> Dialect:
    """Return the dialect for a client by its headers, or the configured one."""
    return DIALECTS[_recognised(headers) if configured == "auto" else configured]


def _recognised(headers: Mapping[str, str]) -> str:
    agent = _agent(headers)
    for words, name in _CLIENTS:
        if words.search(agent):
            return name
    return "openai" if "x-stainless-lang" in headers or "originator" in headers else "openresponses"


def needs_strings(headers: Mapping[str, str]) -> bool:
    """Tell if a client shows the message of an error only where every other field of it is a string, too."""
    return bool(_NEEDS_STRINGS.search(_agent(headers)))


def _agent(headers: Mapping[str, str]) -> str:
    return headers.get("user-agent", "")[:512]  # anybody may send any, of any length
