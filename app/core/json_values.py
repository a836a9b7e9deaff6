"""Read JSON values of unchecked types; a value of another type reads as empty."""

from __future__ import annotations

from typing import Any

from app.core.types import JSONObject


def json_object(value: object) -> JSONObject:
    return value if isinstance(value, dict) else {}


def json_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def json_objects(value: object) -> list[JSONObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def json_text(value: object) -> str:
    return value if isinstance(value, str) else ""
