"""Laws for content parts and texts: deltas, done events and items agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from openresponses_verify.laws.law import (
    Breach,
    StreamEvent,
    StreamEvents,
    event_type,
    item_of,
    items_done,
    stream_law,
)

_TEXTS = ("text", "refusal", "arguments", "input", "code", "diff")
_POSITIONS = ("content_index", "summary_index")
# A shell command's stdout and stderr are interleaved; the item merges them into a list.
_SHELL_OUTPUT = "response.shell_call_output"
_ITEMS = "Open Responses specification, Items are streamable"
_EVENTS = "Open Responses specification, Streaming"
_NODE = "openai-node 7, ResponseAccumulator"


def _positions(event: StreamEvent) -> Iterator[tuple[object, str, object]]:
    for name in _POSITIONS:
        if name in event and "item_id" in event:
            yield event["item_id"], name, event[name]


@stream_law("part-added", "Parts are added before their text", _ITEMS)
def _part_added(events: StreamEvents) -> Iterator[Breach]:
    """Text MUST belong to a content part, announced by `response.content_part.added`."""
    opened: set[object] = set()
    reported: set[object] = set()
    for at, event in enumerate(events):
        for key in _positions(event):
            if event_type(event).endswith("part.added"):
                if key in opened:
                    yield Breach(f"The part at {key[1]} {key[2]!r} is added a second time.", at)
                opened.add(key)
            elif key not in opened | reported:
                reported.add(key)
                yield Breach(f"{event_type(event)} names a part that was not added.", at)


@stream_law("part-done", "Parts are done once", _ITEMS)
def _part_done(events: StreamEvents) -> Iterator[Breach]:
    """A content part is closed by `response.content_part.done`, sent once."""
    opened: dict[object, int] = {}
    done: set[object] = set()
    for at, event in enumerate(events):
        for key in _positions(event):
            if event_type(event).endswith("part.added"):
                opened[key] = at
            elif event_type(event).endswith("part.done"):
                if key in done:
                    yield Breach(f"The part at {key[1]} {key[2]!r} is done a second time.", at)
                done.add(key)
            elif key in done:
                yield Breach(f"{event_type(event)} comes after its part was done.", at)
    for missing in opened.keys() - done:
        yield Breach("A part is added and never done.", opened[missing])


@stream_law(
    "content-index",
    "Parts are numbered in order",
    f"Open Responses schema, ResponseContentPartAddedStreamingEvent; {_NODE}",
)
def _content_index(events: StreamEvents) -> Iterator[Breach]:
    """`content_index` is the content part's index in its item: 0, 1, 2 and so on."""
    counts: dict[tuple[object, str], int] = {}
    for at, event in enumerate(events):
        for identifier, name, index in _positions(event):
            if event_type(event).endswith("part.added"):
                expected = counts.get((identifier, name), 0)
                if index != expected:
                    yield Breach(f"Part {expected} of the item is added with the {name} {index!r}.", at)
                counts[identifier, name] = expected + 1


def _text_key(event: StreamEvent) -> tuple[object, ...]:
    kind = event_type(event).rpartition(".")[0]
    return (kind, *(event.get(name) for name in ("item_id", *_POSITIONS)))


def _is_shell_output(event: StreamEvent) -> bool:
    return event_type(event).startswith(_SHELL_OUTPUT)


def _done_text(event: StreamEvent) -> str | None:
    """Return the text of a `...done` event."""
    if not event_type(event).endswith(".done") or "item_id" not in event or "part" in event:
        return None
    return next((event[name] for name in _TEXTS if isinstance(event.get(name), str)), None)


def _texts(events: StreamEvents) -> tuple[dict[tuple[object, ...], str], dict[tuple[object, ...], int]]:
    """Join the deltas of each text, and find the index of its last delta."""
    pieces: dict[tuple[object, ...], list[str]] = {}
    ends = {}
    for at, event in enumerate(events):
        delta = event.get("delta")
        if (
            event_type(event).endswith(".delta")
            and "item_id" in event
            and isinstance(delta, str)
            and not _is_shell_output(event)
        ):
            pieces.setdefault(_text_key(event), []).append(delta)
            ends[_text_key(event)] = at
    return {key: "".join(texts) for key, texts in pieces.items()}, ends


@stream_law("text-done", "Deltas end with a done event", _ITEMS)
def _text_done(events: StreamEvents) -> Iterator[Breach]:
    """Deltas are followed by `response.<content_type>.done`."""
    done_events: dict[tuple[object, ...], list[int]] = {}
    for at, event in enumerate(events):
        if _done_text(event) is not None:
            done_events.setdefault(_text_key(event), []).append(at)
    _, ends = _texts(events)
    for key, at in ends.items():
        done = done_events.get(key, [])
        if len(done) != 1:
            yield Breach(f"There are {len(done)} {key[0]}.done for these deltas.", at)
        elif at > done[0]:
            yield Breach(f"{key[0]}.delta follows {key[0]}.done.", at)


@stream_law("deltas-joined", "The joined deltas equal the done text", _EVENTS)
def _deltas_joined(events: StreamEvents) -> Iterator[Breach]:
    """The joined deltas equal the text in the done event."""
    joined, _ = _texts(events)
    for at, event in enumerate(events):
        text = _done_text(event)
        if text is None or _is_shell_output(event):
            continue
        # A call without arguments may have no delta.
        if joined.get(_text_key(event), "" if text != "{}" else text) != text:
            shown = joined.get(_text_key(event), "")
            yield Breach(
                f"The deltas join to {_abbreviate(shown)}, and {event_type(event)} says {_abbreviate(text)}.", at
            )


def _abbreviate(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:25]}...{text[-25:]}")


@stream_law("done-text", "The done text equals the item's text", _ITEMS)
def _done_is_the_item(events: StreamEvents) -> Iterator[Breach]:
    """The text in a done event equals the text in the item."""
    items = {item_of(event).get("id"): item_of(event) for _, event in items_done(events)}
    for at, event in enumerate(events):
        text, item = _done_text(event), items.get(event.get("item_id"))
        if text is None or item is None or _is_shell_output(event):
            continue
        found = _text_of(item, event)
        if found is not None and found != text:
            yield Breach(f"{event_type(event)} says {_abbreviate(text)}, and its item has {_abbreviate(found)}.", at)


def _text_of(item: Mapping[str, Any], event: StreamEvent) -> str | None:
    """Return the item's text at an event's position."""
    for name, parts in (("content_index", item.get("content")), ("summary_index", item.get("summary"))):
        index = event.get(name)
        if isinstance(index, int):
            part = parts[index] if isinstance(parts, list) and index < len(parts) else {}
            return next((part[key] for key in ("text", "refusal") if isinstance(part.get(key), str)), "")
    operation = item.get("operation")
    fields = {**item, **operation} if isinstance(operation, Mapping) else item  # apply_patch_call
    texts = (fields.get(key) for key in ("arguments", "input", "code", "diff"))
    return next((text for text in texts if isinstance(text, str)), None)


@stream_law("part-text", "The done part equals the item's part", _ITEMS)
def _part_is_the_item(events: StreamEvents) -> Iterator[Breach]:
    """The part in `response.content_part.done` equals the part in the item."""
    items = {item_of(event).get("id"): item_of(event) for _, event in items_done(events)}
    for at, event in enumerate(events):
        if not event_type(event).endswith("part.done") or event.get("item_id") not in items:
            continue
        item = items[event["item_id"]]
        index, parts = (
            (event["content_index"], item.get("content"))
            if "content_index" in event
            else (event.get("summary_index"), item.get("summary"))
        )
        part = parts[index] if isinstance(parts, list) and isinstance(index, int) and index < len(parts) else None
        if part != event.get("part"):
            yield Breach(f"The part of {event_type(event)} differs from the part in its item.", at)
