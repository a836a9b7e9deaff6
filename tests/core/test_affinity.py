"""Conversation keys: equal for all turns, and different for other conversations."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.affinity import conversation_key, session_id

USER = {"role": "user", "content": "Hi."}
ANSWER = {"role": "assistant", "content": "Hello."}
TOOL = {"type": "function", "name": "look"}
KEY = conversation_key("Be brief.", [TOOL], [USER])


@pytest.mark.parametrize(
    ("instructions", "tools", "messages"),
    [
        ("Be brief.", [TOOL], [USER, ANSWER, {"role": "user", "content": "And now?"}]),
        ([{"type": "text", "text": "Be brief."}], [TOOL], [USER]),
        (None, [TOOL], [{"role": "system", "content": "Be brief."}, USER, ANSWER]),
        ("Be brief.", [{"type": "function", "function": {"name": "look"}}], [USER]),
        ("Be brief.", [{**TOOL, "description": "changed", "cache_control": {"type": "ephemeral"}}], [USER]),
        ("Be brief.", [TOOL, {"name": "late", "defer_loading": True}], [USER]),
        ("Be brief.", [TOOL], [{"role": "user", "content": [{"type": "input_text", "text": "Hi."}]}]),
        ([{"text": "x-anthropic-billing-header: cch=1;"}, {"text": "Be brief."}], [TOOL], [USER]),
        ("x-anthropic-billing-header: cc_version=2; cch=2;\nBe brief.", [TOOL], [USER]),
        ("Be brief.", [TOOL, "not a tool", None], ["not a message", USER]),
    ],
)
def test_turns_of_a_conversation_have_one_key(instructions: object, tools: list[Any], messages: list[Any]) -> None:
    assert conversation_key(instructions, tools, messages) == KEY


@pytest.mark.parametrize(
    ("instructions", "tools", "messages"),
    [
        ("Be long.", [TOOL], [USER]),
        ("Be brief.", [TOOL, {"name": "more"}], [USER]),
        ("Be brief.", [TOOL], [{"role": "user", "content": "Hello."}]),
        ("Be brief.", [TOOL], [ANSWER, USER]),
        ("Be brief.Hi.", [TOOL], [{"role": "user", "content": "."}]),
        ("Be brief.", [TOOL], [{"type": "compaction", "encrypted_content": "abc"}, USER]),
    ],
)
def test_another_beginning_has_another_key(instructions: object, tools: list[Any], messages: list[Any]) -> None:
    assert conversation_key(instructions, tools, messages) not in ("", KEY)


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": [{"type": "input_image"}]}], [None, 3]])
def test_beginning_without_text_has_no_key(messages: list[Any]) -> None:
    assert conversation_key(None, [TOOL], messages) == ""


def test_id_of_a_session_is_of_one_length_and_valid_in_a_header() -> None:
    ids = {session_id(conversation) for conversation in ("a", "b\r\nx: y", "ż" * 10_000, "\ud800")}
    assert len(ids) == 4 and all(len(each) == 32 and each.isalnum() and each.isascii() for each in ids)
