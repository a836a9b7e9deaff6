"""
Validates the body of `POST /v1/messages`.

Accepts unknown fields, block types and tool types, for which the reader warns. Optional fields can be null. Source:
anthropic 2.14, `types/beta/message_create_params.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StringConstraints

from app.core.types import JSONObject
from app.core.types.content import NonEmpty, Tagged, Text, by_type, record, text_or, validated_as
from app.core.types.request import Integer, RequestBody

_CACHED = {"cache_control": record("CacheControl", type=str | None, ttl=str | None) | None}
_TEXT = record("Text", type=Literal["text"], text=Text, **_CACHED)
_SOURCES = {
    "base64": record("Base64Source", media_type=NonEmpty, data=str),
    "url": record("URLSource", url=NonEmpty),
    "file": record("FileSource", file_id=NonEmpty),
}
_IMAGE = record("Image", source=Annotated[Any, by_type(_SOURCES)], **_CACHED)
_TEXT_OR_IMAGE = Annotated[Any, by_type({"text": _TEXT, "image": _IMAGE})]
_DOCUMENT_SOURCES = {
    **_SOURCES,
    "text": record("TextSource", data=Text),
    "content": record("ContentSource", content=Annotated[Any, text_or(_TEXT_OR_IMAGE)]),
}
_INNER_BLOCKS = {
    "text": _TEXT,
    "image": _IMAGE,
    "document": record(
        "Document",
        source=Annotated[Any, by_type(_DOCUMENT_SOURCES)],
        title=str | None,
        context=str | None,
        **_CACHED,
    ),
    "search_result": record(
        "SearchResult", source=str, title=str, content=list[Annotated[Any, validated_as(_TEXT)]], **_CACHED
    ),
}
_UNKNOWN = record("Unknown", type=NonEmpty, tool_use_id=str | None)
_CALL = record("Call", id=NonEmpty, name=NonEmpty, input=JSONObject)
_BLOCKS = {
    **_INNER_BLOCKS,
    "thinking": record("Thinking", thinking=Text, signature=str | None),
    "redacted_thinking": record("RedactedThinking", data=str),
    **dict.fromkeys(("tool_use", "server_tool_use", "mcp_tool_use"), _CALL),
    "tool_result": record(
        "ToolResult",
        tool_use_id=NonEmpty,
        content=Annotated[Any, text_or(Annotated[Any, by_type(_INNER_BLOCKS, _UNKNOWN)])] | None,
        is_error=StrictBool | None,
        **_CACHED,
    ),
}
_CONTENT = Annotated[Any, text_or(Annotated[Any, by_type(_BLOCKS, _UNKNOWN)])]
_MESSAGE = record("Message", role=Literal["user", "assistant", "system"], content=_CONTENT)

_TOOL_TYPES = {
    "custom": record(
        "CustomTool",
        type=Literal["custom"] | None,
        name=Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+$")],
        description=Text | None,
        input_schema=JSONObject,
        strict=StrictBool | None,
    ),
    # Predefined, run by the server or the client.
    "other": record(
        "OtherTool",
        type=NonEmpty,
        name=str | None,
        max_uses=Annotated[Integer, Field(ge=1)] | None,
        allowed_domains=list[str] | None,
        blocked_domains=list[str] | None,
        user_location=JSONObject | None,
        mcp_server_name=str | None,
        configs=dict[str, JSONObject] | None,
        default_config=JSONObject | None,
    ),
}


_TOOL = Tagged(
    lambda tool: "<other>" if isinstance(tool, dict) and tool.get("type") not in (None, "custom") else "<custom>",
    _TOOL_TYPES,
)
_TOOL_CHOICE = record(
    "ToolChoice",
    type=Literal["auto", "any", "tool", "none"],
    name=str | None,
    disable_parallel_tool_use=StrictBool | None,
)
_MCP_SERVER = record(
    "MCPServer",
    type=str | None,
    name=NonEmpty,
    url=NonEmpty,
    authorization_token=str | None,
    tool_configuration=JSONObject | None,
)
_THINKING = record(
    "ThinkingMode",
    type=NonEmpty,  # `enabled`, `adaptive`, `disabled` or a newer type
    budget_tokens=Annotated[Integer, Field(ge=0)] | None,
    display=str | None,
)
_OUTPUT_FORMAT = record("OutputFormat", type=Literal["json_schema"], schema=JSONObject)
_EFFORT = Literal["low", "medium", "high", "xhigh", "max"]
_OUTPUT_CONFIG = record("OutputConfig", effort=_EFFORT | None, format=_OUTPUT_FORMAT | None)
_METADATA = record("Metadata", user_id=str | None)


class MessagesRequest(RequestBody):
    model: str | None = None
    messages: Annotated[list[Annotated[Any, validated_as(_MESSAGE)]], Field(min_length=1)]
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None  # required by Anthropic, not by backend models
    system: Annotated[Any, text_or(_TEXT)] | None = None
    tools: list[Annotated[Any, _TOOL]] = Field(default_factory=list)
    tool_choice: Annotated[Any, validated_as(_TOOL_CHOICE)] | None = None
    mcp_servers: list[Annotated[Any, validated_as(_MCP_SERVER)]] = Field(default_factory=list)
    stop_sequences: list[str] = Field(default_factory=list)
    stream: StrictBool = False
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: Integer | None = None
    thinking: Annotated[Any, validated_as(_THINKING)] | None = None
    output_config: Annotated[Any, validated_as(_OUTPUT_CONFIG)] | None = None
    # The earlier form of `output_config.format`.
    output_format: Annotated[Any, validated_as(_OUTPUT_FORMAT)] | None = None
    metadata: Annotated[Any, validated_as(_METADATA)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
