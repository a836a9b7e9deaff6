"""Laws for every conversation sent to Anthropic's Messages API. The server refuses violations."""

from __future__ import annotations

import copy
from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from app.backends.apis.messages.encoder import to_messages_request
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.request.reasoning import bound
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.backends.apis.messages.test_messages_request import CLAUDE, thought
from tests.core.request.test_chat_request_laws import UPSTREAM, requests
from tests.support.messages_server import check

SIGNED: dict[str, Any] = {
    **UPSTREAM,
    "rs_1": {"reasoning_content": "hm", **thought("hm")},
    "rs_2": bound(CLAUDE, thinking={"type": "redacted_thinking", "data": "eA=="}),
    "rs_3": bound(CLAUDE.override({"transport.base_url": "https://other.test"}), thinking={"type": "thinking"}),
}

profiles = st.fixed_dictionaries(
    {
        "request.cache": st.sampled_from([None, "auto", "off"]),
        "request.reasoning_replay": st.sampled_from(["tool_turns", "never", "current_turn", "always"]),
        "request.content.tool_images": st.sampled_from(["hoist", "inline", "drop", "error"]),
        "request.content.audio": st.sampled_from(["pass", "drop"]),
        "request.thinking_budget": st.sampled_from([[], ["*"]]),
        "request.strict": st.sampled_from(["send", "drop", "force"]),
    }
).map(CLAUDE.override)
efforts = st.sampled_from([None, None, "none", "minimal", "medium", "max"])
limits = st.sampled_from([None, 16, 1024, 1025, 2000, 64000])


def encoded(request: dict[str, Any], profile: Profile) -> EncodedRequest | None:
    validated = CreateResponse.model_validate(request)
    try:
        return to_messages_request(ModelRequest(validated, validated.items(), "m", SIGNED), profile)
    except InvalidRequest:
        return None


# A summary between the results of calls and the next call begins a turn without thinking.
SUMMARIZED = [
    {"type": "reasoning", "id": "rs_1", "summary": None, "content": None},
    {"type": "web_search_call", "id": "ws_1", "action": None},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "{}"},
]


@given(requests, profiles, efforts, limits, st.booleans())
@example(
    {"model": "m", "input": SUMMARIZED, "tools": []},
    CLAUDE.override({"request.thinking_budget": ["*"]}),
    "minimal",
    None,
    False,
)
def test_every_conversation_is_refused_or_sent_as_the_server_takes_it(
    request: dict[str, Any], profile: Profile, effort: str | None, limit: int | None, marked: bool
) -> None:
    request = {**copy.deepcopy(request), "max_output_tokens": limit, "temperature": 0.5 if marked else None}
    if effort:
        request["reasoning"] = {"effort": effort}
    if marked:
        _mark(request["input"])
    signed = copy.deepcopy(SIGNED)
    if (model_request := encoded(request, profile)) is None:
        return
    check(model_request.body, by_budget=bool(profile.request.thinking_budget))
    assert signed == SIGNED
    assert orjson.dumps(model_request.body)
    names = [tool["name"] for tool in model_request.body.get("tools", ())]
    assert names == [*model_request.bindings]
    assert model_request.allowed is None or model_request.allowed <= {*names}


def _mark(items: list[dict[str, Any]]) -> None:
    """Set a breakpoint at each content part."""
    for item in items:
        for field_name in ("content", "output"):
            for part in item.get(field_name) or () if isinstance(item.get(field_name), list) else ():
                part["prompt_cache_breakpoint"] = {"mode": "explicit"}


@given(requests)
def test_thoughts_are_sent_as_they_were_in_the_order_of_the_items(request: dict[str, Any]) -> None:
    if (model_request := encoded(request, CLAUDE)) is None:
        return
    blocks = [block for message in model_request.body["messages"] for block in message["content"]]
    thoughts = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
    known = [SIGNED[item_id]["bound"]["thinking"] for item_id in ("rs_1", "rs_2")]
    assert all(block in known for block in thoughts)
    wanted = [
        SIGNED[item["id"]]["bound"]["thinking"]
        for item in request["input"]
        if item["type"] == "reasoning" and item["id"] in ("rs_1", "rs_2")
    ]
    remaining = iter(wanted)
    assert all(any(block == one for one in remaining) for block in thoughts)


@given(st.lists(st.sampled_from(["user", "assistant", "system", "developer", "call", "output"]), min_size=1))
def test_content_of_any_kind_is_sent_once(kinds: list[str]) -> None:
    texts = [f"<{at}>" for at in range(len(kinds))]
    items: list[dict[str, Any]] = []
    for kind, text in zip(kinds, texts, strict=True):
        if kind == "call":
            items.append({"type": "function_call", "call_id": "a", "name": "look", "arguments": f'{{"a":"{text}"}}'})
        elif kind == "output":
            items.append({"type": "function_call_output", "call_id": "a", "output": text})
        else:
            items.append({"role": kind, "content": text})
    model_request = encoded({"model": "m", "input": items}, CLAUDE)
    assert model_request
    sent = orjson.dumps([model_request.body.get("system"), model_request.body["messages"]]).decode()
    assert [sent.count(text) for text in texts] == [1] * len(texts)
