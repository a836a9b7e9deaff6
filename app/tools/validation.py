from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from app.errors import InvalidRequest, Warnings, did_you_mean, missing_parameter, quote
from app.loading import as_rule, describe

M = TypeVar("M", bound=BaseModel)


def read_table(model: type[M], table: Mapping[str, object]) -> M:
    """Raises `ValueError` with the invalid keys, never their values."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        problems: dict[str, None] = {}
        for detail in error.errors(include_url=False, include_input=False):
            *above, key = path = _path(detail) or [""]
            message = describe(detail)
            if detail["type"] == "extra_forbidden":
                message = f"unknown key.{did_you_mean(str(key), known_keys(model, above))}".rstrip(".")
            problems[f"{'.'.join(map(str, path))}: {message}"] = None
        raise ValueError("; ".join(problems)) from None


def read_declaration(model: type[M], declaration: Mapping[str, object], param_path: str, warnings: Warnings) -> M:
    """
    Raises `InvalidRequest` for the first invalid field.

    `param_path` is the declaration's JSON path, such as `tools[0]`. Unknown fields are reported in `warnings`.
    """
    try:
        read = model.model_validate(dict(declaration))
        for path in _undeclared(read, declaration, param_path):
            warnings.add(f"The parameter {quote(path)} is not supported by this tool and was ignored.")
        return read
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in _path(detail)]
        field = f"{param_path}{''.join(steps)}"
        if detail["type"] == "missing":
            raise missing_parameter(field) from None
        message = as_rule(detail["msg"])
        raise InvalidRequest(f"Invalid '{field}': {message}.", param=field, code="invalid_value") from None


_DIRECT = ("allowed_callers", ["direct"])


def _undeclared(read: BaseModel, declaration: Mapping[str, object], param_path: str) -> Iterator[str]:
    for name, value in declaration.items():
        if name not in type(read).model_fields:
            if name != "type" and value not in (None, [], {}) and (name, value) != _DIRECT:
                yield f"{param_path}.{name}"
        elif isinstance(value, Mapping) and isinstance(inner := getattr(read, name), BaseModel):
            yield from _undeclared(inner, value, f"{param_path}.{name}")


def _path(detail: Mapping[str, Any]) -> list[str | int]:
    """A field's path, without pydantic's tags for union members."""
    path = detail["loc"]
    return [step for step in path if isinstance(step, int) or re.fullmatch(r"[a-z_][\w.-]*", step, re.ASCII)]


def known_keys(model: type[BaseModel], path: Sequence[object]) -> set[str]:
    """Keys of the settings table at a path, such as `["servers", "lab"]`."""
    models = [model]
    for step in path:
        fields = [inner.model_fields[str(step)] for inner in models if str(step) in inner.model_fields]
        if fields:  # otherwise a name from the settings, for example a server's
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return {name for inner in models for name in inner.model_fields}


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
