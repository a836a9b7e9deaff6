"""
Items, parts, responses, usage and events, as plain dicts with the fields that the code reads.

Clients can omit all but `type`. Values not validated by pydantic are `object`, to be checked where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Required, TypeAlias, TypeVar, dataclass_transform

from typing_extensions import TypedDict

from app.errors import ErrorPayload

# Set by this server. These names cannot be written in a class body.
_PdfFields = TypedDict("_PdfFields", {"antiphon:text": str, "antiphon:text_error": str}, total=False)

JSONObject: TypeAlias = dict[str, Any]
JSONMapping: TypeAlias = Mapping[str, Any]


class Part(_PdfFields, total=False):
    type: Required[str]
    text: str
    refusal: str
    annotations: list[Mapping[str, object]]
    logprobs: list[object]
    image_url: str | None
    detail: str | None
    filename: str | None
    file_data: str | None
    file_url: str | None
    file_id: str | None
    input_audio: Mapping[str, str]
    video_url: str
    encrypted_content: object


class Item(TypedDict, total=False):
    """`ITEM_TYPES` (`items.py`) describes each type."""

    type: Required[str]
    id: str  # clients can send null, or omit it
    status: str | None
    role: str
    content: str | list[Part] | None
    summary: list[Part] | None
    encrypted_content: str | None
    call_id: str
    name: str
    namespace: object
    arguments: Any  # JSON text; an object in a `tool_search_call`
    input: str
    output: Any  # text or parts; for other call types, their result
    tools: object
    reasoning: Mapping[str, str | None] | None
    server_label: object
    approval_request_id: object
    approve: object
    reason: object
    error: object
    action: Any
    actions: object
    operation: Any
    queries: object
    results: object
    code: object
    outputs: object
    revised_prompt: object
    result: object
    container_id: object
    hosted: bool  # whether an output was read from a hosted tool's item


class Usage(TypedDict, total=False):
    """{} before any tokens are counted."""

    input_tokens: int
    input_tokens_details: dict[str, int]  # cached_tokens, cache_write_tokens
    output_tokens: int
    output_tokens_details: dict[str, int]  # reasoning_tokens
    total_tokens: int


class Response(TypedDict, total=False):
    id: Required[str]
    object: str
    created_at: int
    completed_at: int | None
    status: str
    background: bool
    conversation: dict[str, str]  # its id
    error: ErrorPayload | None
    incomplete_details: dict[str, str] | None  # the reason
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: Required[list[Item]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt: dict[str, object]
    prompt_cache_key: str | None
    reasoning: Mapping[str, str | None]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: Mapping[str, object]
    tool_choice: object
    tools: list[dict[str, object]]
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: str
    usage: Usage | None
    tool_usage: Mapping[str, object]
    metadata: dict[str, str]


class Event(TypedDict, total=False):
    type: Required[str]
    sequence_number: int
    response: Response
    item: Item
    item_id: str
    output_index: int
    delta: str
    part: Part
    code: str
    message: str
    param: str | None
    error: ErrorPayload
    annotation: dict[str, object]
    logprobs: list[object]


# Read JSON values of unchecked types; a value of another type reads as empty.


def json_object(value: object) -> JSONObject:
    return value if isinstance(value, dict) else {}


def json_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def json_objects(value: object) -> list[JSONObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def json_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def with_fields(item: Item, fields: Mapping[str, object]) -> Item:
    """Valid names depend on the item's type."""
    return {**item, **fields}  # type: ignore[typeddict-item]


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """
    Make a dataclass with slots that only the type checker treats as frozen.

    `dataclass(frozen=True)` makes creation ten times slower.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
