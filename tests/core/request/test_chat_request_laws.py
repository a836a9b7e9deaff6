"""Laws for every conversation and every backend."""

from __future__ import annotations

import copy
import re
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backends.profiles import load_profile, profile_names
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.request.roles import BRIDGE, OPENING
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest

words = st.text(alphabet="abc ß\n", max_size=4)
ids = st.sampled_from(["a", "b", "functions.look:0", "x" * 70, "AbCdEf123"])
maybe_null = st.none() | st.just("completed")

texts = st.builds(
    lambda type, text: {"type": type, "text": text}, st.sampled_from(["input_text", "output_text", "text"]), words
)
images = st.just({"type": "input_image", "image_url": "https://a.test/b.png", "detail": None})
others = st.sampled_from(
    [
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "file_url": "https://a.test/a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "input_video", "video_url": "https://a.test/a.mp4"},
        {"type": "refusal", "refusal": "No."},
        {"type": "hologram", "rays": None},
    ]
)
content = words | st.lists(texts | texts | images | others, max_size=3)

messages = st.builds(
    lambda role, content, phase: {"type": "message", "role": role, "content": content, "phase": phase},
    st.sampled_from(["user", "user", "assistant", "assistant", "system", "developer"]),
    content | st.none(),
    maybe_null,
)
calls = st.builds(
    lambda call_id, arguments, namespace: {
        "type": "function_call",
        "call_id": call_id,
        "name": "look",
        "namespace": namespace,
        "arguments": arguments,
    },
    ids,
    st.sampled_from(["", "{}", '{"a": 1}', '{"a": ', "null", "3", "\ud800"]),
    st.none() | st.sampled_from(["ns", 3]),
)
outputs = st.builds(
    lambda call_id, output: {"type": "function_call_output", "call_id": call_id, "output": output}, ids, content
)
customs = st.builds(
    lambda call_id, text: {"type": "custom_tool_call", "call_id": call_id, "name": "patch", "input": text},
    ids,
    st.just('{"a": ') | words,
)
custom_outputs = st.builds(
    lambda call_id, output: {"type": "custom_tool_call_output", "call_id": call_id, "output": output}, ids, content
)
FOUND = [{"type": "function", "name": "look", "defer_loading": True}, {"type": "custom", "name": "patch"}, None]
searches = st.builds(
    lambda type, call_id, arguments: {"type": type, "call_id": call_id, "arguments": arguments, "tools": FOUND},
    st.sampled_from(["tool_search_call", "tool_search_output", "additional_tools", "shell_call", "shell_call_output"]),
    ids | st.none(),
    st.sampled_from([None, {}, {"query": "\ud800"}, "a", 3]),
)
reasoning = st.builds(
    lambda id, texts: {"type": "reasoning", "id": id, "summary": None, "content": texts},
    st.sampled_from(["rs_1", "rs_2", "rs_3"]) | st.none(),
    st.lists(texts, max_size=2) | st.none(),
)
odd = st.sampled_from(
    [
        {"type": "web_search_call", "id": "ws_1", "action": None},
        {"type": "acme:note"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
        {"type": "compaction", "encrypted_content": "x"},
    ]
)
called = calls | calls | customs
returned = outputs | outputs | custom_outputs
items = st.lists(messages | called | returned | searches | reasoning | odd, max_size=12)

UPSTREAM = {
    "rs_1": {"reasoning_content": "hm", "reasoning": "hm", "reasoning_opaque": None},
    "rs_2": {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    "cmp_1": {"summary": "Before."},
}

# Some values per option in each profile: combinations matter.
profiles = st.fixed_dictionaries(
    {
        "request.roles.developer": st.sampled_from(["system", "developer", "user"]),
        "request.roles.system": st.sampled_from(["any", "first_only", "single_first", "user"]),
        "request.roles.alternate": st.booleans(),
        "request.roles.user_after_tool": st.sampled_from(["ok", "bridge"]),
        "request.content.parts": st.sampled_from(["string", "array"]),
        "request.content.assistant_null": st.sampled_from(["omit", "null", "empty"]),
        "request.content.tool_content": st.sampled_from(["string", "array"]),
        "request.content.tool_images": st.sampled_from(["hoist", "inline", "drop", "error"]),
        "request.content.images": st.sampled_from(["pass", "error"]),
        "request.tool_ids": st.sampled_from(["verbatim", "^[A-Za-z0-9]{9}$", "call_[a-z]{3,40}", "[0-9]+"]),
        "request.tools_for_history": st.booleans(),
        "request.reasoning_replay": st.sampled_from(["tool_turns", "never", "current_turn", "always"]),
        "request.reasoning_field": st.sampled_from(["auto", "reasoning", "reasoning_details", "think_tags"]),
        "request.reasoning_placeholder": st.none() | st.just(" "),
        "request.tool_choice.named": st.sampled_from(["object", "filter_required", "drop"]),
        "request.tool_choice.none": st.sampled_from(["none", "drop_tools"]),
        "request.tool_choice.required": st.sampled_from(["required", "any", "auto", "message"]),
    }
).map(Profile().override)

tools = st.sampled_from(
    [
        [],
        [{"type": "web_search"}],
        [{"type": "function", "name": "look", "description": None}, {"type": "function", "name": "hear"}],
        [{"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "look", "parameters": None}]}],
        [
            {"type": "custom", "name": "patch", "format": {"syntax": "regex", "definition": "a"}},
            {"type": "tool_search", "execution": "client"},
            {"type": "function", "name": "look", "defer_loading": True},
        ],
    ]
)
choices = st.sampled_from(
    [
        None,
        "auto",
        "none",
        "required",
        {"type": "function", "name": "look"},
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": None, "tools": [{"type": "function", "name": "look"}]},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
    ]
)
requests = st.fixed_dictionaries(
    {"model": st.just("m"), "input": items, "tools": tools},
    optional={"instructions": words, "tool_choice": choices, "parallel_tool_calls": st.booleans() | st.none()},
)


def encoded_or_refused(request: dict[str, Any], profile: Profile) -> EncodedRequest | None:
    """Translate a request, or return None where it is refused."""
    validated = CreateResponse.model_validate(request)
    try:
        return to_chat(ModelRequest(validated, validated.items(), "m", upstream=UPSTREAM), profile)
    except InvalidRequest:
        return None


def check_calls(sent: list[dict[str, Any]], pattern: str) -> None:
    """Each call has a unique, valid id, and is answered once, immediately afterwards, in order."""
    seen: list[str] = []
    for at, message in enumerate(sent):
        made = [call["id"] for call in message.get("tool_calls", ())]
        seen += made
        answers = []
        while at + len(answers) + 1 < len(sent) and sent[at + len(answers) + 1]["role"] == "tool":
            answers.append(sent[at + len(answers) + 1]["tool_call_id"])
        if message["role"] != "tool":
            assert answers == made
    assert len(set(seen)) == len(seen)
    assert all(len(id) <= 64 and (pattern == "verbatim" or re.fullmatch(pattern, id)) for id in seen)


def nulls(value: Any, path: str = "") -> list[str]:
    if value is None:
        return [path]
    nested = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, one in nested for found in nulls(one, f"{path}.{name}")]


@given(requests, profiles)
def test_conversation_of_any_kind_is_refused_or_sent_in_order(request: dict[str, Any], profile: Profile) -> None:
    before = copy.deepcopy(request)
    chat = encoded_or_refused(request, profile)
    assert request == before
    if chat is None:
        return
    sent = chat.body["messages"]
    assert sent
    assert orjson.dumps(chat.body)
    check_calls(sent, profile.request.tool_ids)
    assert all(re.fullmatch(r"\.messages\.\d+\.content", path) for path in nulls(chat.body))
    assert all(sent[int(path.split(".")[2])]["role"] == "assistant" for path in nulls(chat.body))
    for call in (call for message in sent for call in message.get("tool_calls", ())):
        assert isinstance(orjson.loads(call["function"]["arguments"]), dict)


@given(requests, profiles)
def test_tools_that_are_sent_are_those_whose_calls_are_read(request: dict[str, Any], profile: Profile) -> None:
    if (chat := encoded_or_refused(request, profile)) is None:
        return
    names = [tool["function"]["name"] for tool in chat.body.get("tools", ())]
    assert names == list(chat.bindings) and len(set(names)) == len(names)
    if not names:
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(chat.body)
        assert not chat.allowed
    assert chat.allowed is None or chat.allowed <= set(names)


@given(requests, st.sampled_from(profile_names()).map(load_profile))
def test_built_in_profile_makes_a_request_that_can_be_sent(request: dict[str, Any], profile: Profile) -> None:
    if chat := encoded_or_refused(request, profile):
        check_calls(chat.body["messages"], profile.request.tool_ids)
        assert nulls(chat.body) == []


STRICT = {"request.roles.system": "single_first", "request.roles.alternate": True}


@given(requests, profiles.map(lambda profile: profile.override(STRICT)))
def test_strict_templates_get_what_they_demand(request: dict[str, Any], profile: Profile) -> None:
    if (chat := encoded_or_refused(request, profile)) is None:
        return
    first, *rest = chat.body["messages"]
    spoken = rest if first["role"] in ("system", "developer") else [first, *rest]
    assert not {"system", "developer"} & {message["role"] for message in spoken}
    # Mistral's template does not count tools, and the messages that call them, as turns.
    turns = [message["role"] for message in spoken if message["role"] != "tool" and "tool_calls" not in message]
    assert turns == [("user", "assistant")[at % 2] for at in range(len(turns))]
    # And as others do, which go by each message.
    roles = [message["role"] for message in spoken if message["role"] != "tool"]
    assert roles[0] == "user"
    assert all(one["role"] != two["role"] or one["role"] == "tool" for one, two in pairwise(spoken))


@pytest.mark.parametrize("options", [{}, STRICT, {"request.roles.system": "user"}])
@given(st.lists(st.sampled_from(["user", "assistant", "system", "developer", "call", "output"]), min_size=1))
def test_content_of_any_kind_is_sent_once(options: dict[str, Any], kinds: list[str]) -> None:
    texts = [f"<{at}>" for at in range(len(kinds))]
    made = {
        "call": lambda text: {
            "type": "function_call",
            "call_id": "a",
            "name": "look",
            "arguments": f'{{"a":"{text}"}}',
        },
        "output": lambda text: {"type": "function_call_output", "call_id": "a", "output": text},
    }
    items = [
        made[kind](text) if kind in made else {"role": kind, "content": text}
        for kind, text in zip(kinds, texts, strict=True)
    ]
    chat = encoded_or_refused({"model": "m", "input": items}, Profile().override(options))
    assert chat
    sent = [message for message in chat.body["messages"] if message not in (OPENING, BRIDGE)]
    assert sorted(re.findall(r"<\d+>", orjson.dumps(sent).decode())) == sorted(texts)
