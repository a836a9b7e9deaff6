"""What the model is still writing: parts of messages and of reasoning, and calls."""

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
    """A part of a message or of a reasoning item that the model is still writing."""

    row: PartType
    where: JSONObject  # item_id, output_index, and the part's index: the head of each of its events
    delta: DeltaFields = field(init=False)
    pieces: list[str] = field(default_factory=list)  # joined once, at the end
    extra: dict[str, list[Any]] = field(default_factory=dict)  # annotations and logprobs so far

    def __post_init__(self) -> None:
        self.delta = DeltaFields(self.row.delta, self.where, self.row.delta_fields)

    @property
    def text(self) -> str:
        """The text so far; it takes the place of its pieces, so that a large one is in memory once."""
        text = "".join(self.pieces)
        self.pieces = [text]
        return text

    def content(self) -> JSONObject:
        """Return a copy of the part in its current state."""
        extra = {name: [*values] for name, values in self.extra.items()}
        return {"type": self.row.type, self.row.field: self.text, **extra}


@dataclass(slots=True)
class OpenItem:
    """A message or reasoning item that the model is still writing."""

    index: int
    item: Item
    rows: tuple[PartType, ...]
    parts: list[OpenPart] = field(default_factory=list)
    source: str | None = None  # the backend's field that the text of a reasoning item came in


@dataclass(slots=True)
class OpenNativeItem:
    """An unfinished item of a tool that only the backend has."""

    index: int
    item: Item


@dataclass(slots=True)
class OpenCall:
    """
    A tool call whose arguments are incomplete, or a hosted call that has not ended.

    `index` is None until the item is added to the output: see `ItemType.added_when_complete`.
    """

    index: int | None
    item: Item
    kind: ItemType
    binding: ToolBinding | None = None
    call_id: str = ""  # the id that the backend uses
    delta: DeltaFields | None = None  # of its arguments' delta events, from the first on
    pieces: list[str] = field(default_factory=list)

    @property
    def written(self) -> str:
        """The text of the arguments so far, in the form in which the item stores it; see `OpenPart.text`."""
        text = "".join(self.pieces)
        self.pieces = [text]
        return text


@dataclass(slots=True)
class OpenOutput:
    """How far the events of a response are, and what is open in it."""

    sequence_number: int = 0  # of the next event
    open: OpenItem | None = None
    calls: list[OpenCall] = field(default_factory=list)
    running: list[OpenCall] = field(default_factory=list)  # complete hosted calls, and items that tools have added
