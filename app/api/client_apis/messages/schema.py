"""
Validates the body of `POST /v1/messages`.

Accepts unknown fields, block types and tool types, for which the reader warns. Optional fields can be null. Source:
anthropic 2.14, `types/beta/message_create_params.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StringConstraints

from app.core.types import JSONObject
from app.core.types.content import Tagged, Text, Tolerant, TypeName, by_type, text_or
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


_SOURCES = {"base64": _Base64Source, "url": _URLSource, "file": _FileSource}


class _ImageBlock(Tolerant):
    type: Literal["image"]
    source: Annotated[Any, by_type(_SOURCES)]
    cache_control: NotRequired[_CacheControl | None]


class _ContentSource(Tolerant):
    type: Literal["content"]
    content: Annotated[Any, text_or(Annotated[Any, by_type({"text": _TextBlock, "image": _ImageBlock})])]


class _DocumentBlock(Tolerant):
    type: Literal["document"]
    source: Annotated[Any, by_type({**_SOURCES, "text": _TextSource, "content": _ContentSource})]
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


_INNER = {"text": _TextBlock, "image": _ImageBlock, "document": _DocumentBlock, "search_result": _SearchResultBlock}
_InnerBlock = Annotated[Any, by_type(_INNER, _UnknownBlock)]


class _ToolResultBlock(Tolerant):
    type: Literal["tool_result"]
    tool_use_id: _NonEmpty
    content: NotRequired[Annotated[Any, text_or(_InnerBlock)] | None]
    is_error: NotRequired[StrictBool | None]
    cache_control: NotRequired[_CacheControl | None]


_BLOCKS = {
    **_INNER,
    "thinking": _ThinkingBlock,
    "redacted_thinking": _RedactedThinkingBlock,
    "tool_result": _ToolResultBlock,
    **dict.fromkeys(("tool_use", "server_tool_use", "mcp_tool_use"), _ToolUseBlock),
}


class _Message(Tolerant):
    role: Literal["user", "assistant", "system"]
    content: Annotated[Any, text_or(Annotated[Any, by_type(_BLOCKS, _UnknownBlock)])]


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


_Tool = Annotated[
    Any,
    Tagged(
        lambda value: (
            "<other>" if isinstance(value, dict) and value.get("type") not in (None, "custom") else "<custom>"
        ),
        {"custom": _CustomTool, "other": _OtherTool},
    ),
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


class MessagesRequest(BaseModel):
    """Without null fields; unknown fields are in `model_extra`."""

    # Errors that quote input would put secrets into tracebacks.
    model_config = ConfigDict(extra="allow", protected_namespaces=(), hide_input_in_errors=True)

    model: str | None = None
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None  # required by Anthropic, not by backend models
    system: Annotated[Any, text_or(_TextBlock)] | None = None
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
