"""Storing and listing conversations."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openresponses_types.types import Message

from app.core.history.turns import Turn, check_outputs, input_item
from app.core.ids import chain_key, new_key
from app.errors import InvalidRequest


def test_input_messages_are_listed_as_the_spec_has_them() -> None:
    key = new_key()
    for role, content in (
        ("user", "hi"),
        ("assistant", "hi"),
        ("assistant", [{"type": "output_text", "text": "hi"}]),
        ("assistant", [{"type": "refusal", "refusal": "no"}]),
        ("developer", [{"type": "input_text", "text": "hi"}]),
    ):
        listed = input_item({"type": "message", "role": role, "content": content}, key)
        Message.model_validate(listed)
        assert chain_key(listed["id"]) == key
        assert listed["status"] == "completed"


def test_item_with_an_id_of_its_client_keeps_it() -> None:
    assert (
        input_item({"type": "message", "role": "user", "content": "hi", "id": "msg_mine"}, new_key())["id"]
        == "msg_mine"
    )


def test_record_fields_of_a_newer_version_are_ignored() -> None:
    turn = Turn({"id": "resp_1"}, [{"type": "message"}], {"msg_1": {"reasoning": "so"}})
    assert Turn.of(orjson.dumps({**orjson.loads(turn.record()), "more": [1]})) == turn


def test_reasoning_of_a_turn_is_stored_once() -> None:
    thought = "".join(["Let me ", "think."])
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
    other = {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "So."}]}
    upstream = {"rs_1": {"signature": "x", "reasoning": thought}, "rs_2": {"reasoning_content": "So it is."}}
    turn = Turn({"id": "resp_1", "output": [item, other]}, [], upstream)
    assert turn.record().count(b"Let me think.") == 1
    assert Turn.of(turn.record()) == turn
    assert Turn.of(Turn.of(turn.record()).record()) == turn
    assert turn.upstream["rs_1"]["reasoning"] is thought
    plain = orjson.dumps(turn._asdict())  # as older versions stored it
    assert Turn.of(plain) == turn


KINDS = ["function_call", "custom_tool_call", "tool_search"]


def answering(kind: str, call_id: str | None) -> dict[str, Any]:
    return {"type": f"{kind}_output", "call_id": call_id, "output": "x"}


@pytest.mark.parametrize("kind", KINDS)
def test_output_of_any_kind_answers_a_call_of_the_conversation(kind: str) -> None:
    call = {"type": "tool_search_call" if kind == "tool_search" else kind, "call_id": "c", "name": "f"}
    check_outputs([call], [answering(kind, "c")])
    check_outputs([], [call, answering(kind, "c")])
    with pytest.raises(InvalidRequest) as wrong:
        check_outputs([call], [answering(kind, "c"), answering(kind, "d")])
    assert wrong.value.param == "input[1].call_id"
    assert wrong.value.message == f"No tool call found for {kind.replace('_', ' ')} output with call_id 'd'."


@pytest.mark.parametrize("output", [answering("tool_search", None), {**answering("function_call", None), "name": "f"}])
def test_output_of_no_call_answers_none(output: Any) -> None:
    check_outputs([], [output])


def test_output_of_another_kind_is_left_to_the_translation() -> None:
    check_outputs([], [answering("vendor:thing", "c"), {"type": "vendor:thing_output"}])


def test_incomplete_items_are_listed_as_incomplete() -> None:
    cut = {"type": "message", "role": "assistant", "content": "Hel", "status": "incomplete"}
    assert input_item(cut, new_key())["status"] == "incomplete"
