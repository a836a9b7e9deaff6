"""
Translate `reasoning` into `thinkingConfig`: a level since Gemini 3, before that a token budget.

https://ai.google.dev/gemini-api/docs/thinking
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from app.core.profile import RequestOptions
from app.core.request.model_request import TranslationState
from app.core.types import JSONObject

# Google's documented budgets; every model accepts the largest.
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_LEVELS = {"none": "MINIMAL", "xhigh": "HIGH", "max": "HIGH"}  # others have the same names
# Pro models always think.
_ALWAYS = "*pro*"
_MIN_BUDGET, _MIN_LEVEL = 128, "LOW"


def takes_budget(model: str, options: RequestOptions) -> bool:
    return any(fnmatchcase(model, glob) for glob in options.thinking_budget)


def thinking_config(state: TranslationState, model: str) -> JSONObject:
    reasoning, options = state.request.reasoning, state.options
    if reasoning is None:
        return {}
    if options.effort == "none":
        if reasoning.effort:
            state.warnings.add("This backend does not support reasoning effort; reasoning.effort was ignored.")
        return {}
    config: JSONObject = {"includeThoughts": True} if reasoning.summary else {}
    effort = options.effort_map.get(reasoning.effort, reasoning.effort) if reasoning.effort else None
    if effort is None or effort == "":
        return config
    always = fnmatchcase(model, _ALWAYS)
    if takes_budget(model, options):
        budget = _BUDGETS[effort] if effort in _BUDGETS else _BUDGETS["medium"]
        return {**config, "thinkingBudget": max(budget, _MIN_BUDGET) if always else budget}
    level = _LEVELS.get(effort, effort.upper())
    return {**config, "thinkingLevel": _MIN_LEVEL if always and level == "MINIMAL" else level}
