"""A response's `tool_usage`: resources used by hosted tools besides model tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from app.core.usage import token_count

# Numbers by name, and groups of numbers: `{"web_search": {"num_requests": 1}}`.
Counts: TypeAlias = Mapping[str, "int | Counts"]

# Required by OpenAI's SDKs.
_UNUSED: Counts = {
    "image_gen": {
        "input_tokens": 0,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": 0,
    },
    "web_search": {"num_requests": 0},
}


def added_counts(counts: Counts, more: Counts) -> dict[str, int | Counts]:
    added = dict(counts)
    for name, value in more.items():
        before = added.get(name)
        if isinstance(value, Mapping):
            added[name] = added_counts(before if isinstance(before, Mapping) else {}, value)
        else:
            added[name] = (before if isinstance(before, int) else 0) + value
    return added


def complete_tool_usage(counts: Counts) -> dict[str, int | Counts]:
    return added_counts(_UNUSED, counts)


def image_usage(usage: Mapping[str, object]) -> Counts:
    """Counts of an images API's answer; without details, all input tokens are text."""
    input_tokens, output_tokens = token_count(usage.get("input_tokens")), token_count(usage.get("output_tokens"))
    counts: dict[str, int | Counts] = {
        "input_tokens": input_tokens,
        "input_tokens_details": _details(usage.get("input_tokens_details")) or {"text_tokens": input_tokens},
        "output_tokens": output_tokens,
        "total_tokens": token_count(usage.get("total_tokens")) or input_tokens + output_tokens,
    }
    if details := _details(usage.get("output_tokens_details")):
        counts["output_tokens_details"] = details
    return counts


def _details(details: object) -> dict[str, int]:
    if not isinstance(details, Mapping):
        return {}
    return {name: token_count(details.get(name)) for name in ("image_tokens", "text_tokens")}
