"""
Arrange messages in a role order that the backend's chat template accepts.

Templates raise errors for second system messages, consecutive user messages, or a user message after a tool message.
Only system messages at the start are moved, to keep the cached prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any, TypeAlias, cast

from app.core.profile import RoleOptions
from app.core.types import JSONObject

Message: TypeAlias = dict[str, object]

SYSTEM = frozenset({"system", "developer"})

OPENING: Message = {"role": "user", "content": "Continue."}  # inserted where a user message must come first
BRIDGE: Message = {"role": "assistant", "content": "Understood."}  # inserted between a tool and a user message


def arrange(messages: list[Message], roles: RoleOptions) -> list[Message]:
    """Tool messages stay directly after their calls."""
    placement = roles.system
    if roles.alternate and placement == "any":
        placement = "first_only"  # no system message between user and assistant
    # Many templates accept only one system message, but clients send both instructions and a developer message.
    merged = SYSTEM & {messages[0]["role"]} if placement == "any" else SYSTEM
    if lead := list(takewhile(lambda message: message["role"] in merged, messages)):
        rest = messages[len(lead) :]
        if placement in ("any", "single_first"):
            messages = [merge(lead), *rest]
        elif placement == "user":
            user = {**merge(lead), "role": "user"}
            follows = rest and rest[0]["role"] == "user"
            messages = [merge((user, rest[0])), *rest[1:]] if follows else [user, *rest]
    if roles.alternate:
        return _alternate(messages)
    return _bridge(messages) if roles.user_after_tool == "bridge" else messages


def _alternate(messages: list[Message]) -> list[Message]:
    """
    Alternate user and assistant messages, starting with the user, after system messages.

    Templates ignore assistant messages with tool calls, so another separates tool result and user message.
    """
    system = [message for message in messages if message["role"] in SYSTEM]
    runs: list[list[Message]] = []
    for message in messages[len(system) :]:
        role = message["role"]
        previous = runs[-1][-1]["role"] if runs else None
        if previous is None and role != "user":
            runs.append([OPENING])
        elif previous == "tool" and role == "user":
            runs.append([BRIDGE])
        if previous == role != "tool":
            runs[-1].append(message)
        else:
            runs.append([message])
    return [*system, *map(merge, runs or [[OPENING]])]


def system_and_turns(messages: Iterable[Message]) -> tuple[list[JSONObject], list[Message]]:
    """
    System parts, and user and assistant messages that alternate, for APIs with lists of parts.

    Blank text is dropped. Tool messages stay separate. The user's message comes first and, since newer models reject a
    final assistant message, last.
    """
    system: list[JSONObject] = []
    turns: list[tuple[str, list[JSONObject]]] = []
    for message in messages:
        role, content = str(message["role"]), cast(list[JSONObject], message["content"])
        parts = [part for part in content if not is_blank(part)]
        if role in SYSTEM:
            system += parts
        elif parts and turns and turns[-1][0] == role != "tool":
            turns[-1][1].extend(parts)
        elif parts:
            turns.append((role, parts))
    opening = ("user", [{"type": "text", "text": OPENING["content"]}])
    if not turns or turns[0][0] != "user":
        turns.insert(0, opening)
    if turns[-1][0] == "assistant":
        turns.append(opening)
    return system, [{"role": role, "content": parts} for role, parts in turns]


def is_blank(part: JSONObject) -> bool:
    return part["type"] == "text" and (not part["text"] or part["text"].isspace())


_NOTE = ("<system-reminder>\n", "\n</system-reminder>")


def as_note(content: str | list[JSONObject]) -> str | list[JSONObject]:
    """Mark a system message's text as a note, as agents do."""
    start, end = _NOTE
    if isinstance(content, str):
        return f"{start}{content}{end}"
    parts = [*content]
    if parts:
        parts[0] = {**parts[0], "text": start + parts[0]["text"]}
        parts[-1] = {**parts[-1], "text": parts[-1]["text"] + end}
    return parts


def _bridge(messages: list[Message]) -> list[Message]:
    """For servers that accept no user message after tool results."""
    bridged: list[Message] = []
    for message in messages:
        if bridged and bridged[-1]["role"] == "tool" and message["role"] not in ("tool", "assistant"):
            bridged.append(BRIDGE)
        bridged.append(message)
    return bridged


def merge(messages: Iterable[Message]) -> Message:
    """The merged message has the first message's role."""
    first, *others = messages
    if not others:
        return first
    merged: Message = {"role": first["role"]}
    for name in dict.fromkeys(name for message in (first, *others) for name in message):
        if name != "role":
            merged[name] = joined([value for message in (first, *others) if (value := message.get(name))])
    return merged


def joined(values: list[Any], separator: str = "\n\n") -> object:
    """Join strings with `separator`, objects by field, lists end to end (a string becomes a part)."""
    if all(isinstance(value, str) for value in values):
        return separator.join(values)
    if all(isinstance(value, dict) for value in values):
        return {name: value[name] for value in values for name in value}
    lists = [[{"type": "text", "text": value}] if isinstance(value, str) else value for value in values]
    return [part for parts in lists for part in (parts if isinstance(parts, list) else [parts])]
