"""
Reads a Chat Completions request as Responses request fields.

`ChatRequest` validates only fields that differ from `/v1/responses`. Other fields and message content are validated
after translation, as `CreateResponse`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from app.api.client_apis import ClientRequest
from app.api.client_apis.chat.writer import ChatWriter
from app.api.request_body import validate
from app.core.types import JSONMapping, JSONObject, json_objects, json_text
from app.core.types.content import NonEmpty, Tagged, Text, record, tag_of, validated_as
from app.core.types.request import CreateResponse, Effort, Integer, RequestBody
from app.errors import Warnings, quote

# Same name and meaning in both APIs.
_SAME = frozenset(
    {
        "model",
        "metadata",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "parallel_tool_calls",
        "service_tier",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "top_logprobs",
        # Extensions: no other meaning in Chat Completions.
        "max_tool_calls",
        "truncation",
        "reasoning",
    }
)
_NOT_OF_CHAT = frozenset(CreateResponse.model_fields) - _SAME

# Parameters without a Responses counterpart.
_EXTRA = ("stop", "seed", "logit_bias")

# Chat Completions cannot represent their calls.
_WITHOUT_CALLS = frozenset(
    {"apply_patch", "computer", "computer_use", "computer_use_preview", "local_shell", "namespace", "shell"}
)


def read_chat(fields: JSONObject, headers: Mapping[str, str]) -> ClientRequest:
    """Raises `InvalidRequest` with the invalid field."""
    return _Reading(validate(fields, ChatRequest, 0)).request()


def hosted_types(fields: JSONObject) -> set[str]:
    types = {json_text(tool.get("type")) for tool in json_objects(fields.get("tools"))}
    if fields.get("web_search_options") is not None:
        types.add("web_search")
    return types - {"", "function", "custom"}


class _Reading:
    def __init__(self, body: ChatRequest) -> None:
        self._body = body
        self._warnings = Warnings()
        self._client_paths: dict[str, str] = {"text.verbosity": "verbosity"}
        self._items: list[JSONObject] = []
        self._custom: set[str] = set()  # call ids of custom tools
        self._called: dict[str, str] = {}  # call ids of deprecated `function_call`s, by function name

    def request(self) -> ClientRequest:
        body = self._body
        for index, message in enumerate(body.messages):
            self._read_message(f"messages[{index}]", message)
        fields: JSONObject = {**self._parameters(), "input": self._items}
        self._add_tools(fields)
        writer = partial(
            ChatWriter,
            include_usage=bool((body.stream_options or {}).get("include_usage")),
            metadata=(body.model_extra or {}).get("metadata"),
        )
        return ClientRequest(fields, writer, [*self._warnings], self._client_paths)

    def _parameters(self) -> JSONObject:
        body = self._body
        fields: JSONObject = {"stream": body.stream}
        for name, value in (body.model_extra or {}).items():
            if name in _NOT_OF_CHAT:
                self._warnings.add(f"{quote(name)} is not a parameter of Chat Completions and was ignored.")
            else:
                fields[name] = value
        fields |= {name: value for name in _EXTRA if (value := getattr(body, name)) is not None}
        for name in ("max_completion_tokens", "max_tokens"):
            if (limit := getattr(body, name)) is not None and "max_output_tokens" not in fields:
                fields["max_output_tokens"] = limit
                self._client_paths["max_output_tokens"] = name
        if body.reasoning_effort:
            self._client_paths["reasoning.effort"] = "reasoning_effort"
            reasoning = fields.get("reasoning")
            fields["reasoning"] = {
                **(reasoning if isinstance(reasoning, dict) else {}),
                "effort": body.reasoning_effort,
            }
        if body.logprobs:
            fields["include"] = ["message.output_text.logprobs"]
        elif fields.pop("top_logprobs", None):
            self._warnings.add("The parameter 'top_logprobs' was ignored, because 'logprobs' is not true.")
        if any(modality != "text" for modality in body.modalities):
            self._warnings.add("The parameter 'modalities' was ignored: the output is text.")
        if body.store:
            self._warnings.add("The parameter 'store' was ignored: translated chat completions are not stored.")
        if (body.stream_options or {}).get("include_obfuscation"):
            fields["stream_options"] = {"include_obfuscation": True}
        if text := self._text():
            fields["text"] = text
        return fields

    def _text(self) -> JSONObject:
        body = self._body
        text: JSONObject = {"verbosity": body.verbosity} if body.verbosity else {}
        if form := body.response_format:
            text["format"] = {**(form.get("json_schema") or {}), "type": form["type"]}
            self._client_paths["text.format"] = (
                "response_format.json_schema" if "json_schema" in form else "response_format"
            )
        return text

    # Tools.

    def _add_tools(self, fields: JSONObject) -> None:
        body = self._body
        tools: list[JSONObject] = []
        for index, tool in enumerate(body.tools):
            self._add_tool(tools, f"tools[{index}]", tool)
        if body.functions:
            self._warnings.add("Calls of 'functions' are returned as 'tool_calls'; declare them as 'tools'.")
        for index, function in enumerate(body.functions):
            self._add_tool(tools, f"functions[{index}]", {"type": "function", **function})
        if body.web_search_options is not None:
            self._add_tool(tools, "web_search_options", _web_search(body.web_search_options))
        if tools:
            fields["tools"] = tools
        if (choice := self._tool_choice()) is not None:
            fields["tool_choice"] = choice

    def _tool_choice(self) -> Any:
        choice, earlier = self._body.tool_choice, self._body.function_call
        if choice is None and earlier is not None:
            self._client_paths["tool_choice"] = "function_call"
            return {"type": "function", **earlier} if isinstance(earlier, dict) else earlier
        if choice is None or isinstance(choice, str):
            return choice
        if allowed := choice.get("allowed_tools"):
            return {**allowed, "type": "allowed_tools", "tools": [*map(_flat_choice, allowed["tools"])]}
        return _flat_choice(choice)

    def _add_tool(self, tools: list[JSONObject], path: str, tool: Any) -> None:
        type_ = tool["type"]
        if type_ in _WITHOUT_CALLS:
            self._warnings.add(
                f"Chat Completions cannot represent calls of the tool type {quote(type_)}; they were dropped."
            )
            return
        if type_ in ("function", "custom") and type_ in tool:
            path += f".{type_}"
        self._client_paths[f"tools[{len(tools)}]"] = path
        tools.append(_FLAT.get(type_, dict)(tool))

    # Messages.

    def _read_message(self, path: str, message: Any) -> None:
        role = message["role"]
        known = _READ.get(role, _READ["user"])
        for name, value in message.items():
            if name not in known and value not in (None, [], {}, ""):
                self._warnings.add(f"The parameter {quote(f'messages[].{name}')} is not sent and was ignored.")
        if role == "assistant":
            self._read_assistant(path, message)
        elif role == "tool":
            call_id = message.get("tool_call_id") or ""
            kind = "custom_tool_call_output" if call_id in self._custom else "function_call_output"
            self._add_output(path, {"type": kind, "call_id": call_id}, message)
        elif role == "function":
            call_id = self._called.get(message["name"], "")
            self._add_output(path, {"type": "function_call_output", "call_id": call_id}, message)
        else:
            content = _content(message["content"], "input_text")
            self._add({"type": "message", "role": role, "content": content}, path)

    def _read_assistant(self, path: str, message: Any) -> None:
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            content = [{"type": "reasoning_text", "text": reasoning}]
            self._add({"type": "reasoning", "summary": [], "content": content}, path)
        content = _content(message.get("content"), "output_text")
        if refusal := message.get("refusal"):
            if isinstance(content, str) and content:
                content = [{"type": "output_text", "text": content}]
            if not content or isinstance(content, list):  # other content is invalid
                content = [*(content or ()), {"type": "refusal", "refusal": refusal}]
        if content:
            self._add({"type": "message", "role": "assistant", "content": content}, path)
        for index, call in enumerate(message.get("tool_calls") or ()):
            self._add_call(f"{path}.tool_calls[{index}]", call)
        if function := message.get("function_call"):
            call_id = self._called[function["name"]] = f"call_{len(self._items)}"
            self._add(_function_call(call_id, function), f"{path}.function_call")

    def _add_call(self, path: str, call: Any) -> None:
        if call.get("type") == "custom":
            self._custom.add(call["id"])
            custom = call["custom"]
            item = {"type": "custom_tool_call", "call_id": call["id"], "name": custom["name"], "input": custom["input"]}
            self._add(item, f"{path}.custom")
        else:
            self._add(_function_call(call["id"], call["function"]), f"{path}.function")

    def _add_output(self, path: str, item: JSONObject, message: Any) -> None:
        output = _content(message["content"], "input_text")
        self._client_paths[f"input[{len(self._items)}].output"] = f"{path}.content"
        self._client_paths[f"input[{len(self._items)}].call_id"] = f"{path}.tool_call_id"
        self._add({**item, "output": "" if output is None else output}, path)

    def _add(self, item: JSONObject, path: str) -> None:
        self._client_paths[f"input[{len(self._items)}]"] = path
        self._items.append(item)


# By role: fields that are read, or ignored without a warning.
_READ = {
    "user": frozenset({"role", "content"}),
    "assistant": frozenset(
        {"role", "content", "refusal", "tool_calls", "function_call", "reasoning_content", "reasoning", "annotations"}
    ),
    "tool": frozenset({"role", "content", "tool_call_id", "name"}),
    "function": frozenset({"role", "content", "name"}),
}


def _function_call(call_id: str, function: JSONMapping) -> JSONObject:
    arguments = function.get("arguments") or ""
    return {"type": "function_call", "call_id": call_id, "name": function["name"], "arguments": arguments}


def _content(content: Any, text_type: str) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(part, text_type) for part in content]


def _part(part: Any, text_type: str) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") == "text":
        part = {**part, "type": text_type}
    elif part.get("type") == "video_url":  # vLLM
        video = part.get("video_url")
        part = {**part, "type": "input_video", "video_url": video.get("url") if isinstance(video, dict) else video}
    if isinstance(mark := part.get("cache_control"), dict):
        ttl = {"ttl": mark["ttl"]} if mark.get("ttl") else {}
        part = {name: value for name, value in part.items() if name != "cache_control"}
        part["prompt_cache_breakpoint"] = {"mode": "explicit", **ttl}
    return part


def _web_search(options: JSONMapping) -> JSONObject:
    tool: JSONObject = {"type": "web_search"}
    if size := options.get("search_context_size"):
        tool["search_context_size"] = size
    if location := options.get("user_location"):
        nested = location.get("approximate")
        tool["user_location"] = {"type": "approximate", **(nested if isinstance(nested, dict) else location)}
    return tool


def _flat_function(tool: JSONMapping) -> JSONObject:
    """The default is not strict, as in Chat Completions."""
    nested = tool.get("function", tool)
    return {"strict": False, **{name: value for name, value in nested.items() if value is not None}, "type": "function"}


def _flat_custom(tool: JSONMapping) -> JSONObject:
    nested = tool.get("custom", tool)
    flat = {**nested, "type": "custom"}
    form = nested.get("format")
    if isinstance(form, dict) and isinstance(grammar := form.get("grammar"), dict):
        flat["format"] = {"type": "grammar", **grammar}
    return flat


# Other types are declared as for `/v1/responses`.
_FLAT: Mapping[str, Callable[[Any], JSONObject]] = {"function": _flat_function, "custom": _flat_custom}


def _flat_choice(choice: JSONMapping) -> JSONObject:
    nested = choice.get(str(choice.get("type")))
    name = {"name": nested.get("name")} if isinstance(nested, dict) else {}
    return {name_: value for name_, value in choice.items() if value is not nested} | name


_FUNCTION_CALL = record("FunctionCall", name=NonEmpty, arguments=str | None)
_CALL_TYPES = {
    "function": record("FunctionToolCall", id=NonEmpty, type=Literal["function"] | None, function=_FUNCTION_CALL),
    "custom": record("CustomToolCall", id=NonEmpty, custom=record("CustomCall", name=NonEmpty, input=Text)),
}
_CALL = Tagged(
    lambda call: "<custom>" if isinstance(call, dict) and call.get("type") == "custom" else "<function>", _CALL_TYPES
)


_MESSAGES = {
    "assistant": record(
        "AssistantMessage",
        content=Any | None,
        refusal=Text | None,
        tool_calls=list[Annotated[Any, _CALL]] | None,
        function_call=_FUNCTION_CALL | None,
        reasoning_content=Text | None,
    ),
    "tool": record("ToolMessage", tool_call_id=str | None, content=Any),
    "function": record("FunctionMessage", name=str, content=Any),
    "input": record(
        "InputMessage",
        role=Literal["developer", "system", "user", "assistant", "tool", "function"],  # all, for the error
        content=Any,
    ),
}


def _role_tag(message: object) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    return f"<{role}>" if role in ("assistant", "tool", "function") else "<input>"


_FUNCTION = record("Function", name=str)
_CUSTOM = record("Custom", name=str, format=dict[str, Any] | None)
_TOOLS = {
    "function": record("FunctionTool", function=_FUNCTION),
    "custom": record("CustomTool", custom=_CUSTOM),
    # As for `/v1/responses`: a hosted tool, or a function with flat fields.
    "unknown": record("OtherTool", type=NonEmpty),
}


def _tool_tag(tool: Any) -> str:
    tag = tag_of(tool, ("function", "custom"))
    is_flat = tag != "<unknown>" and "name" in tool and tag.strip("<>") not in tool
    return "<unknown>" if is_flat else tag


def _mode_or(mode: Any, named: Any) -> Tagged:
    return Tagged(lambda value: "<named>" if isinstance(value, dict) else "<mode>", {"mode": mode, "named": named})


_NAMED_CHOICE = record(
    "NamedChoice",
    type=NonEmpty,
    function=_FUNCTION | None,
    custom=_CUSTOM | None,
    allowed_tools=record("AllowedTools", tools=list[dict[str, Any]]) | None,
)
_TOOL_CHOICE = _mode_or(Literal["none", "auto", "required"], _NAMED_CHOICE)
_FUNCTION_CHOICE = _mode_or(Literal["none", "auto"], _FUNCTION)
_RESPONSE_FORMAT = record(
    "ResponseFormat", type=Literal["text", "json_object", "json_schema"], json_schema=dict[str, Any] | None
)


_STREAM_OPTIONS = record("StreamOptions", include_usage=StrictBool | None, include_obfuscation=StrictBool | None)
_WEB_SEARCH_OPTIONS = record(
    "WebSearchOptions",
    search_context_size=Literal["low", "medium", "high"] | None,
    user_location=dict[str, Any] | None,
)


_LISTED = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


def _one(value: int) -> int:
    if value != 1:
        raise ValueError(f"must be 1, not {value}")
    return value


class ChatRequest(RequestBody):
    messages: Annotated[list[Annotated[Any, Tagged(_role_tag, _MESSAGES)]], Field(min_length=1)]
    stream: StrictBool = False
    stream_options: Annotated[Any, validated_as(_STREAM_OPTIONS)] | None = None
    n: Annotated[Integer, AfterValidator(_one)] = 1
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Integer, Field(ge=1)] | None = None
    stop: Annotated[list[NonEmpty], Field(max_length=64), _LISTED] | None = None
    seed: Integer | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: StrictBool = False
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    response_format: Annotated[Any, validated_as(_RESPONSE_FORMAT)] | None = None
    tools: list[Annotated[Any, Tagged(_tool_tag, _TOOLS)]] = Field(default_factory=list)
    tool_choice: Annotated[Any, _TOOL_CHOICE] | None = None
    functions: list[Annotated[Any, validated_as(_FUNCTION)]] = Field(default_factory=list)  # earlier form of `tools`
    function_call: Annotated[Any, _FUNCTION_CHOICE] | None = None  # earlier form of `tool_choice`
    web_search_options: Annotated[Any, validated_as(_WEB_SEARCH_OPTIONS)] | None = None
    modalities: list[str] = Field(default_factory=list)
    store: StrictBool = False
