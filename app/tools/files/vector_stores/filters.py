"""
Filters on the attributes of files, as OpenAI has them.

    {"type": "and", "filters": [{"type": "eq", "key": "year", "value": 2024}, ...]}

A comparison with an attribute that a file does not have, or of values that have no order, is false; `ne` and `nin` are
true then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Value: TypeAlias = str | float | bool
Predicate: TypeAlias = Callable[[Mapping[str, Any]], bool]

MAX_FILTERS = 100  # in one compound filter


class _Filter(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ComparisonFilter(_Filter):
    """Compares one attribute with a value."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: Annotated[str, Field(max_length=64)]
    value: Value | Annotated[list[Value], Field(max_length=1000)]


class CompoundFilter(_Filter):
    """Joins filters by `and` or `or`."""

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


def predicate(filter: ComparisonFilter | CompoundFilter) -> Predicate:
    """Return what tells of a file's attributes whether the filter lets them pass."""
    if isinstance(filter, CompoundFilter):
        inner = [predicate(one) for one in filter.filters]
        join = all if filter.type == "and" else any
        return lambda attributes: join(matches(attributes) for matches in inner)
    compare, key, value = _COMPARISONS[filter.type], filter.key, filter.value
    return lambda attributes: compare(attributes.get(key), value)


def _equal(one: object, other: object) -> bool:
    # True is 1 in Python, and not here.
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _in(one: object, values: object) -> bool:
    return any(_equal(one, value) for value in (values if isinstance(values, list) else [values]))


def _ordered(compare: Callable[[object, Any], bool]) -> Callable[[object, object], bool]:
    def both(one: object, other: object) -> bool:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
        texts = isinstance(one, str) and isinstance(other, str)
        return (numbers or texts) and compare(one, other)

    return both


_COMPARISONS: dict[str, Callable[[object, object], bool]] = {
    "eq": _equal,
    "ne": lambda one, other: not _equal(one, other),
    "gt": _ordered(lambda one, other: one > other),
    "gte": _ordered(lambda one, other: one >= other),
    "lt": _ordered(lambda one, other: one < other),
    "lte": _ordered(lambda one, other: one <= other),
    "in": _in,
    "nin": lambda one, other: not _in(one, other),
}
