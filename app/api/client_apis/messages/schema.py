"""
Validates the body of `POST /v1/messages`.

Accepts unknown fields, block types and tool types, for which the reader warns. Optional fields can be null. Source:
anthropic 2.14, `types/beta/message_create_params.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictFloat, StringConstraints, Tag

from app.core.types import JSONObject
from app.core.types.content import TEXT_OR_LIST, Text, Tolerant, TypeName, tag_of
from app.core.types.request import Integer

_Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+$")]
_NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class _CacheControl(Tolerant):
    type: NotRequired[str | None]
    ttl: NotRequired[str | None]


class _TextBlock(Tolerant):
    type: Literal["text"]
    text: Text
    cache_control: NotRequired[_CacheControl | None]


_IMAGE_SOURCES = frozenset({"base64", "url", "file"})
_DOCUMENT_SOURCES = _IMAGE_SOURCES | {"text", "content"}


def _tagged(known: frozenset[str]) -> Discriminator:
    """Discriminate by `type`; the error lists the known types."""
    names = ", ".join(f"'{name}'" for name in sorted(known))
    return Discriminator(
        lambda value: tag if (tag := tag_of(value, known)) != "<unknown>" else None,
        custom_error_type="invalid_value",
        custom_error_message=f"must be an object with a 'type' that is one of {names}",
    )


class _Base64Source(Tolerant):
    type: Literal["base64"]
    media_type: _NonEmpty
    data: str


class _URLSource(Tolerant):
    type: Literal["url"]
    url: _NonEmpty


class _FileSource(Tolerant):
    type: Literal["file"]
    file_id: _NonEmpty


class _TextSource(Tolerant):
    type: Literal["text"]
    data: Text


class _ImageBlock(Tolerant):
    type: Literal["image"]
    source: Annotated[
        Annotated[_Base64Source, Tag("<base64>")]
        | Annotated[_URLSource, Tag("<url>")]
        | Annotated[_FileSource, Tag("<file>")],
        _tagged(_IMAGE_SOURCES),
    ]
    cache_control: NotRequired[_CacheControl | None]


class _ContentSource(Tolerant):
    type: Literal["content"]
    content: Annotated[
        Annotated[Text, Tag("<text>")]
        | Annotated[
            list[
                Annotated[
                    Annotated[_TextBlock, Tag("<text>")] | Annotated[_ImageBlock, Tag("<image>")],
                    _tagged(frozenset({"text", "image"})),
                ]
            ],
            Tag("<list>"),
        ],
        TEXT_OR_LIST,
    ]


class _DocumentBlock(Tolerant):
    type: Literal["document"]
    source: Annotated[
        Annotated[_Base64Source, Tag("<base64>")]
        | Annotated[_URLSource, Tag("<url>")]
        | Annotated[_FileSource, Tag("<file>")]
        | Annotated[_TextSource, Tag("<text>")]
        | Annotated[_ContentSource, Tag("<content>")],
        _tagged(_DOCUMENT_SOURCES),
    ]
    title: NotRequired[str | None]
    context: NotRequired[str | None]
    cache_control: NotRequired[_CacheControl | None]


class _SearchResultBlock(Tolerant):
    type: Literal["search_result"]
    source: str
    title: str
    content: list[_TextBlock]
    cache_control: NotRequired[_CacheControl | None]


class _ThinkingBlock(Tolerant):
    type: Literal["thinking"]
    thinking: Text
    signature: NotRequired[str | None]


class _RedactedThinkingBlock(Tolerant):
    type: Literal["redacted_thinking"]
    data: str


class _ToolUseBlock(Tolerant):
    """`tool_use`, `server_tool_use` and `mcp_tool_use`."""

    type: str
    id: _NonEmpty
    name: _NonEmpty
    input: JSONObject


class _UnknownBlock(Tolerant):
    type: TypeName
    tool_use_id: NotRequired[str | None]


_INNER = frozenset({"text", "image", "document", "search_result"})

_InnerBlock = Annotated[
    Annotated[_TextBlock, Tag("<text>")]
    | Annotated[_ImageBlock, Tag("<image>")]
    | Annotated[_DocumentBlock, Tag("<document>")]
    | Annotated[_SearchResultBlock, Tag("<search_result>")]
    | Annotated[_UnknownBlock, Tag("<unknown>")],
    Discriminator(lambda value: tag_of(value, _INNER)),
]


class _ToolResultBlock(Tolerant):
    type: Literal["tool_result"]
    tool_use_id: _NonEmpty
    content: NotRequired[
        Annotated[Annotated[Text, Tag("<text>")] | Annotated[list[_InnerBlock], Tag("<list>")], TEXT_OR_LIST] | None
    ]
    is_error: NotRequired[StrictBool | None]
    cache_control: NotRequired[_CacheControl | None]


_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_BLOCKS = _INNER.union(("thinking", "redacted_thinking", "tool_result", *_CALLS))

_Block = Annotated[
    Annotated[_TextBlock, Tag("<text>")]
    | Annotated[_ImageBlock, Tag("<image>")]
    | Annotated[_DocumentBlock, Tag("<document>")]
    | Annotated[_SearchResultBlock, Tag("<search_result>")]
    | Annotated[_ThinkingBlock, Tag("<thinking>")]
    | Annotated[_RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[_ToolUseBlock, Tag("<tool_use>")]
    | Annotated[_ToolUseBlock, Tag("<server_tool_use>")]
    | Annotated[_ToolUseBlock, Tag("<mcp_tool_use>")]
    | Annotated[_ToolResultBlock, Tag("<tool_result>")]
    | Annotated[_UnknownBlock, Tag("<unknown>")],
    Discriminator(lambda value: tag_of(value, _BLOCKS)),
]
_Blocks = Annotated[Annotated[Text, Tag("<text>")] | Annotated[list[_Block], Tag("<list>")], TEXT_OR_LIST]


class _Message(Tolerant):
    role: Literal["user", "assistant", "system"]
    content: _Blocks


class _CustomTool(Tolerant):
    type: NotRequired[Literal["custom"] | None]
    name: _Name
    description: NotRequired[Text | None]
    input_schema: JSONObject
    strict: NotRequired[StrictBool | None]


class _OtherTool(Tolerant):
    """Predefined, run by the server or the client."""

    type: TypeName
    name: NotRequired[str | None]
    max_uses: NotRequired[Annotated[Integer, Field(ge=1)] | None]
    allowed_domains: NotRequired[list[str] | None]
    blocked_domains: NotRequired[list[str] | None]
    user_location: NotRequired[JSONObject | None]
    mcp_server_name: NotRequired[str | None]
    configs: NotRequired[dict[str, JSONObject] | None]
    default_config: NotRequired[JSONObject | None]


def _tool_type(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return "<custom>" if kind in (None, "custom") else "<other>"


_Tool = Annotated[
    Annotated[_CustomTool, Tag("<custom>")] | Annotated[_OtherTool, Tag("<other>")], Discriminator(_tool_type)
]


class _MCPServer(Tolerant):
    type: NotRequired[str | None]
    name: _NonEmpty
    url: _NonEmpty
    authorization_token: NotRequired[str | None]
    tool_configuration: NotRequired[JSONObject | None]


class _ToolChoice(Tolerant):
    type: Literal["auto", "any", "tool", "none"]
    name: NotRequired[str | None]
    disable_parallel_tool_use: NotRequired[StrictBool | None]


class _Thinking(Tolerant):
    type: _NonEmpty  # `enabled`, `adaptive`, `disabled` or a newer type
    budget_tokens: NotRequired[Annotated[Integer, Field(ge=0)] | None]
    display: NotRequired[str | None]


class _OutputFormat(Tolerant):
    type: Literal["json_schema"]
    schema: JSONObject


class _OutputConfig(Tolerant):
    effort: NotRequired[Literal["low", "medium", "high", "xhigh", "max"] | None]
    format: NotRequired[_OutputFormat | None]


class _Metadata(Tolerant):
    user_id: NotRequired[str | None]


_System = Annotated[Annotated[Text, Tag("<text>")] | Annotated[list[_TextBlock], Tag("<list>")], TEXT_OR_LIST]


class MessagesRequest(BaseModel):
    """Without null fields; unknown fields are in `model_extra`."""

    # Errors that quote input would put secrets into tracebacks.
    model_config = ConfigDict(extra="allow", protected_namespaces=(), hide_input_in_errors=True)

    model: str | None = None
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None  # required by Anthropic, not by backend models
    system: _System | None = None
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: _ToolChoice | None = None
    mcp_servers: list[_MCPServer] = Field(default_factory=list)
    stop_sequences: list[str] = Field(default_factory=list)
    stream: StrictBool = False
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: Integer | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: _OutputFormat | None = None  # the earlier form of `output_config.format`
    metadata: _Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
