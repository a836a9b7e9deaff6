"""Detecting large values, by bytes or by number."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.core.size import LARGE, MANY, is_large

MESSAGE = {"role": "user", "content": [{"type": "text", "text": "a" * 1000}]}


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ([MESSAGE] * 100, False),
        ([MESSAGE] * (LARGE // 1000 + 1), True),
        ("a" * (LARGE // 2), False),
        ([1] * (MANY // 2), False),
        ([1] * (MANY + 2), True),
        ({"a": [{}] * MANY, "b": [[]] * MANY}, True),
    ],
)
def test_document_is_large_by_its_bytes_or_its_values(value: Any, large: bool) -> None:
    assert is_large(orjson.dumps(value)) is large


def test_documents_are_large_together() -> None:
    assert not is_large(b"a" * (LARGE // 2))
    assert is_large(*[b"a" * (LARGE // 2 + 1)] * 2)
    assert is_large(*[b"[1, 2, 3]"] * MANY)
