"""Item and content types as messages."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.messages import UNREADABLE_PAST
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.support.conversation import CHAT_IMAGE, IMAGE, PNG, ask, assistant, messages, refused, user


def test_input_string_is_one_user_message() -> None:
    request = CreateResponse(model="m", input="Hello")
    assert to_chat(ModelRequest(request, request.items(), "m"), Profile()).body["messages"] == [user("Hello")]


def test_instructions_come_first() -> None:
    assert messages(user("Hello"), instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        user("Hello"),
    ]


def test_instructions_alone_are_accepted() -> None:
    assert messages(instructions="Say hello.") == [{"role": "system", "content": "Say hello."}]


@pytest.mark.parametrize("items", [[], [{"type": "acme:note", "text": "x"}], [{"role": "assistant", "content": ""}]])
def test_input_that_is_empty_is_refused(items: list[Any]) -> None:
    assert refused(*items).param == "input"


@pytest.mark.parametrize(
    "content, sent",
    [
        ("Hello", "Hello"),
        ([{"type": "input_text", "text": "Hello"}], "Hello"),
        ([{"type": "input_text", "text": "One"}, {"type": "text", "text": "Two"}], "One\nTwo"),
        ([{"type": "output_text", "text": "Hello"}], "Hello"),
        ([], ""),
        (None, ""),
        ("", ""),
        ([{"type": "input_text", "text": "See"}, IMAGE], [{"type": "text", "text": "See"}, CHAT_IMAGE]),
    ],
)
def test_user_content_is_translated(content: Any, sent: Any) -> None:
    assert messages(user(content)) == [user(sent)]


@pytest.mark.parametrize(
    "content, sent",
    [
        ("Hello", "Hello"),
        ([{"type": "output_text", "text": "Hel", "annotations": []}, {"type": "output_text", "text": "lo"}], "Hello"),
        ([{"type": "input_text", "text": "Hello"}], "Hello"),
        ([{"type": "refusal", "refusal": "I cannot do that."}], "I cannot do that."),
    ],
)
def test_assistant_content_and_refusals_are_text(content: Any, sent: str) -> None:
    message = {"role": "assistant", "content": content, "phase": "final_answer", "status": None, "parsed": {}}
    assert messages(user("Hi"), message) == [user("Hi"), {"role": "assistant", "content": sent}]


def test_assistant_message_that_is_empty_is_left_out() -> None:
    assert messages(user("Hi"), {"role": "assistant", "content": None}, user("Hello?")) == [user("Hi"), user("Hello?")]


@pytest.mark.parametrize("role, sent", [("system", "system"), ("developer", "system")])
def test_system_messages_keep_their_place(role: str, sent: str) -> None:
    assert messages(user("Hi"), {"role": role, "content": "Be brief."}, user("Go")) == [
        user("Hi"),
        {"role": sent, "content": "Be brief."},
        user("Go"),
    ]


NOTE = "<system-reminder>\nIt is noon.\n</system-reminder>"


@pytest.mark.parametrize(
    ("roles", "sent"),
    [
        (
            {},
            [("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("system", "It is noon."), ("user", "So?")],
        ),
        (
            {"system": "first_only"},
            [("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", NOTE), ("user", "So?")],
        ),
        (
            {"system": "single_first"},
            [("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", NOTE), ("user", "So?")],
        ),
        ({"system": "user"}, [("user", "Be brief.\n\nHi"), ("assistant", "Ho"), ("user", NOTE), ("user", "So?")]),
        (
            {"alternate": True},
            [("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", f"{NOTE}\n\nSo?")],
        ),
    ],
)
def test_later_developer_message_is_a_note_in_place_where_servers_reject_it(roles: Any, sent: Any) -> None:
    turns = [
        ("developer", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Ho"),
        ("developer", "It is noon."),
        ("user", "So?"),
    ]
    items = [{"role": role, "content": text} for role, text in turns]
    translated = messages(*items, **{f"roles__{name}": value for name, value in roles.items()})
    assert [(message["role"], message["content"]) for message in translated] == sent


def test_parts_that_are_not_text_are_left_out_where_chat_has_only_text() -> None:
    chat = ask({"role": "system", "content": [{"type": "input_text", "text": "Look"}, IMAGE]}, user("Hi"))
    assert chat.body["messages"] == [{"role": "system", "content": "Look"}, user("Hi")]
    assert chat.warnings == ("Content of type image_url is not supported in system messages and was ignored.",)


def test_text_parts_are_lists_for_backends_that_want_them() -> None:
    text = [{"type": "text", "text": "Hi"}]
    assert messages(user("Hi"), assistant("Hi"), instructions="Hi", content__parts="array") == [
        {"role": role, "content": text} for role in ("system", "user", "assistant")
    ]


# Parts.


@pytest.mark.parametrize(
    "part, sent",
    [
        (IMAGE | {"detail": "low"}, {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}),
        (IMAGE | {"detail": "original"}, {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}),
        (
            {"type": "input_image", "image_url": "https://a.test/b.png", "file_id": None, "detail": None},
            {"type": "image_url", "image_url": {"url": "https://a.test/b.png"}},
        ),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}},
        ),
        (
            {"type": "input_file", "file_url": "https://a.test/a.pdf", "file_data": None},
            {"type": "file", "file": {"file_url": "https://a.test/a.pdf"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav", "x": 1}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        ),
        (
            {"type": "input_video", "video_url": "https://a.test/a.mp4"},
            {"type": "video_url", "video_url": {"url": "https://a.test/a.mp4"}},
        ),
    ],
)
def test_content_parts_are_translated(part: Any, sent: Any) -> None:
    assert messages(user([part])) == [user([sent])]


@pytest.mark.parametrize(
    "part, options, param",
    [
        ({"type": "input_image", "file_id": "file_1"}, {}, "input[1].content[1].file_id"),
        ({"type": "input_image", "image_url": None}, {}, "input[1].content[1].image_url"),
        ({"type": "input_file", "file_id": "file_1"}, {}, "input[1].content[1].file_id"),
        ({"type": "input_file", "filename": "a.pdf"}, {}, "input[1].content[1].file_data"),
        (IMAGE, {"content__images": "error"}, "input[1].content[1]"),
        ({"type": "input_file", "file_data": "AAAA"}, {"content__files": "error"}, "input[1].content[1].file_data"),
        (
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"content__audio": "error"},
            "input[1].content[1]",
        ),
    ],
)
def test_content_part_that_cannot_be_sent_is_named(part: Any, options: Any, param: str) -> None:
    assert refused(user("Hi"), user([{"type": "input_text", "text": "See"}, part]), **options).param == param


def test_history_that_cannot_be_sent_is_not_blamed_on_the_input() -> None:
    request = CreateResponse.model_validate({"model": "m", "input": "And now?", "previous_response_id": "resp_1"})
    history = [{"type": "message", "role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]
    with pytest.raises(InvalidRequest) as caught:
        to_chat(ModelRequest(request, [*history, *request.items()], "m"), Profile())
    assert caught.value.param == "previous_response_id"


def test_unknown_parts_are_left_out_with_a_warning() -> None:
    chat = ask(user([{"type": "input_hologram", "rays": 3}, {"type": "input_text", "text": "Hi"}]))
    assert chat.body["messages"] == [user("Hi")]
    assert chat.warnings == ("Content of unknown type 'input_hologram' was ignored.",)


# Items.


def test_unknown_items_are_left_out_with_a_warning_and_extensions_without() -> None:
    chat = ask(user("Hi"), {"type": "acme:note", "x": 1}, {"type": "vision_call", "id": "v_1"})
    assert chat.body["messages"] == [user("Hi")]
    assert chat.warnings == ("Items of unknown type 'vision_call' were ignored.",)


def test_name_with_a_line_break_makes_no_second_line_of_a_warning() -> None:
    (warning,) = ask(user("Hi"), {"type": "x\r\nSet-Cookie=é" + "x" * 1000}).warnings
    assert warning.isascii() and warning.isprintable() and len(warning) < 150


def test_item_reference_that_was_not_resolved_is_named() -> None:
    assert refused(user("Hi"), {"type": "item_reference", "id": "msg_1"}).param == "input[1].id"


def test_compaction_is_sent_as_its_summary() -> None:
    compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
    sent = messages(compaction, user("Go on"), upstream={"cmp_1": {"summary": "We baked a cake."}})
    assert sent == [user("Summary of the conversation before this message:\n\nWe baked a cake."), user("Go on")]


def test_compaction_of_another_server_is_a_note_with_a_warning() -> None:
    chat = ask({"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}, user("Go on"))
    assert chat.body["messages"] == [user(UNREADABLE_PAST), user("Go on")]
    assert chat.warnings == (
        "A compaction from another server cannot be read; the model does not see the compacted items.",
    )


def test_part_that_a_text_only_backend_does_not_accept_is_described() -> None:
    content = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": "https://x/y.png"}]
    request = CreateResponse.model_validate({"model": "m", "input": [{"role": "user", "content": content}]})
    blind = Profile().override({"request.content.images": "drop"})
    chat = to_chat(ModelRequest(request, request.items(), "m"), blind)
    assert (
        chat.body["messages"][0]["content"]
        == "What is this?\n(Content of type input_image was omitted: this model does not support it.)"
    )
    assert any("input_image" in warning for warning in chat.warnings)
