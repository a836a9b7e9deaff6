"""Unfinished output: message parts, reasoning parts, and calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.core.items import ItemType
from app.core.stream.event_batch import DeltaFields
from app.core.stream.event_types import PartType, ToolBinding
from app.core.types import JSONObject
from app.core.types.request import Item


class OpenPart(DeltaFields):
    __slots__ = ("extra", "pieces", "row")

    def __init__(self, row: PartType, where: JSONObject) -> None:
        """`where`: item_id, output_index, and the part's index, which are the first fields in each event."""
        super().__init__(row.delta, where, row.delta_fields)
        self.row = row
        self.pieces: list[str] = []
        self.extra: dict[str, list[Any]] = {name: [] for name in row.extra}

    @property
    def text(self) -> str:
        """Replaces its pieces, to hold a large text in memory only once."""
        text = "".join(self.pieces)
        self.pieces = [text]
        return text

    def content(self) -> JSONObject:
        return {"type": self.row.type, self.row.field: self.text, **self.extra}


@dataclass(slots=True)
class OpenItem:
    index: int
    item: Item
    rows: tuple[PartType, ...] = ()
    parts: list[OpenPart] = field(default_factory=list)
    closed: dict[str, list[Any]] = field(default_factory=dict)  # closed parts, by the item's field
    source: str | None = None  # the backend's field with the reasoning text


@dataclass(slots=True)
class OpenCall:
    """A tool call with incomplete arguments, or a running hosted call."""

    index: int | None
    item: Item
    kind: ItemType
    binding: ToolBinding | None = None
    call_id: str = ""  # the backend's id
    delta: DeltaFields | None = None  # set with the first delta
    pieces: list[str] = field(default_factory=list)

    @property
    def written(self) -> str:
        text = "".join(self.pieces)
        self.pieces = [text]
        return text
