"""
A streamed answer's deltas, shared by all model server APIs.

Decoders (`app.backends.apis`) turn bytes into deltas, filters transform them, and `DeltaReader` writes them to an
`EventBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol, TypeAlias

from typing_extensions import TypedDict

from app.core.types import JSONObject

REASONING_CONTENT = "reasoning_content"  # most servers send raw reasoning in this field, and expect it back


class FinishReason(StrEnum):
    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"


class CitedSource(TypedDict):
    url: str
    title: str


class FragmentJoiner(Protocol):
    """Joins fragments of a provider field; calling it returns the value to send back."""

    def feed(self, fragments: list[object]) -> None: ...

    def __call__(self) -> object: ...


@dataclass(slots=True)
class TextDelta:
    texts: list[str]
    logprobs: list[JSONObject] | None = None


@dataclass(slots=True)
class ReasoningDelta:
    """
    Raw reasoning in the server's `field`.

    Some servers expect the joined `fragments` back. Each reasoning item gets its own `joiner`.
    """

    texts: list[str]
    field: str = REASONING_CONTENT
    fragments: list[object] | None = None
    joiner: type[FragmentJoiner] | None = None


@dataclass(slots=True)
class ReasoningSummaryDelta:
    """A summary written by the server."""

    text: str


@dataclass(slots=True)
class RefusalDelta:
    text: str


@dataclass(slots=True)
class ToolCallDelta:
    """
    A fragment of a function call; for its identification see `ToolCalls`.

    `provider_fields` are sent back to the server together with the call.
    """

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)
    provider_fields: JSONObject | None = None


@dataclass(slots=True)
class ItemStarted:
    """A message or reasoning item starts (in APIs with items)."""

    type: str
    phase: str | None = None


@dataclass(slots=True)
class PartStarted:
    """Another part of the open item starts; the first needs no delta."""


@dataclass(slots=True)
class AnnotationsAdded:
    """Annotations for the preceding text."""

    annotations: list[JSONObject]


@dataclass(slots=True)
class SourcesCited:
    """Sources for the whole answer, without text positions."""

    sources: list[CitedSource]


@dataclass(slots=True)
class ProviderFields:
    """Sent back with the current reasoning item, or with the open message."""

    fields: JSONObject
    item: Literal["reasoning", "message"] = "reasoning"


@dataclass(slots=True)
class NativeItem:
    """
    An item or event of a native tool, run by the server.

    An item's first and last delta carry `item`, all others `event`.
    """

    number: int  # within the answer
    item: JSONObject | None = None
    event: JSONObject | None = None
    done: bool = False
    provider_fields: JSONObject | None = None  # sent back together with the item


@dataclass(slots=True)
class AnswerMetadata:
    id: str | None = None
    model: str | None = None
    service_tier: str | None = None


class TokenCounts(NamedTuple):
    """Counts reported by a backend."""

    prompt: int
    completion: int
    cached: int = 0  # of the prompt
    written: int = 0  # of the prompt, to the cache
    reasoning: int | None = None  # of the completion; None if not reported
    cost: int | None = None  # nano-dollars; None if not reported


@dataclass(slots=True)
class UsageReported:
    usage: TokenCounts  # so far


@dataclass(slots=True)
class Finished:
    """The model has stopped. More deltas can follow."""

    reason: FinishReason
    stop_sequence: str | None = None  # if the server reports it


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

Tap: TypeAlias = Callable[[Sequence[Delta]], None]
