from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from app.backends.apis.messages.conversation import MessagesConversation
from app.core.bounded_json import to_json
from app.core.profile import Profile, RequestOptions
from app.core.request import (
    ResponseFormat,
    encoded_request,
    read_request,
    response_format,
    warn_dropped_fields,
    with_instructions,
)
from app.core.request.caching import THINKING_BLOCKS
from app.core.request.model_request import EncodedRequest, ModelRequest, TranslationState
from app.core.request.roles import Message, system_and_turns
from app.core.request.tool_choice import Choice
from app.core.request.tool_items import VERBATIM
from app.core.stream.stop_sequences import stop_sequences
from app.core.types import JSONMapping, JSONObject, json_list

_JSON = "Answer only with a JSON object. Do not use a code fence."


def to_messages_request(model_request: ModelRequest, profile: Profile) -> EncodedRequest:
    options = _options(profile.request)
    cached = options.cache != "off"
    state, choice, conversation = read_request(model_request, profile, options, MessagesConversation, cached=cached)
    text_format, instruction = _text_format(state)
    system, messages = system_and_turns(with_instructions(state, conversation.messages(), instruction, choice))
    body: JSONObject = {
        **_parameters(state),
        "model": options.model_map.get(model_request.model, model_request.model),
        "max_tokens": state.request.max_output_tokens or options.default_max_tokens,
        **({"system": system} if system else {}),
        "messages": messages,
        "stream": True,
        **_tools(state, choice),
        **({"output_config": {"format": text_format}} if text_format else {}),
    }
    _add_thinking(state, body)
    return encoded_request(state, body, choice)


def _options(options: RequestOptions) -> RequestOptions:
    content = options.content
    return replace(
        options,
        roles=replace(options.roles, system="first_only"),
        content=replace(
            content,
            parts="array",
            tool_content="array",
            tool_images="inline" if content.tool_images == "hoist" else content.tool_images,
            audio="error" if content.audio == "pass" else content.audio,
        ),
        tool_ids="^[A-Za-z0-9_-]{1,64}$" if options.tool_ids == VERBATIM else options.tool_ids,
        tool_choice=replace(options.tool_choice, allowed="filter"),
    )


def _text_format(state: TranslationState) -> ResponseFormat:
    """The server's only format is a schema."""
    form, instruction = response_format(state)
    if form and form["type"] == "json_schema" and state.request.text.format.type == "json_schema":
        schema = form["json_schema"]["schema"]
        return {"type": "json_schema", "schema": _enforceable(schema) if state.options.schema_reduce else schema}, ""
    return None, instruction or (_JSON if form else "")


# Same meaning in both APIs.
_SAME = ("temperature", "top_p")
_UNSENT = ("presence_penalty", "frequency_penalty", "top_logprobs", "seed", "logit_bias")
_TIERS = {"auto": "auto", "default": "standard_only"}


def _parameters(state: TranslationState) -> dict[str, object]:
    request, options = state.request, state.options
    warn_dropped_fields(state, unsent=_UNSENT)
    extra = state.extra
    fields: dict[str, object] = {name: getattr(request, name) for name in _SAME}
    if fields["temperature"] is not None and fields["top_p"] is not None:
        state.warnings.add("This backend supports either temperature or top_p; top_p was ignored.")
        del fields["top_p"]
    # The server rejects blank stop sequences; this server also applies these.
    if stop := [sequence for sequence in stop_sequences(extra) if not sequence.isspace()]:
        fields["stop_sequences"] = stop
    fields |= {name: extra.get(name) for name in options.extra_params}
    if "user" in options.forward and (user := request.safety_identifier or request.user):
        fields["metadata"] = {"user_id": user}
    if "service_tier" in options.forward and "service_tier" in state.given:
        fields["service_tier"] = tier = _TIERS.get(str(request.service_tier))
        if tier is None:
            state.warnings.add(
                "The parameter 'service_tier' has a value that this backend does not support; it was ignored."
            )
    return {name: value for name, value in fields.items() if value is not None}


def _tools(state: TranslationState, choice: Choice) -> dict[str, object]:
    if not choice.functions:
        return {}
    tools = [_tool(function.tool["function"], state.options) for function in choice.functions.values()]
    fields: dict[str, object] = {"tools": tools}
    value = choice.value
    if isinstance(value, dict):
        tool_choice: JSONObject = {"type": "tool", "name": value["function"]["name"]}
    else:
        tool_choice = {"type": "any" if value in ("required", "any") else value or "auto"}
    if not state.request.parallel_tool_calls and tool_choice["type"] != "none":
        tool_choice["disable_parallel_tool_use"] = True
    if value is not None or len(tool_choice) > 1:
        fields["tool_choice"] = tool_choice
    return fields


def _tool(function: JSONObject, options: RequestOptions) -> JSONObject:
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    if description := function.get("description"):
        tool["description"] = description
    if function.get("strict") is True:
        schema = tool["input_schema"]
        tool |= {"strict": True, "input_schema": _enforceable(schema) if options.schema_reduce else schema}
    return tool


MESSAGES_CALLER_FIELDS = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "system": "instructions",
    "thinking": "reasoning.effort",
    "output_config.effort": "reasoning.effort",
    "output_config": "text.format",
    "stop_sequences": "stop",
    "metadata": "safety_identifier",
}


_EFFORTS = {"minimal": "low"}  # others have the same names
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768}
_MIN_BUDGET = 1024  # tokens
_ANSWER_RESERVE = 1024  # tokens for the answer, if `max_tokens` allows it

# Parameters rejected during thinking.
_NOT_WITH_THINKING = ("temperature", "top_p", "top_k")


def _add_thinking(state: TranslationState, body: JSONObject) -> None:
    """
    Translate `reasoning` into Claude's `thinking`: an effort, or for older models a token budget.

    No model thinks when a call is forced.
    """
    reasoning, options = state.request.reasoning, state.options
    if reasoning is None or not (reasoning.effort or reasoning.summary):
        return
    if options.effort == "none":
        state.warnings.add("This backend does not support reasoning effort; reasoning.effort was ignored.")
        return
    requested = reasoning.effort
    effort = options.effort_map.get(requested, _EFFORTS.get(requested, requested)) if requested else None
    if requested and not effort:
        return
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
        return
    by_budget = any(fnmatchcase(str(body["model"]), glob) for glob in options.thinking_budget)
    if effort and not by_budget:
        body["output_config"] = {**body.get("output_config", {}), "effort": effort}
    if "thinking" in body:
        return
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        state.warnings.add("This backend's models do not reason when a tool call is forced.")
        body["thinking"] = {"type": "disabled"}  # some models think by default
        return
    thinking: JSONObject | None = {"type": "adaptive", "display": "summarized"}
    if by_budget:
        thinking = _budget(state, requested or "medium", body)
    if thinking:
        body["thinking"] = thinking
        if named := [name for name in _NOT_WITH_THINKING if body.pop(name, None) is not None]:
            state.warnings.add(f"This backend does not support {', '.join(named)} together with reasoning; ignored.")


def _budget(state: TranslationState, effort: str, body: JSONMapping) -> JSONObject | None:
    """None if `max_tokens` is too small or the turn began without thinking."""
    room = body["max_tokens"] - 1
    if room < _MIN_BUDGET:
        state.warnings.add(f"Reasoning requires 'max_output_tokens' above {_MIN_BUDGET}; reasoning.effort was ignored.")
        return None
    if _began_without_thinking(body["messages"]):
        state.warnings.add(
            "This backend's models cannot start to reason within a turn; this response has no reasoning."
        )
        return None
    budget = min(_BUDGETS[effort], max(_MIN_BUDGET, room - _ANSWER_RESERVE))
    return {"type": "enabled", "budget_tokens": budget}


def _began_without_thinking(messages: Sequence[Message]) -> bool:
    """
    Whether tool results end a turn whose first message has no thinking block.

    Depending on the server, a user message with results and text begins a turn, so both turns are checked.
    """
    without_thinking = False  # the later assistant message
    for message in reversed(messages):
        content: Any = message["content"]
        if message["role"] == "assistant":
            without_thinking = content[0]["type"] not in THINKING_BLOCKS
            continue
        results = [block["type"] == "tool_result" for block in content]
        if not any(results) or (without_thinking and not all(results)):
            break
    return without_thinking


_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_TABLES = ("$defs", "definitions", "properties")  # schemas by name
_CHOICES = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_ENFORCED = ("$ref", "type", "enum", "const", "title", "default", "required")
# Also omitted from descriptions.
_OMITTED = frozenset({"$schema", "$id", "additionalProperties", "description", "examples", "strict"})


def _enforceable(schema: JSONMapping) -> JSONObject:
    """Keywords that Claude's servers enforce; descriptions contain the others."""
    result: JSONObject = {name: schema[name] for name in _ENFORCED if name in schema}
    for name in _TABLES:
        if isinstance(table := schema.get(name), Mapping):
            result[name] = {key: _inner(value) for key, value in table.items()}
    for name, kept in _CHOICES.items():
        if isinstance(choices := schema.get(name), list):
            result[kept] = [_inner(choice) for choice in choices]
    if isinstance(items := schema.get("items"), Mapping):
        result["items"] = _enforceable(items)
    if schema.get("minItems") in (0, 1):
        result["minItems"] = schema["minItems"]
    if schema.get("format") in _FORMATS:
        result["format"] = schema["format"]
    if schema.get("type") == "object" or "object" in json_list(schema.get("type")) or "properties" in schema:
        result["additionalProperties"] = False
    others = {
        name: value for name, value in schema.items() if name not in result and name not in (*_CHOICES, *_OMITTED)
    }
    about = schema.get("description")
    paragraphs = (about if isinstance(about, str) else "", to_json(others) if others else "")
    if description := "\n\n".join(filter(None, paragraphs)):
        result["description"] = description
    return result


def _inner(schema: object) -> object:
    return _enforceable(schema) if isinstance(schema, Mapping) else schema
