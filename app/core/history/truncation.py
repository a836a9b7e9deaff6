"""
Shorten conversations that are too long for the model.

Whole turns are removed, then the current turn's model steps with their call results, oldest first. A call is never
separated from its output, or an answer from its question. The spec recommends "preserving system messages and recent
turns".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from app.core.items import ITEM_TYPES, OUTPUTS, is_by_user
from app.core.types.request import Item
from app.core.usage import estimate_json

# Items that always stay: instructions, tools, and compactions.
_PINNED = frozenset(row.type for row in ITEM_TYPES.values() if row.pinned)
_HOSTED = frozenset(row.type for row in ITEM_TYPES.values() if row.hosted)
_PINNED_ROLES = frozenset({"system", "developer"})

# Prompt shares to try, after the share in the backend's error message.
_SHARES = (0.75, 0.5, 0.25, 0.0)


def shorter_conversations(
    items: Sequence[Item], prompt_tokens: int, fits: float | None, margin: float
) -> Iterator[list[Item]]:
    """
    Ever shorter conversations, with all system and developer messages, the last user message and the last model step.

    `prompt_tokens` is the whole prompt's estimated size. `fits` is the prompt share that fits, if known; only the
    fraction `margin` is used, because sizes are estimates.
    """
    sizes = [estimate_json(item) for item in items]
    first = 1.0 if fits is None else fits * margin
    length = len(items)
    for share in (*(() if fits is None else (first,)), *(share for share in _SHARES if share < first)):
        left = shortened(items, sizes, (1 - share) * prompt_tokens)  # tools and instructions stay
        if len(left) < length:
            length = len(left)
            yield left


def shortened(items: Sequence[Item], sizes: Sequence[int], excess: float) -> list[Item]:
    """Remove at least `excess` tokens, if possible; `sizes` are the items' tokens."""
    removed: set[int] = set()
    for piece in _pieces(items):
        if excess <= 0:
            break
        excess -= sum(sizes[position] for position in piece - removed)
        removed |= piece
    left: list[Item] = []
    for position, item in enumerate(items):
        if position not in removed:
            left.append(item)
        elif item["type"] == "tool_search_output" and (tools := item.get("tools")):
            left.append({"type": item["type"], "tools": tools})  # the tools can still be called
    return left


def _pieces(items: Sequence[Item]) -> Iterator[set[int]]:
    current = max((position for position, item in enumerate(items) if is_by_user(item)), default=-1)
    steps = _steps(items, current)
    retained = {current, *(steps[-1] if steps else ())}
    pairs = _paired(items)
    for step in steps:
        piece = {*step}.union(*(pairs.get(position, ()) for position in step))
        if not piece & retained:
            yield piece


def _steps(items: Sequence[Item], current: int) -> list[list[int]]:
    """
    Positions of each earlier turn, and of each step in the current turn.

    A turn begins with a user message, a step when the model continues after an output.
    """
    steps: list[list[int]] = []
    answered = False
    for position, item in enumerate(items):
        if item["type"] in _PINNED or item.get("role") in _PINNED_ROLES:
            continue
        is_output = item["type"] in OUTPUTS
        again = position > current and answered and not is_output
        if not steps or is_by_user(item) or again or steps[-1][0] == current:
            steps.append([])
        steps[-1].append(position)
        answered = is_output or item["type"] in _HOSTED
    return steps


def _paired(items: Sequence[Item]) -> dict[int, set[int]]:
    """
    Each call's and output's position, with the positions of both. Ids can be reused in later turns.

    Approval requests, their responses, and the resulting calls also belong together.
    """
    pairs: dict[int, set[int]] = {}
    latest: dict[str, set[int]] = {}
    for position, item in enumerate(items):
        request = item["type"] == "mcp_approval_request"
        approval = item.get("id") if request else item.get("approval_request_id")
        call_id = approval or item.get("call_id")
        if not isinstance(call_id, str):
            continue
        follows = bool(approval and not request) or item["type"] in OUTPUTS
        if not follows or call_id not in latest:
            latest[call_id] = set()
        latest[call_id].add(position)
        pairs[position] = latest[call_id]
    return pairs


# A possible token count, not part of a longer run of digits.
_COUNT = r"(?<![\d,])\d[\d,]{2,11}(?![\d,])"
# How error messages introduce the limit; in one format it follows the count.
_LIMIT = re.compile(
    rf"(?:context (?:length|window|size)|max(?:imum)?|limit|must be <=)\D{{0,30}}+({_COUNT})|> ({_COUNT})",
    re.IGNORECASE,
)
_NUMBER = re.compile(_COUNT)


def fitting_share(message: str) -> float | None:
    """The prompt share that fits, from a backend error with limit and token count."""
    match = _LIMIT.search(message)
    limit = _count(match[1] or match[2]) if match else 0
    counted = max(map(_count, _NUMBER.findall(message)), default=0)
    return limit / counted if 0 < limit < counted else None


def _count(digits: str) -> int:
    return int(digits.replace(",", ""))
