"""
Convert all types of calls and outputs to function calls and their outputs, which are all that backends know.

The table of item types has the conversion of each type; this module decides the order. A hosted item is a call and its
result in one. The calls that the model made in one answer (a *round*) become one message, followed by all results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.core.items import ITEM_TYPES
from app.core.items.readings import NOTES, Names
from app.core.types.request import Item

# Types that are read one by one, whatever items precede and follow them, and that add no tools.
_REPEATABLE = frozenset(
    row.type
    for row in ITEM_TYPES.values()
    if (row.role in ("message", "reasoning", "call", "output") and not row.adds_tools) or row.type == "compaction"
)


def is_repeatable(item: Item) -> bool:
    """Tell whether the messages of an item may be used again in later requests."""
    return item["type"] in _REPEATABLE and item.get("async") is not True


_BY_MODEL = frozenset({"call", "hosted", "reasoning"})


def tool_items_as_functions(
    items: Sequence[Item],
    names: Names,
    upstream: Mapping[str, Mapping[str, object]],
    stays: Callable[[Item], bool] = lambda item: False,
) -> tuple[list[Item], list[int]]:
    """
    Return the items with all calls and outputs converted to function calls where possible.

    The second list has, for each of them, its position among `items`. `upstream` has the notes of items, by item id.
    `stays` returns whether an item is not converted, since the server has its type.
    """
    notes = [_notes(item, upstream) for item in items]
    _add_decisions(items, notes)
    rounds = _rounds(items, notes)
    result: list[Item] = []
    positions: list[int] = []
    waiting: list[tuple[Item, int]] = []  # results of the current round, and their positions
    for position, item in enumerate(items):
        row = ITEM_TYPES.get(item["type"])
        converts = row is not None and row.read is not None and not stays(item)
        converted = row.read(item, names, notes[position]) if converts else [item]  # type: ignore[misc, union-attr]
        split = len(converted) > 1 and position in rounds
        result += converted[:1] if split else converted
        positions += [position] * (1 if split else len(converted))
        waiting += [(output, position) for output in converted[1:]] if split else ()
        if waiting and rounds.get(position, position) == position:
            result += [output for output, _ in waiting]
            positions += [place for _, place in waiting]
            waiting = []
    return result, positions


def _notes(item: Item, upstream: Mapping[str, Mapping[str, object]]) -> Mapping[str, object]:
    notes = (upstream.get(str(item.get("id"))) or {}).get(NOTES)
    return notes if isinstance(notes, Mapping) else {}


def _add_decisions(items: Sequence[Item], notes: list[Mapping[str, object]]) -> None:
    """Add to the notes of each approval request whether it was decided, and whether its call was made."""
    made = {item.get("approval_request_id") for item in items if item["type"] == "mcp_call"}
    decided = {item.get("approval_request_id"): item for item in items if item["type"] == "mcp_approval_response"}
    for position, item in enumerate(items):
        if item["type"] == "mcp_approval_request":
            item_id = item.get("id")
            notes[position] = {**notes[position], "made": item_id in made, "decided": decided.get(item_id)}


def _rounds(items: Sequence[Item], notes: Sequence[Mapping[str, object]]) -> dict[int, int]:
    """Return the position of the round's last call, by the position of each item of the round."""
    last: dict[int, int] = {}
    current: tuple[int, object] | None = None  # position and number of the current round
    for position, item in enumerate(items):
        round_number = notes[position].get("round")
        if round_number is not None and current and current[1] == round_number:
            last.update(dict.fromkeys(range(current[0], position + 1), position))
        elif round_number is not None:
            current = (position, round_number)
            last[position] = position
        elif not _is_by_model(item):
            current = None
    return last


def _is_by_model(item: Item) -> bool:
    if item["type"] == "message":
        return bool(item.get("role") == "assistant")
    row = ITEM_TYPES.get(item["type"])
    return row is not None and row.role in _BY_MODEL
