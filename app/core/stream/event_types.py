"""
How each kind of content appears on the wire.

A new kind is a row here, not a branch somewhere else; calls are rows of `app.core.types.items`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from app.core.types.hosted import HostedFunction
from app.core.types.items import ItemType


class PartType(NamedTuple):
    """One kind of streamed text: a part of a message or of a reasoning item."""

    item: str  # type of the item that holds it
    prefix: str  # of that item's id
    empty: Mapping[str, Any]  # what else the item has when it opens
    type: str  # type of the part
    field: str  # where the part keeps its text
    list: str  # where the item keeps the part
    position: str  # what events call its place in that list
    part_added: str
    delta: str
    done: str
    part_done: str
    told: tuple[str, ...]  # the fields of the part that the `done` event tells
    extra: tuple[str, ...] = ()  # the lists that a part of this kind always has
    delta_fields: Mapping[str, Any] = MappingProxyType({})  # that each delta event has, beside its text


class ToolBinding(NamedTuple):
    """What a function that the backend knows by some name is to the client."""

    kind: ItemType
    fields: Mapping[str, Any]  # of the item: `name`, and `namespace` where the tool has one
    hosted: HostedFunction | None = (
        None  # what is run when it is called; None: it is for the client, or for its approval
    )


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
    told=("text", "logprobs"),
    extra=("annotations", "logprobs"),
    delta_fields={"logprobs": []},
)
_REFUSAL = _TEXT._replace(
    type="refusal",
    field="refusal",
    delta="response.refusal.delta",
    done="response.refusal.done",
    told=("refusal",),
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
    told=("text",),
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
# The spec says `response.reasoning.*`; OpenAI and its SDKs, which throw at what they do not know, have these names.
_OPENAI_REASONING = _REASONING._replace(delta="response.reasoning_text.delta", done="response.reasoning_text.done")

# What is written at once: raw reasoning may be shown in two forms.
TEXT = (_TEXT,)
REFUSAL = (_REFUSAL,)
CONTENT_REASONING = (_REASONING,)
OPENAI_CONTENT_REASONING = (_OPENAI_REASONING,)
SUMMARY_REASONING = (_SUMMARY,)
BOTH_REASONING = (_REASONING, _SUMMARY)
OPENAI_BOTH_REASONING = (_OPENAI_REASONING, _SUMMARY)
