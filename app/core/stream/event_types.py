"""The table of content kinds, and unfinished output: parts and calls. Tool calls are rows in `app.core.items`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from app.core.items import ItemType
from app.core.stream.event_batch import DeltaFields
from app.core.types import JSONMapping, JSONObject
from app.core.types.hosted import HostedFunction
from app.core.types.request import Item


class PartType(NamedTuple):
    item: str
    prefix: str
    empty: JSONMapping  # the item's other fields when added
    type: str
    field: str
    list: str  # the item's field with the parts
    position: str  # the events' field for the index in `list`
    part_added: str
    delta: str
    done: str
    part_done: str
    done_fields: tuple[str, ...]  # part fields in the `done` event
    extra: tuple[str, ...] = ()  # part fields with lists
    delta_fields: JSONMapping = MappingProxyType({})  # the delta events' other fields

    def blank(self) -> JSONObject:
        """The part when it is added."""
        return {"type": self.type, self.field: "", **{name: [] for name in self.extra}}


class ToolBinding(NamedTuple):
    """How the client sees a backend's function call."""

    kind: ItemType
    fields: JSONMapping  # the item's `name` and `namespace`
    # None if the client runs or must approve the call.
    hosted: HostedFunction | None = None


_MESSAGE = ("message", "msg", {"role": "assistant", "content": []})

_TEXT = PartType(
    *_MESSAGE,
    type="output_text",
    field="text",
    list="content",
    position="content_index",
    part_added="response.content_part.added",
    delta="response.output_text.delta",
    done="response.output_text.done",
    part_done="response.content_part.done",
    done_fields=("text", "logprobs"),
    extra=("annotations", "logprobs"),
    delta_fields={"logprobs": []},
)
_REFUSAL = _TEXT._replace(
    type="refusal",
    field="refusal",
    delta="response.refusal.delta",
    done="response.refusal.done",
    done_fields=("refusal",),
    extra=(),
    delta_fields={},
)
_REASONING = _TEXT._replace(
    item="reasoning",
    prefix="rs",
    empty={"summary": [], "content": []},
    type="reasoning_text",
    delta="response.reasoning.delta",
    done="response.reasoning.done",
    done_fields=("text",),
    extra=(),
    delta_fields={},
)
_SUMMARY = _REASONING._replace(
    empty={"summary": []},
    type="summary_text",
    list="summary",
    position="summary_index",
    part_added="response.reasoning_summary_part.added",
    delta="response.reasoning_summary_text.delta",
    done="response.reasoning_summary_text.done",
    part_done="response.reasoning_summary_part.done",
)
# The spec's names are `response.reasoning.*`. OpenAI uses these names, and its SDKs reject unknown ones.
_OPENAI_REASONING = _REASONING._replace(delta="response.reasoning_text.delta", done="response.reasoning_text.done")

TEXT = (_TEXT,)
REFUSAL = (_REFUSAL,)
CONTENT_REASONING = (_REASONING,)
OPENAI_CONTENT_REASONING = (_OPENAI_REASONING,)
SUMMARY_REASONING = (_SUMMARY,)
BOTH_REASONING = (_REASONING, _SUMMARY)
OPENAI_BOTH_REASONING = (_OPENAI_REASONING, _SUMMARY)


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
