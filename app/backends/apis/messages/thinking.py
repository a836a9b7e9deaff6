"""
Translate `reasoning` into Claude's `thinking`: an effort, or for older models a token budget.

No model thinks when a call is forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from app.core.request.caching import THINKING_BLOCKS
from app.core.request.model_request import TranslationState
from app.core.request.roles import Message
from app.core.types import JSONMapping, JSONObject

_EFFORTS = {"minimal": "low"}  # others have the same names
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768}
_MIN_BUDGET = 1024  # tokens
_ANSWER_RESERVE = 1024  # tokens for the answer, if `max_tokens` allows it

# Rejected during thinking.
_SAMPLING = ("temperature", "top_p", "top_k")


def add_thinking(state: TranslationState, body: JSONObject) -> None:
    reasoning, options = state.request.reasoning, state.options
    requested = reasoning.effort if reasoning else None
    if requested is None and not (reasoning and reasoning.summary):
        return
    effort = options.effort_map.get(requested, _EFFORTS.get(requested, requested)) if requested else None
    if options.effort == "none":
        state.warnings.add("This backend does not support reasoning effort; reasoning.effort was ignored.")
        return
    if requested and not effort:
        return
    by_budget = any(fnmatchcase(str(body["model"]), glob) for glob in options.thinking_budget)
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
        return
    if not by_budget and effort:
        body["output_config"] = {**body.get("output_config", {}), "effort": effort}
    if "thinking" in body:
        return
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        state.warnings.add("This backend's models do not reason when a tool call is forced.")
        body["thinking"] = {"type": "disabled"}  # some models think by default
        return
    thinking = (
        _budget(state, requested or "medium", body) if by_budget else {"type": "adaptive", "display": "summarized"}
    )
    if thinking:
        body["thinking"] = thinking
        if named := [name for name in _SAMPLING if body.pop(name, None) is not None]:
            state.warnings.add(f"This backend does not support {', '.join(named)} together with reasoning; ignored.")


def _budget(state: TranslationState, effort: str, body: JSONMapping) -> JSONObject | None:
    """None if `max_tokens` is too small or the turn began without thinking."""
    room = body["max_tokens"] - 1
    if room < _MIN_BUDGET:
        state.warnings.add(f"Reasoning requires 'max_output_tokens' above {_MIN_BUDGET}; reasoning.effort was ignored.")
        return None
    if _began_without_thinking(body["messages"]):
        state.warnings.add(
            "This backend's models cannot start to reason within a turn; this response has no reasoning."
        )
        return None
    budget = min(_BUDGETS[effort], max(_MIN_BUDGET, room - _ANSWER_RESERVE))
    return {"type": "enabled", "budget_tokens": budget}


def _began_without_thinking(messages: Sequence[Message]) -> bool:
    """
    Whether tool results end a turn whose first message has no thinking block.

    Depending on the server, a user message with results and text begins a turn, so both turns are checked.
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
