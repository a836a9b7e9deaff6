"""Each request in a conversation reads the prompt cache written by the previous request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.backends.apis.messages.encoder import to_messages_request
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse
from tests.backends.apis.messages.test_messages_request import CLAUDE, LOOK, thought
from tests.support.messages_server import check

LOOKBACK = 20  # blocks


class PromptCache:
    """Anthropic's cache: prefixes up to a breakpoint, found within twenty blocks before another breakpoint."""

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def read(self, body: dict[str, Any]) -> tuple[int, int]:
        """Return how many blocks of a prompt are read from the cache, and how many are there up to its last mark."""
        blocks = [*body.get("tools", ()), *body.get("system", ())]
        for message in body["messages"]:
            blocks += [{"role": message["role"], **block} for block in message["content"]]
        prefixes: list[str] = [""]
        for block in blocks:
            bare = {name: value for name, value in block.items() if name != "cache_control"}
            prefixes.append(str(hash(prefixes[-1] + json.dumps(bare, sort_keys=True))))
        ends = [at for at, block in enumerate(blocks, 1) if "cache_control" in block]
        found = [at for end in ends for at in range(end, max(0, end - LOOKBACK), -1) if prefixes[at] in self.kept]
        self.kept |= {prefixes[end] for end in ends}
        return max(found, default=0), max(ends)


def turn(number: int, calls: int) -> list[dict[str, Any]]:
    """A model turn: a thought, and calls or an answer."""
    thought_items: list[dict[str, Any]] = [{"type": "reasoning", "id": f"rs_{number}", "summary": []}]
    ids = [f"toolu_{number}_{n}" for n in range(calls)]
    if not calls:
        return [*thought_items, {"type": "message", "role": "assistant", "content": f"Answer {number}."}]
    made = [{"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"} for id in ids]
    return [*thought_items, *made]


@pytest.mark.parametrize("policy", ["always", "tool_turns"])
@pytest.mark.parametrize("calls", [(0,), (1,), (1, 1, 0), (3, 0), (15, 1), (40, 2, 0)])
def test_each_turn_reads_the_whole_prompt_of_the_turn_before(calls: tuple[int, ...], policy: str) -> None:
    cache, profile = PromptCache(), CLAUDE.override({"request.reasoning_replay": policy})
    items: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "Look."}]
    upstream: dict[str, Any] = {}
    written = 0
    for number in range(20):
        request = CreateResponse.model_validate(
            {"model": "m", "input": items, "instructions": "Be kind.", "tools": [LOOK], "reasoning": {"effort": "low"}}
        )
        body = to_messages_request(ModelRequest(request, request.items(), "m", upstream), profile).body
        if number == 19:
            check(body)
        read, wrote = cache.read(body)
        assert read == written, f"turn {number} reads {read} of {written} blocks"
        written = wrote
        count = calls[number % len(calls)]
        upstream[f"rs_{number}"] = thought(f"Thought {number}.")
        new_items = turn(number, count)
        items = [*items, *new_items]
        made = [item["call_id"] for item in new_items if item["type"] == "function_call"]
        items += [{"type": "function_call_output", "call_id": id, "output": f"Seen {id}."} for id in made]
        if not made:
            items.append({"type": "message", "role": "user", "content": f"And {number}?"})
