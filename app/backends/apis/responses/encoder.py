"""
Encode a model request for Responses API servers: the whole conversation as items, not stored there.

`previous_response_id` and `conversation` refer to state here, so they are not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.backends.apis.responses.items import ResponsesConversation, is_in_namespace, native_name, stays_native
from app.core.profile import Profile, RequestOptions
from app.core.request import (
    APPLIED,
    EMPTY_VALUES,
    EXTRA,
    encoded_request,
    reject_unknown_fields,
    response_format,
    tool_fields,
    warn_dropped_fields,
)
from app.core.request.model_request import EncodedRequest, ModelRequest, TranslationState
from app.core.request.tool_choice import Choice, choose
from app.core.request.tool_items import tool_items_as_functions
from app.core.request.tools import Function, ToolSet, collect_tools
from app.core.types import JSONMapping, JSONObject
from app.errors import InvalidRequest

ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"

_NATIVE_INCLUDES = frozenset(
    {
        "web_search_call.action.sources",
        "web_search_call.results",
        "file_search_call.results",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
    }
)

# Fields that Chat Completions lacks.
_KEPT = frozenset(
    {
        "detail",
        "phase",
        "prompt_cache_breakpoint",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "service_tier",
        "verbosity",
    }
)

_MIN_TOKENS = 16  # for `max_output_tokens`; other client APIs accept less

_SAME = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "max_output_tokens",
    "top_logprobs",
    "service_tier",
    "safety_identifier",
    "user",
    "prompt_cache_key",
    "prompt_cache_retention",
)


_TRANSLATED = {*_SAME, "prompt_cache_options"}


def to_responses(model_request: ModelRequest, profile: Profile) -> EncodedRequest:
    request, items = model_request.request, model_request.items
    options = profile.request
    if isinstance(request.tool_choice, dict):
        options = replace(options, tool_choice=replace(options.tool_choice, allowed="keep"))
    hosted, passes = model_request.hosted, options.passes
    # Tools that run at the server, by position.
    native = {n: {**tool} for n, tool in enumerate(request.tools) if tool["type"] in passes and n not in hosted.served}
    if native:
        hosted = replace(hosted, served=frozenset({*hosted.served, *native}))
    state = TranslationState(model_request, profile, options, hosted)
    if model_request.strict:
        reject_unknown_fields(request, options)
    tools = collect_tools(state, items)
    choice, native_choice = tool_choice(state, tools, {str(tool["type"]) for tool in native.values()})
    read, positions = tool_items_as_functions(items, tools, state.upstream, stays_native(state, items))
    sent = ResponsesConversation(read, state, tools, positions).messages()
    text_format, instruction = response_format(state)
    if choice.request:
        sent.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": choice.request}]})
    instructions = "\n\n".join(filter(None, (request.instructions, instruction)))
    if not sent and not instructions:
        raise InvalidRequest("Nothing to answer. Send `input` or `instructions`.", param="input")
    body: dict[str, object] = {
        **_parameters(state),
        "model": options.model_map.get(model_request.model, model_request.model),
        **({"instructions": instructions} if instructions else {}),
        "input": sent,
        **tool_fields(state, [*declared(choice.functions, options), *native.values()], native_choice),
        **_reasoning(state),
        **_text(state, text_format),
        "include": _include(state, native=bool(native)),
        "store": False,
        "stream": True,
    }
    return encoded_request(state, body, choice)


def _parameters(state: TranslationState) -> dict[str, object]:
    request, options = state.request, state.options
    warn_dropped_fields(state, _KEPT, (name for name in EXTRA if name not in APPLIED and name not in options.forward))
    extra = state.extra
    if not extra and state.given.isdisjoint(_TRANSLATED):
        return {}
    fields = {name: extra.get(name) for name in (*options.extra_params, *options.forward) if name in extra}
    fields |= {name: getattr(request, name) for name in _SAME if name in state.given}
    if cache := request.prompt_cache_options:
        fields["prompt_cache_options"] = cache.model_extra
    if (limit := request.max_output_tokens) is not None and limit < _MIN_TOKENS:
        fields["max_output_tokens"] = _MIN_TOKENS
        state.warnings.add(f"'max_output_tokens' was changed from {limit} to {_MIN_TOKENS}, the API's minimum.")
    if _LOGPROBS in request.include and not request.top_logprobs:
        fields.pop("top_logprobs", None)
    return {name: value for name, value in fields.items() if value not in EMPTY_VALUES}


def _reasoning(state: TranslationState) -> dict[str, object]:
    reasoning, options = state.request.reasoning, state.options
    if reasoning is None:
        return {}
    fields = reasoning.model_dump(exclude_none=True, exclude={"generate_summary"})
    if reasoning.effort and not (mapped := options.effort_map.get(reasoning.effort, reasoning.effort)):
        del fields["effort"]
    elif reasoning.effort:
        fields["effort"] = mapped
    return {"reasoning": fields} if fields else {}


def _text(state: TranslationState, text_format: JSONObject | None) -> dict[str, object]:
    fields: dict[str, object] = {}
    if text_format:
        schema = text_format.get("json_schema")
        fields["format"] = {"type": "json_schema", **schema} if schema else text_format
    if verbosity := state.request.text.verbosity:
        fields["verbosity"] = verbosity
    return {"text": fields} if fields else {}


def _include(state: TranslationState, *, native: bool) -> list[str]:
    request = state.request
    names = [
        ENCRYPTED,
        *(name for name in request.include if name == _LOGPROBS or (native and name in _NATIVE_INCLUDES)),
    ]
    if request.top_logprobs:
        names.append(_LOGPROBS)
    return [*dict.fromkeys(names)]


# Positions in the input differ from the caller's.
RESPONSES_CALLER_FIELDS = {"input": "input", "tools": "tools"}


def declared(functions: Mapping[str, Function], options: RequestOptions) -> list[JSONObject]:
    tools: list[JSONObject] = []
    namespaces: dict[str, JSONObject] = {}
    for name, function in functions.items():
        source, tool = function.source, _declared(name, function, options)
        if source is None or not is_in_namespace(function, options):
            tools.append(tool)
            continue
        assert source.namespace
        if (group := namespaces.get(source.namespace)) is None:
            about = source.about or f"The tools of {source.namespace}."
            group = {"type": "namespace", "name": source.namespace, "description": about, "tools": []}
            namespaces[source.namespace] = group
            tools.append(group)
        group["tools"].append({**tool, "name": source.name})
    return tools


def _declared(name: str, function: Function, options: RequestOptions) -> JSONObject:
    if is_custom(function, options):
        assert function.source
        fields = function.source.tool
        known = {field: value for field in ("description", "format") if (value := fields.get(field))}
        return {"type": "custom", "name": name, **known}
    fields = function.tool["function"]
    strict = {} if options.strict == "drop" else {"strict": fields.get("strict")}
    about = {"description": fields["description"]} if "description" in fields else {}
    if about and function.source and is_in_namespace(function, options):
        about = {"description": function.source.tool.get("description") or ""}  # without the namespace's description
    return {"type": "function", "name": name, **about, "parameters": fields["parameters"], **strict}


def is_custom(function: Function, options: RequestOptions) -> bool:
    source = function.source
    return source is not None and source.tool["type"] == "custom" and "custom" in options.native_tools


def tool_choice(state: TranslationState, tools: ToolSet, native: set[str]) -> tuple[Choice, object]:
    """`native`: types of tools that run at the server."""
    sent: Any = state.request.tool_choice if "tool_choice" in state.given else None
    if isinstance(sent, dict) and sent["type"] in native:
        return Choice(tools.functions, allowed=frozenset()), sent
    if isinstance(sent, dict) and sent["type"] == "allowed_tools":
        if own := [tool for tool in sent["tools"] if tool["type"] in native]:
            return _allowed_tools(sent, state, tools, own)
    elif isinstance(sent, str) and native and not tools.functions:
        return Choice({}, allowed=frozenset()), sent
    choice = choose(sent, tools, state)
    return choice, _native(choice.value, tools, state.options)


def _allowed_tools(
    sent: JSONMapping, state: TranslationState, tools: ToolSet, own: list[JSONObject]
) -> tuple[Choice, object]:
    mode = sent.get("mode") or "auto"
    others = [tool for tool in sent["tools"] if tool not in own]
    names = choose({**sent, "tools": others, "mode": "auto"}, tools, state).allowed if others else frozenset()
    assert names is not None
    if mode == "none":
        return Choice(tools.functions, allowed=frozenset()), "none"
    listed = [_named(name, tools, state.options) for name in sorted(names)]
    return Choice(tools.functions, allowed=names), {"type": "allowed_tools", "mode": mode, "tools": [*listed, *own]}


def _native(value: object, tools: ToolSet, options: RequestOptions) -> object:
    """Convert a Chat Completions `tool_choice`."""
    if value == "any":
        return "required"
    if not isinstance(value, dict):
        return value
    if value["type"] == "function":
        return _named(value["function"]["name"], tools, options)
    inner = value["allowed_tools"]
    named = [_named(tool["function"]["name"], tools, options) for tool in inner["tools"]]
    return {"type": "allowed_tools", "mode": inner["mode"], "tools": named}


def _named(name: str, tools: ToolSet, options: RequestOptions) -> JSONObject:
    function = tools.functions.get(name)
    kind = "custom" if function and is_custom(function, options) else "function"
    return {"type": kind, **native_name(name, function, options)}
