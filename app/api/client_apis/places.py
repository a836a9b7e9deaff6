"""Fields of a Responses request, in errors and warnings about it, by the names that the client gave them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from app.errors import APIError

_QUOTED = re.compile(r"'([\w.\[\]]+)'")


def place_of(field: str, places: Mapping[str, str]) -> str:
    """Return the client's name for a field, by the longest of the `places` that contains it."""
    end = len(field)
    while end > 0:
        if (place := places.get(field[:end])) is not None:
            return place + field[end:]
        end = max(field.rfind(".", 0, end), field.rfind("[", 0, end))
    return field


def renamed_error(error: APIError, places: Mapping[str, str]) -> APIError:
    """Return an error with the client's name of its field in `param` and in the message."""
    param = error.param
    if param and (place := place_of(param, places)) != param:
        error.message = error.message.replace(f"'{param}'", f"'{place}'")
        error.param = place
        error.args = (error.message,)
    return error


def renamed_warnings(warnings: Iterable[str], places: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings with the client's names of the fields that they quote."""
    for warning in warnings:
        yield _QUOTED.sub(lambda quoted: f"'{place_of(quoted[1], places)}'", warning)
