from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.types import JSONMapping
from app.core.types.deltas import TokenCounts
from app.core.usage import cost_in_nanos, is_token_count, token_counts

_PLAIN = {"prompt_tokens", "completion_tokens", "total_tokens"}  # all that vLLM and llama.cpp send
_COUNTS = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")
_CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")  # outside the details
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")  # in the details


def normal_usage(usage: JSONMapping) -> TokenCounts | None:
    """Usage in the form of Chat Completions, Responses or Messages; None without counts."""
    counts = token_counts(usage)
    if len(usage) == 3 and counts.keys() == _PLAIN:
        prompt_tokens, completion_tokens = counts["prompt_tokens"], counts["completion_tokens"]
        if prompt_tokens + completion_tokens == counts["total_tokens"]:
            return TokenCounts(prompt_tokens, completion_tokens)
    if counts.keys().isdisjoint(_COUNTS):
        return None
    prompt_tokens = counts.get("prompt_tokens", counts.get("input_tokens", 0))
    completion_tokens = counts.get("completion_tokens", counts.get("output_tokens", 0))
    prompt = _details(usage, "prompt_tokens_details", "input_tokens_details")
    completion = _details(usage, "completion_tokens_details", "output_tokens_details")
    # Outside the details: DeepSeek, Moonshot and gateways to Claude (cached tokens), SGLang (reasoning tokens).
    cached = prompt["cached_tokens"] if "cached_tokens" in prompt else _first(counts, _CACHED)
    written = _first(prompt, _WRITTEN, counts.get("cache_creation_input_tokens", 0))
    thinking = completion.get("thinking_tokens", counts.get("reasoning_tokens"))  # Claude's name
    reasoning = completion.get("reasoning_tokens", thinking)
    total = counts.get("total_tokens", 0)
    missing = total - prompt_tokens - completion_tokens
    # OpenAI counts reasoning as output; xAI and Gemini do not, and Gemini does not report it. Claude does not count
    # cached tokens as input. If both explain the missing tokens, the field names decide.
    if missing > 0 and missing in (cached, cached + written) and (missing != reasoning or _names_claude(counts)):
        prompt_tokens += missing
    elif not total and _names_claude(counts) and ("prompt_tokens" not in usage or cached + written > prompt_tokens):
        prompt_tokens += cached + written
    elif missing > 0:
        completion_tokens += missing
        reasoning = reasoning or missing
    elif not total and reasoning and reasoning > completion_tokens:
        completion_tokens += reasoning
    return TokenCounts(prompt_tokens, completion_tokens, cached, written, reasoning, reported_cost(usage))


_TICKS = 10**10  # per dollar, at xAI


def reported_cost(usage: JSONMapping) -> int | None:
    """In nano-dollars; None if not reported."""
    cost = usage.get("cost")  # OpenRouter, LiteLLM, Vercel's gateway and others
    if cost is None:
        cost = usage.get("estimated_cost")  # DeepInfra
    elif isinstance(cost, Mapping):
        cost = cost.get("total_cost")  # Perplexity
    ticks = usage.get("cost_in_usd_ticks")  # xAI
    if cost is None and type(ticks) is int:
        cost = ticks / _TICKS if ticks < _TICKS**2 else None
    return None if cost is None else cost_in_nanos(cost)


def has_counts(usage: JSONMapping) -> bool:
    return any(map(is_token_count, map(usage.get, _COUNTS)))


def _names_claude(counts: Mapping[str, int]) -> bool:
    return bool(counts.get("cache_read_input_tokens") or counts.get("cache_creation_input_tokens"))


def _first(counts: Mapping[str, int], names: Sequence[str], default: int = 0) -> int:
    for name in names:
        if name in counts:
            return counts[name]
    return default


def _details(usage: JSONMapping, *names: str) -> Mapping[str, int]:
    for name in names:
        if isinstance(details := usage.get(name), dict):
            return token_counts(details)
    return {}
