"""Drop input that repeats the conversation, except tool results."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from app.core.history.compaction import COMPACTION
from app.core.history.turns import parts_of
from app.core.items import is_by_user
from app.core.types.request import Item
from app.errors import Warnings


def drop_repetitions(history: Sequence[Item], new: Sequence[Item], warnings: Warnings) -> list[Item]:
    return _without_repeated_message(history, _without_repeated_answer(history, new, warnings), warnings)


def _without_repeated_answer(history: Sequence[Item], new: Sequence[Item], warnings: Warnings) -> list[Item]:
    """
    Drop earlier responses' calls and compactions, and repeated items before them.

    Open WebUI repeats the answer with the calls, VS Code the last compaction. The model would see each call twice, once
    without a result; a repeated compaction would replace the calls.
    """
    if not any(map(_is_answer_item, new)):
        return [*new]
    calls = {*map(_call_id, new)}
    known = {_identity(item) for item in history if _call_id(item) in calls} - {None}
    repeated = [_identity(item) in known for item in new]
    end = max((at + 1 for at, item in enumerate(new) if repeated[at] and _is_answer_item(item)), default=0)
    if end:
        warnings.add("Repeated calls or compactions of earlier responses were dropped.")
    return [*(item for item, is_repeated in zip(new[:end], repeated, strict=False) if not is_repeated), *new[end:]]


def _is_answer_item(item: Item) -> bool:
    return item["type"] == COMPACTION or (_call_id(item) is not None and not item["type"].endswith("_output"))


def _call_id(item: Item) -> str | None:
    call_id = item.get("call_id")
    return call_id if isinstance(call_id, str) else None


def _identity(item: Item) -> tuple[object, ...] | None:
    """Parts that stay equal when an item is repeated without its id; None if not comparable."""
    type_ = item["type"]
    if type_ == COMPACTION:
        return (type_, item["id"]) if item.get("id") else None
    if call_id := _call_id(item):
        content = item.get("output") if type_.endswith("_output") else item.get("arguments", item.get("input"))
        return type_, call_id, str(item.get("name")), _canonical(content)
    if type_ == "message" and item["role"] == "assistant":
        return type_, "".join(str(part.get("text")) for part in parts_of(item.get("content"), "assistant"))
    return None


def _canonical(content: object) -> bytes | str:
    try:
        return orjson.dumps(orjson.loads(content) if isinstance(content, str) else content, option=orjson.OPT_SORT_KEYS)
    except (ValueError, TypeError):
        return str(content)


def _without_repeated_message(history: Sequence[Item], new: Sequence[Item], warnings: Warnings) -> list[Item]:
    """Drop the last user message if repeated before a tool result, as Semantic Kernel does."""
    last = max((position for position, item in enumerate(new) if item["type"].endswith("_output")), default=0)
    if not any(map(is_by_user, new[:last])):  # nearly all requests; a history can be long
        return [*new]
    question = next(filter(is_by_user, reversed(history)), None)
    if question is None:
        return [*new]
    words = parts_of(question.get("content"), "user")
    repeated = [is_by_user(item) and parts_of(item.get("content"), "user") == words for item in new[:last]]
    if any(repeated):
        warnings.add("The last user message was repeated with the tool results; the repetition was dropped.")
    return [*(item for item, is_repeated in zip(new, repeated, strict=False) if not is_repeated), *new[last:]]
