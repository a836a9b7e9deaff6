"""
The laws of the stream: what holds of the events of a response, whatever server sends them and whatever the model says.

A law is a function of all events of one response that yields its breaches, none if it is kept. Laws are independent:
each looks at one thing, so that what is wrong is named once. They take events as they came and do not raise, even if
fields are missing or have other types than they should.
"""

from __future__ import annotations

from collections.abc import Iterator

from openresponses_verify.laws import frame, items, texts
from openresponses_verify.laws.law import STREAM_LAWS, Breach, StreamEvents, StreamLaw, final_response

__all__ = [
    "STREAM_LAWS",
    "Breach",
    "StreamEvents",
    "StreamLaw",
    "breaches_of",
    "final_response",
    "frame",
    "items",
    "texts",
]


def breaches_of(events: StreamEvents) -> Iterator[tuple[StreamLaw, Breach]]:
    """Yield all breaches of all laws in the events of one response."""
    for law in STREAM_LAWS:
        for breach in law.breaches(events):
            yield law, breach
