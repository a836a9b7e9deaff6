"""
Set the breakpoints of the prompt cache: up to each of them, the server keeps what it computed for the prompt.

The prompt is tools, system and messages, in this order. A request that continues a conversation finds what the one
before it wrote at the end of its messages, if that is not too many blocks ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.core.request.content import cache_control
from app.core.request.question import TranslationContext
from app.core.request.roles import Message
from app.core.types import JSONObject

MOST = 4  # breakpoints in a request
_LOOKED_BACK = 20  # blocks before a breakpoint in which the server looks for an earlier one
_NOT_MARKED = frozenset({"thinking", "redacted_thinking"})


def is_cached(context: TranslationContext) -> bool:
    """Return whether breakpoints are set, by the profile, for servers that take them."""
    return context.options.cache != "off"


def set_breakpoints(context: TranslationContext, body: dict[str, Any]) -> None:
    """
    Set the breakpoints of a request: where the caller has set them, or else behind tools, system and history.

    Nothing in the body is changed but the lists that it has.
    """
    options = context.request.prompt_cache_options
    extra = (options.model_extra if options else None) or {}
    mark = cache_control(extra.get("ttl") or context.request.prompt_cache_retention)
    messages: list[Message] = body["messages"]
    marked = _marked(body.get("system", ()), messages)
    if marked or extra.get("mode") == "explicit":
        _keep_marks(context, body, marked, mark)
        return
    for name in ("tools", "system"):
        if blocks := body.get(name):
            body[name] = [*blocks[:-1], {**blocks[-1], "cache_control": mark}]
    for position in _ends_of_history(messages):
        if (message := _with_mark(messages[position], mark)) is not None:
            messages[position] = message


def _marked(system: Sequence[JSONObject], messages: Sequence[Message]) -> list[JSONObject]:
    """Return the blocks that the caller has marked, in the order of the prompt; those within results, too."""
    blocks = [*system]
    for message in messages:
        for block in message["content"]:  # type: ignore[attr-defined]
            blocks += block.get("content", ()) if block["type"] == "tool_result" else ()
            blocks.append(block)
    return [block for block in blocks if "cache_control" in block]


def _keep_marks(
    context: TranslationContext, body: dict[str, Any], marked: Sequence[JSONObject], mark: JSONObject
) -> None:
    """Keep the last of the caller's breakpoints, which all have the longest lifetime that is asked for."""
    if len(marked) > MOST:
        context.warnings.add(f"Of the breakpoints of the prompt cache, the last {MOST} were kept.")
    kept = {id(block) for block in marked[-MOST:]}
    for block in marked:
        mark = {**mark, **block["cache_control"]}
    if "system" in body:
        body["system"] = _remarked(body["system"], kept, mark)
    body["messages"] = [
        {**message, "content": _remarked(message["content"], kept, mark)} if _marked((), [message]) else message
        for message in body["messages"]
    ]


def _remarked(blocks: Sequence[JSONObject], kept: set[int], mark: JSONObject) -> list[JSONObject]:
    """Return blocks with this mark at those that are kept, by their `id`, and at no others."""
    result = []
    for block in blocks:
        changed = {name: value for name, value in block.items() if name != "cache_control"}
        if block["type"] == "tool_result" and "content" in block:
            changed["content"] = _remarked(block["content"], kept, mark)
        result.append({**changed, "cache_control": mark} if id(block) in kept else changed)
    return result


def _ends_of_history(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the last message, and of the one that was it before, if that is many blocks ago."""
    last = len(messages) - 1
    blocks: int = sum(len(message["content"]) for message in messages[-2:])  # type: ignore[arg-type, misc]
    return [last - 2, last] if last >= 2 and blocks >= _LOOKED_BACK else [last]


def _with_mark(message: Message, mark: JSONObject) -> Message | None:
    """Return a message with a mark at its last block; None for one that cannot have it."""
    content: Any = message["content"]
    if content[-1]["type"] in _NOT_MARKED:
        return None
    return {**message, "content": [*content[:-1], {**content[-1], "cache_control": mark}]}
