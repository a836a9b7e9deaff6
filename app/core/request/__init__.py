"""
From a validated request and its history to a Chat Completions request, in one backend's own terms.

    chat = to_chat(request, request.items(), profile, model="qwen3")
    chat.body   # {"model": "qwen3", "messages": [...], "stream": True, ...}

Nothing is sent that was not asked for: nulls, empty lists and unknown fields are what backends choke on most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from app.core.profile import Profile, RequestOptions
from app.core.request.content import label, text_content
from app.core.request.messages import to_messages
from app.core.request.response_format import response_format
from app.core.request.roles import arrange
from app.core.request.tool_choice import Choice, choose
from app.core.request.tool_items import tool_items_as_functions
from app.core.request.tools import ToolSet, collect_tools, of_history
from app.core.stream.event_types import ToolBinding
from app.core.types.hosted import NO_HOSTED_TOOLS, HostedTools
from app.core.types.items import ITEM_TYPES
from app.core.types.request import CreateResponse, Item, undeclared_fields
from app.errors import InvalidRequest, did_you_mean

EMPTY: Mapping[str, dict[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChatTranslation:
    """What to ask of a backend, and what has to be known to read its answer."""

    body: dict[str, Any]  # the Chat Completions request; not to be changed
    calls: Mapping[str, ToolBinding]  # what each function that was sent is to the client, by the backend's name for it
    allowed: frozenset[str] | None  # which of them the model may call; None: any, also one that it was not offered
    warnings: tuple[str, ...]  # what was left out or changed, a sentence each


def to_chat(
    request: CreateResponse,
    items: Sequence[Item],
    profile: Profile,
    *,
    model: str,
    upstream: Mapping[str, dict[str, Any]] = EMPTY,
    hosted: HostedTools = NO_HOSTED_TOOLS,
    later: int = 0,
    strict: bool = False,
) -> ChatTranslation:
    """
    Translate a request.

    `items` is the whole conversation, oldest first, with the request's own input last and references resolved.
    `upstream` holds, by the id of an item, what the backend really said for it (`{"reasoning_content": "..."}`,
    `{"extra_content": {...}}`), and of a compaction item its opened content, `{"summary": "..."}`. An item that is not
    there is taken at its own word. `hosted` are the tools that the server runs itself; the last `later` items are what
    this response has said and done so far.

    Raises `InvalidRequest` for what cannot be asked, with the field at fault; with `strict` also for fields that are
    not known and tools that cannot be offered, which are left out with a warning otherwise. The constraints on tools
    are hard by the spec, so `Chat.allowed` states them whatever the backend is told.
    """
    options = profile.request
    warnings: list[str] = []
    if strict:
        _refuse_unknown(request, options)
    offered = collect_tools(request.tools, items, options, warnings, hosted, strict)
    first = max(0, len(items) - later - (len(request.input) if isinstance(request.input, list) else 1))
    items, places = tool_items_as_functions(items, offered, upstream)
    choice = _choice(request, items, offered, options, warnings)
    format, told = response_format(request.text.format, options.response_format, warnings)
    messages = to_messages(items, profile, offered, upstream, warnings, [place - first for place in places])
    if lead := "\n\n".join(filter(None, (request.instructions, told))):
        messages.insert(0, {"role": "system", "content": text_content(lead, options.content.parts)})
    if not messages:
        raise InvalidRequest("There is nothing to answer: send `input` or `instructions`.", param="input")
    if choice.request:
        messages.append({"role": "user", "content": text_content(choice.request, options.content.parts)})

    body: dict[str, Any] = {
        **_asked(request, options, warnings),  # first: `extra_params` may name anything
        "model": options.model_map.get(model, model),
        "messages": arrange(messages, options.roles),
        **_streaming(options, with_tools=bool(choice.functions)),
        **_tools(request, choice, options, warnings),
        **_effort(request, options, warnings),
    }
    if format:
        body["response_format"] = format
    _limit(body, options, warnings)
    return ChatTranslation(
        body=_patched(body, options.extra_body),
        calls={name: function.callee for name, function in choice.functions.items()},
        allowed=choice.allowed,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _choice(
    request: CreateResponse, items: Sequence[Item], offered: ToolSet, options: RequestOptions, warnings: list[str]
) -> Choice:
    given = request.tool_choice if "tool_choice" in request.model_fields_set else None
    choice = choose(given, offered, options, warnings)
    if options.tools_for_history and not choice.functions and (declared := of_history(items, offered)):
        return Choice(declared, "none" if options.tool_choice.none == "none" else None, frozenset())
    return choice


def _streaming(options: RequestOptions, *, with_tools: bool) -> dict[str, Any]:
    if options.force_nonstream_with_tools and with_tools and not options.force_stream:
        return {"stream": False}  # said aloud: there are servers that stream by default
    if options.stream_usage == "stream_options":
        return {"stream": True, "stream_options": {"include_usage": True}}
    return {"stream": True}


def _tools(request: CreateResponse, choice: Choice, options: RequestOptions, warnings: list[str]) -> dict[str, Any]:
    if not choice.functions:
        return {}
    fields: dict[str, Any] = {"tools": [function.tool for function in choice.functions.values()]}
    if choice.value is not None:
        fields["tool_choice"] = choice.value
    parallel = request.parallel_tool_calls
    if "parallel_tool_calls" in request.model_fields_set or not parallel:
        if options.parallel_tool_calls == "send" or (options.parallel_tool_calls == "drop_false" and parallel):
            fields["parallel_tool_calls"] = parallel
        elif not parallel:
            warnings.append("This backend cannot be told to make one call at a time.")
    return fields


# Parameters that have the same name and meaning in both APIs.
_SAME = ("temperature", "top_p", "presence_penalty", "frequency_penalty")

# Parameters of Chat Completions that the Responses API does not have, as clients put them beside the others.
_BESIDE = ("seed", "stop", "logit_bias")

_MAX_TOKENS = {
    "max_tokens": ("max_tokens",),
    "max_completion_tokens": ("max_completion_tokens",),
    "both": ("max_tokens", "max_completion_tokens"),
}


def _given(name: str) -> Callable[[CreateResponse], Any]:
    return lambda request: getattr(request, name) if name in request.model_fields_set else None


# Parameters that are dealt with here, and only forwarded where the profile says so.
_FORWARDED: dict[str, Callable[[CreateResponse], Any]] = {
    "user": lambda request: request.safety_identifier or request.user,
    "safety_identifier": lambda request: request.safety_identifier or request.user,
    "store": lambda request: False,  # responses are kept here, and nowhere else
    "metadata": lambda request: request.metadata or None,
    "verbosity": lambda request: request.text.verbosity,
    "service_tier": _given("service_tier"),
    "prompt_cache_key": _given("prompt_cache_key"),
}


_NOTHING: tuple[Any, ...] = (None, [], {})

# Parameters that are known nowhere here, and say nothing to a model.
_IDLE = frozenset({"client_metadata", "prompt_cache_retention", "type", "generate", "stream_id"})


FRAMEWORK_EVENTS = "antiphon:events"

# What `include` may add to a response.
_INCLUDED = frozenset(
    {
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        FRAMEWORK_EVENTS,
        "web_search_call.action.sources",
        *(value for row in ITEM_TYPES.values() for value in row.included.values()),
        # What these two would show is shown anyway: nothing is taken out of what callers sent.
        "computer_call_output.output.image_url",
        "message.input_image.image_url",
    }
)


def known_beside(options: RequestOptions) -> frozenset[str]:
    """Return the names of the parameters that are known, but are none of the Responses API."""
    return frozenset((*_BESIDE, *options.extra_params, *options.forward, *_IDLE))


def _refuse_unknown(request: CreateResponse, options: RequestOptions) -> None:
    """Raise `InvalidRequest` for the first field that is not known, with the closest one that is."""
    for path, known in undeclared_fields(request, known_beside(options)):
        name = path.rpartition(".")[2]
        message = f"Unknown parameter: {label(path)}.{did_you_mean(name, known)}"
        raise InvalidRequest(message, param=path, code="unknown_parameter")
    for index, value in enumerate(request.include):
        if value not in _INCLUDED:
            message = f"Of 'include', {label(value)} is not known here.{did_you_mean(value, _INCLUDED)}"
            raise InvalidRequest(message, param=f"include[{index}]", code="invalid_value")


def _asked(request: CreateResponse, options: RequestOptions, warnings: list[str]) -> dict[str, Any]:
    """Return the parameters that the caller gave, under the names of chat."""
    extra = {name: value for name, value in (request.model_extra or {}).items() if value not in _NOTHING}
    beside = (*_BESIDE, *options.extra_params)
    known = known_beside(options)
    warnings += [
        f"The parameter {label(name)} is not known to this backend and was left out."
        for name in extra
        if name not in known
    ]
    if unknown := [value for value in request.include if value not in _INCLUDED]:
        named = ", ".join(label(value) for value in unknown[:5])
        warnings.append(f"Of 'include', this is not known here and was left out: {named}.")
    if request.stream_options and request.stream_options.include_obfuscation:
        warnings.append("The parameter 'stream_options.include_obfuscation' was left out: nothing is obfuscated here.")
    fields = {name: getattr(request, name) for name in _SAME}
    fields |= dict.fromkeys(_MAX_TOKENS[options.max_tokens], request.max_output_tokens)
    fields |= {name: extra.get(name) for name in beside if fields.get(name) is None}
    if request.top_logprobs or "message.output_text.logprobs" in request.include:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or None}
    for name in options.forward:
        fields[name] = _FORWARDED[name](request) if name in _FORWARDED else extra.get(name)
    return {name: value for name, value in fields.items() if value not in _NOTHING}


def _effort(request: CreateResponse, options: RequestOptions, warnings: list[str]) -> dict[str, Any]:
    effort = request.reasoning.effort if request.reasoning else None
    if effort is None:
        return {}
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
            # An effort that the map names is one that the server knows how to grade, beside the switch.
            graded = effort in options.effort_map and mapped != "none"
            return {**thinking, "reasoning_effort": mapped} if graded else thinking
        case "enable_thinking":
            return {"enable_thinking": mapped != "none"}
        case "chat_template_kwargs.enable_thinking":
            given = (request.model_extra or {}).get("chat_template_kwargs")
            return {
                "chat_template_kwargs": {
                    "enable_thinking": mapped != "none",
                    **(given if isinstance(given, dict) else {}),
                }
            }
    warnings.append("This backend's effort cannot be set, so reasoning.effort was left out.")
    return {}


# What fields of chat are to the caller, with all that is inside them.
_ASKED_AS = {
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


def caller_field(field: str) -> str:
    """Return the name by which the caller knows a field of a chat request, or what is nearest to it."""
    return _ASKED_AS.get(field) or _ASKED_AS.get(re.split(r"[.\[]", field, maxsplit=1)[0], field)


_OURS = frozenset({"stream", "stream_options", "store"})  # nobody asked for these


def _limit(body: dict[str, Any], options: RequestOptions, warnings: list[str]) -> None:
    """Bring numbers into the range that the server takes, and drop what it takes not at all."""
    for name, (low, high) in options.clamp.items():
        value = body.get(name)
        if isinstance(value, int | float) and not low <= value <= high:
            body[name] = min(max(value, low), high)
            warnings.append(f"{name} was changed from {value} to {body[name]}, which is as far as this backend goes.")
    for name in options.drop_params:
        if body.pop(name, None) is not None and name not in _OURS:
            warnings.append(f"This backend does not take {label(name)}, so it was left out.")


def _patched(old: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two JSON objects in depth, as RFC 7396 does: null removes."""
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
