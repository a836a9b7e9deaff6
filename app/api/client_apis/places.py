"""Maps Responses field names in errors and warnings to the client's names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from app.errors import APIError

_QUOTED = re.compile(r"'([\w.\[\]]+)'")


def place_of(field: str, places: Mapping[str, str]) -> str:
    """Return the client's name for a field, by the longest matching prefix in `places`."""
    end = len(field)
    while end > 0:
        if (place := places.get(field[:end])) is not None:
            return place + field[end:]
        end = max(field.rfind(".", 0, end), field.rfind("[", 0, end))
    return field


def renamed_error(error: APIError, places: Mapping[str, str]) -> APIError:
    """Replace the field in an error's `param` and message by the client's name."""
    param = error.param
    if param and (place := place_of(param, places)) != param:
        error.message = error.message.replace(f"'{param}'", f"'{place}'")
        error.param = place
        error.args = (error.message,)
    return error


def renamed_warnings(warnings: Iterable[str], places: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings with quoted fields replaced by the client's names."""
    for warning in warnings:
        yield _QUOTED.sub(lambda quoted: f"'{place_of(quoted[1], places)}'", warning)
