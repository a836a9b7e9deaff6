from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl


def read_options(query: str, known: Mapping[str, Callable[[str], object]]) -> dict[str, Any]:
    """
    Parse a store URL's query with each option's function in `known`.

    Raises ValueError, without quoting values, which can be secret.
    """
    options = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ValueError(
                f"The store URL has an unknown option '{name}'. Known options: {', '.join(sorted(known))}."
            )
        try:
            options[name] = known[name](value)
        except ValueError as error:
            raise ValueError(f"The store URL's option '{name}' is malformed: {error}.") from None
    return options


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError("expected a positive number of seconds")
    return number


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("expected a positive whole number")
    return int(text)


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser for these words, in any case."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return read
