"""
The chunks of a Chat Completions answer, as the core reads them.

They are OpenAI's, with raw reasoning in `reasoning_content`, where most servers have it, and with what has to go back
to the server under names of ours. What servers do otherwise is brought into this form at the backend's edge, by
`app.backends.chat.normalize`; fields that are not here are ignored.
"""

from __future__ import annotations

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
