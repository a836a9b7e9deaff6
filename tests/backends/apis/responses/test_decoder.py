"""Invalid answers from Responses servers."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backends.apis import APIS
from app.backends.apis.responses.decoder import SEQUENCE_NUMBER, SKIPPED, ServerItems
from app.backends.server.errors import error_in_chunk
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest
from app.core.sse.decoder import UNPARSED, EventDecoder
from app.core.sse.repeats import PatternMatcher, RepeatedEvent
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder
from tests.support.build import singly
from tests.support.native import Native

PROFILE = Profile().override({"transport.api": "responses", "request.passes": ["web_search"]})
ASKED = EncodedRequest({"model": "m"}, {}, None, ())
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {}}
EVENTS = (
    Native()
    .reasoning("Hm.", "So.")
    .message("a", "b", phase="commentary")
    .call("f", "{", "}")
    .custom_call("c", "x", call_id="call_2")
    .added(SEARCH)
    .event("response.web_search_call.searching", item_id="ws_1", output_index=4)
    .done(SEARCH)
    .completed()
    .events
)
ODD: st.SearchStrategy[Any] = st.sampled_from([None, 0, -1, "", "x", [], [1], {}, {"type": []}, True, 1.5])


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner_path for name, one in inner for inner_path in paths(one, (*path, name)))]


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = with_value(value[path[0]], path[1:], new)
    return changed


def read(events: list[Any]) -> tuple[DeltaReader, Any]:
    """Decode an answer and build its events, like the server; returns it with the reported error."""
    decoder = APIS["responses"].codec.decoder(ASKED, PROFILE, error_in_chunk)
    number = iter(range(10_000))
    response: Any = {"id": "resp_1", "output": [], "status": "queued", "instructions": None, "usage": None}
    reader = DeltaReader(EventBuilder(response, new_id=lambda prefix: f"{prefix}_{next(number)}"))
    for event in events:
        reader.feed(decoder.decode(b"data: %s\n\n" % json.dumps(event).encode()))
    reader.feed(decoder.end())
    reader.end(cut=False)
    return reader, decoder.failure


@pytest.mark.parametrize(
    ("response", "reason", "failed"),
    [
        ({"status": "completed"}, "stop", False),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length", False),
        ({"status": "failed", "error": {"code": "server_error", "message": "Oh."}}, None, True),
        ({"status": "cancelled"}, None, True),
        ({"status": "paused"}, None, True),
        ({}, None, True),
        (None, None, True),
    ],
)
def test_response_done_ends_as_its_status_says(response: Any, reason: str | None, failed: bool) -> None:
    events = [*Native().message("a", "b").events, {"type": "response.done", "response": response}]
    reader, failure = read(events)
    assert (reader.finish_reason, bool(failure)) == (reason, failed)
    reader.builder.close()


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_field_of_any_other_type_makes_nothing_crash(data: st.DataObject) -> None:
    events: list[Any] = [*EVENTS]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(events) - 1))
        path = data.draw(st.sampled_from(paths(events[at])))
        events[at] = with_value(events[at], path, data.draw(ODD))
    if data.draw(st.booleans()):
        del events[data.draw(st.integers(0, len(events) - 1))]
    read(events)


def frame(event: dict[str, Any], number: int, *, last: bool, **more: Any) -> bytes:
    counted = {**event, "sequence_number": number} if last else {"sequence_number": number, **event}
    data = json.dumps(counted | more, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n".encode()


@pytest.mark.parametrize("last", [False, True], ids=["number first", "number last"])
@pytest.mark.parametrize("per_read", [1, 3, 100])
def test_deltas_with_other_sequence_numbers_are_repeated_events(per_read: int, last: bool) -> None:
    native = Native().reasoning("Hm.").message("a", *'b"\\\u00e9', phase="commentary")
    events = native.call("f", "{", '"', 'a": 1', "}").completed().events
    frames = [frame(event, number, last=last) for number, event in enumerate(events, 8)]
    reads = [b"".join(frames[at : at + per_read]) for at in range(0, len(frames), per_read)]

    decoder = APIS["responses"].codec.decoder(ASKED, PROFILE, error_in_chunk)
    find_text = ServerItems(ASKED, PROFILE).find_text
    matched = EventDecoder(PatternMatcher(find_text, SEQUENCE_NUMBER), named=True).decode(b"".join(frames))
    texts = [text for event in matched if isinstance(event, RepeatedEvent) for text in event.texts]
    assert texts == ["b", '"', "\\", "\u00e9", '"', 'a": 1', "}"]

    padded = (frame(event, number, last=last, obfuscation="x" * number) for number, event in enumerate(events, 8))
    parsing = APIS["responses"].codec.decoder(ASKED, PROFILE, error_in_chunk)  # padding prevents patterns
    assert singly([delta for data in reads for delta in decoder.decode(data)]) == singly(
        [delta for data in padded for delta in parsing.decode(data)]
    )


@pytest.mark.parametrize("space", ["", " "])
def test_event_that_repeats_output_is_skipped_without_parsing(space: str) -> None:
    """Both forms are frequent: compact JSON, and Python's."""
    done = f'event: response.output_text.done\ndata: {{"type":{space}"response.output_text.done", invalid}}\n\n'
    delta = f'event: response.output_text.delta\ndata: {{"type":{space}"response.output_text.delta","delta":"a"}}\n\n'
    stream = EventDecoder(named=True, skipped=SKIPPED)
    assert stream.decode((done + delta).encode()) == [UNPARSED, {"type": "response.output_text.delta", "delta": "a"}]


def test_decoder_is_freed_with_its_last_reference() -> None:
    """Otherwise the collector also visits the request, which the decoder refers to."""
    decoder = APIS["responses"].codec.decoder(ASKED, PROFILE, error_in_chunk)
    events = Native().message("a", "b", "c").call("f", "{", "}").completed().events
    for number, event in enumerate(events):
        assert decoder.decode(frame(event, number, last=False)) is not None
    freed = weakref.ref(decoder)
    gc.disable()
    try:
        del decoder
        assert freed() is None
    finally:
        gc.enable()
