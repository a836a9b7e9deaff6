"""Compacted conversations: retained messages, and the compaction that replaces the rest."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.types.request import Item

TRIGGER = "compaction_trigger"
COMPACTION = "compaction"

CONTENT_MARK = "antiphon1."  # marks `encrypted_content` readable here, unlike other servers'

_RETAINED_ROLES = frozenset({"user", "system", "developer"})


def is_compaction(items: Sequence[Item]) -> bool:
    return bool(items) and items[-1]["type"] == TRIGGER


def has_compaction(items: Sequence[Item]) -> bool:
    return any(map(_replaces_earlier, items))


def _replaces_earlier(item: Item) -> bool:
    return item["type"] == COMPACTION and str(item.get("encrypted_content")).startswith(CONTENT_MARK)


def retained_messages(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if _is_retained(item)]


def _is_retained(item: Item) -> bool:
    return bool(item["type"] == "message" and item["role"] in _RETAINED_ROLES)


def without_compacted(items: Sequence[Item]) -> list[Item]:
    """
    Drop the items replaced by the latest compaction.

    A compaction within a response is moved before the response's input, so that the model reads the summary first.
    """
    latest = max((position for position, item in enumerate(items) if _replaces_earlier(item)), default=0)
    end = latest
    while end and _is_retained(items[end - 1]):
        end -= 1
    if end == 0:  # only messages, as returned by `POST /responses/compact`
        end = latest
    return [*retained_messages(items[:end]), *items[latest : latest + 1], *items[end:latest], *items[latest + 1 :]]


def minimum_after_compaction(items: Sequence[Item]) -> list[Item]:
    return [item for item in without_compacted(items) if _is_retained(item) or _replaces_earlier(item)]
