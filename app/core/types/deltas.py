"""
What a model server can say while it answers, whatever its API.

The decoder of each API (`app.backends.apis`) turns bytes into these types, filters take and return them, and
`AnswerReader` writes them to an `EventBuilder`. A text that arrives in several events at once is one delta with several
texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from typing_extensions import TypedDict

from app.core.types import JSONObject

REASONING_CONTENT = "reasoning_content"  # the field in which most servers send raw reasoning, and expect it back


class FinishReason(StrEnum):
    """Why the model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"


class CitedSource(TypedDict):
    """A source of the whole answer."""

    url: str
    title: str


class FragmentJoiner(Protocol):
    """Joins the fragments of a provider field; a call returns the value to send back."""

    def feed(self, fragments: list[object]) -> None: ...

    def __call__(self) -> object: ...


@dataclass(slots=True)
class TextDelta:
    """Text of a message. `logprobs` are those of its tokens."""

    texts: list[str]
    logprobs: list[JSONObject] | None = None


@dataclass(slots=True)
class ReasoningDelta:
    """
    Raw reasoning, and the field in which the server sent it.

    `fragments` are pieces of a value that must be sent back whole in this field. They are joined by a `joiner`, one for
    each reasoning item.
    """

    texts: list[str]
    field: str = REASONING_CONTENT
    fragments: list[object] | None = None
    joiner: type[FragmentJoiner] | None = None


@dataclass(slots=True)
class ReasoningSummaryDelta:
    """A summary of the reasoning, written by the server."""

    text: str


@dataclass(slots=True)
class RefusalDelta:
    """Text of a refusal."""

    text: str


@dataclass(slots=True)
class ToolCallDelta:
    """
    A piece of a function call. No field identifies the call reliably: see `ToolCalls`.

    `provider_fields` must be sent back with the call.
    """

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)
    provider_fields: JSONObject | None = None


@dataclass(slots=True)
class ItemStarted:
    """A message or reasoning item begins, in an API that has items."""

    type: str  # `message` or `reasoning`
    phase: str | None = None  # of a message


@dataclass(slots=True)
class PartStarted:
    """The second or a later part of the open item begins."""


@dataclass(slots=True)
class AnnotationsAdded:
    """Annotations of the text before."""

    annotations: list[JSONObject]


@dataclass(slots=True)
class SourcesCited:
    """Sources of the whole answer, without a position in the text."""

    sources: list[CitedSource]


@dataclass(slots=True)
class ProviderFields:
    """Fields that must be sent back with the reasoning before them, or with the reasoning that follows."""

    fields: JSONObject


@dataclass(slots=True)
class NativeItem:
    """
    An item of a tool that only the server has, or an event about such an item.

    The first and the last delta of an item have `item`; those between have `event`.
    """

    number: int  # of the item in the answer
    item: JSONObject | None = None
    event: JSONObject | None = None
    done: bool = False
    provider_fields: JSONObject | None = None  # to be sent back with the item


@dataclass(slots=True)
class AnswerMetadata:
    """The server's id and model name for the answer, and its service tier."""

    id: str | None = None
    model: str | None = None
    service_tier: str | None = None


@dataclass(slots=True)
class UsageReported:
    """Token counts of the answer so far, as `chunk_usage` returns them."""

    usage: JSONObject


@dataclass(slots=True)
class Finished:
    """The model has stopped; more deltas may follow."""

    reason: FinishReason


@dataclass(slots=True)
class StreamDone:
    """The server has marked the end of the stream."""


DONE = StreamDone()

Delta: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | ReasoningSummaryDelta
    | RefusalDelta
    | ToolCallDelta
    | ItemStarted
    | PartStarted
    | AnnotationsAdded
    | SourcesCited
    | ProviderFields
    | NativeItem
    | AnswerMetadata
    | UsageReported
    | Finished
    | StreamDone
)
