"""Truncating a conversation removes only its oldest part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.history.truncation import fitting_share, shortened
from app.core.usage import TOKENS_PER_MEDIA_ITEM, estimate_json

Item = dict[str, Any]


def truncated(items: list[Any], share: float) -> list[Any]:
    sizes = [estimate_json(item) for item in items]
    return shortened(items, sizes, sum(sizes) * (1 - share))


def message(role: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": text}


def user(text: str) -> Item:
    return message("user", text)


def assistant_message(text: str) -> Item:
    return message("assistant", text)


def call(id: str) -> Item:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def output(id: str) -> Item:
    return {"type": "function_call_output", "call_id": id, "output": "a page " * 50}


def thought(text: str) -> Item:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


RULES = message("system", "Be brief.")
SUMMARY = {"type": "compaction", "encrypted_content": "antiphon1.x"}


def test_truncation_drops_the_oldest_turns_and_keeps_instructions() -> None:
    turns = [
        user("one " * 100),
        assistant_message("1 " * 100),
        user("two " * 100),
        assistant_message("2 " * 100),
        user("three"),
    ]

    assert truncated([RULES, *turns], 0.75) == [RULES, *turns[2:]]
    assert truncated([RULES, *turns], 0.25) == [RULES, turns[4]]


def test_truncation_of_what_fits_drops_nothing() -> None:
    turns = [user("one"), assistant_message("1"), user("two")]

    assert truncated(turns, 1) == turns


def test_truncation_keeps_instructions_in_the_middle_in_place() -> None:
    turns = [user("one " * 100), message("developer", "From now on in French."), assistant_message("1"), user("two")]

    assert truncated(turns, 0.1) == [turns[1], turns[3]]


def test_truncation_drops_a_turn_with_its_reasoning_calls_and_outputs() -> None:
    past = [user("look"), thought("I have to look."), call("a"), output("a"), assistant_message("There is nothing.")]

    assert truncated([*past, user("look again")], 0.3) == [user("look again")]


def test_truncation_of_a_long_last_turn_drops_its_oldest_steps() -> None:
    steps = [[thought(id), call(id), output(id)] for id in "abcd"]
    items = [user("find the bug"), *steps[0], *steps[1], *steps[2], *steps[3]]

    assert truncated(items, 0.6) == [user("find the bug"), *steps[2], *steps[3]]
    assert truncated(items, 0) == [user("find the bug"), *steps[3]]


def test_truncation_drops_parallel_calls_together() -> None:
    together = [call("a"), call("b"), output("b"), output("a")]
    items = [user("both"), *together, call("c"), output("c")]

    assert truncated(items, 0.6) == [user("both"), call("c"), output("c")]


def test_truncation_keeps_a_call_whose_output_is_new() -> None:
    items = [user("start it"), call("slow"), assistant_message("It is running."), user("and?"), output("slow")]

    assert truncated(items, 0) == items


def test_truncation_drops_a_late_output_with_its_call() -> None:
    items = [
        user("start it"),
        call("slow"),
        user("and?"),
        output("slow"),
        assistant_message("Done."),
        user("thanks " * 20),
    ]

    assert truncated(items, 0.9) == [items[2], items[4], items[5]]


def test_truncation_with_a_repeated_call_id_ties_no_turns_together() -> None:
    turn = [user("look"), call("call_0"), output("call_0"), assistant_message("Nothing.")]

    assert truncated([*turn, *turn, *turn], 0.4) == turn


def test_truncation_keeps_compactions() -> None:
    items = [SUMMARY, user("one " * 100), assistant_message("1"), user("two")]

    assert truncated(items, 0.1) == [SUMMARY, user("two")]


def test_truncation_of_found_tools_leaves_them_callable() -> None:
    search = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "add"}}
    tools = [{"type": "function", "name": "add"}]
    found = {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": tools}
    items = [user("one " * 100), search, found, assistant_message("1"), user("two")]

    assert truncated(items, 0.1) == [{"type": "tool_search_output", "tools": tools}, user("two")]
    assert truncated([*items[:2], {**found, "tools": []}, *items[3:]], 0.1) == [user("two")]


def test_truncation_counts_an_image_as_an_image() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 1_000_000}
    items = [user("old " * 1500), {"type": "message", "role": "user", "content": [picture]}, user("and now?")]

    assert truncated(items, 0.5) == items[1:]


ITEMS = st.lists(
    st.one_of(
        st.sampled_from([RULES, SUMMARY, user("hi"), assistant_message("yes"), thought("hm")]),
        st.sampled_from("abc").map(call),
        st.sampled_from("abc").map(output),
    ),
    max_size=20,
)


@given(ITEMS, st.floats(0, 1))
def test_truncation_keeps_what_must_stay_and_pairs_together(items: list[Item], share: float) -> None:
    left = truncated(items, share)

    rest = iter(items)
    assert all(item in rest for item in left)  # in their order
    assert [item for item in left if item in (RULES, SUMMARY)] == [item for item in items if item in (RULES, SUMMARY)]
    assert (user("hi") in left) == (user("hi") in items)
    assert left[-1:] == items[-1:]
    assert strays(left) <= strays(items)


def strays(items: list[Item]) -> int:
    """Count calls without a later output, and outputs without a call."""
    waiting: dict[str, int] = dict.fromkeys("abc", 0)
    known: set[str] = set()
    unpaired = 0
    for item in items:
        if item["type"] == "function_call":
            unpaired += waiting[item["call_id"]]  # the earlier of two calls with the same id has no output
            waiting[item["call_id"]] = 1
            known.add(item["call_id"])
        elif item["type"] == "function_call_output":
            unpaired += item["call_id"] not in known
            waiting[item["call_id"]] = max(0, waiting[item["call_id"]] - 1)
    return unpaired + sum(waiting.values())


@pytest.mark.parametrize(
    ("complaint", "share"),
    [
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 16384 tokens.", 0.5),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 8192 tokens "
            "(8000 in the messages, 192 in the completion).",
            0.5,
        ),
        ("request (8192 tokens) exceeds the available context size (4096 tokens), try increasing it", 0.5),
        ("The input (8192 tokens) is longer than the model's context length (4096 tokens).", 0.5),
        ("prompt is too long: 400,000 tokens > 200,000 maximum", 0.5),
        ("The input token count (2097152) exceeds the maximum number of tokens allowed (1048576).", 0.5),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8192 `inputs` tokens and 20", 0.5),
        ("Your request exceeded model token limit: 131072 (requested: 262144)", 0.5),
        ("This model's maximum prompt length is 131072 but the request contains 262144 tokens.", 0.5),
        ("Current length is 16384 while limit is 8192", 0.5),
        ("prompt token count of 256000 exceeds the limit of 128000", 0.5),
        ("Trying to keep the first 8192 tokens, but the model is loaded with context length of only 4096 tokens", 0.5),
        ("Your input exceeds the context window of this model.", None),
        ("Range of input length should be [1, 30720]", None),
        ("prompt too long; exceeded max context length by 500 tokens", None),
        (f"maximum context length is 4096 tokens, but {'9' * 5000} resulted in 8192 tokens", 0.5),
        (f"maximum context length is {'9' * 5000}, and you requested 8192 tokens", None),
    ],
)
def test_truncation_takes_the_limit_from_an_error(complaint: str, share: float | None) -> None:
    assert fitting_share(complaint) == share


def test_truncation_counts_a_dropped_turn_once() -> None:
    past = [user("start it"), call("slow"), user("and?"), output("slow"), assistant_message("Done.")]
    items = [*past, user("three " * 20), user("four " * 80)]
    sizes = [estimate_json(item) for item in items]
    too_many = sum(sizes[:5]) + 1

    assert truncated(items, 1 - too_many / sum(sizes)) == items[6:]


def test_truncation_counts_a_missing_image_as_nothing() -> None:
    assert estimate_json({"image_url": "https://a/b.png", "file_data": None}) == TOKENS_PER_MEDIA_ITEM
    assert estimate_json({"image_url": None, "file_data": ""}) == 0
