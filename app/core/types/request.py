"""
The body of `POST /v1/responses`, with its items and tools.

Clients send items back with nulls and additional fields, so optional fields can be null, and unknown fields, items,
parts and tools are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic.functional_validators import AfterValidator, BeforeValidator

from app.core.bounded_json import JSONTooLarge, check_values
from app.core.redaction import ToolSecrets, without_credentials
from app.core.types import Event as Event
from app.core.types import Item as Item
from app.core.types import JSONObject, with_fields
from app.core.types import Part as Part
from app.core.types import Response as Response
from app.core.types.content import (
    Content,
    ContentPart,
    NonEmpty,
    Tagged,
    Text,
    Unknown,
    by_type,
    record,
    tag_of,
    text_or,
)

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})

FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]

# The spec defines none, low, medium, high and xhigh; OpenAI adds minimal and max.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_TextFormat = by_type(
    {
        "json_schema": record(
            "_SchemaUpdate",
            type=Literal["json_schema"],
            name=FunctionName,
            description=str | None,
            schema=JSONObject,
            strict=StrictBool | None,
        )
    },
    record("_PlainUpdate", type=Literal["text", "json_object"]),
)


def _item(name: str, /, *types: str, **fields: Any) -> dict[str, Any]:
    return dict.fromkeys(types, record(name, **{"type": Literal[types], "id": str | None, **fields}))


_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ITEMS = {
    **_item(
        "MessageItem",
        "message",
        type=Literal["message"] | None,
        role=Literal["user", "assistant", "system", "developer"],
        content=Content | None,
        status=str | None,
        phase=str | None,
    ),
    **_item("FunctionCallItem", "function_call", call_id=NonEmpty, name=NonEmpty, arguments=str, status=str | None),
    **_item("CustomToolCallItem", "custom_tool_call", call_id=NonEmpty, name=NonEmpty, input=Text),
    # Without a call id, the model did not call the tool, or the client does not know the call.
    **_item(
        "FunctionCallOutputItem", *_OUTPUTS, call_id=str | None, output=Content, status=str | None, name=str | None
    ),
    **_item(
        "ReasoningItem",
        "reasoning",
        summary=list[ContentPart] | None,
        content=list[ContentPart] | None,
        encrypted_content=str | None,
    ),
    **_item("ItemReference", "item_reference", type=Literal["item_reference"] | None, id=NonEmpty),
    **_item("CompactionItem", "compaction", encrypted_content=Text),
    # A message between Codex's agents.
    **_item("AgentMessageItem", "agent_message", content=Content | None),
    **_item(
        "ConfigurationUpdateItem",
        "configuration_update",
        reasoning=dict[Literal["effort"], Effort | None] | None,
        text=record("_TextUpdate", format=Annotated[Any, _TextFormat]) | None,
    ),
}


def is_uncalled(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") in _OUTPUTS and item.get("call_id") in (None, "")


def _item_type(value: Any) -> str:
    if isinstance(value, dict) and value.get("type") is None:
        return "<item_reference>" if "role" not in value and "id" in value else "<message>"
    return tag_of(value, _ITEMS.keys())


InputItem = Annotated[Any, Tagged(_item_type, {**_ITEMS, "unknown": Unknown})]
Input = Annotated[Any, text_or(InputItem)]

_TOOLS = {
    "function": record(
        "FunctionTool",
        type=Literal["function"],
        name=FunctionName,
        description=str | None,
        parameters=dict[str, object] | None,
        strict=StrictBool | None,
    ),
    "custom": record(
        "CustomTool",
        type=Literal["custom"],
        name=FunctionName,
        description=str | None,
        format=dict[str, object] | None,
    ),
}
Tool = Annotated[Any, by_type(_TOOLS, Unknown)]

# `{"type": "function", "name": ...}`, or another tool type without a name.
_NamedTool = record("NamedTool", type=NonEmpty, name=str | None)
_AllowedTools = record(
    "AllowedTools",
    type=Literal["allowed_tools"],
    mode=Literal["none", "auto", "required"] | None,
    tools=Annotated[list[_NamedTool], Field(min_length=1, max_length=128)],  # type: ignore[valid-type]
)
ToolChoice = Annotated[
    Any,
    Tagged(
        lambda value: tag_of(value, {"allowed_tools"}) if isinstance(value, dict) else "<mode>",
        {
            "mode": Literal["none", "auto", "required"],
            "allowed_tools": _AllowedTools,
            "unknown": _NamedTool,
        },
    ),
]


# Strict: JSON distinguishes strings, numbers and booleans; but some clients send integers as `20.0`. JSON parsers read
# integers up to the limit exactly.
Integer = Annotated[
    StrictInt,
    Field(le=2**53 - 1),
    BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value),
]


class RequestBody(BaseModel):
    """
    A request body: null fields count as unset; unknown fields are in `model_extra`.

    Each request reads `__pydantic_extra__` and `__pydantic_fields_set__`, which `model_extra` and `model_fields_set`
    return through a call.
    """

    # Errors that quote input would put secrets into tracebacks.
    model_config = ConfigDict(extra="allow", protected_namespaces=(), hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _nulls_are_absent(cls, data: object) -> object:
        if isinstance(data, dict) and None in data.values():
            return {name: value for name, value in data.items() if value is not None}
        return data


class UndeclaredField(NamedTuple):
    path: str  # for example `reasoning.efort`
    value: object
    known: frozenset[str]  # at the same path


_SCALARS = frozenset({str, int, float, bool, type(None)})


def undeclared_fields(
    body: BaseModel, extra_names: frozenset[str] = frozenset(), path: str = ""
) -> Iterator[UndeclaredField]:
    """
    A body's unknown fields, including nested models, but not items and tools.

    `extra_names` lists further known names for the body itself.
    """
    if extra := body.model_extra:
        known = extra_names | {field.alias or name for name, field in type(body).model_fields.items()}
        for name, value in extra.items():
            if name not in known:
                yield UndeclaredField(f"{path}{name}", value, known)
    fields = body.__dict__
    for name in body.model_fields_set:
        value = fields.get(name)
        if type(value) in _SCALARS:
            continue  # most values; `isinstance` with a pydantic class is slow
        if isinstance(value, BaseModel):
            yield from undeclared_fields(value, path=f"{path}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for index, entry in enumerate(value):
                yield from undeclared_fields(entry, path=f"{path}{name}[{index}].")


class JsonSchemaFormat(RequestBody):
    type: Literal["json_schema"]
    name: FunctionName = "response"
    description: str | None = None
    schema_: dict[str, object] = Field(alias="schema")
    strict: StrictBool = False


class PlainFormat(RequestBody):
    type: Literal["text", "json_object"]


TextFormat = Annotated[
    Annotated[JsonSchemaFormat, Tag("<json_schema>")] | Annotated[PlainFormat, Tag("<unknown>")],
    Discriminator(lambda value: tag_of(value, frozenset({"json_schema"}))),
]


class TextOptions(RequestBody):
    format: TextFormat = PlainFormat(type="text")
    verbosity: Literal["low", "medium", "high"] | None = None


PLAIN_TEXT = TextOptions()  # for all requests without `text`


class ReasoningOptions(RequestBody):
    effort: Effort | None = None
    summary: Literal["concise", "detailed", "auto"] | None = None
    generate_summary: Literal["concise", "detailed", "auto"] | None = None  # OpenAI's former name

    @model_validator(mode="after")
    def _by_its_new_name(self) -> ReasoningOptions:
        if self.generate_summary and not self.summary:
            self.summary = self.generate_summary
        return self


class StreamOptions(RequestBody):
    include_obfuscation: StrictBool | None = None


class ContextManagement(RequestBody):
    """Compact the conversation when its prompt exceeds the threshold; from OpenAI's API, not the spec."""

    type: Literal["compaction"]
    compact_threshold: Annotated[Integer, Field(ge=1)] | None = None  # tokens; None: the server's default


class PromptCacheOptions(RequestBody):
    prewarm: StrictBool = False  # only store the input, without calling the model


class BackgroundOptions(RequestBody):
    completion_window: Literal["soonest", "2h", "8h"] = "soonest"


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


WITHOUT_NUL = AfterValidator(_without_nul)  # for ids, names and similar values; NUL is valid in texts
Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64), WITHOUT_NUL],
        Annotated[str, StringConstraints(max_length=512), WITHOUT_NUL],
    ],
    Field(max_length=16),
]
Key = Annotated[str, StringConstraints(max_length=64), WITHOUT_NUL]
Identifier = Annotated[str, StringConstraints(max_length=128), WITHOUT_NUL]  # the spec's limit is 64
Conversation = Annotated[
    str, WITHOUT_NUL, BeforeValidator(lambda value: value.get("id") if isinstance(value, dict) else value)
]


class PromptReference(RequestBody):
    """From OpenAI's API, not the spec."""

    id: Annotated[str, StringConstraints(max_length=128), WITHOUT_NUL]
    version: Annotated[str, StringConstraints(max_length=64), WITHOUT_NUL] | None = None
    variables: dict[str, object] | None = None


class CreateResponse(RequestBody):
    """The spec's `CreateResponseBody`, with fields from OpenAI's API and its clients."""

    model: str | None = None  # checked by `KeyAccess.check_model`
    input: Input | None = None
    previous_response_id: Annotated[str, WITHOUT_NUL] | None = None
    conversation: Conversation | None = None
    include: list[str] = Field(default_factory=list)  # a factory, because pydantic deep-copies other defaults
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    metadata: Metadata = Field(default_factory=dict)
    text: TextOptions = Field(default_factory=lambda: PLAIN_TEXT)
    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[StrictFloat, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[StrictFloat, Field(ge=-2, le=2)] | None = None
    parallel_tool_calls: StrictBool = True
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    background: StrictBool = False
    background_options: BackgroundOptions | None = None
    max_output_tokens: Annotated[Integer, Field(ge=16)] | None = None
    max_tool_calls: Annotated[Integer, Field(ge=1)] | None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: Identifier | None = None
    prompt_cache_key: Key | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    context_management: list[ContextManagement] = Field(default_factory=list)
    instructions: str | None = None
    prompt: PromptReference | None = None
    store: StrictBool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] = "auto"
    top_logprobs: Annotated[Integer, Field(ge=0, le=20)] | None = None
    user: Annotated[str, WITHOUT_NUL] | None = None

    @model_validator(mode="after")
    def _is_bounded_and_redacted(self) -> CreateResponse:
        """Check call arguments, and remove credentials, so that the request can be shown and stored."""
        fields = self.__dict__
        if fields["tools"]:
            self.tools = self.tool_secrets.redact(self.tools)
        if isinstance(fields["input"], list):
            # Arguments are strings, so the body's limit does not count their JSON values.
            arguments = (text for item in fields["input"] if isinstance(text := item.get("arguments"), str))
            try:
                check_values(*arguments)
            except JSONTooLarge as error:
                raise ValueError(f"the call arguments in 'input' contain {error.msg}") from error
            items: list[Any] = [*map(typed, self.tool_secrets.redact_items(fields["input"]))]
            self.input = items
        if isinstance(fields["tool_choice"], dict):
            self.tool_choice = without_credentials(fields["tool_choice"])
        return self

    @cached_property
    def tool_secrets(self) -> ToolSecrets:
        """`restore(tool)` adds a tool's credentials."""
        return ToolSecrets()

    @cached_property
    def body_bytes(self) -> int:
        """Set after parsing; counts towards the quota."""
        return 0

    @cached_property
    def preferences(self) -> frozenset[str]:
        """Fields to drop if unknown to the model server; set by other client APIs."""
        return frozenset()

    def items(self) -> list[Item]:
        sent = self.input
        if isinstance(sent, str):
            content: list[Part] = [{"type": "input_text", "text": sent}]
            return [{"type": "message", "role": "user", "content": content}]
        return cast(list[Item], [*(sent or ())])


def typed(item: Any) -> Item:
    """Clients can omit the type in messages and references."""
    if item.get("type") is not None:
        return item  # type: ignore[no-any-return]
    return with_fields(item, {"type": "message" if "role" in item else "item_reference"})
