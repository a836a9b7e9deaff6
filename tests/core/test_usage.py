"""Reported usage adds up, whatever the backend reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.backends.apis.chat.usage import normal_usage
from app.core.types.deltas import TokenCounts
from app.core.usage import counts_of, usage_of

NAMES = [
    *("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "total_tokens"),
    *("prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "output_tokens_details"),
    *("cached_tokens", "cache_write_tokens", "reasoning_tokens", "prompt_cache_hit_tokens"),
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
]
NUMBERS = st.integers() | st.floats() | st.sampled_from([math.inf, -math.inf, math.nan, 10**400, -(10**400)])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text() | st.sampled_from(["12", "²", "٣", "9" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=8),
    max_leaves=12,
)


@example(reported={"prompt_tokens": -math.inf})
@example(reported={"prompt_tokens": 5, "completion_tokens_details": {"reasoning_tokens": -3}})
@given(reported=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=8) | JSON)
def test_usage_of_any_report_adds_up(reported: Any) -> None:
    counts = normal_usage(reported) if isinstance(reported, dict) else None
    usage = usage_of(counts, {"messages": []}, [])
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 <= usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
    assert usage["input_tokens_details"]["cache_write_tokens"] >= 0
    assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


@pytest.mark.parametrize("number", [-math.inf, math.inf, math.nan, -1, 10**400, "-1", "1e3", None, [], {}])
def test_usage_that_is_no_count_is_ignored(number: Any) -> None:
    assert normal_usage({"prompt_tokens": number}) is None


def test_counts_of_a_usage_are_the_reported_counts() -> None:
    counts = TokenCounts(prompt=100, completion=50, cached=30, written=20, reasoning=10)
    assert counts_of(usage_of(counts, {}, [])) == counts[:5]
