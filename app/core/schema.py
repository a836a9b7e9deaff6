"""
The vocabulary of the API: the request at the door, and the items, parts and events that travel.

A request is validated once, by pydantic, into plain dicts; from there on nothing is wrapped again. Clients replay what
they were given, often with nulls and with fields of their own, so every optional field may be null and unknown fields
are kept. Unknown types of items, parts and tools are kept too: what to do with them is decided where they matter.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic.functional_validators import BeforeValidator
from typing_extensions import TypedDict

Item: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, Any]
Event: TypeAlias = dict[str, Any]
Response: TypeAlias = dict[str, Any]

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})

_TOLERANT = ConfigDict(extra="allow")
_MB = 1024 * 1024

Text = Annotated[str, StringConstraints(max_length=10 * _MB)]
CallId = Annotated[str, StringConstraints(min_length=1)]
FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


class TextPart(TypedDict):
    """`input_text`, `output_text`, and their kin: some clients send one where the other belongs."""

    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    text: Text


class RefusalPart(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    refusal: Text


class ImagePart(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    image_url: NotRequired[Annotated[str, StringConstraints(max_length=20 * _MB)] | None]
    file_id: NotRequired[str | None]
    detail: NotRequired[Literal["low", "high", "auto", "original"] | None]


class FilePart(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    filename: NotRequired[str | None]
    file_data: NotRequired[Annotated[str, StringConstraints(max_length=32 * _MB)] | None]
    file_url: NotRequired[str | None]
    file_id: NotRequired[str | None]


class Audio(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    data: str
    format: str


class AudioPart(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    input_audio: Audio


class VideoPart(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    video_url: str


class Unknown(TypedDict):
    """Something of a type that we do not know, an extension (`vendor:type`) or a newer kind."""

    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    id: NotRequired[Annotated[str | None, BeforeValidator(lambda id: id if isinstance(id, str) else None)]]
    call_id: NotRequired[str | None]


def _type_of(value: Any, known: frozenset[str]) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if isinstance(kind, str) and kind in known else "<unknown>"


_PARTS = frozenset(
    [
        "input_text",
        "output_text",
        "text",
        "summary_text",
        "reasoning_text",
        "refusal",
        "input_image",
        "input_file",
        "input_audio",
        "input_video",
    ]
)

# The tags of unions are in angle brackets, so that `at` can leave them out of the names of fields.
ContentPart = Annotated[
    Annotated[TextPart, Tag("<input_text>")]
    | Annotated[TextPart, Tag("<output_text>")]
    | Annotated[TextPart, Tag("<text>")]
    | Annotated[TextPart, Tag("<summary_text>")]
    | Annotated[TextPart, Tag("<reasoning_text>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[ImagePart, Tag("<input_image>")]
    | Annotated[FilePart, Tag("<input_file>")]
    | Annotated[AudioPart, Tag("<input_audio>")]
    | Annotated[VideoPart, Tag("<input_video>")]
    | Annotated[Unknown, Tag("<unknown>")],
    Discriminator(lambda value: _type_of(value, _PARTS)),
]


def _text_or_list(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<list>"


Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[ContentPart], Tag("<list>")], Discriminator(_text_or_list)
]


class MessageItem(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: NotRequired[Literal["message"] | None]
    id: NotRequired[str | None]
    role: Literal["user", "assistant", "system", "developer"]
    content: NotRequired[Content | None]
    status: NotRequired[str | None]
    phase: NotRequired[str | None]


class FunctionCallItem(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["function_call"]
    id: NotRequired[str | None]
    call_id: CallId
    name: Annotated[str, StringConstraints(min_length=1)]
    arguments: str
    status: NotRequired[str | None]


class FunctionCallOutputItem(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["function_call_output", "custom_tool_call_output"]
    id: NotRequired[str | None]
    call_id: CallId
    output: Content
    status: NotRequired[str | None]


class CustomToolCallItem(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["custom_tool_call"]
    id: NotRequired[str | None]
    call_id: CallId
    name: Annotated[str, StringConstraints(min_length=1)]
    input: Text


class ReasoningItem(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["reasoning"]
    id: NotRequired[str | None]
    summary: NotRequired[list[ContentPart] | None]
    content: NotRequired[list[ContentPart] | None]
    encrypted_content: NotRequired[str | None]


class ItemReference(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: NotRequired[Literal["item_reference"] | None]
    id: Annotated[str, StringConstraints(min_length=1)]


class CompactionItem(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["compaction"]
    id: NotRequired[str | None]
    encrypted_content: Text


_ITEMS = frozenset(
    [
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "item_reference",
        "compaction",
    ]
)


def _item_type(value: Any) -> str:
    if isinstance(value, dict) and value.get("type") is None:
        return "<item_reference>" if "role" not in value and "id" in value else "<message>"
    return _type_of(value, _ITEMS)


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionCallOutputItem, Tag("<function_call_output>")]
    | Annotated[CustomToolCallItem, Tag("<custom_tool_call>")]
    | Annotated[FunctionCallOutputItem, Tag("<custom_tool_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ItemReference, Tag("<item_reference>")]
    | Annotated[CompactionItem, Tag("<compaction>")]
    | Annotated[Unknown, Tag("<unknown>")],
    Discriminator(_item_type),
]
Input = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[InputItem], Tag("<list>")], Discriminator(_text_or_list)
]


class FunctionTool(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["function"]
    name: FunctionName
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


class CustomTool(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["custom"]
    name: FunctionName
    description: NotRequired[str | None]
    format: NotRequired[dict[str, Any] | None]


_TOOLS = frozenset(["function", "custom"])

Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[Unknown, Tag("<unknown>")],
    Discriminator(lambda value: _type_of(value, _TOOLS)),
]


class NamedTool(TypedDict):
    """`{"type": "function", "name": ...}`, or another kind of tool by its type alone."""

    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: str
    name: NotRequired[str | None]


class AllowedTools(TypedDict):
    __pydantic_config__ = _TOLERANT  # type: ignore[misc]
    type: Literal["allowed_tools"]
    mode: NotRequired[Literal["none", "auto", "required"] | None]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=128)]


def _choice_type(value: Any) -> str:
    return "<mode>" if not isinstance(value, dict) else _type_of(value, frozenset({"allowed_tools"}))


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[AllowedTools, Tag("<allowed_tools>")]
    | Annotated[NamedTool, Tag("<unknown>")],
    Discriminator(_choice_type),
]


class _Body(BaseModel):
    """A request body: nulls mean what absence means; unknown fields are kept aside in `model_extra`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_absent(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


class JsonSchemaFormat(_Body):
    type: Literal["json_schema"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")] = "response"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = False


class PlainFormat(_Body):
    type: Literal["text", "json_object"]


TextFormat = Annotated[
    Annotated[JsonSchemaFormat, Tag("<json_schema>")] | Annotated[PlainFormat, Tag("<unknown>")],
    Discriminator(lambda value: _type_of(value, frozenset({"json_schema"}))),
]


class TextOptions(_Body):
    format: TextFormat = PlainFormat(type="text")
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(_Body):
    # The spec's efforts are none, low, medium, high and xhigh; OpenAI has minimal and max besides.
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["concise", "detailed", "auto"] | None = None


class StreamOptions(_Body):
    include_obfuscation: bool | None = None


Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]
Key = Annotated[str, StringConstraints(max_length=64)]
# An id, or an object that has it.
Conversation = Annotated[str, BeforeValidator(lambda value: value.get("id") if isinstance(value, dict) else value)]


class CreateResponse(_Body):
    """`CreateResponseBody` of the spec, and what OpenAI's API and its clients have beyond it."""

    model: str | None = None
    input: Input | None = None
    previous_response_id: str | None = None
    conversation: Conversation | None = None
    include: list[str] = Field(default_factory=list)  # pydantic makes deep copies of other defaults
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    metadata: Metadata = Field(default_factory=dict)
    text: TextOptions = Field(default_factory=TextOptions)
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    parallel_tool_calls: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool = False
    max_output_tokens: Annotated[int, Field(ge=16)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: Key | None = None
    prompt_cache_key: Key | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    instructions: str | None = None
    store: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    user: str | None = None

    def items(self) -> list[Item]:
        """Return the input as items: a string is one user message, and every message says that it is one."""
        if self.input is None:
            return []
        if isinstance(self.input, str):
            content = [{"type": "input_text", "text": self.input}]
            return [{"type": "message", "role": "user", "content": content}]
        return [typed(item) for item in self.input]


def typed(item: Any) -> Item:
    """Return an item that says what type it is: messages and references may leave that out."""
    if item.get("type") is not None:
        return item  # type: ignore[no-any-return]
    return {**item, "type": "message" if "role" in item else "item_reference"}


def at(location: tuple[int | str, ...]) -> str:
    """Name the field that pydantic's error location points at: `input[2].content[0].text`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            path += f".{step}" if path else step
    return path
