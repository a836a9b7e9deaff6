"""A response's usage: reported by the backend, or estimated."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from app.core.json_values import json_object
from app.core.types import Item, Usage, list_field
from app.core.types.deltas import TokenCounts
from app.core.usage.token_estimate import estimate, estimate_prompt


def usage_of(
    counts: TokenCounts | None,
    body: Mapping[str, object],
    output: Sequence[Item | str],
    prompt_estimate: int | None = None,
) -> Usage:
    """
    Usage reported by the backend, otherwise estimated, because clients loop or crash without usage.

    Unreported reasoning tokens are estimated by their share of the output text.
    """
    if counts is None:
        reasoning, rest = _estimates(output)
        prompt_tokens = estimate_prompt(body) if prompt_estimate is None else prompt_estimate
        return _usage(prompt_tokens, reasoning + rest, reasoning=reasoning)
    prompt, completion, cached, written, reported, _ = counts
    reasoning = _share(completion, output) if reported is None else reported
    return _usage(prompt, completion, min(cached, prompt), written, min(reasoning, completion))


def request_usage(reported: object) -> Usage | None:
    """Usage reported by another endpoint, for example images or embeddings."""
    counts = json_object(reported)
    output_tokens = token_count(counts.get("output_tokens"), counts.get("completion_tokens"))
    input_tokens = token_count(counts.get("input_tokens"), counts.get("prompt_tokens"))
    if not input_tokens and not output_tokens:
        input_tokens = token_count(counts.get("total_tokens"))
    return _usage(input_tokens, output_tokens) if input_tokens or output_tokens else None


def estimated_usage(texts: Iterable[str]) -> Usage:
    return _usage(sum(map(estimate, texts)), 0)


def counts_of(usage: Usage) -> tuple[int, int, int, int, int]:
    """Input, output, cached, written and reasoning tokens: the order of `TokenCounts`."""
    details = usage["input_tokens_details"]
    return (
        usage["input_tokens"],
        usage["output_tokens"],
        details["cached_tokens"],
        details["cache_write_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )


def added_usage(usage: Usage | None, more: Usage) -> Usage:
    return _usage(*map(operator.add, counts_of(usage), counts_of(more))) if usage else more


def usage_since(before: Usage | None, usage: Usage) -> Usage:
    """Too high earlier estimates count as no difference."""
    if not before:
        return usage
    counts = zip(counts_of(usage), counts_of(before), strict=True)
    return _usage(*(max(0, count - earlier) for count, earlier in counts))


_NANOS = 10**9  # per currency unit: see `app.core.prices`
_MAX_COST = 10**6  # US dollars per request


def cost_in_nanos(dollars: object) -> int | None:
    """`dollars` can be text."""
    try:
        amount = float(dollars) if isinstance(dollars, int | float | str) and not isinstance(dollars, bool) else -1.0
    except (ValueError, OverflowError):
        return None
    return round(amount * _NANOS) if 0 <= amount <= _MAX_COST else None


def _share(output_tokens: int, output: Sequence[Item | str]) -> int:
    if not any(map(_is_reasoning, output)):
        return 0
    reasoning, rest = _estimates(output)
    return -(-output_tokens * reasoning // (reasoning + rest)) if reasoning else 0


def _estimates(output: Iterable[Item | str]) -> tuple[int, int]:
    reasoning = rest = 0
    for item in output:
        tokens = sum(map(estimate, _texts_of(item)))
        if _is_reasoning(item):
            reasoning += tokens
        else:
            rest += tokens
    return reasoning, rest


def _is_reasoning(item: Item | str) -> bool:
    return not isinstance(item, str) and item["type"] == "reasoning"


def _usage(input_tokens: int, output_tokens: int, cached: int = 0, written: int = 0, reasoning: int = 0) -> Usage:
    return {
        "input_tokens": input_tokens,
        # `cache_write_tokens` is OpenAI's; its SDK requires it.
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens,
    }


# Larger values are errors, and could overflow the ledger's 64-bit sums and costs.
_MAX_COUNT = 10**9


def is_token_count(value: object) -> TypeGuard[str | int | float]:
    """Some servers send counts as strings."""
    if isinstance(value, str):
        return value.isdecimal() and len(value) < 16
    return isinstance(value, (int, float)) and 0 <= value < _MAX_COUNT


def token_counts(fields: Mapping[str, object]) -> dict[str, int]:
    counts = {}
    for name, value in fields.items():
        if type(value) is int and 0 <= value < _MAX_COUNT:  # nearly always
            counts[name] = value
        elif value is not None and is_token_count(value):
            counts[name] = int(value)
    return counts


def token_count(*values: object) -> int:
    return reported_count(*values) or 0


def reported_count(*values: object) -> int | None:
    for value in values:
        if type(value) is int and 0 <= value < _MAX_COUNT:
            return value
        if value is not None and is_token_count(value):
            return int(value)
    return None


def _texts_of(item: Item | str) -> Iterator[str]:
    if isinstance(item, str):
        yield item
        return
    for name in ("name", "arguments", "input"):
        if isinstance(value := item.get(name), str):
            yield value
    for part in list_field(item, "content") or list_field(item, "summary"):  # raw reasoning can be in both
        yield part.get("text") or part.get("refusal") or ""
