"""A turn's model output stays together, and each call is matched with its result."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.conversation import (
    CHAT_IMAGE,
    IMAGE,
    ask,
    assistant,
    call,
    called,
    messages,
    output,
    refused,
    tool,
    user,
)


def test_text_and_calls_of_a_turn_are_one_message() -> None:
    assert messages(user("Hi"), assistant("Let me look."), call("a"), call("b"), output("a"), output("b")) == [
        user("Hi"),
        called("a", "b", content="Let me look."),
        tool("a"),
        tool("b"),
    ]


def test_text_around_calls_is_of_the_same_turn() -> None:
    items = [assistant("One."), call("a"), assistant("Two."), call("b"), assistant("Three."), output("a"), output("b")]
    assert messages(user("Hi"), *items) == [
        user("Hi"),
        called("a", "b", content="One.\n\nTwo.\n\nThree."),
        tool("a"),
        tool("b"),
    ]


def test_calls_in_sequence_are_turns_of_their_own() -> None:
    assert messages(user("Hi"), call("a"), output("a"), call("b"), output("b"), assistant("Done.")) == [
        user("Hi"),
        called("a"),
        tool("a"),
        called("b"),
        tool("b"),
        {"role": "assistant", "content": "Done."},
    ]


def test_assistant_messages_in_sequence_stay_two() -> None:
    assert messages(user("Hi"), assistant("One."), assistant("Two."), call("a"), output("a")) == [
        user("Hi"),
        {"role": "assistant", "content": "One."},
        called("a", content="Two."),
        tool("a"),
    ]


@pytest.mark.parametrize(
    "items",
    [
        [call("a"), call("b"), output("a"), output("b")],
        [call("a"), call("b"), output("b"), output("a")],
        [output("a"), output("b"), call("a"), call("b")],
        [call("a"), output("b"), call("b"), output("a")],
        [output("b"), call("a"), call("b"), output("a")],
    ],
)
def test_results_in_any_order_follow_the_order_of_the_calls(items: list[Any]) -> None:
    assert messages(user("Hi"), *items) == [user("Hi"), called("a", "b"), tool("a"), tool("b")]


def test_call_between_the_results_of_an_open_turn_belongs_to_it() -> None:
    items = [call("a"), call("b"), output("a"), call("c"), output("b"), output("c"), call("d"), output("d")]
    assert messages(user("Hi"), *items) == [
        user("Hi"),
        called("a", "b", "c"),
        tool("a"),
        tool("b"),
        tool("c"),
        called("d"),
        tool("d"),
    ]


def test_user_message_before_a_result_is_sent_after_it() -> None:
    assert messages(user("Hi"), call("a"), user("Hurry!"), output("a")) == [
        user("Hi"),
        called("a"),
        tool("a"),
        user("Hurry!"),
    ]


def test_call_without_output_is_answered() -> None:
    chat = ask(user("Hi"), call("a"), user("Never mind."))
    assert chat.body["messages"] == [user("Hi"), called("a"), tool("a", "(no output)"), user("Never mind.")]
    assert chat.warnings == ("The call 'a' has no output; '(no output)' was sent instead.",)


LATER = "(Still running. The result follows later.)"


def test_asynchronous_call_without_output_is_accepted() -> None:
    chat = ask(user("Hi"), call("a", **{"async": True}), call("b"), output("b"), user("Meanwhile?"))
    assert chat.body["messages"] == [user("Hi"), called("a", "b"), tool("a", LATER), tool("b"), user("Meanwhile?")]
    assert chat.warnings == ()


def test_asynchronous_output_keeps_its_place() -> None:
    items = [user("Hi"), call("a", **{"async": True}), user("Meanwhile?"), assistant("Well."), output("a")]
    chat = ask(*items)
    assert chat.body["messages"] == [
        user("Hi"),
        called("a"),
        tool("a", LATER),
        user("Meanwhile?"),
        {"role": "assistant", "content": "Well."},
        user("Result of the tool call 'a':\nseen"),
    ]
    assert chat.warnings == ()


def test_message_after_another_result_stays_after_it() -> None:
    items = [call("a", **{"async": True}), call("b"), output("b"), assistant("B is done."), output("a")]
    assert [message.get("content") for message in messages(user("Hi"), *items)] == [
        *("Hi", None, LATER, "seen", "B is done."),
        "Result of the tool call 'a':\nseen",
    ]


def test_asynchronous_output_that_comes_at_once_is_its_result() -> None:
    custom = {"type": "custom_tool_call", "call_id": "b", "name": "look", "input": "", "async": True}
    items = [call("a", **{"async": True}), custom, output("a"), {**output("b"), "type": "custom_tool_call_output"}]
    assert [message.get("content") for message in messages(user("Hi"), *items)] == ["Hi", None, "seen", "seen"]


def test_output_without_call_is_kept_as_context() -> None:
    chat = ask(user("Hi"), output("a", [{"type": "input_text", "text": "42"}, IMAGE]))
    about = "Result of the tool call 'a', which is not in this conversation:"
    parts = [{"type": "text", "text": about}, {"type": "text", "text": "42"}, CHAT_IMAGE]
    assert chat.body["messages"] == [user("Hi"), user(parts)]
    assert chat.warnings == ("The output of 'a' matches no call in this conversation; it was sent as a message.",)


def test_output_given_twice_answers_once_and_is_kept_as_context() -> None:
    chat = ask(user("Hi"), call("a"), output("a", "41"), output("a", "42"))
    context = user("Another result of the tool call 'a':\n42")
    assert chat.body["messages"] == [user("Hi"), called("a"), tool("a", "41"), context]
    assert chat.warnings == ("The call 'a' has more than one output; later outputs were sent as messages.",)


def test_output_that_is_repeated_is_sent_once() -> None:
    chat = ask(user("Hi"), call("a"), output("a"), output("a"))
    assert chat.body["messages"] == [user("Hi"), called("a"), tool("a")]
    assert chat.warnings == ()


def test_call_ids_that_count_anew_in_each_turn_get_their_results() -> None:
    first, second = messages(call("0"), output("0", "one"), call("0"), output("0", "two"))[1::2]
    assert (first["content"], second["content"]) == ("one", "two")
    assert first["tool_call_id"] != second["tool_call_id"]


# Tool results.


@pytest.mark.parametrize(
    "result, content",
    [
        ("", ""),
        ([], ""),
        ([{"type": "input_text", "text": "One"}, {"type": "output_text", "text": "Two"}], "One\nTwo"),
    ],
)
def test_results_of_text_are_strings(result: Any, content: str) -> None:
    assert messages(call("a"), output("a", result))[1] == tool("a", content)


def test_results_are_lists_for_backends_that_want_them() -> None:
    assert messages(call("a"), output("a"), content__tool_content="array")[1] == tool(
        "a", [{"type": "text", "text": "seen"}]
    )


def test_results_that_are_not_text_follow_the_whole_batch_in_order() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    both = [{"type": "input_text", "text": "Here."}, IMAGE]
    assert messages(call("a"), call("b"), output("b", [audio]), output("a", both), user("Well?")) == [
        called("a", "b"),
        tool("a", "Here."),
        tool("b", "(See the next message.)"),
        user(
            [
                {"type": "text", "text": "Content from the result of the tool call 'a':"},
                CHAT_IMAGE,
                {"type": "text", "text": "Content from the result of the tool call 'b':"},
                audio,
            ]
        ),
        user("Well?"),
    ]


def test_images_stay_in_results_where_the_backend_takes_them() -> None:
    assert messages(call("a"), output("a", [IMAGE]), content__tool_images="inline") == [
        called("a"),
        tool("a", [CHAT_IMAGE]),
    ]


def test_images_in_results_are_dropped_where_the_backend_takes_none() -> None:
    chat = ask(call("a"), output("a", [IMAGE]), content__tool_images="drop", content__images="error")
    assert chat.body["messages"] == [called("a"), tool("a", "(The result of the tool cannot be shown.)")]
    assert chat.warnings == ("This backend supports only text in tool results; other content was dropped.",)


@pytest.mark.parametrize("items", [[call("a")], []])
def test_images_in_results_are_refused_if_the_profile_says_so(items: list[Any]) -> None:
    error = refused(user("Hi"), *items, output("a", [IMAGE]), content__tool_images="error")
    assert error.param == f"input[{len(items) + 1}].output"


# Calls.


@pytest.mark.parametrize("option, content", [("omit", {}), ("null", {"content": None}), ("empty", {"content": ""})])
def test_message_with_calls_alone_has_the_profiles_content(option: str, content: Any) -> None:
    assert messages(call("a"), output("a"), content__assistant_null=option)[0] == called("a", **content)


@pytest.mark.parametrize(
    "arguments, sent",
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        (" ", "{}"),
        ("null", "{}"),
        ('{"a": ', '{"_raw": "{\\"a\\": "}'),
        ("[1]", '{"_raw": "[1]"}'),
        ("NaN", '{"_raw": "NaN"}'),
    ],
)
def test_arguments_are_an_object_where_the_backend_demands_it(arguments: str, sent: str) -> None:
    assert messages(call("a", arguments), output("a"))[0] == called("a", arguments=sent)


@pytest.mark.parametrize("arguments, sent", [('{"a": ', '{"a": '), ("", "{}")])
def test_arguments_are_unchanged_where_the_backend_does_not_mind(arguments: str, sent: str) -> None:
    assert messages(call("a", arguments), output("a"), repair_arguments=False)[0] == called("a", arguments=sent)


def test_call_ids_are_sent_unchanged() -> None:
    assert messages(call("functions.look:0"), output("functions.look:0"))[1] == tool("functions.look:0")


def test_call_ids_that_the_backend_refuses_are_replaced_consistently() -> None:
    items = [call("call_1"), call("AbCdEf123"), output("call_1"), output("AbCdEf123")]
    first, second = messages(*items, tool_ids="[A-Za-z0-9]{9}"), messages(*items, tool_ids="[A-Za-z0-9]{9}")
    assert first == second
    made, kept = (one["id"] for one in first[0]["tool_calls"])
    assert len(made) == 9 and made.isalnum() and kept == "AbCdEf123"
    assert [one["tool_call_id"] for one in first[1:]] == [made, kept]


def test_call_ids_that_are_too_long_are_shortened() -> None:
    call_message, answered = messages(call("x" * 65), output("x" * 65))
    assert call_message["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert len(answered["tool_call_id"]) <= 64


@pytest.mark.parametrize("field", ["original_id", "said_id"], ids=["", "stored by an earlier version"])
def test_call_id_that_was_too_long_to_return_is_sent_back_to_its_server(field: str) -> None:
    made = "call_1__thought__" + "c2ln" * 20
    items = [{**call("call_1"), "id": "fc_1"}, output("call_1")]
    call_message, answered = messages(*items, upstream={"fc_1": {field: made}})
    assert call_message["tool_calls"][0]["id"] == answered["tool_call_id"] == made
    call_message, answered = messages(*items, upstream={"fc_1": {field: made}}, tool_ids="^.{1,64}$")
    assert call_message["tool_calls"][0]["id"] == answered["tool_call_id"] == "call_1"


def test_call_in_a_namespace_has_the_name_that_the_backend_knows() -> None:
    sent = messages(call("a", name="add", namespace="mcp__lab"), output("a"))
    assert sent[0]["tool_calls"][0]["function"]["name"] == "mcp__lab__add"


def test_call_ids_that_repeat_in_every_turn_are_kept_apart() -> None:
    sent = messages(*(item for _ in range(2000) for item in (call("call_0"), output("call_0"))))
    assert len({message["tool_call_id"] for message in sent[1::2]}) == 2000


def test_call_ids_are_kept_apart_where_the_backend_has_too_few() -> None:
    items = [item for name in "abcdefghijkl" for item in (call(name), output(name))]
    ids = [message["tool_call_id"] for message in messages(*items, tool_ids="[0-9]")[1::2]]
    assert len(set(ids)) == 12 and sum(id.isdigit() and len(id) == 1 for id in ids) == 10


def test_output_of_a_call_does_not_answer_the_next_of_its_id() -> None:
    chat = ask(call("0"), output("0", "one"), output("0", "more"), call("0"), output("0", "two"))
    sent = [message["content"] for message in chat.body["messages"] if "content" in message]
    assert sent == ["one", "Another result of the tool call '0':\nmore", "two"]
