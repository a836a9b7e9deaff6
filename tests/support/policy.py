"""A policy service with a decision function, which records its requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from tests.support.upstream import Received, Step, Upstream, reply

Decide = Callable[[dict[str, Any]], Any]

ALLOW = {"action": "allow"}


def refuse(message: str = "Not here.") -> dict[str, Any]:
    return {"action": "refuse", "message": message}


def replace(*items: dict[str, Any]) -> dict[str, Any]:
    return {"action": "replace", "items": [*items]}


def refuses(word: str) -> Decide:
    """Refuse everything with a given word."""
    return lambda request: refuse() if word in json.dumps(request) else ALLOW


def message(text: str, role: str = "user") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


class PolicyServer(Upstream):
    """Answers with the result of `decide`: an object, or steps."""

    def __init__(self, decide: Decide) -> None:
        super().__init__()
        self.decide = decide

    @property
    def base(self) -> str:
        return self.url.removesuffix("/v1")

    @property
    def received(self) -> list[dict[str, Any]]:
        return [request.json for request in self.requests]

    def table(self, *directions: str, **fields: Any) -> dict[str, Any]:
        """The table `[hooks]` for these directions, both by default; a slow decision is not a failure."""
        named = directions or ("input", "output")
        return {**{f"{direction}_url": f"{self.base}/{direction}" for direction in named}, "timeout": 60, **fields}

    def answer_to(self, request: Received) -> list[Step]:
        self.requests.append(request)
        decided = self.decide(request.json)
        return decided if isinstance(decided, list) else reply(json.dumps(decided).encode())


@contextlib.asynccontextmanager
async def policy_server(decide: Decide = lambda request: ALLOW) -> AsyncIterator[PolicyServer]:
    async with PolicyServer(decide) as server:
        yield server


def texts(items: Iterable[dict[str, Any]]) -> list[str]:
    """The texts and refusals of messages."""
    return [
        part.get("text") or part.get("refusal") or ""
        for item in items
        for part in item.get("content") or ()
        if isinstance(part, dict)
    ]
