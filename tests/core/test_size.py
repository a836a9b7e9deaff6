"""What is large, by its characters or by its values."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.core.size import LARGE, MANY, Size

MESSAGE = {"role": "user", "content": [{"type": "text", "text": "a" * 1000}]}


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ([MESSAGE] * 100, False),
        ([MESSAGE] * (LARGE // 1000 + 1), True),
        (("a" * (LARGE // 2), {"b": "a" * (LARGE // 2 + 1)}), True),
        ([1] * (MANY // 2), False),
        ([1] * (MANY + 2), True),
        ({"a": [{}] * MANY, "b": [[]] * MANY}, True),
    ],
)
def test_size_of_a_value_is_large_by_its_text_or_its_values(value: Any, large: bool) -> None:
    assert Size.of(value).large is Size.of(1, value).large is large
    assert (Size.of(value) + Size(values=1)).large is large
    document = orjson.dumps(value)
    assert Size.of_json(document).large is Size.of_json(document.decode()).large is large


@pytest.mark.parametrize(
    ("value", "long"),
    [
        ([1] * (MANY + 2), False),
        (["a" * 100] * (MANY + 2), False),
        (["a" * 250] * (MANY + 2), True),
        ([1] * (10 * MANY + 2), True),
        (["a" * (LARGE + 1), 1], True),
    ],
)
def test_size_of_many_values_is_long_only_for_long_texts_or_ten_times_as_many(value: Any, long: bool) -> None:
    assert Size.of(value).large is True
    assert Size.of(value).long is long
    assert Size.of_json(orjson.dumps(value)).long is long


def test_sizes_of_parts_are_added() -> None:
    half = Size(LARGE // 2 + 1, MANY // 2 + 1)
    assert (half.large, (half + half).large) == (False, True)
    assert Size(1, 2) + Size(3, 4) == Size(4, 6)
    assert Size.of_json(b"[1, 2, 3]" * MANY).large is Size.of_json(*[b"[1, 2, 3]"] * MANY).large is True
