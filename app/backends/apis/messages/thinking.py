"""
Translate `reasoning` into the thinking of Claude's models.

Newer models think as much as they find right, and take an effort; older ones take a budget of tokens, which is a part
of `max_tokens`. No model thinks where a call is forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from app.core.request.caching import THINKING_BLOCKS
from app.core.request.question import TranslationState
from app.core.request.roles import Message
from app.core.types import JSONMapping, JSONObject

_EFFORTS = {"minimal": "low"}  # others have the same names in both APIs
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768}
_LEAST = 1024  # tokens of a budget
_ANSWER = 1024  # tokens that a budget leaves for the answer, if there are so many

# Parameters that are refused while the model thinks.
_SAMPLING = ("temperature", "top_p", "top_k")


def think(state: TranslationState, body: JSONObject) -> None:
    """Add the thinking that a request asks for, and its effort; remove what cannot be combined with it."""
    reasoning, options = state.request.reasoning, state.options
    asked = reasoning.effort if reasoning else None
    if asked is None and not (reasoning and reasoning.summary):
        return
    effort = options.effort_map.get(asked, _EFFORTS.get(asked, asked)) if asked else None
    if options.effort == "none":
        state.warnings.add("This backend does not support reasoning effort; reasoning.effort was ignored.")
        return
    if asked and not effort:
        return
    by_budget = any(fnmatchcase(str(body["model"]), glob) for glob in options.thinking_budget)
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
        return
    if not by_budget and effort:
        body["output_config"] = {**body.get("output_config", {}), "effort": effort}
    if "thinking" in body:  # the caller's own
        return
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        state.warnings.add("This backend's models do not reason when a tool call is forced.")
        body["thinking"] = {"type": "disabled"}  # some models think unless they are told not to
        return
    thinking = _budget(state, asked or "medium", body) if by_budget else {"type": "adaptive", "display": "summarized"}
    if thinking:
        body["thinking"] = thinking
        _without_sampling(state, body)


def _budget(state: TranslationState, effort: str, body: JSONMapping) -> JSONObject | None:
    """Return the thinking with a budget; None if there is too little room for one, or the turn began without it."""
    room = body["max_tokens"] - 1
    if room < _LEAST:
        state.warnings.add(f"Reasoning requires 'max_output_tokens' above {_LEAST}; reasoning.effort was ignored.")
        return None
    if _begun_without(body["messages"]):
        state.warnings.add(
            "This backend's models cannot start to reason within a turn; this response has no reasoning."
        )
        return None
    budget = min(_BUDGETS[effort], max(_LEAST, room - _ANSWER))
    return {"type": "enabled", "budget_tokens": budget}


def _begun_without(messages: Sequence[Message]) -> bool:
    """
    Return whether the last message has results of calls, in a turn whose first message has no thinking block.

    A user message with results and text, such as the summary of a compaction, may begin a turn or continue one. Servers
    differ, so neither turn may have begun without thinking.
    """
    first: Any = None

    def without() -> bool:
        return first is not None and first["type"] not in THINKING_BLOCKS

    for message in reversed(messages):
        content: Any = message["content"]
        if message["role"] == "assistant":
            first = content[0]
            continue
        results = [block["type"] == "tool_result" for block in content]
        if not any(results) or (not all(results) and without()):
            break
    return without()


def _without_sampling(state: TranslationState, body: JSONObject) -> None:
    if named := [name for name in _SAMPLING if body.pop(name, None) is not None]:
        state.warnings.add(f"This backend does not support {', '.join(named)} together with reasoning; ignored.")
