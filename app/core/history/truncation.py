"""
Leave out the oldest part of a conversation that is too long for the model.

"`auto`: The server MAY truncate earlier parts of the context ... Providers SHOULD apply sensible heuristics when doing
so (e.g., preserving system messages and recent turns)."

What is left out goes in pieces, the oldest first: a turn as a whole, and of the present turn, which is the longest of
all in an agent, what the model did in one step with the results of its calls. So there is never half of a call and its
output, nor an answer without its question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from app.core.types.items import ITEM_TYPES, OUTPUTS
from app.core.types.request import Item
from app.core.types.token_estimate import estimate_json

# What stays wherever it stands, and belongs to no turn: instructions, tools, and what stands for all that was before.
_STANDING = frozenset(row.type for row in ITEM_TYPES.values() if row.pinned)
_HOSTED = frozenset(row.type for row in ITEM_TYPES.values() if row.hosted)
_STANDING_ROLES = frozenset({"system", "developer"})


def truncated(items: Sequence[Item], share: float) -> list[Item]:
    """
    Return a conversation without its oldest pieces, so that about a share (0 to 1) of its tokens is left.

    System and developer messages, the last message of the user and the last step of the model always stay, even where
    they alone are too much.
    """
    sizes = [estimate_json(item) for item in items]
    excess = sum(sizes) * (1 - share)
    gone: set[int] = set()
    for piece in _pieces(items):
        if excess <= 0:
            break
        excess -= sum(sizes[position] for position in piece - gone)
        gone |= piece
    left = (_remainder(item) if position in gone else item for position, item in enumerate(items))
    return [item for item in left if item]


def _remainder(item: Item) -> Item | None:
    """Return what stays of an item that is left out: tools that were found can still be called, and say nothing."""
    tools = item.get("tools") if item["type"] == "tool_search_output" else None
    return {"type": item["type"], "tools": tools} if tools else None


def _pieces(items: Sequence[Item]) -> Iterator[set[int]]:
    """Yield the positions of what can be left out together, oldest first."""
    present = max((position for position, item in enumerate(items) if _is_by_user(item)), default=-1)
    steps = _steps(items, present)
    staying = {present, *(steps[-1] if steps else ())}
    pairs = _paired(items)
    for step in steps:
        piece = {*step}.union(*(pairs.get(position, ()) for position in step))
        if not piece & staying:
            yield piece


def _steps(items: Sequence[Item], present: int) -> list[list[int]]:
    """
    Return the positions of each turn before the present one, and of each step of that one.

    A turn begins with the user, and a step where the model speaks again after it was given an output. What a hosted
    tool did is a call and its output in one.
    """
    steps: list[list[int]] = []
    answered = False  # was the last item an output?
    for position, item in enumerate(items):
        if item["type"] in _STANDING or item.get("role") in _STANDING_ROLES:
            continue
        is_output = item["type"] in OUTPUTS
        again = position > present and answered and not is_output
        if not steps or _is_by_user(item) or again or steps[-1][0] == present:
            steps.append([])
        steps[-1].append(position)
        answered = is_output or item["type"] in _HOSTED
    return steps


def _paired(items: Sequence[Item]) -> dict[int, set[int]]:
    """
    Return, by the position of a call or an output, those of both. An id may be used again in a later turn.

    A request for approval, the response to it and the call that was made then belong together in the same way.
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


def _is_by_user(item: Item) -> bool:
    return bool(item["type"] == "message" and item["role"] == "user")


# A number that somebody may have counted; no longer run of digits.
_COUNT = r"(?<![\d,])\d[\d,]{2,11}(?![\d,])"
# The words of backends before the number of tokens that there is room for; Anthropic has them behind it.
_LIMIT = re.compile(
    rf"(?:context (?:length|window|size)|max(?:imum)?|limit|must be <=)\D{{0,30}}+({_COUNT})|> ({_COUNT})",
    re.IGNORECASE,
)
_NUMBER = re.compile(_COUNT)


def share_that_fits(complaint: str) -> float | None:
    """
    Return which share of a prompt fits, from a backend's complaint that it is too long.

    None where the complaint does not tell both numbers, the limit and what the backend counted.
    """
    found = _LIMIT.search(complaint)
    limit = _count(found[1] or found[2]) if found else 0
    counted = max(map(_count, _NUMBER.findall(complaint)), default=0)
    return limit / counted if 0 < limit < counted else None


def _count(digits: str) -> int:
    return int(digits.replace(",", ""))
