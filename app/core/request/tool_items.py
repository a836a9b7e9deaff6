"""
Calls of other kinds, and their outputs, as those of functions: it is as functions that a backend knows all tools.

How each type of item is read is in the table of item types. What is decided here is the order. A hosted item holds a
call and its result; the calls that the model made in one answer (a *round*) are one message to a backend, with all of
their results behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.types.items import ITEM_TYPES
from app.core.types.readings import NOTES, Names
from app.core.types.request import Item

_BY_MODEL = frozenset({"call", "hosted", "reasoning"})


def tool_items_as_functions(
    items: Sequence[Item], names: Names, upstream: Mapping[str, Mapping[str, object]]
) -> tuple[list[Item], list[int]]:
    """
    Return the items with calls and outputs as those of functions, where they can be read so.

    Beside them is the position among `items` that each is from. `upstream` has the notes of items, by their ids.
    """
    notes = [_notes(item, upstream) for item in items]
    _decide(items, notes)
    rounds = _rounds(items, notes)
    read: list[Item] = []
    positions: list[int] = []
    waiting: list[tuple[Item, int]] = []  # the results of the round
    for position, item in enumerate(items):
        row = ITEM_TYPES.get(item["type"])
        found = row.read(item, names, notes[position]) if row and row.read else [item]
        split = len(found) > 1 and position in rounds
        read += found[:1] if split else found
        positions += [position] * (1 if split else len(found))
        waiting += [(output, position) for output in found[1:]] if split else ()
        if waiting and rounds.get(position, position) == position:
            read += [output for output, _ in waiting]
            positions += [place for _, place in waiting]
            waiting = []
    return read, positions


def _notes(item: Item, upstream: Mapping[str, Mapping[str, object]]) -> Mapping[str, object]:
    notes = (upstream.get(str(item.get("id"))) or {}).get(NOTES)
    return notes if isinstance(notes, Mapping) else {}


def _decide(items: Sequence[Item], notes: list[Mapping[str, object]]) -> None:
    """Note for each request for approval what was decided; one whose call was made says nothing, for the call does."""
    made = {item.get("approval_request_id") for item in items if item["type"] == "mcp_call"}
    decided = {item.get("approval_request_id"): item for item in items if item["type"] == "mcp_approval_response"}
    for position, item in enumerate(items):
        if item["type"] == "mcp_approval_request":
            id = item.get("id")
            notes[position] = {**notes[position], "made": id in made, "decided": decided.get(id)}


def _rounds(items: Sequence[Item], notes: Sequence[Mapping[str, object]]) -> dict[int, int]:
    """Return the position of the last call of its round, by that of each item from the first call to it."""
    last: dict[int, int] = {}
    begun: tuple[int, object] | None = None  # where a round was begun, and which it is
    for position, item in enumerate(items):
        round = notes[position].get("round")
        if round is not None and begun and begun[1] == round:
            last.update(dict.fromkeys(range(begun[0], position + 1), position))
        elif round is not None:
            begun = (position, round)
            last[position] = position
        elif not _is_by_model(item):
            begun = None
    return last


def _is_by_model(item: Item) -> bool:
    if item["type"] == "message":
        return bool(item.get("role") == "assistant")
    row = ITEM_TYPES.get(item["type"])
    return row is not None and row.role in _BY_MODEL
