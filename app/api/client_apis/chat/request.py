"""
Validates fields of `POST /v1/chat/completions` that differ from `/v1/responses`.

Other fields and message content are validated after translation, as `CreateResponse`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StrictBool, StringConstraints, Tag

from app.core.types.content import Text, Tolerant, tag_of
from app.core.types.request import CallId, Effort, Integer, RequestBody


class _FunctionCall(Tolerant):
    name: Annotated[str, StringConstraints(min_length=1)]
    arguments: NotRequired[str | None]


class _CustomCall(Tolerant):
    name: Annotated[str, StringConstraints(min_length=1)]
    input: Text


class _FunctionToolCall(Tolerant):
    id: CallId
    type: NotRequired[Literal["function"] | None]
    function: _FunctionCall


class _CustomToolCall(Tolerant):
    id: CallId
    type: Literal["custom"]
    custom: _CustomCall


_ToolCall = Annotated[
    Annotated[_FunctionToolCall, Tag("<function>")] | Annotated[_CustomToolCall, Tag("<custom>")],
    Discriminator(
        lambda value: "<custom>" if isinstance(value, dict) and value.get("type") == "custom" else "<function>"
    ),
]


class _InputMessage(Tolerant):
    # Other roles have their own message types, but an error lists all roles.
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Any


class _AssistantMessage(Tolerant):
    role: Literal["assistant"]
    content: NotRequired[Any]
    refusal: NotRequired[Text | None]
    tool_calls: NotRequired[list[_ToolCall] | None]
    function_call: NotRequired[_FunctionCall | None]
    reasoning_content: NotRequired[Text | None]


class _ToolMessage(Tolerant):
    role: Literal["tool"]
    tool_call_id: NotRequired[str | None]
    content: Any


class _FunctionMessage(Tolerant):
    role: Literal["function"]
    name: str
    content: Any


def _role(value: object) -> str:
    role = value.get("role") if isinstance(value, dict) else None
    return f"<{role}>" if role in ("assistant", "tool", "function") else "<input>"


_Message = Annotated[
    Annotated[_InputMessage, Tag("<input>")]
    | Annotated[_AssistantMessage, Tag("<assistant>")]
    | Annotated[_ToolMessage, Tag("<tool>")]
    | Annotated[_FunctionMessage, Tag("<function>")],
    Discriminator(_role),
]


class _Function(Tolerant):
    name: str


class _FunctionTool(Tolerant):
    type: Literal["function"]
    function: _Function


class _Custom(Tolerant):
    name: str
    format: NotRequired[dict[str, Any] | None]


class _CustomTool(Tolerant):
    type: Literal["custom"]
    custom: _Custom


class _OtherTool(Tolerant):
    """In the format of `/v1/responses`: a hosted tool, or a function with flat fields."""

    type: Annotated[str, StringConstraints(min_length=1)]


def _tool_type(value: Any) -> str:
    tag = tag_of(value, frozenset({"function", "custom"}))
    is_flat = tag != "<unknown>" and "name" in value and tag.strip("<>") not in value
    return "<unknown>" if is_flat else tag


_Tool = Annotated[
    Annotated[_FunctionTool, Tag("<function>")]
    | Annotated[_CustomTool, Tag("<custom>")]
    | Annotated[_OtherTool, Tag("<unknown>")],
    Discriminator(_tool_type),
]


class _AllowedTools(Tolerant):
    tools: list[dict[str, Any]]


class _NamedChoice(Tolerant):
    type: Annotated[str, StringConstraints(min_length=1)]
    function: NotRequired[_Function | None]
    custom: NotRequired[_Custom | None]
    allowed_tools: NotRequired[_AllowedTools | None]


_ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")] | Annotated[_NamedChoice, Tag("<named>")],
    Discriminator(lambda value: "<named>" if isinstance(value, dict) else "<mode>"),
]
_FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("<mode>")] | Annotated[_Function, Tag("<named>")],
    Discriminator(lambda value: "<named>" if isinstance(value, dict) else "<mode>"),
]


class _ResponseFormat(Tolerant):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NotRequired[dict[str, Any] | None]


class WebSearchOptions(RequestBody):
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: dict[str, Any] | None = None


class _StreamOptions(RequestBody):
    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = None


def _one(value: int) -> int:
    if value != 1:
        raise ValueError(f"must be 1, not {value}")
    return value


_StopSequence = Annotated[str, StringConstraints(min_length=1)]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ChatRequest(RequestBody):
    messages: Annotated[list[_Message], Field(min_length=1)]
    stream: StrictBool = False
    stream_options: _StreamOptions | None = None
    n: Annotated[Integer, AfterValidator(_one)] = 1
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Integer, Field(ge=1)] | None = None
    stop: Annotated[list[_StopSequence], Field(max_length=64), BeforeValidator(_listed)] | None = None
    seed: Integer | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: StrictBool = False
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    response_format: _ResponseFormat | None = None
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: _ToolChoice | None = None
    functions: list[_Function] = Field(default_factory=list)  # earlier form of `tools`
    function_call: _FunctionChoice | None = None  # earlier form of `tool_choice`
    web_search_options: WebSearchOptions | None = None
    modalities: list[str] = Field(default_factory=list)
    store: StrictBool = False
