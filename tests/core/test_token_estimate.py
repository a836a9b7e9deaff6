"""Token estimates, equally fast for a long conversation and a long text."""

from __future__ import annotations

from typing import Any

import pytest

from app.core import usage
from app.core.usage import estimate, estimate_json, estimate_prompt

WORDS = "The quick brown fox jumps over the lazy dog, and 12345 times more. "


def conversation(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


def test_estimate_of_few_texts_counts_each() -> None:
    body = conversation("Hello there.", "你好", "x = 1\n\n\ny = 2")
    texts = [message["content"] for message in body["messages"]]
    assert estimate_prompt(body) == sum(map(estimate, texts)) + 4 * len(texts)


@pytest.mark.parametrize("text", [WORDS * 30, "你好世界" * 200, '{"a": [1, 2, 3]}' * 100])
def test_estimate_of_many_texts_is_close_to_that_of_each(text: str) -> None:
    assert estimate_json([text] * 2000) == pytest.approx(2000 * estimate(text), rel=0.05)


def test_estimate_of_mixed_texts_counts_each_by_its_share() -> None:
    texts = [WORDS * 40, "你好" * 500] * 300
    assert estimate_json(texts) == pytest.approx(sum(map(estimate, texts)), rel=0.05)


def test_estimate_of_a_long_conversation_reads_little_more_than_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    tokens = usage._tokens
    monkeypatch.setattr(usage, "_tokens", lambda text: looked_at.append(len(text)) or tokens(text))
    estimate_prompt(conversation(*[WORDS * 20] * 33_000))
    assert sum(looked_at) < 300_000


def test_estimate_of_media_counts_one_of_them() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    assert 1000 <= estimate_json([part]) < 1010


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": WORDS},
        {"input": WORDS},
        {"contents": [{"parts": [{"text": WORDS}]}]},
        {"messages": [WORDS]},
    ],
)
def test_estimate_counts_the_texts_of_a_request_of_any_form_once(body: dict[str, Any]) -> None:
    request = {"model": "m", "tools": [], "system": WORDS, **body}
    assert estimate_prompt(request) == pytest.approx(2 * estimate(WORDS), abs=8)
