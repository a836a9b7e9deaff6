"""What a compaction leaves of a conversation: the messages to the model, and the item that stands for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.types.request import Item

TRIGGER = "compaction_trigger"
COMPACTION = "compaction"

_KEPT_ROLES = frozenset({"user", "system", "developer"})


def is_compaction(items: Sequence[Item]) -> bool:
    """Tell whether an input requests a compaction."""
    return bool(items) and items[-1]["type"] == TRIGGER


def has_compaction(items: Sequence[Item]) -> bool:
    """Tell whether one of the items stands for a part of the conversation."""
    return any(item["type"] == COMPACTION for item in items)


def messages_kept(items: Sequence[Item]) -> list[Item]:
    """Return the messages that a compaction leaves as they are: those to the model."""
    return [item for item in items if _is_kept(item)]


def _is_kept(item: Item) -> bool:
    return bool(item["type"] == "message" and item["role"] in _KEPT_ROLES)


def without_compacted(items: Sequence[Item]) -> list[Item]:
    """
    Return a conversation without the items that its latest compaction stands for.

    "The latest compaction item carries the necessary context to continue the conversation." A compaction within a
    response stands behind the input that this response is to answer; here it stands before it, so that the model
    reads the summary first and then what it is to answer.
    """
    latest = max((position for position, item in enumerate(items) if item["type"] == COMPACTION), default=0)
    end = latest
    while end and _is_kept(items[end - 1]):
        end -= 1
    if end == 0:  # nothing but messages, as `POST /responses/compact` returns them
        end = latest
    return [*messages_kept(items[:end]), *items[latest : latest + 1], *items[end:latest], *items[latest + 1 :]]


def least_of_compacted(items: Sequence[Item]) -> list[Item]:
    """Return what would be left of a conversation that is compacted again, with the summary that it has already."""
    return [item for item in without_compacted(items) if _is_kept(item) or item["type"] == COMPACTION]
