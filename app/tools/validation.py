"""Validation of a tool's table in the settings, and of the declarations in requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from app.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)


def read_table(model: type[M], table: Mapping[str, object]) -> M:
    """Validate a table; raises `ValueError`, which names the invalid keys and never their values."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        problems = map(_table_problem, _details(error))
        raise ValueError("; ".join(dict.fromkeys(problems))) from None


def read_declaration(model: type[M], declaration: Mapping[str, object], place: str) -> M:
    """
    Validate a declaration, or a part of one; raises `InvalidRequest` for its first invalid field.

    `place` is its path in the request, such as `tools[0]`.
    """
    try:
        return model.model_validate(dict(declaration))
    except ValidationError as error:
        detail = _details(error)[0]
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in _path(detail)]
        field = f"{place}{''.join(steps)}"
        code = "missing_required_parameter" if detail["type"] == "missing" else "invalid_value"
        message = detail["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"Invalid '{field}': {message}.", param=field, code=code) from None


def _details(error: ValidationError) -> Sequence[Any]:
    return error.errors(include_url=False, include_context=False, include_input=False)


def _path(detail: Mapping[str, Any]) -> list[str | int]:
    """Return the path of a field, without the names that pydantic adds for the members of a union."""
    path = detail["loc"]
    return [step for step in path if isinstance(step, int) or re.fullmatch(r"[a-z_][\w.-]*", step, re.ASCII)]


def _table_problem(detail: Mapping[str, Any]) -> str:
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    field = ".".join(map(str, _path(detail)))
    return f"{field}: {'unknown key' if detail['type'] == 'extra_forbidden' else message}"
