"""Maps Responses field names in errors and warnings to the client's names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from app.errors import APIError

_QUOTED = re.compile(r"'([\w.\[\]]+)'")


def client_path(field: str, client_paths: Mapping[str, str]) -> str:
    """Translate a field's path by the longest matching prefix in `client_paths`."""
    end = len(field)
    while end > 0:
        if (path := client_paths.get(field[:end])) is not None:
            return path + field[end:]
        end = max(field.rfind(".", 0, end), field.rfind("[", 0, end))
    return field


def renamed_error(error: APIError, client_paths: Mapping[str, str]) -> APIError:
    """Translate the paths in `param` and message."""
    param = error.param
    if param and (path := client_path(param, client_paths)) != param:
        error.message = error.message.replace(f"'{param}'", f"'{path}'")
        error.param = path
        error.args = (error.message,)
    return error


def renamed_warnings(warnings: Iterable[str], client_paths: Mapping[str, str]) -> Iterator[str]:
    """Translate the paths in quotation marks."""
    for warning in warnings:
        yield _QUOTED.sub(lambda quoted: f"'{client_path(quoted[1], client_paths)}'", warning)
