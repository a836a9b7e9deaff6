"""
The chunks of a Chat Completions answer, as the core reads them.

They are OpenAI's, with raw reasoning in `reasoning_content`, where most servers have it, and with what has to go back
to the server under names of ours. What servers do otherwise is brought into this form at the backend's edge, by
`app.backends.chat.normalize`; fields that are not here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from typing_extensions import TypedDict

RawChunk: TypeAlias = dict[str, Any]  # as a server sends it

REASONING_CONTENT = "reasoning_content"


class FunctionFragment(TypedDict, total=False):
    name: str | None
    arguments: str | None


class CallFragment(TypedDict, total=False):
    """A piece of a tool call. Nothing in it tells reliably which call it is of: see `ToolCalls`."""

    index: int | None
    id: str | None
    function: FunctionFragment
    upstream: dict[str, Any]  # fields that have to go back with the call


class ChunkDelta(TypedDict, total=False):
    role: str | None
    content: str | None
    reasoning_content: str | None
    reasoning_field: str  # the server's own name of `reasoning_content`
    reasoning_fragments: dict[str, list[Any]]  # reasoning that has to go back whole, by the server's name of its field
    reasoning_upstream: dict[str, Any]  # other fields that have to go back with the reasoning
    refusal: str | None
    annotations: list[Any] | None
    tool_calls: list[CallFragment] | None


class ChunkChoice(TypedDict, total=False):
    delta: ChunkDelta
    finish_reason: str | None  # `length`, `content_filter` and `error` cut an answer off; any other word ends it well
    logprobs: Any


class CitedSource(TypedDict):
    """Something that a whole answer cites."""

    url: str
    title: str


class Chunk(TypedDict, total=False):
    id: str
    model: str
    choices: list[ChunkChoice]  # one, or none
    usage: dict[str, Any] | None  # of the answer so far
    service_tier: str | None
    sources: list[CitedSource]  # those that no earlier chunk has


# What a backend yields for `data: [DONE]`: the server said that this was all.
DONE: Any = {"object": "done"}


# Where a chunk has its text, by the name of the field.
TEXT_PATHS: dict[str, tuple[str | int, ...]] = {
    **{name: ("choices", 0, "delta", name) for name in ("content", REASONING_CONTENT, "reasoning")},
    "arguments": ("choices", 0, "delta", "tool_calls", 0, "function", "arguments"),
}


class ChunkRun(dict[str, Any]):
    """
    Chunks that arrived together and differ in their text alone: a chunk like them, with their `texts`.

    Each of the texts is a piece of the same text, which is in the `field` (a name of `TEXT_PATHS`). The chunks say
    nothing else that matters: there is no finish reason, and no other text.
    """

    __slots__ = ("field", "like", "texts")

    def __init__(self, chunk: RawChunk, field: str, texts: list[str]) -> None:
        super().__init__(chunk)
        self.like = chunk
        self.field = field
        self.texts = texts

    def chunks(self) -> Iterator[RawChunk]:
        """Yield the chunks one by one."""
        path = TEXT_PATHS[self.field]
        for text in self.texts:
            yield _with_value(self.like, path, text)


def _with_value(container: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Return a copy of nested dicts and lists with another value at a path; only what is on the path is copied."""
    if not path:
        return value
    copy = container.copy()
    copy[path[0]] = _with_value(container[path[0]], path[1:], value)
    return copy
