"""
What differs between the spec's words and OpenAI's, and which clients know which.

OpenAI's SDKs throw at events that they do not know, and Codex's idle timer ignores the comments of SSE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from app.core import kinds
from app.core.kinds import Part


class Dialect(NamedTuple):
    """One row of the table."""

    content: tuple[Part, ...]  # raw reasoning, as content
    both: tuple[Part, ...]  # the same, and as a summary besides
    heartbeat: str  # `comment`, or `keepalive`: an event of that name

    def reasoning(self, shown: str) -> tuple[Part, ...]:
        """Return the forms in which to show raw reasoning: as `content`, as `summary`, or as `both`."""
        return {"content": self.content, "summary": kinds.SUMMARY_REASONING, "both": self.both}[shown]


DIALECTS = {
    "openresponses": Dialect(kinds.CONTENT_REASONING, kinds.BOTH_REASONING, "comment"),
    "openai": Dialect(kinds.OPENAI_CONTENT_REASONING, kinds.OPENAI_BOTH_REASONING, "keepalive"),
}

# OpenAI's SDKs (and what is built on them: LangChain, Agents, pydantic-ai), the Vercel AI SDK, opencode, Codex.
_OPENAI_CLIENTS = re.compile(r"openai|agents/|ai-sdk|\bai/|opencode|codex|langchain|litellm|pydantic-ai", re.IGNORECASE)


def dialect_of(headers: Mapping[str, str], configured: str = "auto") -> Dialect:
    """Return the dialect for a client by its headers, or the configured one."""
    if configured == "auto":
        known = "x-stainless-lang" in headers or _OPENAI_CLIENTS.search(headers.get("user-agent", ""))
        configured = "openai" if known or "originator" in headers else "openresponses"
    return DIALECTS[configured]
