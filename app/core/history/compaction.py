"""The items of a compacted conversation: the messages to the model, and the compaction that replaces the rest."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.types.request import Item

TRIGGER = "compaction_trigger"
COMPACTION = "compaction"

CONTENT_MARK = "antiphon1."  # the beginning of `encrypted_content` that can be read here, with the right key

_KEPT_ROLES = frozenset({"user", "system", "developer"})


def is_compaction(items: Sequence[Item]) -> bool:
    """Return whether an input requests a compaction."""
    return bool(items) and items[-1]["type"] == TRIGGER


def has_compaction(items: Sequence[Item]) -> bool:
    """Return whether one of the items is a compaction that replaces the items before it."""
    return any(map(_replaces_earlier, items))


def _replaces_earlier(item: Item) -> bool:
    """Return whether an item is a compaction; not one of another server, since what it stands for cannot be read."""
    return item["type"] == COMPACTION and str(item.get("encrypted_content")).startswith(CONTENT_MARK)


def messages_kept(items: Sequence[Item]) -> list[Item]:
    """Return the messages that a compaction does not replace: those to the model."""
    return [item for item in items if _is_kept(item)]


def _is_kept(item: Item) -> bool:
    return bool(item["type"] == "message" and item["role"] in _KEPT_ROLES)


def without_compacted(items: Sequence[Item]) -> list[Item]:
    """
    Return a conversation without the items that its latest compaction replaces.

    "The latest compaction item carries the necessary context to continue the conversation." A compaction within a
    response follows the input of that response; it is moved before the input, so that the model reads the summary first
    and then the input that it has to answer.
    """
    latest = max((position for position, item in enumerate(items) if _replaces_earlier(item)), default=0)
    end = latest
    while end and _is_kept(items[end - 1]):
        end -= 1
    if end == 0:  # only messages, as `POST /responses/compact` returns them
        end = latest
    return [*messages_kept(items[:end]), *items[latest : latest + 1], *items[end:latest], *items[latest + 1 :]]


def least_of_compacted(items: Sequence[Item]) -> list[Item]:
    """Return the items that would remain after another compaction, including the summary that exists already."""
    return [item for item in without_compacted(items) if _is_kept(item) or _replaces_earlier(item)]
