"""
The table of content kinds: their fields and their events.

A new kind is a new row here; tool calls are rows of `app.core.items`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from app.core.items import ItemType
from app.core.types import JSONMapping
from app.core.types.hosted import HostedFunction


class PartType(NamedTuple):
    """One kind of streamed text: a part of a message or of a reasoning item."""

    item: str  # type of the item that contains it
    prefix: str  # of that item's id
    empty: JSONMapping  # other fields of the item when it is added
    type: str  # type of the part
    field: str  # the part's field with its text
    list: str  # the item's list that contains the part
    position: str  # the events' field with its index in that list
    part_added: str
    delta: str
    done: str
    part_done: str
    done_fields: tuple[str, ...]  # the fields of the part that the `done` event repeats
    extra: tuple[str, ...] = ()  # lists that every part of this kind has
    delta_fields: JSONMapping = MappingProxyType({})  # of each delta event, besides its text


class ToolBinding(NamedTuple):
    """How the call of a function that was sent to the backend appears to the client."""

    kind: ItemType
    fields: JSONMapping  # of the item: `name`, and `namespace` where the tool has one
    # The function that the server runs; None for a call that the client runs, or has to approve first.
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
# The spec has `response.reasoning.*`; OpenAI has these names, and its SDKs reject unknown ones.
_OPENAI_REASONING = _REASONING._replace(delta="response.reasoning_text.delta", done="response.reasoning_text.done")

# The parts that a piece of text is written to: raw reasoning may be shown in two forms.
TEXT = (_TEXT,)
REFUSAL = (_REFUSAL,)
CONTENT_REASONING = (_REASONING,)
OPENAI_CONTENT_REASONING = (_OPENAI_REASONING,)
SUMMARY_REASONING = (_SUMMARY,)
BOTH_REASONING = (_REASONING, _SUMMARY)
OPENAI_BOTH_REASONING = (_OPENAI_REASONING, _SUMMARY)
