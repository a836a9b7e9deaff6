"""
Set prompt cache breakpoints (`cache_control`), up to which the server caches its state of the prompt.

The prompt is tools, system and messages. A continued conversation hits the entry from the previous request's last
message, unless too many blocks follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from app.core.profile import RequestOptions
from app.core.request.content import cache_control
from app.core.request.model_request import ModelRequest, TranslationState
from app.core.request.roles import SYSTEM, Message
from app.core.types import JSONObject

CACHE_FIELDS = frozenset({"prompt_cache_breakpoint", "prompt_cache_retention", "prompt_cache_options"})

THINKING_BLOCKS = frozenset({"thinking", "redacted_thinking"})  # without breakpoints

_MAX_BREAKPOINTS = 4  # in a request
_LOOKBACK = 20  # blocks that the server searches back for an earlier breakpoint


def is_cached_chat(model_request: ModelRequest, options: RequestOptions) -> bool:
    return options.cache == "auto" and any(fnmatchcase(model_request.model, glob) for glob in options.cache_models)


def set_breakpoints(state: TranslationState, body: JSONObject) -> None:
    """
    Set the caller's breakpoints, otherwise breakpoints after tools, system and history.

    `body` is for Messages or Chat Completions. Nested values are not modified.
    """
    options = state.request.prompt_cache_options
    extra = (options.model_extra if options else None) or {}
    mark = cache_control(extra.get("ttl") or state.request.prompt_cache_retention)
    messages = body["messages"] = [*body["messages"]]
    marked = _marked([{"content": body.get("system", ())}, *messages])
    if marked or extra.get("mode") == "explicit":
        _keep_marks(state, body, marked, mark)
        return
    for name in ("tools", "system"):
        if (blocks := body.get(name)) and "function" not in blocks[-1]:  # gateways reject it in functions
            body[name] = [*blocks[:-1], {**blocks[-1], "cache_control": mark}]
    for position in _history_ends(messages):
        message = messages[position]
        content: Any = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _blocks(message)
        messages[position] = {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": mark}]}


def _blocks(message: Message) -> list[JSONObject]:
    content: Any = message.get("content")
    return [*content] if isinstance(content, list | tuple) else []


def _marked(messages: Sequence[Message]) -> list[JSONObject]:
    blocks = []
    for block in (block for message in messages for block in _blocks(message)):
        blocks += [*_blocks(block), block] if block["type"] == "tool_result" else [block]
    return [block for block in blocks if "cache_control" in block]


def _keep_marks(state: TranslationState, body: JSONObject, marked: Sequence[JSONObject], mark: JSONObject) -> None:
    """Keep the caller's last breakpoints, each with the longest requested lifetime."""
    if len(marked) > _MAX_BREAKPOINTS:
        state.warnings.add(f"Only the last {_MAX_BREAKPOINTS} breakpoints of the prompt cache were kept.")
    kept = {id(block) for block in marked[-_MAX_BREAKPOINTS:]}
    for block in marked:
        mark = {**mark, **block["cache_control"]}
    if "system" in body:
        body["system"] = _remarked(body["system"], kept, mark)
    body["messages"] = [
        {**message, "content": _remarked(_blocks(message), kept, mark)} if _marked([message]) else message
        for message in body["messages"]
    ]


def _remarked(blocks: Sequence[JSONObject], kept: set[int], mark: JSONObject) -> list[JSONObject]:
    result = []
    for block in blocks:
        changed = {name: value for name, value in block.items() if name != "cache_control"}
        if block["type"] == "tool_result" and "content" in block:
            changed["content"] = _remarked(block["content"], kept, mark)
        result.append({**changed, "cache_control": mark} if id(block) in kept else changed)
    return result


def _history_ends(messages: Sequence[Message]) -> list[int]:
    """
    Positions of the last system message and of messages that end the history.

    If the last message adds many blocks, the previous request's last message is included.
    """
    system = [n for n, message in enumerate(messages) if message["role"] in SYSTEM][-1:]
    others = []
    for n, message in enumerate(messages):
        content: Any = message.get("content")
        ends = content and (isinstance(content, str) or content[-1]["type"] not in THINKING_BLOCKS)
        if ends and message["role"] not in SYSTEM:
            others.append(n)
    last = others[-1:]
    added = len(messages) - 1
    while added and messages[added]["role"] not in ("assistant", *SYSTEM):
        added -= 1
    blocks = sum(max(1, len(_blocks(message))) for message in messages[added:])
    earlier = [n for n in others if n < added][-1:] if blocks >= _LOOKBACK else []
    return [*dict.fromkeys((*system, *earlier, *last))]
