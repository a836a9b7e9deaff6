"""The type of a law, and accessors that return empty values for malformed events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

StreamEvent: TypeAlias = Mapping[str, Any]
StreamEvents: TypeAlias = Sequence[StreamEvent]


class Breach(NamedTuple):
    """A violation: a message, and the offending event's index if known."""

    message: str
    event: int | None = None


BreachFunction: TypeAlias = Callable[[StreamEvents], Iterator[Breach]]


class StreamLaw(NamedTuple):
    name: str
    title: str
    law: str
    source: str
    breaches: BreachFunction


TERMINAL_STATUS = {
    "response.completed": ("completed",),
    "response.incomplete": ("incomplete", "cancelled"),
    "response.failed": ("failed", "cancelled"),
}

STREAM_LAWS: list[StreamLaw] = []


def stream_law(name: str, title: str, source: str) -> Callable[[BreachFunction], BreachFunction]:
    """Register a function as a law, with its docstring as the rule."""

    def register(breaches: BreachFunction) -> BreachFunction:
        STREAM_LAWS.append(StreamLaw(name, title, docstring_of(breaches), source, breaches))
        return breaches

    return register


def docstring_of(function: Callable[..., object]) -> str:
    return " ".join((function.__doc__ or "").split())


def event_type(event: StreamEvent) -> str:
    return str(event.get("type", ""))


def response_of(event: StreamEvent) -> Mapping[str, Any]:
    response = event.get("response")
    return response if isinstance(response, Mapping) else {}


def item_of(event: StreamEvent) -> Mapping[str, Any]:
    item = event.get("item")
    return item if isinstance(item, Mapping) else {}


def items_of(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    output = response.get("output")
    return [item for item in output if isinstance(item, Mapping)] if isinstance(output, list) else []


def final_response(events: StreamEvents) -> Mapping[str, Any]:
    """Return the response in the last terminal event."""
    return next((response_of(event) for event in reversed(events) if event_type(event) in TERMINAL_STATUS), {})


def items_added(events: StreamEvents) -> Iterator[tuple[int, StreamEvent]]:
    return ((at, event) for at, event in enumerate(events) if event_type(event) == "response.output_item.added")


def items_done(events: StreamEvents) -> Iterator[tuple[int, StreamEvent]]:
    return ((at, event) for at, event in enumerate(events) if event_type(event) == "response.output_item.done")
