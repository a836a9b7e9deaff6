"""Unfinished output: message parts, reasoning parts, and calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.core.items import ItemType
from app.core.stream.event_batch import DeltaFields
from app.core.stream.event_types import PartType, ToolBinding
from app.core.types import JSONObject
from app.core.types.request import Item


@dataclass(slots=True)
class OpenPart:
    """An unfinished message part or reasoning part."""

    row: PartType
    where: JSONObject  # item_id, output_index, and the part's index: the first fields in each of its events
    delta: DeltaFields = field(init=False)
    pieces: list[str] = field(default_factory=list)  # joined once, at the end
    extra: dict[str, list[Any]] = field(default_factory=dict)  # annotations and logprobs

    def __post_init__(self) -> None:
        self.delta = DeltaFields(self.row.delta, self.where, self.row.delta_fields)

    @property
    def text(self) -> str:
        """The current text. It replaces its pieces, to hold a large text in memory only once."""
        text = "".join(self.pieces)
        self.pieces = [text]
        return text

    def content(self) -> JSONObject:
        extra = {name: [*values] for name, values in self.extra.items()}
        return {"type": self.row.type, self.row.field: self.text, **extra}


@dataclass(slots=True)
class OpenItem:
    """An unfinished message or reasoning item."""

    index: int
    item: Item
    rows: tuple[PartType, ...]
    parts: list[OpenPart] = field(default_factory=list)
    source: str | None = None  # the backend's field with the reasoning text


@dataclass(slots=True)
class OpenNativeItem:
    """An unfinished item from a backend's own tool."""

    index: int
    item: Item


@dataclass(slots=True)
class OpenCall:
    """
    A tool call with incomplete arguments, or a running hosted call.

    `index` is None until the item is added to the output (`ItemType.added_when_complete`).
    """

    index: int | None
    item: Item
    kind: ItemType
    binding: ToolBinding | None = None
    call_id: str = ""  # the backend's id
    delta: DeltaFields | None = None  # for the arguments' delta events, set with the first
    pieces: list[str] = field(default_factory=list)

    @property
    def written(self) -> str:
        """The current argument text, in the item's stored form (see `OpenPart.text`)."""
        text = "".join(self.pieces)
        self.pieces = [text]
        return text


@dataclass(slots=True)
class OpenOutput:
    """The open items of a response, and its next sequence number."""

    sequence_number: int = 0
    open: OpenItem | None = None
    calls: list[OpenCall] = field(default_factory=list)
    running: list[OpenCall] = field(default_factory=list)  # complete hosted calls, and items added by tools
