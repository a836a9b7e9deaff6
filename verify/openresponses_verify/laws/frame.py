"""Laws for the first and last event, sequence numbers and ids."""

from __future__ import annotations

from collections.abc import Iterator

from openresponses_verify.laws.law import (
    TERMINAL_STATUS,
    Breach,
    StreamEvents,
    event_type,
    items_of,
    response_of,
    stream_law,
)

_OPENING = ("response.created", "response.queued", "response.in_progress")
_LIFECYCLE = {*_OPENING, *TERMINAL_STATUS}
_ITEMS = "Open Responses specification, Items are streamable"
_EVENTS = "Open Responses specification, Streaming"
_EXTENDED = "Open Responses specification, Extending streaming events"
_OPENAI = "OpenAI API reference, Streaming events"
_SDKS = "openai-python and openai-node, responses.stream()"


@stream_law("created-first", "response.created is first", f"{_OPENAI}; {_SDKS}")
def _created_first(events: StreamEvents) -> Iterator[Breach]:
    """A stream starts with `response.created`, which occurs once."""
    if not events:
        yield Breach("The stream has no events.")
    elif event_type(events[0]) != "response.created":
        yield Breach(f"The first event is {event_type(events[0])}.", 0)
    for at, event in enumerate(events[1:], 1):
        if event_type(event) == "response.created":
            yield Breach("There is a second response.created.", at)


@stream_law("in-progress", "response.in_progress follows", _EVENTS)
def _in_progress(events: StreamEvents) -> Iterator[Breach]:
    """`response.in_progress` is sent when a response moves to `in_progress`."""
    types = [event_type(event) for event in events]
    at = types.index("response.created") + 1 if "response.created" in types else 0
    at += types[at : at + 1] == ["response.queued"]
    follows = types[at] if at < len(types) else "nothing"
    if events and follows not in ("response.in_progress", "response.failed"):
        yield Breach(f"{types[at - 1] if at else 'The beginning'} is followed by {follows}.", min(at, len(types) - 1))


@stream_law(
    "one-terminal", "The last event is the only terminal event", f"{_OPENAI}; Codex only ends a turn at these events"
)
def _one_terminal(events: StreamEvents) -> Iterator[Breach]:
    """The last event, and no other, is `response.completed`, `response.incomplete` or `response.failed`."""
    terminal = [at for at, event in enumerate(events) if event_type(event) in TERMINAL_STATUS]
    if not terminal:
        yield Breach("The terminal event is missing: response.completed, response.incomplete or response.failed.")
    for at in terminal[1:]:
        yield Breach(f"A second terminal event, after {event_type(events[terminal[0]])}.", at)
    if len(terminal) == 1 and terminal[0] != len(events) - 1:
        yield Breach(f"{event_type(events[-1])} comes after {event_type(events[terminal[0]])}.", len(events) - 1)


@stream_law("terminal-status", "The terminal event matches the status", _EVENTS)
def _terminal_status(events: StreamEvents) -> Iterator[Breach]:
    """The terminal event matches the status: a response with the status `completed` ends with `response.completed`."""
    for at, event in enumerate(events):
        statuses = TERMINAL_STATUS.get(event_type(event))
        status = response_of(event).get("status")
        if statuses and status not in statuses:
            yield Breach(f"{event_type(event)} has a response whose status is {status!r}.", at)


@stream_law("created-status", "A response starts in progress", _OPENAI)
def _created_status(events: StreamEvents) -> Iterator[Breach]:
    """In `response.created` and `response.in_progress`, the status is `in_progress` or `queued`."""
    for at, event in enumerate(events):
        status = response_of(event).get("status")
        if event_type(event) in _OPENING and status not in ("in_progress", "queued"):
            yield Breach(f"{event_type(event)} has a response whose status is {status!r}.", at)


@stream_law("created-empty", "A response starts empty", _ITEMS)
def _created_empty(events: StreamEvents) -> Iterator[Breach]:
    """`output` is empty before the first `response.output_item.added`."""
    for at, event in enumerate(events):
        if event_type(event) in _OPENING and items_of(response_of(event)):
            yield Breach(f"{event_type(event)} has output before any item was added.", at)


@stream_law("sequence-start", "Sequence numbers start at 0", f"{_OPENAI}")
def _sequence_start(events: StreamEvents) -> Iterator[Breach]:
    """The first event has the sequence number 0."""
    if events and (first := events[0].get("sequence_number")) != 0:
        yield Breach(f"The first sequence_number is {first!r}.", 0)


@stream_law("sequence-number", "Sequence numbers have no gaps", _EXTENDED)
def _sequence_number(events: StreamEvents) -> Iterator[Breach]:
    """`sequence_number` increases by 1, so that clients can order events and detect gaps."""
    last = None
    for at, event in enumerate(events):
        number = event.get("sequence_number")
        if not isinstance(number, int) or isinstance(number, bool):
            yield Breach(f"{event_type(event)} has the sequence_number {number!r}.", at)
        elif last is not None and number != last + 1:
            yield Breach(f"sequence_number {number} follows {last}.", at)
        last = number if isinstance(number, int) else last


@stream_law(
    "response-id", "The response id does not change", f"{_OPENAI}; clients send the id as `previous_response_id`"
)
def _response_id(events: StreamEvents) -> Iterator[Breach]:
    """All events in a stream belong to the same response id."""
    ids = [(at, response_of(event).get("id")) for at, event in enumerate(events) if event_type(event) in _LIFECYCLE]
    for at, identifier in ids:
        if not identifier or not isinstance(identifier, str):
            yield Breach(f"The id of the response is {identifier!r}.", at)
        elif identifier != ids[0][1]:
            yield Breach(f"The id of the response is {identifier!r}, and was {ids[0][1]!r}.", at)


@stream_law("error-then-failed", "An error is followed by response.failed", "Open Responses specification, Errors")
def _error_then_failed(events: StreamEvents) -> Iterator[Breach]:
    """An `error` event is followed by `response.failed`."""
    for at, event in enumerate(events):
        if event_type(event) == "error" and [event_type(other) for other in events[at + 1 :]][-1:] != [
            "response.failed"
        ]:
            yield Breach("An error event is not followed by response.failed.", at)
