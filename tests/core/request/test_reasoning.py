"""Earlier reasoning is sent back to backends that accept it, in their field."""

from __future__ import annotations

from typing import Any

import pytest

from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse


def messages(*items: Any, profile: str = "default", upstream: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Translate a conversation and return the assistant's messages; `options` as in `request.*`."""
    chosen = load_profile(profile).override({f"request.{name}": value for name, value in options.items()})
    request = CreateResponse.model_validate({"model": "m", "input": list(items)})
    sent = to_chat(ModelRequest(request, request.items(), "m", upstream=upstream or {}), chosen).body["messages"]
    return [message for message in sent if message["role"] == "assistant"]


def thought(text: str, id: str | None = None, **fields: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": id, "summary": [], "content": content, "encrypted_content": None, **fields}


def call(call_id: str, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}", **fields},
        {"type": "function_call_output", "call_id": call_id, "output": "seen"},
    ]


USER = {"role": "user", "content": "Hi"}


def text(value: str) -> dict[str, Any]:
    return {"role": "assistant", "content": value}


CONVERSATION = [
    *(USER, thought("1"), text("One.")),
    *(USER, thought("2"), *call("a"), thought("3"), text("Three.")),
    *(USER, thought("4"), *call("b")),
]


@pytest.mark.parametrize(
    "policy, back",
    [
        ("always", ["1", "2", "3", "4"]),
        ("tool_turns", [None, "2", "3", "4"]),
        ("current_turn", [None, None, None, "4"]),
        ("never", [None, None, None, None]),
    ],
)
def test_reasoning_is_sent_back_as_the_profile_says(policy: str, back: list[Any]) -> None:
    sent = messages(*CONVERSATION, reasoning_replay=policy)
    assert [message.get("reasoning_content") for message in sent] == back


def test_reasoning_text_and_calls_of_a_turn_are_one_message() -> None:
    (message,) = messages(USER, thought("a"), text("Well."), thought("b"), *call("1"))
    assert (message["content"], message["reasoning_content"]) == ("Well.", "a\nb")
    assert len(message["tool_calls"]) == 1


def test_reasoning_between_two_messages_belongs_to_the_second() -> None:
    sent = messages(USER, thought("a"), text("One."), thought("b"), text("Two."), reasoning_replay="always")
    assert [message["reasoning_content"] for message in sent] == ["a", "b"]


@pytest.mark.parametrize("policy, count", [("always", 1), ("tool_turns", 0)])
def test_reasoning_without_an_answer_is_translated(policy: str, count: int) -> None:
    sent = messages(USER, thought("a"), USER, reasoning_replay=policy)
    assert sent == [{"role": "assistant", "content": "", "reasoning_content": "a"}] * count


def test_reasoning_without_stored_fields_is_read_from_the_item() -> None:
    sent = messages(USER, thought("raw", "rs_1"), *call("a"), upstream={"rs_1": {"reasoning": ""}})
    assert sent[0]["reasoning_content"] == "raw"


@pytest.mark.parametrize(
    "item, back",
    [
        (thought("raw"), "raw"),
        (thought("raw", summary=[{"type": "summary_text", "text": "short"}]), "raw"),
        (thought("", content=None, summary=[{"type": "summary_text", "text": "short"}]), "short"),
        (thought("", content=[], summary=[]), None),
        ({"type": "reasoning", "encrypted_content": "gAAAA"}, None),
    ],
)
def test_reasoning_of_another_server_is_read_from_the_item(item: Any, back: Any) -> None:
    assert messages(USER, item, *call("a"))[0].get("reasoning_content") == back


DETAILS = [{"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0}]
SIGNED = {"google": {"thought_signature": "s"}}


@pytest.mark.parametrize(
    "field, value, back",
    [
        ("auto", {"reasoning": "hm"}, {"reasoning": "hm"}),
        ("auto", {"reasoning_content": "hm"}, {"reasoning_content": "hm"}),
        ("auto", {"reasoning_text": "hm", "reasoning_opaque": "o"}, {"reasoning_text": "hm", "reasoning_opaque": "o"}),
        ("auto", {"reasoning": "hm", "reasoning_details": DETAILS}, {"reasoning": "hm", "reasoning_details": DETAILS}),
        ("reasoning_content", {"reasoning": "hm"}, {"reasoning_content": "hm"}),
        ("reasoning", {"reasoning_content": "hm", "reasoning": "hm"}, {"reasoning": "hm"}),
        ("reasoning_text", {"reasoning_details": DETAILS}, {"reasoning_text": "hm"}),
        ("reasoning_details", {"reasoning": "hm", "reasoning_details": DETAILS}, {"reasoning_details": DETAILS}),
        ("reasoning_details", {"reasoning": "hm"}, {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
        ("think_tags", {"reasoning": "hm"}, {"content": "<think>\nhm\n</think>\n\n"}),
        ("extra_content", {"reasoning": "hm", "extra_content": SIGNED}, {"extra_content": SIGNED}),
        ("extra_content", {"reasoning": "hm"}, {}),
    ],
)
def test_reasoning_is_sent_under_the_name_that_the_backend_accepts(field: str, value: Any, back: Any) -> None:
    (message,) = messages(USER, thought("shown", "rs_1"), *call("a"), upstream={"rs_1": value}, reasoning_field=field)
    assert {name: message[name] for name in message if name not in ("role", "tool_calls")} == back


def test_reasoning_fragments_of_several_items_are_joined() -> None:
    upstream = {"rs_1": {"reasoning_details": DETAILS}, "rs_2": {"reasoning_details": DETAILS, "reasoning": "hm"}}
    (message,) = messages(USER, thought("", "rs_1"), thought("", "rs_2"), *call("a"), upstream=upstream)
    assert message["reasoning_details"] == DETAILS + DETAILS
    assert message["reasoning"] == "hm"


def test_reasoning_in_tags_precedes_the_text_in_the_backends_tags() -> None:
    profile = Profile().override(
        {
            "request.reasoning_field": "think_tags",
            "request.reasoning_replay": "always",
            "response.think_tags": {"mode": "auto", "open": "[THINK]", "close": "[/THINK]"},
        }
    )
    request = CreateResponse.model_validate({"model": "m", "input": [USER, thought("hm"), text("Well.")]})
    sent = to_chat(ModelRequest(request, request.items(), "m"), profile).body["messages"]
    assert sent[1] == {"role": "assistant", "content": "[THINK]\nhm\n[/THINK]\n\nWell."}


@pytest.mark.parametrize(
    "field, back",
    [
        ("auto", {"reasoning_content": " "}),
        ("reasoning", {"reasoning": " "}),
        ("reasoning_details", {"reasoning_details": [{"type": "reasoning.text", "text": " "}]}),
    ],
)
def test_reasoning_that_the_client_dropped_is_a_placeholder(field: str, back: Any) -> None:
    sent = messages(USER, *call("a"), USER, text("One."), reasoning_field=field, reasoning_placeholder=" ")
    assert {name: sent[0][name] for name in sent[0] if name.startswith("reasoning")} == back
    assert sent[1] == {"role": "assistant", "content": "One."}


def test_reasoning_that_is_not_sent_back_has_no_placeholder() -> None:
    (sent,) = messages(USER, *call("a"), reasoning_placeholder=" ", reasoning_replay="never")
    assert set(sent) == {"role", "tool_calls"}


@pytest.mark.parametrize(
    "options, back",
    [
        ({}, {"extra_content": SIGNED}),
        ({"reasoning_field": "extra_content"}, {"extra_content": SIGNED}),
        ({"reasoning_field": "reasoning"}, {}),
        ({"reasoning_replay": "never"}, {}),
    ],
)
def test_call_fields_of_the_backend_are_sent_back_on_the_call(options: Any, back: Any) -> None:
    upstream = {"fc_1": {"extra_content": SIGNED, "id": "other"}}
    (message,) = messages(USER, *call("a", id="fc_1"), upstream=upstream, **options)
    (sent,) = message["tool_calls"]
    assert sent == {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}, **back}


def test_gemini_gets_a_signature_for_the_first_call_of_another_model() -> None:
    (one, one_output), (two, two_output) = call("a"), call("b")
    (message,) = messages(USER, one, two, one_output, two_output, profile="gemini-chat")
    assert [sent.get("extra_content") for sent in message["tool_calls"]] == [
        {"google": {"thought_signature": "skip_thought_signature_validator"}},
        None,
    ]
