"""Dataclasses that are frozen for the type checker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """
    Make a class a dataclass with slots; the type checker refuses assignments to its fields.

    With `dataclass(frozen=True)` they are refused at run time, too, for which an object takes ten times as long to
    make. This is for objects that are made for each request.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
