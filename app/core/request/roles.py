"""
Who may speak when: bring messages into the order that a backend's chat template demands.

Templates raise errors at a second system message, at two users in a row, or at a user who follows a tool. The texts
of messages are kept, whatever has to be moved or merged for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, TypeAlias

from app.core.profile import RoleOptions

Message: TypeAlias = dict[str, Any]

SYSTEM = frozenset({"system", "developer"})

OPENING: Message = {"role": "user", "content": "Continue."}  # where the user has to begin, and does not
BRIDGE: Message = {"role": "assistant", "content": "Understood."}  # where the user may not follow a tool


def arrange(messages: list[Message], roles: RoleOptions) -> list[Message]:
    """Return the messages as `roles` wants them; the tool messages of an assistant message stay right behind it."""
    placement = roles.system
    if roles.alternate and placement == "any":
        placement = "first_only"  # nothing may stand between user and assistant
    if place := _PLACEMENTS.get(placement):
        system = [message for message in messages if message["role"] in SYSTEM]
        messages = place(system, [message for message in messages if message["role"] not in SYSTEM])
    else:
        messages = _in_place(messages)
    if roles.alternate:
        return _alternate(messages)
    return _bridge(messages) if roles.user_after_tool == "bridge" else messages


def _in_place(messages: list[Message]) -> list[Message]:
    """
    Merge the first messages, as long as the system speaks on.

    Many templates take one such message and no more, and clients send instructions and a message of the developer.
    """
    lead = list(
        takewhile(lambda message: message["role"] in SYSTEM and message["role"] == messages[0]["role"], messages)
    )
    return [merge(lead), *messages[len(lead) :]] if lead else messages


def _first_only(system: list[Message], rest: list[Message]) -> list[Message]:
    return system + rest


def _single_first(system: list[Message], rest: list[Message]) -> list[Message]:
    return [merge(system), *rest] if system else rest


def _into_user(system: list[Message], rest: list[Message]) -> list[Message]:
    if not system:
        return rest
    lead = {**merge(system), "role": "user"}
    if rest and rest[0]["role"] == "user":
        return [merge((lead, rest[0])), *rest[1:]]
    return [lead, *rest]


_PLACEMENTS: dict[str, Callable[[list[Message], list[Message]], list[Message]]] = {
    "first_only": _first_only,
    "single_first": _single_first,
    "user": _into_user,
}


def _alternate(messages: list[Message]) -> list[Message]:
    """
    Let user and assistant take turns, beginning with the user; system messages stand in front.

    An assistant message that calls tools is no turn of its own to the templates that count, so a user who follows
    the result of a tool gets an assistant message before it in any case.
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


def _bridge(messages: list[Message]) -> list[Message]:
    """Mistral: "Unexpected role 'user' after role 'tool'"."""
    bridged: list[Message] = []
    for message in messages:
        if bridged and bridged[-1]["role"] == "tool" and message["role"] not in ("tool", "assistant"):
            bridged.append(BRIDGE)
        bridged.append(message)
    return bridged


def merge(messages: Iterable[Message]) -> Message:
    """Return one message, of the role of the first, that says what all of them say."""
    first, *others = messages
    if not others:
        return first
    merged: Message = {"role": first["role"]}
    for name in dict.fromkeys(name for message in (first, *others) for name in message):
        if name != "role":
            merged[name] = joined([value for message in (first, *others) if (value := message.get(name))])
    return merged


def joined(values: list[Any], joint: str = "\n\n") -> object:
    """Join the values of one field: texts with `joint`, objects field by field, lists (a text is a part) end to end."""
    if all(isinstance(value, str) for value in values):
        return joint.join(values)
    if all(isinstance(value, dict) for value in values):
        return {name: one[name] for one in values for name in one}
    lists = [[{"type": "text", "text": value}] if isinstance(value, str) else value for value in values]
    return [one for values in lists for one in (values if isinstance(values, list) else [values])]
