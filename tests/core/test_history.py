"""What is kept of a conversation, and how it is listed."""

from __future__ import annotations

from openresponses_types.types import Message

from app.core.history import input_item
from app.core.ids import chain_key, new_key


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


def test_an_item_keeps_the_id_that_its_client_gave_it() -> None:
    assert (
        input_item({"type": "message", "role": "user", "content": "hi", "id": "msg_mine"}, new_key())["id"]
        == "msg_mine"
    )
