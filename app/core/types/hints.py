"""What somebody may have meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest known name, behind a space, to end an error with; "" where none is alike."""
    found = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f" Did you mean '{found[0]}'?" if found else ""
