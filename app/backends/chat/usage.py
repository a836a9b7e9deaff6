"""The usage of an answer, as each server counts it, in OpenAI's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.types.usage import is_token_count, token_count


def normal_usage(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """
    Return the usage as OpenAI would tell it: all input in `prompt_tokens`, all output in `completion_tokens`, and what
    was cached and reasoned as parts of them. None where nothing is counted.
    """
    counts = [said.get(name) for name in ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")]
    if not any(map(is_token_count, counts)):
        return None
    prompt_tokens, completion_tokens = token_count(*counts[:2]), token_count(*counts[2:])
    prompt = _details(said, "prompt_tokens_details", "input_tokens_details")
    completion = _details(said, "completion_tokens_details", "output_tokens_details")
    # DeepSeek and Moonshot tell the cached tokens beside, as gateways to Claude do; SGLang the reasoning tokens.
    beside = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    cached = token_count(prompt.get("cached_tokens"), *(said.get(name) for name in beside))
    written = token_count(prompt.get("cache_write_tokens"), said.get("cache_creation_input_tokens"))
    reasoning = token_count(completion.get("reasoning_tokens"), said.get("reasoning_tokens"))
    total = token_count(said.get("total_tokens"))
    missing = total - prompt_tokens - completion_tokens
    # xAI and Gemini do not count reasoning as output, and Gemini does not tell it; OpenAI, and the API here, do.
    # Claude does not count what was cached as input. Where both could be meant, the names of the fields decide.
    if missing > 0 and missing in (cached, cached + written) and (missing != reasoning or _names_claude(said)):
        prompt_tokens += missing
    elif missing > 0:
        completion_tokens += missing
        reasoning = reasoning or missing
    elif not total and reasoning > completion_tokens:
        completion_tokens += reasoning
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _names_claude(said: Mapping[str, Any]) -> bool:
    """Tell whether the cached tokens are under Claude's own names."""
    return any(token_count(said.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))


def _details(said: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((said[name] for name in names if isinstance(said.get(name), dict)), {})
