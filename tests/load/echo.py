"""
A model that repeats the input of all turns, and reports missing answers.

    user: "a1"                                  heard a1
    user: "a1", assistant: "heard a1", "a2"     heard a1 a2

Its answer is a function of the input, so callers detect lost turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.upstream import DONE, Received, Step, Upstream, chunk, finish, sse, status, usage

PACE = 0.02  # seconds between two words


def answer_to(texts: Sequence[str]) -> str:
    """Return the answer to these inputs, a turn each."""
    return " ".join(["heard", *texts])


class Echo(Upstream):
    """The model, on a port; it keeps no request."""

    def __init__(self, pace: float = PACE) -> None:
        super().__init__()
        self.pace = pace
        self.request_count = 0
        self._received: list[Received] = []

    @property
    def answering(self) -> int:
        """How many questions are being answered."""
        return len(self._unanswered())

    def _unanswered(self) -> list[Received]:
        return [request for request in self._received if not (request.gone.is_set() or request.answered.is_set())]

    def answer_to(self, request: Received) -> list[Step]:
        """Answer a question word by word."""
        if request.method == "GET":
            return super().answer_to(request)
        self.request_count += 1
        self._received = [*self._unanswered(), request]
        words = _answer(request.json["messages"]).split(" ")
        if words == ["fail"]:
            return status(400, {"error": {"message": "I was told to fail.", "type": "invalid_request_error"}})
        frames: list[Any] = [self.pace]
        for word in [words[0], *(f" {word}" for word in words[1:])]:
            frames += [chunk(word), self.pace]
        return sse(*frames, finish(), usage(), DONE)


def _answer(messages: list[dict[str, Any]]) -> str:
    texts: list[str] = []
    for message in messages:
        text = _text(message["content"])
        if message["role"] == "user":
            texts.append(text)
        elif text != answer_to(texts):
            return f"lost {answer_to(texts)}, found {text}"
    return "fail" if texts[-1] == "fail" else answer_to(texts)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
