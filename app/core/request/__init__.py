"""
Translate a validated request and its history into a backend's Chat Completions request.

    chat = to_chat(ModelRequest(request, request.items(), "some-model"), profile)
    chat.body   # {"model": "some-model", "messages": [...], "stream": True, ...}

Unset fields are omitted: many backends reject nulls, empty lists and unknown fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from app.core.items import ITEM_TYPES
from app.core.profile import Profile, RequestOptions, ResponseFormatOptions
from app.core.request.caching import CACHE_FIELDS, is_cached_chat, set_breakpoints
from app.core.request.content import text_content
from app.core.request.messages import ConversationReader
from app.core.request.model_request import EncodedRequest, ModelRequest, TranslationState
from app.core.request.roles import Message, arrange
from app.core.request.tool_choice import Choice, choose
from app.core.request.tool_items import tool_items_as_functions
from app.core.request.tools import collect_tools, functions_in_history
from app.core.types import JSONObject
from app.core.types.request import CreateResponse, JsonSchemaFormat, undeclared_fields
from app.errors import InvalidRequest, did_you_mean, quote


def to_chat(model_request: ModelRequest, profile: Profile) -> EncodedRequest:
    """
    Raises `InvalidRequest` for content that cannot be sent.

    The spec makes tool constraints binding, so `EncodedRequest.allowed` enforces them.
    """
    options = profile.request
    cached = is_cached_chat(model_request, options)
    state, choice, conversation = read_request(model_request, profile, options, ConversationReader, cached=cached)
    text_format, instruction = response_format(state)
    messages = with_instructions(state, conversation.messages(), instruction, choice)
    body = _parameters(state)  # first: `extra_params` can have any name
    body["model"] = options.model_map.get(model_request.model, model_request.model)
    body["messages"] = arrange(messages, options.roles)
    streams = options.force_stream or not (choice.functions and options.force_nonstream_with_tools)
    body["stream"] = streams  # explicit, because some servers stream by default
    if streams and options.stream_usage == "stream_options":
        body["stream_options"] = {"include_usage": True}
    if choice.functions:
        body |= tool_fields(state, [function.tool for function in choice.functions.values()], choice.value)
    if state.request.reasoning:
        body |= _effort(state, state.request.reasoning.effort)
    if text_format:
        body["response_format"] = text_format
    return encoded_request(state, body, choice)


def encoded_request(state: TranslationState, body: dict[str, object], choice: Choice) -> EncodedRequest:
    options = state.options
    if state.cached:
        set_breakpoints(state, body)
    if options.clamp or options.drop_params:
        limit(state, body)
    extra = options.extra_body
    return EncodedRequest(
        body=_patched(body, extra) if extra else body,
        bindings={name: function.binding for name, function in choice.functions.items()},
        allowed=choice.allowed,
        warnings=tuple(state.warnings),
        profile=state.profile,
    )


def read_request(
    model_request: ModelRequest,
    profile: Profile,
    options: RequestOptions,
    form: type[ConversationReader],
    *,
    cached: bool = False,
) -> tuple[TranslationState, Choice, ConversationReader]:
    """
    All encoders' first step; raises `InvalidRequest` for content that cannot be sent.

    `options` are the profile's, adjusted by the API; `form` reads the conversation; `cached`: with prompt cache
    breakpoints.
    """
    state = TranslationState(model_request, profile, options, cached=cached)
    if model_request.strict:
        reject_unknown_fields(state.request, options)
    tools = collect_tools(state, model_request.items)
    items, positions = tool_items_as_functions(model_request.items, tools, state.upstream)
    choice = choose(state.request.tool_choice if "tool_choice" in state.given else None, tools, state)
    if options.tools_for_history and not choice.functions and (declared := functions_in_history(items, tools)):
        choice = Choice(declared, "none" if options.tool_choice.none == "none" else None, frozenset())
    return state, choice, form(items, state, tools, positions)


def with_instructions(
    state: TranslationState, messages: list[Message], text_format: str, choice: Choice
) -> list[Message]:
    """
    Add the instructions as a system message, and for servers that cannot force a call a user message requesting it.

    Raises `InvalidRequest` for a request without instructions and input.
    """
    parts = state.options.content.parts
    if lead := "\n\n".join(filter(None, (state.request.instructions, text_format))):
        messages.insert(0, {"role": "system", "content": text_content(lead, parts)})
    if not messages:
        raise InvalidRequest("Nothing to answer. Send `input` or `instructions`.", param="input")
    if choice.request:
        messages.append({"role": "user", "content": text_content(choice.request, parts)})
    return messages


def tool_fields(state: TranslationState, tools: Sequence[JSONObject], choice: object) -> dict[str, object]:
    request, options = state.request, state.options
    if not tools:
        return {}
    fields: dict[str, object] = {"tools": tools}
    if choice is not None:
        fields["tool_choice"] = choice
    parallel = request.parallel_tool_calls
    if "parallel_tool_calls" in state.given or not parallel:
        if options.parallel_tool_calls == "send" or (options.parallel_tool_calls == "drop_false" and parallel):
            fields["parallel_tool_calls"] = parallel
        elif not parallel:
            state.warnings.add("This backend does not support `parallel_tool_calls: false`.")
    return fields


_SAME = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_TRANSLATED = frozenset({*_SAME, "max_output_tokens", "top_logprobs", "include"})

# Chat Completions parameters, which clients send as extra fields.
EXTRA = ("seed", "stop", "logit_bias")

# Applied by this server (`app.core.stream.stop_sequences`).
APPLIED = frozenset({"stop"})

_MAX_TOKENS = {
    "max_tokens": ("max_tokens",),
    "max_completion_tokens": ("max_completion_tokens",),
    "both": ("max_tokens", "max_completion_tokens"),
}


def _if_set(name: str) -> Callable[[CreateResponse], object]:
    return lambda request: getattr(request, name) if name in request.model_fields_set else None


# Parameters forwarded only if the profile says so.
_FORWARDED: dict[str, Callable[[CreateResponse], object]] = {
    "user": lambda request: request.safety_identifier or request.user,
    "safety_identifier": lambda request: request.safety_identifier or request.user,
    "store": lambda request: False,  # responses are only stored here
    "metadata": lambda request: request.metadata or None,
    "verbosity": lambda request: request.text.verbosity,
    "service_tier": _if_set("service_tier"),
    "prompt_cache_key": _if_set("prompt_cache_key"),
    "prompt_cache_retention": _if_set("prompt_cache_retention"),
    "prompt_cache_options": lambda request: request.prompt_cache_options and request.prompt_cache_options.model_extra,
}

# Parameters for the model server: their values, if not forwarded.
_DROPPED_PARAMETERS: dict[str, Callable[[CreateResponse], object]] = {
    "text.verbosity": lambda request: request.text.verbosity,
    "service_tier": lambda request: None if request.service_tier in ("auto", "default") else request.service_tier,
    "prompt_cache_retention": lambda request: request.prompt_cache_retention,
}

# Fields never reported as dropped: they are sent, or applied by this server.
_SENT = frozenset(
    {
        *("model", "input", "instructions", "previous_response_id", "conversation"),
        *("tools", "tool_choice", "parallel_tool_calls", "max_tool_calls"),
        *("stream", "store", "background", "metadata", "truncation"),
        *("max_output_tokens", "temperature", "top_p"),
    }
)

_WITHOUT_EFFECT = {
    "access_programs": "only OpenAI has these programs",
    "background_options.continuation_id": "background responses start in the order of their requests",
    "betas": "betas are specific to OpenAI",
    "image": "images are sent to the model unchanged",
    "moderation": "this server does not moderate content",
    "multi_agent": "this server does not run other agents",
    "prompt_cache_options.comparison_response_id": "the model server controls its prompt cache",
    "prompt_cache_options.mode": "the model server controls its prompt cache",
    "prompt_cache_options.ttl": "the model server controls its prompt cache",
    "reasoning.context": "the model server decides how much earlier reasoning the model sees",
    "reasoning.mode": "model servers support only reasoning effort",
}

_DROPPED_ITEM_FIELDS = frozenset({"phase", "caller"})
_DROPPED_PART_FIELDS = frozenset({"prompt_cache_breakpoint"})
_DROPPED_FILE_FIELDS = frozenset({"prompt_cache_breakpoint", "detail"})


EMPTY_VALUES: tuple[object, ...] = (None, [], {})

# Ignored without a warning.
IGNORED = frozenset({"client_metadata", "type", "generate", "stream_id"})


FRAMEWORK_EVENTS = "antiphon:events"
COST = "antiphon:cost"  # also the response field's name

INCLUDED = frozenset(
    {
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        FRAMEWORK_EVENTS,
        COST,
        "web_search_call.action.sources",
        *(value for row in ITEM_TYPES.values() for value in row.included.values()),
        # without effect: URLs from callers are always returned
        "computer_call_output.output.image_url",
        "message.input_image.image_url",
    }
)


def known_extra_parameters(options: RequestOptions) -> frozenset[str]:
    return frozenset((*EXTRA, *options.extra_params, *options.forward, *IGNORED))


def reject_unknown_fields(request: CreateResponse, options: RequestOptions) -> None:
    """Raises `InvalidRequest` for the first unknown field."""
    for field in undeclared_fields(request, known_extra_parameters(options)):
        if why := _WITHOUT_EFFECT.get(field.path):
            message = f"Unsupported parameter: {quote(field.path)}: {why}."
            raise InvalidRequest(message, param=field.path, code="unsupported_parameter")
        hint = did_you_mean(field.path.rpartition(".")[2], field.known)
        message = f"Unknown parameter: {quote(field.path)}.{hint}"
        raise InvalidRequest(message, param=field.path, code="unknown_parameter")
    for index, value in enumerate(request.include):
        if value not in INCLUDED:
            message = f"Invalid 'include[{index}]': unknown value {quote(value)}.{did_you_mean(value, INCLUDED)}"
            raise InvalidRequest(message, param=f"include[{index}]", code="invalid_value")


def warn_dropped_fields(
    state: TranslationState, also_sent: frozenset[str] = frozenset(), unsent: Iterable[str] = ()
) -> None:
    """
    Warn once per field that cannot be sent.

    `also_sent` names fields without a counterpart in Chat Completions that are sent, `unsent` fields of Chat
    Completions that are not.
    """
    request = state.request
    in_items = () if isinstance(request.input, str) else (*_dropped_item_fields(request.input or ()),)
    if state.given <= _SENT and not state.extra and not in_items:
        return  # most requests
    also_sent |= CACHE_FIELDS if state.cached else frozenset()
    forwarded = {*state.options.forward, *also_sent}
    also_sent |= request.preferences
    known = known_extra_parameters(state.options) if state.extra else frozenset()
    dropped = {
        field.path: None
        for field in undeclared_fields(request, known)
        if field.value not in EMPTY_VALUES and field.path.partition(".")[0] not in forwarded
    }
    for path, value in _DROPPED_PARAMETERS.items():
        if value(request) and path.rpartition(".")[2] not in forwarded:
            dropped[path] = None
    for name in unsent:
        if getattr(request, name, None) or state.extra.get(name) not in EMPTY_VALUES:
            dropped[name] = None
    dropped |= dict.fromkeys(path for path in in_items if path.rpartition(".")[2] not in also_sent)
    for path in dropped:
        why = _WITHOUT_EFFECT.get(path)
        reason = f"was ignored: {why}" if why else "is not supported by this backend and was ignored"
        state.warnings.add(f"The parameter {quote(path)} {reason}.")
    if unknown := [value for value in request.include if value not in INCLUDED]:
        named = ", ".join(quote(value) for value in unknown[:5])
        state.warnings.add(f"Unknown 'include' values were ignored: {named}.")
    if request.stream_options and request.stream_options.include_obfuscation:
        message = (
            "The parameter 'stream_options.include_obfuscation' was ignored: this server does not obfuscate streams."
        )
        state.warnings.add(message)


def _dropped_item_fields(items: Iterable[Mapping[str, object]]) -> Iterator[str]:
    for item in items:
        if not _DROPPED_ITEM_FIELDS.isdisjoint(item):
            yield from (f"input[].{name}" for name in sorted(_DROPPED_ITEM_FIELDS) if item.get(name))
        for place in ("content", "output"):
            parts = item.get(place)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict):
                    dropped = _DROPPED_FILE_FIELDS if part.get("type") == "input_file" else _DROPPED_PART_FIELDS
                    if not dropped.isdisjoint(part):
                        yield from (f"input[].{place}[].{name}" for name in sorted(dropped) if part.get(name))


def _parameters(state: TranslationState) -> dict[str, object]:
    request, options, extra = state.request, state.options, state.extra
    warn_dropped_fields(state)
    fields: dict[str, object] = {}
    if not state.given.isdisjoint(_TRANSLATED):
        fields |= {name: getattr(request, name) for name in _SAME}
        if (tokens := request.max_output_tokens) is not None:
            fields |= dict.fromkeys(_MAX_TOKENS[options.max_tokens], tokens)
        if request.top_logprobs or "message.output_text.logprobs" in request.include:
            fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or None}
    if extra:
        extra_names = (*EXTRA, *options.extra_params)
        fields |= {name: extra.get(name) for name in extra_names if fields.get(name) is None}
    for name in options.forward:
        fields[name] = _FORWARDED[name](request) if name in _FORWARDED else extra.get(name)
    return {name: value for name, value in fields.items() if value not in EMPTY_VALUES}


# The value (None: not sent), and an instruction for the model.
ResponseFormat: TypeAlias = tuple[JSONObject | None, str]


def response_format(state: TranslationState, options: ResponseFormatOptions | None = None) -> ResponseFormat:
    """
    Translate `text.format` into `response_format`, or a prompt if the backend cannot enforce a schema.

    `options`: the profile's if None.
    """
    if "text" not in state.given or (json_format := state.request.text.format).type == "text":
        return None, ""
    options = options or state.options.response_format
    if not isinstance(json_format, JsonSchemaFormat):
        if (form := _object_form(options)) is None:
            state.warnings.add("This backend does not support JSON output; text.format was ignored.")
        return form, ""
    match options.json_schema:
        case "native":
            return _schema_form(json_format), ""
        case "json_object":  # no warning even without JSON support: the instruction asks for JSON
            return _object_form(options), _schema_prompt(json_format)
        case "prompt":
            return None, _schema_prompt(json_format)
    state.warnings.add("This backend does not support JSON schemas; text.format was ignored.")
    return None, ""


def _schema_form(json_format: JsonSchemaFormat) -> JSONObject:
    schema: dict[str, object] = {"name": json_format.name, "schema": json_format.schema_}
    if json_format.description:
        schema["description"] = json_format.description
    if "strict" in json_format.model_fields_set:
        schema["strict"] = json_format.strict
    return {"type": "json_schema", "json_schema": schema}


def _object_form(options: ResponseFormatOptions) -> dict[str, object] | None:
    if options.json_object == "native":
        return {"type": "json_object"}
    if options.json_object == "json_schema_any":
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": {"type": "object"}}}
    return None


def _schema_prompt(json_format: JsonSchemaFormat) -> str:
    about = f" It is: {json_format.description}" if json_format.description else ""
    schema = json.dumps(json_format.schema_, ensure_ascii=False, separators=(",", ":"))
    return f"Answer only with JSON that conforms to this JSON Schema. Do not use a code fence.{about}\n\n{schema}"


def _effort(state: TranslationState, effort: str | None) -> JSONObject:
    if effort is None:
        return {}
    options = state.options
    mapped = options.effort_map.get(effort, effort)
    if not mapped:
        return {}
    match options.effort:
        case "reasoning_effort":
            return {"reasoning_effort": mapped}
        case "reasoning.effort":
            return {"reasoning": {"effort": mapped}}
        case "thinking.type":
            thinking = {"thinking": {"type": "disabled" if mapped == "none" else "enabled"}}
            # The server's own level, in addition to the switch.
            graded = effort in options.effort_map and mapped != "none"
            return {**thinking, "reasoning_effort": mapped} if graded else thinking
        case "enable_thinking":
            return {"enable_thinking": mapped != "none"}
        case "chat_template_kwargs.enable_thinking":
            sent = state.extra.get("chat_template_kwargs")
            return {
                "chat_template_kwargs": {
                    "enable_thinking": mapped != "none",
                    **(sent if isinstance(sent, dict) else {}),
                }
            }
    state.warnings.add("This backend does not support reasoning effort; reasoning.effort was ignored.")
    return {}


CALLER_FIELDS = {
    **dict.fromkeys((name for names in _MAX_TOKENS.values() for name in names), "max_output_tokens"),
    **dict.fromkeys(
        ("reasoning_effort", "reasoning", "thinking", "enable_thinking", "chat_template_kwargs.enable_thinking"),
        "reasoning.effort",
    ),
    "messages": "input",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "logprobs": "top_logprobs",
    "tools": "tools",
    "tool_choice": "tool_choice",
}


_SERVER_SET_FIELDS = frozenset({"stream", "stream_options", "store"})


def limit(state: TranslationState, body: dict[str, object]) -> None:
    """Clamp numbers to the server's ranges, and drop unsupported parameters."""
    for name, (low, high) in state.options.clamp.items():
        value = body.get(name)
        if isinstance(value, int | float) and not low <= value <= high:
            nearest = min(max(value, low), high)
            body[name] = int(nearest) if isinstance(value, int) and nearest == int(nearest) else nearest
            state.warnings.add(
                f"{name} was changed from {value} to {body[name]}, the closest value that this backend accepts."
            )
    for name in state.options.drop_params:
        if body.pop(name, None) is not None and name not in _SERVER_SET_FIELDS | APPLIED:
            state.warnings.add(f"This backend does not support {quote(name)}; it was ignored.")


def _patched(old: dict[str, object], patch: Mapping[str, object]) -> dict[str, object]:
    """Apply a JSON merge patch (RFC 7396): null removes a field."""
    merged = dict(old)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = _patched(before if isinstance(before, dict) else {}, value)
        else:
            merged[name] = value
    return merged
