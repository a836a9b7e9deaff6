"""A response's `tool_usage`, in the shape required by typed clients."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses.response import ToolUsage

from app.core.usage import added_counts, complete_tool_usage, image_usage

DETAILED = {
    "input_tokens": 50,
    "input_tokens_details": {"image_tokens": 40, "text_tokens": 10},
    "output_tokens": 200,
    "output_tokens_details": {"image_tokens": 190, "text_tokens": 10},
    "total_tokens": 250,
}


def read(*answers: dict[str, Any]) -> ToolUsage:
    """Return the usage of several images, read by OpenAI's client, which requires all fields."""
    counts: dict[str, Any] = {}
    for answer in answers:
        counts = added_counts(counts, {"image_gen": image_usage(answer)})
    return ToolUsage.model_validate(complete_tool_usage(counts))


def test_tool_usage_without_calls_has_every_required_field() -> None:
    usage = read()
    assert usage.web_search.num_requests == usage.image_gen.total_tokens == 0
    assert usage.image_gen.input_tokens_details.text_tokens == 0
    assert usage.image_gen.output_tokens_details is None


def test_tool_usage_of_several_images_is_the_sum_of_their_details() -> None:
    usage = read(DETAILED, DETAILED).image_gen
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 400, 500)
    assert usage.input_tokens_details.image_tokens == 80
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.image_tokens == 380


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        ({"input_tokens": 7, "output_tokens": 20}, (7, 20, 27)),
        ({"input_tokens": 7, "input_tokens_details": None, "output_tokens": None, "total_tokens": -1}, (7, 0, 7)),
        ({"input_tokens": "7", "output_tokens": float("nan"), "total_tokens": 2**70}, (7, 0, 7)),
        ({}, (0, 0, 0)),
    ],
)
def test_tool_usage_of_a_backend_without_details_counts_text(
    answer: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    usage = read(answer).image_gen
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == counts
    assert usage.input_tokens_details.text_tokens == usage.input_tokens
