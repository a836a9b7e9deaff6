"""Any output from a Messages server is decoded without an internal error, however its bytes are cut."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.backends.apis.messages.decoder import MessagesDecoder
from app.backends.server.errors import error_in_chunk
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest
from app.core.types.deltas import Delta, TextDelta
from tests.support.build import singly
from tests.support.messages_server import Fields, events, frame, redacted, searched, text, thinking, tool_use

ASKED = EncodedRequest({"model": "m", "messages": []}, {}, None, ())

odd = st.sampled_from([None, 0, -1, 10**30, "", "x", [], [1], {}, {"type": "text"}, True, 1.5, "\ud83d"])
values = st.recursive(odd, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner))
# fmt: off
NAMES = [
    "type", "index", "delta", "content_block", "message", "usage",
    "stop_reason", "text", "thinking", "partial_json", "signature", "data",
    "id", "name", "input", "citation", "citations", "error",
    "stop_details", "output_tokens", "input_tokens", "service_tier", "content",
]
# fmt: on
words = st.text(alphabet='ab"\\\n ß\U0001f600', max_size=3)
blocks = st.lists(
    st.builds(lambda pieces: text(*pieces), st.lists(words, max_size=4))
    | st.builds(lambda pieces: thinking(*pieces), st.lists(words, max_size=4))
    | st.builds(lambda pieces: tool_use("toolu_1", "look", *pieces), st.lists(words, max_size=3))
    | st.builds(redacted)
    | st.builds(lambda: searched("x")[0]),
    max_size=4,
).map(lambda made: [*made])


def decoded(body: bytes, positions: list[int]) -> tuple[list[Delta], MessagesDecoder]:
    decoder = MessagesDecoder(ASKED, Profile(), error_in_chunk)
    deltas: list[Delta] = []
    cuts = [0, *sorted({position % (len(body) + 1) for position in positions}), len(body)]
    for start, end in pairwise(cuts):
        if not (decoder.done or decoder.failure):
            deltas += decoder.decode(body[start:end])
    if not (decoder.done or decoder.failure):
        deltas += decoder.end()
    return singly(deltas), decoder


@given(blocks, st.data())
def test_odd_values_anywhere_are_no_error_of_ours(made: Any, data: st.DataObject) -> None:
    sent = copy.deepcopy(events(*made))
    for _ in range(data.draw(st.integers(1, 4))):
        fields: Any = data.draw(st.sampled_from(sent))
        while (inner := [value for value in fields.values() if isinstance(value, dict)]) and data.draw(st.booleans()):
            fields = data.draw(st.sampled_from(inner))
        fields[data.draw(st.sampled_from(NAMES))] = copy.deepcopy(data.draw(values))
    sent = data.draw(st.permutations(sent)) if data.draw(st.booleans()) else sent
    _, decoder = decoded(b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in sent), [])
    assert decoder.failure is None or decoder.failure.status >= 400


@given(blocks, st.lists(st.integers(0, 5000), max_size=30))
def test_bytes_of_any_cut_give_the_same_deltas(made: Any, positions: list[int]) -> None:
    body = b"".join(map(frame, events(*made)))
    assert decoded(body, positions)[0] == decoded(body, [])[0]


@given(blocks)
def test_message_kept_for_replay_is_what_the_server_sent(made: Any) -> None:
    decoder = decoded(b"".join(map(frame, events(*made))), [])[1]
    kept = decoder.content
    assert [block["type"] for block in kept] == [block["type"] for block, _ in made]
    for block, (begun, deltas) in zip(kept, made, strict=True):
        if begun["type"] in ("text", "thinking"):
            assert block[begun["type"]] == "".join(delta.get(begun["type"], "") for delta in deltas)
        if begun["type"] == "thinking":
            assert block["signature"] == deltas[-1]["signature"]


def test_events_of_other_blocks_with_the_same_text_are_not_taken_for_each_other() -> None:
    sent: list[Fields] = events(text("aa", "bb", "cc"), text("dd", "ee"))
    late = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "late"}}
    body = b"".join(map(frame, [*sent[:-2], late, late, *sent[-2:]]))
    written = [delta.texts for delta in decoded(body, [])[0] if isinstance(delta, TextDelta)]
    assert written == [["aa"], ["bb"], ["cc"], ["dd"], ["ee"]]


def test_content_of_an_unknown_type_is_left_out_with_one_warning_for_each_type() -> None:
    sent = events(*(text() for _ in range(3)), text("Hi."))
    starts = [event for event in sent if event["type"] == "content_block_start"]
    for event, type_ in zip(starts, ("hologram", "hologram", "smell"), strict=False):
        event["content_block"] = {"type": type_}
    deltas, decoder = decoded(b"".join(map(frame, sent)), [])
    assert TextDelta(["Hi."]) in deltas
    assert decoder.warnings == [
        f"Content of unknown type '{type_}' from the backend was ignored." for type_ in ("hologram", "smell")
    ]
