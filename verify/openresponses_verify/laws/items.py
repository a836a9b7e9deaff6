"""Laws of items: added in order, done once, identical in the final response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from openresponses_verify.laws.law import (
    TERMINAL_STATUS,
    Breach,
    StreamEvent,
    StreamEvents,
    event_type,
    item_of,
    items_added,
    items_done,
    items_of,
    response_of,
    stream_law,
)

_SAME = ("id", "type", "call_id", "name", "namespace", "role", "execution")
_OPEN = ("in_progress", "searching", "generating", "interpreting")  # the last three belong to hosted tools
_ITEMS = "Open Responses specification, Items are streamable"
_STATES = "Open Responses specification, Items are state machines"
_FIELDS = "Open Responses specification, Required item fields"
_OPENAI = "OpenAI API reference, Streaming events"
_NODE = "openai-node 7, ResponseAccumulator"
_SDKS = "openai-python and openai-node, responses.stream()"


@stream_law("added-once", "An item is added once", _ITEMS)
def _added_once(events: StreamEvents) -> Iterator[Breach]:
    """The first event for an item MUST be `response.output_item.added`, sent once."""
    seen: set[object] = set()
    for at, event in items_added(events):
        identifier = item_of(event).get("id")
        if identifier in seen:
            yield Breach(f"The item {identifier!r} is added a second time.", at)
        seen.add(identifier)


@stream_law(
    "output-index",
    "Items are numbered in order",
    f"Open Responses schema, ResponseOutputItemAddedStreamingEvent; {_NODE}",
)
def _output_index(events: StreamEvents) -> Iterator[Breach]:
    """`output_index` is the item's index in `output`: 0, 1, 2 and so on."""
    for expected, (at, event) in enumerate(items_added(events)):
        if event.get("output_index") != expected:
            yield Breach(f"Item {expected} is added with the output_index {event.get('output_index')!r}.", at)


@stream_law("done-once", "An item is done once", _ITEMS)
def _done_once(events: StreamEvents) -> Iterator[Breach]:
    """A finished item is closed by `response.output_item.done`, sent once."""
    added = {_key(event): at for at, event in items_added(events)}
    done: dict[object, int] = {}
    for at, event in items_done(events):
        key = _key(event)
        if key in done:
            yield Breach(f"The item {key!r} is done a second time.", at)
        elif key not in added or added[key] > at:
            yield Breach(f"An item {key!r} is done that was not added.", at)
        done[key] = at
    for key, at in added.items():
        if key not in done:
            yield Breach(f"The item {key!r} is added and never done.", at)


def _key(event: StreamEvent) -> int | str:
    index = event.get("output_index")
    return index if isinstance(index, int) else str(item_of(event).get("id"))


def _pairs(events: StreamEvents) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each done event's index, with the item as added and as done."""
    added: dict[object, Mapping[str, Any]] = {}
    for at, event in enumerate(events):
        if event_type(event) == "response.output_item.added":
            added.setdefault(event.get("output_index"), item_of(event))
        elif event_type(event) == "response.output_item.done" and event.get("output_index") in added:
            yield at, added.pop(event.get("output_index")), item_of(event)


@stream_law("item-identity", "An item's id, type and name do not change", f"{_NODE}; {_FIELDS}")
def _item_identity(events: StreamEvents) -> Iterator[Breach]:
    """An item has the same id, type, call_id and name when added and when done."""
    for at, before, after in _pairs(events):
        for name in _SAME:
            if before.get(name) != after.get(name):
                yield Breach(f"The item was added with {name} {before.get(name)!r}, not {after.get(name)!r}.", at)


@stream_law("item-status", "An item starts in progress and ends in a terminal status", _STATES)
def _item_status(events: StreamEvents) -> Iterator[Breach]:
    """An item is `in_progress` when added, and `completed` or `incomplete` when done."""
    for at, event in items_added(events):
        if item_of(event).get("status", "in_progress") not in (
            "in_progress",
            "searching",
            "generating",
            "interpreting",
        ):
            yield Breach(f"The item is added with the status {item_of(event)['status']!r}.", at)
    for at, event in items_done(events):
        if item_of(event).get("status", "completed") not in ("completed", "incomplete", "failed"):
            yield Breach(f"The item is done with the status {item_of(event)['status']!r}.", at)


def _unique(events: StreamEvents, name: str) -> Iterator[Breach]:
    items = {event.get("output_index"): (at, item_of(event)) for at, event in reversed([*items_done(events)])}
    seen: list[object] = []
    for at, item in reversed(items.values()):
        if name == "call_id" and ("call_id" not in item or str(item.get("type")).endswith("_output")):
            continue
        if name == "call_id" and item["call_id"] is None and item.get("execution") == "server":
            continue  # the client does not answer this call
        value = item.get(name)
        if not value or not isinstance(value, str):
            yield Breach(f"The {name} of an item is {value!r}.", at)
        elif value in seen:
            yield Breach(f"Two items have the {name} {value!r}.", at)
        seen.append(value)


@stream_law("item-ids", "Item ids are unique", _FIELDS)
def _item_ids(events: StreamEvents) -> Iterator[Breach]:
    """Item ids MUST be unique, so that clients can reference an item unambiguously."""
    return _unique(events, "id")


@stream_law("call-ids", "Call ids are unique", f"Open Responses schema, FunctionCall.call_id; {_NODE}")
def _call_ids(events: StreamEvents) -> Iterator[Breach]:
    """Each function call has a unique `call_id`."""
    return _unique(events, "call_id")


def _of_items(events: StreamEvents) -> Iterator[tuple[int, StreamEvent]]:
    return ((at, event) for at, event in enumerate(events) if "item_id" in event)


@stream_law(
    "item-id", "Events have their item's id", "Open Responses schema, ResponseOutputTextDeltaStreamingEvent.item_id"
)
def _item_id(events: StreamEvents) -> Iterator[Breach]:
    """`item_id` is the id of an item that was added earlier."""
    ids = [item_of(event).get("id") for _, event in items_added(events)]
    for at, event in _of_items(events):
        if event["item_id"] not in ids:
            yield Breach(f"{event_type(event)} names the item {event['item_id']!r}, which was not added.", at)


@stream_law(
    "event-index",
    "Events have their item's index",
    "Open Responses schema, ResponseOutputTextDeltaStreamingEvent.output_index",
)
def _event_index(events: StreamEvents) -> Iterator[Breach]:
    """`output_index` is the index of the updated item."""
    indexes = {item_of(event).get("id"): event.get("output_index") for _, event in items_added(events)}
    for at, event in _of_items(events):
        index = indexes.get(event["item_id"])
        if event["item_id"] in indexes and event.get("output_index") != index:
            yield Breach(
                f"{event_type(event)} has the output_index {event.get('output_index')!r}; its item, {index!r}.", at
            )


@stream_law("while-open", "No event after an item is done", _STATES)
def _while_open(events: StreamEvents) -> Iterator[Breach]:
    """`completed` is a terminal status: no updates may follow."""
    done: set[object] = set()
    for at, event in enumerate(events):
        if event_type(event) == "response.output_item.done":
            done.add(item_of(event).get("id"))
        elif event.get("item_id") in done and "item_id" in event:
            yield Breach(f"{event_type(event)} comes after its item was done.", at)


@stream_law("final-output", "The final response repeats the done items", f"{_OPENAI}; {_SDKS} return it")
def _final_output(events: StreamEvents) -> Iterator[Breach]:
    """The final `output` contains exactly the done items, in order."""
    end = max((at for at, event in enumerate(events) if event_type(event) in TERMINAL_STATUS), default=None)
    if end is None:
        return
    order = [_key(event) for _, event in items_added(events)]
    done = {_key(event): item_of(event) for _, event in items_done(events)}
    items = [done[index] for index in dict.fromkeys(order) if index in done]
    final = items_of(response_of(events[end]))
    if len(items) != len(final):
        yield Breach(f"{len(items)} items were done, and the final response has {len(final)}.", end)
    for n, (item, final_item) in enumerate(zip(items, final, strict=False)):
        different = sorted(key for key in {*item, *final_item} if not _equal(key, item.get(key), final_item.get(key)))
        if different:
            yield Breach(f"output[{n}] of the final response differs from the item that was done: {different}.", end)


def _equal(name: str, done: object, final: object) -> bool:
    """Compare a field of an item, except ciphertexts: OpenAI encrypts the content anew for each event."""
    encrypted = name == "encrypted_content" and bool(done) and bool(final)
    return done == final or (encrypted and isinstance(done, str) and isinstance(final, str))


@stream_law("final-usage", "The final response has usage", f"{_OPENAI}; Codex; opencode")
def _final_usage(events: StreamEvents) -> Iterator[Breach]:
    """
    `response.completed` includes usage. Without it, opencode repeats the request forever, and Codex never compacts.
    """
    for at, event in enumerate(events):
        if event_type(event) in ("response.completed", "response.incomplete") and not response_of(event).get("usage"):
            yield Breach(f"The usage of {event_type(event)} is {response_of(event).get('usage')!r}.", at)


@stream_law("cut-told", "A truncated item makes the response incomplete", _STATES)
def _truncation_is_reported(events: StreamEvents) -> Iterator[Breach]:
    """If an item ends `incomplete`, the response MUST also be `incomplete`."""
    for at, event in enumerate(events):
        cut = [item.get("id") for item in items_of(response_of(event)) if item.get("status") == "incomplete"]
        if cut and response_of(event).get("status") == "completed":
            yield Breach(f"The response is completed, and its item {cut[0]!r} is incomplete.", at)


@stream_law("cut-last", "A truncated item is the last item", _STATES)
def _cut_is_last(events: StreamEvents) -> Iterator[Breach]:
    """An item that ends `incomplete` MUST be the last item."""
    for at, event in enumerate(events):
        for item in items_of(response_of(event))[:-1]:
            # A limit truncates all open calls.
            if item.get("status") == "incomplete" and not str(item.get("type")).endswith("_call"):
                yield Breach(f"The item {item.get('id')!r} is incomplete, and not the last.", at)


@stream_law(
    "incomplete-reason",
    "An incomplete response has its reason",
    "Open Responses schema, ResponseResource.incomplete_details",
)
def _incomplete_reason(events: StreamEvents) -> Iterator[Breach]:
    """`incomplete_details` explains why a response is incomplete."""
    for at, event in enumerate(events):
        response = response_of(event)
        details = response.get("incomplete_details")
        if response.get("status") == "incomplete" and not (isinstance(details, Mapping) and details.get("reason")):
            yield Breach(f"The response is incomplete, and its incomplete_details are {details!r}.", at)


@stream_law("failed-error", "A failed response has its error", "Open Responses schema, ResponseResource.error")
def _failed_error(events: StreamEvents) -> Iterator[Breach]:
    """`error` describes why a response failed."""
    for at, event in enumerate(events):
        error = response_of(event).get("error")
        if event_type(event) == "response.failed" and not (isinstance(error, Mapping) and error.get("message")):
            yield Breach(f"The response failed, and its error is {error!r}.", at)
