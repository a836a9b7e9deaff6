"""
The normalized chunks of a Chat Completions stream.

They have OpenAI's shape, plus raw reasoning in `reasoning_content`, as most servers send it, and fields of our own for
data that has to be sent back to the server. The decoders of all APIs (`app.backends.apis`) return them; that of Chat
Completions converts what servers send differently. Other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from app.core.types import JSONObject

RawChunk: TypeAlias = JSONObject  # as a server sends it

REASONING_CONTENT = "reasoning_content"


class FunctionFragment(TypedDict, total=False):
    """A piece of the function of a tool call."""

    name: str | None
    arguments: str | None


class CallFragment(TypedDict, total=False):
    """A piece of a tool call; none of its fields identifies the call reliably: see `ToolCalls`."""

    index: int | None
    id: str | None
    function: FunctionFragment
    upstream: JSONObject  # other fields that have to be sent back with the call


class StartedItem(TypedDict, total=False):
    """An item that begins, where the API of the server has items."""

    type: str  # `message` or `reasoning`
    phase: str  # of a message


class PassedItem(TypedDict, total=False):
    """What a server says of an item of a tool that only it has; one of `item` and `event` is there."""

    number: int  # of the item in the answer
    item: JSONObject  # the item, when it is added and when it is done
    done: bool  # whether that is its end
    event: JSONObject  # an event about it
    upstream: JSONObject  # fields to send back with it


class ChunkDelta(TypedDict, total=False):
    """What a chunk adds to the message."""

    starts_item: StartedItem  # what follows belongs to a new item
    starts_part: bool  # what follows belongs to a new part of the item

    role: str | None
    content: str | None
    reasoning_content: str | None
    reasoning_field: str  # the field in which the server sent `reasoning_content`
    reasoning_fragments: dict[str, list[object]]  # by the server's field; joined before they are sent back
    reasoning_summary: str | None  # a summary of reasoning, which is no reasoning itself
    reasoning_upstream: dict[str, object]  # other fields that have to be sent back with the reasoning
    refusal: str | None
    passed: PassedItem
    annotations: list[object] | None
    tool_calls: list[CallFragment] | None


class ChunkChoice(TypedDict, total=False):
    """The only choice of a chunk."""

    delta: ChunkDelta
    finish_reason: str | None  # `length`, `content_filter` or `error` if truncated; any other value: complete
    logprobs: object


class CitedSource(TypedDict):
    """A source that the answer cites as a whole."""

    url: str
    title: str


class Chunk(TypedDict, total=False):
    """One chunk of the stream."""

    id: str
    model: str
    choices: list[ChunkChoice]  # at most one
    usage: dict[str, object] | None  # of the answer so far
    service_tier: str | None
    sources: list[CitedSource]  # only those that are new in this chunk


# What a backend yields for `data: [DONE]`, the end of the stream.
DONE: Any = {"object": "done"}


# The path of the text in a chunk, by the name of the field.
TEXT_PATHS: dict[str, tuple[str | int, ...]] = {
    **{name: ("choices", 0, "delta", name) for name in ("content", REASONING_CONTENT, "reasoning")},
    "arguments": ("choices", 0, "delta", "tool_calls", 0, "function", "arguments"),
}


class ChunkRun:
    """
    Chunks that arrived together and differ only in their text: one like them, and the `texts` of all.

    `field` (a key of `TEXT_PATHS`) is the field that contains the text. The chunks have no finish reason and no other
    text.
    """

    __slots__ = ("field", "like", "texts")

    def __init__(self, like: RawChunk, field: str, texts: list[str]) -> None:
        self.like = like
        self.field = field
        self.texts = texts

    def chunks(self) -> Iterator[RawChunk]:
        """Yield each chunk."""
        path = TEXT_PATHS[self.field]
        for text in self.texts:
            yield _with_value(self.like, path, text)


ChunkOrRun: TypeAlias = Chunk | ChunkRun
RawOrRun: TypeAlias = RawChunk | ChunkRun


def _with_value(container: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Return a copy of nested dicts and lists with a new value at a path; only containers on the path are copied."""
    if not path:
        return value
    copy = container.copy()
    copy[path[0]] = _with_value(container[path[0]], path[1:], value)
    return copy
