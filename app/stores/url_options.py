"""The options in the query of a store's URL."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl


def read_options(query: str, known: Mapping[str, Callable[[str], object]]) -> dict[str, Any]:
    """
    Read the options in the query of a store's URL, each with the function that `known` has for it.

    Raise ValueError for an unknown or a malformed one. No value is quoted in the message: it may be a secret.
    """
    options = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ValueError(f"The store URL has an unknown option '{name}'. Known are: {', '.join(sorted(known))}.")
        try:
            options[name] = known[name](value)
        except ValueError as error:
            raise ValueError(f"The store URL's option '{name}' is malformed: {error}.") from None
    return options


def seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError("expected a positive number of seconds")
    return number


def count(text: str) -> int:
    """Read a positive whole number."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("expected a positive whole number")
    return int(text)


def one_of(*choices: str) -> Callable[[str], str]:
    """Make a reader of one word out of a few."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return read
