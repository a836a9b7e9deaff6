"""
Stream laws: rules for a response's events, independent of server and model.

A law is a function from events to breaches. Each law covers one rule, so that a fault is reported once. Laws accept
malformed events and never raise.
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
    for law in STREAM_LAWS:
        for breach in law.breaches(events):
            yield law, breach
