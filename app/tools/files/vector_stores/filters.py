"""
Filters on file attributes, in OpenAI's format.

    {"type": "and", "filters": [{"type": "eq", "key": "year", "value": 2024}, ...]}

If the attribute is missing, or the two values cannot be ordered, a comparison is false; `ne` and `nin` are true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Value: TypeAlias = str | float | bool
Predicate: TypeAlias = Callable[[Mapping[str, object]], bool]

MAX_FILTERS = 100  # per compound filter


class _Filter(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ComparisonFilter(_Filter):
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: Annotated[str, Field(max_length=64)]
    value: Value | Annotated[list[Value], Field(max_length=1000)]


class CompoundFilter(_Filter):
    type: Literal["and", "or"]
    filters: Annotated[list[AttributeFilter], Field(max_length=MAX_FILTERS)]


def _kind(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return "<compound>" if kind in ("and", "or") else "<comparison>"


AttributeFilter: TypeAlias = Annotated[
    Annotated[ComparisonFilter, Tag("<comparison>")] | Annotated[CompoundFilter, Tag("<compound>")],
    Discriminator(_kind),
]
CompoundFilter.model_rebuild()


def predicate(condition: ComparisonFilter | CompoundFilter) -> Predicate:
    if isinstance(condition, CompoundFilter):
        inner = [predicate(nested) for nested in condition.filters]
        join = all if condition.type == "and" else any
        return lambda attributes: join(matches(attributes) for matches in inner)
    compare, key, value = _COMPARISONS[condition.type], condition.key, condition.value
    return lambda attributes: compare(attributes.get(key), value)


def _equal(left: object, right: object) -> bool:
    # True equals 1 in Python, but not here.
    return isinstance(left, bool) is isinstance(right, bool) and left == right


def _in(attribute: object, values: object) -> bool:
    return any(_equal(attribute, value) for value in (values if isinstance(values, list) else [values]))


def _ordered(compare: Callable[[object, Any], bool]) -> Callable[[object, object], bool]:
    def compare_ordered(left: object, right: object) -> bool:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right))
        texts = isinstance(left, str) and isinstance(right, str)
        return (numbers or texts) and compare(left, right)

    return compare_ordered


_COMPARISONS: dict[str, Callable[[object, object], bool]] = {
    "eq": _equal,
    "ne": lambda left, right: not _equal(left, right),
    "gt": _ordered(lambda left, right: left > right),
    "gte": _ordered(lambda left, right: left >= right),
    "lt": _ordered(lambda left, right: left < right),
    "lte": _ordered(lambda left, right: left <= right),
    "in": _in,
    "nin": lambda left, right: not _in(left, right),
}
