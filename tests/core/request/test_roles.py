"""Chat templates require an order of roles; moving and merging messages loses no text."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.profile import RoleOptions
from app.core.request.roles import BRIDGE, OPENING, arrange

CALLS = {"role": "assistant", "tool_calls": [{"id": "1"}]}
TOOL = {"role": "tool", "tool_call_id": "1", "content": "t"}


def m(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def s(text: str) -> dict[str, Any]:
    return m("system", text)


def u(text: str) -> dict[str, Any]:
    return m("user", text)


def a(text: str) -> dict[str, Any]:
    return m("assistant", text)


def test_roles_by_default_stay_in_place() -> None:
    given = [s("1"), a("2"), a("3"), s("4"), CALLS, TOOL, u("5"), u("6")]
    assert arrange(given, RoleOptions()) == given


@pytest.mark.parametrize(
    "system, arranged",
    [
        ("first_only", [s("1"), m("developer", "3"), s("4"), u("2"), a("5"), u("6")]),
        ("single_first", [s("1\n\n3\n\n4"), u("2"), a("5"), u("6")]),
        ("user", [u("1\n\n3\n\n4\n\n2"), a("5"), u("6")]),
    ],
)
def test_system_messages_go_where_the_profile_says(system: Any, arranged: list[Any]) -> None:
    given = [s("1"), m("developer", "3"), s("4"), u("2"), a("5"), u("6")]
    assert arrange(given, RoleOptions(system=system)) == arranged


def test_system_messages_without_a_user_first_get_one() -> None:
    assert arrange([s("1"), a("2"), u("3")], RoleOptions(system="user")) == [u("1"), a("2"), u("3")]


@pytest.mark.parametrize(
    "given, arranged",
    [
        ([u("1"), u("2"), a("3"), a("4"), u("5")], [u("1\n\n2"), a("3\n\n4"), u("5")]),
        ([a("1"), u("2")], [OPENING, a("1"), u("2")]),
        ([s("1")], [s("1"), OPENING]),
        ([s("1"), u("2"), u("3")], [s("1"), u("2\n\n3")]),
        ([u("1"), CALLS, TOOL, u("2")], [u("1"), CALLS, TOOL, BRIDGE, u("2")]),
        ([u("1"), CALLS, TOOL, a("2"), u("3")], [u("1"), CALLS, TOOL, a("2"), u("3")]),
        ([u("1"), a("2"), CALLS, TOOL], [u("1"), {**CALLS, "content": "2"}, TOOL]),
        ([u("1"), CALLS, TOOL, CALLS, TOOL], [u("1"), CALLS, TOOL, CALLS, TOOL]),
    ],
)
def test_user_and_assistant_alternate(given: list[Any], arranged: list[Any]) -> None:
    assert arrange(given, RoleOptions(alternate=True)) == arranged


def test_tool_and_user_are_bridged() -> None:
    given = [u("1"), CALLS, TOOL, u("2"), u("3")]
    assert arrange(given, RoleOptions(user_after_tool="bridge")) == [u("1"), CALLS, TOOL, BRIDGE, u("2"), u("3")]


def test_texts_and_parts_are_merged_in_order() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    given = [u("1"), m("user", [image]), u("2")]
    (merged,) = arrange(given, RoleOptions(alternate=True))
    assert merged == m("user", [{"type": "text", "text": "1"}, image, {"type": "text", "text": "2"}])


def test_reasoning_is_merged_with_the_text() -> None:
    given = [u("1"), m("assistant", "2", reasoning="x"), m("assistant", "3", reasoning="y", extra_content={"k": 1})]
    assert arrange(given, RoleOptions(alternate=True))[1] == m(
        "assistant", "2\n\n3", reasoning="x\n\ny", extra_content={"k": 1}
    )


def test_messages_passed_in_are_not_changed() -> None:
    given = [s("1"), s("2"), u("3"), u("4")]
    copy = [dict(message) for message in given]
    arrange(given, RoleOptions(system="single_first", alternate=True))
    assert given == copy


def test_system_messages_are_one_at_the_beginning() -> None:
    assert arrange([s("1"), s("2"), u("3"), s("4"), s("5")], RoleOptions()) == [s("1\n\n2"), u("3"), s("4"), s("5")]
    assert arrange([s("1"), m("developer", "2"), u("3")], RoleOptions()) == [s("1"), m("developer", "2"), u("3")]
