"""Translate a model request into a Gemini request: https://ai.google.dev/api/generate-content"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from pydantic.alias_generators import to_camel

from app.backends.apis.gemini.conversation import GeminiConversation, as_content, unwrapped
from app.core.profile import Profile, RequestOptions
from app.core.request import (
    EMPTY_VALUES,
    EXTRA,
    encoded_request,
    limit,
    read_request,
    response_format,
    warn_dropped_fields,
    with_instructions,
)
from app.core.request.model_request import EncodedRequest, ModelRequest, TranslationState
from app.core.request.roles import system_and_turns
from app.core.request.tool_choice import Choice
from app.core.types import JSONMapping, JSONObject


def to_gemini(model_request: ModelRequest, profile: Profile) -> EncodedRequest:
    model = profile.request.model_map.get(model_request.model, model_request.model).removeprefix("models/")
    options = _options(profile.request, model)
    state, choice, conversation = read_request(model_request, profile, options, GeminiConversation)
    response, instruction = _response_format(state, by_prompt=bool(choice.functions) and _takes_budget(model, options))
    system, turns = system_and_turns(with_instructions(state, conversation.messages(), instruction, choice))
    thinking = thinking_config(state, model)
    config = {**_sampling(state), **response, **({"thinkingConfig": thinking} if thinking else {})}
    body: dict[str, object] = {
        "model": model,
        "contents": [as_content(turn) for turn in turns],
        **({"systemInstruction": {"parts": unwrapped(system)}} if system else {}),
        **_tools(state, choice),
        **({"generationConfig": config} if config else {}),
        **_forwarded(state),
    }
    return encoded_request(state, body, choice)


def _options(options: RequestOptions, model: str) -> RequestOptions:
    """Set options to the only value that the API or model allows."""
    content, choice = options.content, options.tool_choice
    earlier = _takes_budget(model, options)
    # Gemini 3 and later accept media within function responses, and require signatures.
    images = "inline" if content.tool_images == "hoist" and not earlier else content.tool_images
    return replace(
        options,
        roles=replace(options.roles, system="first_only"),
        content=replace(content, parts="array", tool_content="array", tool_images=images),
        tool_choice=replace(choice, allowed="keep"),
        strict="drop",
        reasoning_replay=options.reasoning_replay or "always",
        reasoning_placeholder=None if earlier else options.reasoning_placeholder,
    )


def _response_format(state: TranslationState, *, by_prompt: bool) -> tuple[JSONObject, str]:
    """`by_prompt`: models before Gemini 3 reject a format together with functions."""
    options = state.options.response_format
    if by_prompt:
        options = replace(options, json_schema="prompt", json_object="drop")
    form, instruction = response_format(state, options)
    if form is None:
        return {}, instruction
    fields: JSONObject = {"responseMimeType": "application/json"}
    if form["type"] == "json_schema":
        fields["responseJsonSchema"] = form["json_schema"]["schema"]
    return fields, instruction


# Others have their own name in camel case.
_NAMES = {"stop": "stopSequences", "top_logprobs": "logprobs", "logprobs": "responseLogprobs"}
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "max_output_tokens")
_UNSENT = frozenset({"logit_bias"})
_STOPS = 5  # per request; this server applies the others


def _sampling(state: TranslationState) -> JSONObject:
    request, options = state.request, state.options
    warn_dropped_fields(state, unsent=_UNSENT)
    extra = state.extra
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAMPLING}
    fields |= {name: extra.get(name) for name in (*EXTRA, *options.extra_params) if name not in _UNSENT}
    stop = fields["stop"]
    fields["stop"] = [stop] if isinstance(stop, str) else stop and stop[:_STOPS]
    if request.top_logprobs or "message.output_text.logprobs" in request.include:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or None}
    fields = {name: value for name, value in fields.items() if value not in EMPTY_VALUES}
    limit(state, fields)
    return {_NAMES.get(name, to_camel(name)): value for name, value in fields.items()}


_TIERS = {"default": "standard", "flex": "flex", "priority": "priority"}


def _forwarded(state: TranslationState) -> JSONObject:
    request, forward = state.request, state.options.forward
    fields: JSONObject = {}
    if "store" in forward:  # whether Google logs the request
        fields["store"] = False
    if "service_tier" in forward and (tier := _TIERS.get(str(request.service_tier))):
        fields["serviceTier"] = tier
    return fields


def _tools(state: TranslationState, choice: Choice) -> JSONObject:
    if not choice.functions:
        return {}
    declarations = [_declaration(function.tool["function"]) for function in choice.functions.values()]
    fields: JSONObject = {"tools": [{"functionDeclarations": declarations}]}
    if config := _calling_config(choice.value):
        fields["toolConfig"] = {"functionCallingConfig": config}
    if not state.request.parallel_tool_calls:
        state.warnings.add("This backend does not support `parallel_tool_calls: false`.")
    return fields


def _declaration(function: JSONMapping) -> JSONObject:
    declaration: JSONObject = {"name": function["name"]}
    if description := function.get("description"):
        declaration["description"] = description
    parameters = function["parameters"]
    if parameters.get("properties") or not parameters.keys() <= {"type", "properties", "additionalProperties"}:
        declaration["parametersJsonSchema"] = parameters
    return declaration


def _calling_config(value: object) -> JSONObject | None:
    if isinstance(value, dict) and value["type"] == "allowed_tools":
        allowed = value["allowed_tools"]
        names = [tool["function"]["name"] for tool in allowed["tools"]]
        # AUTO does not accept names. VALIDATED is AUTO with schema-conforming arguments.
        return {"mode": "ANY" if allowed["mode"] == "required" else "VALIDATED", "allowedFunctionNames": names}
    if isinstance(value, dict):
        return {"mode": "ANY", "allowedFunctionNames": [value["function"]["name"]]}
    mode = {"auto": "AUTO", "none": "NONE", "required": "ANY", "any": "ANY"}.get(str(value))
    return {"mode": mode} if mode else None


GEMINI_CALLER_FIELDS = {
    "contents": "input",
    "systemInstruction": "instructions",
    "system_instruction": "instructions",
    "tool_config": "tool_choice",
    "toolConfig": "tool_choice",
    "generationConfig": "text.format",
    "generation_config.thinking_config": "reasoning.effort",
    "generation_config.max_output_tokens": "max_output_tokens",
    "generation_config.temperature": "temperature",
    "generation_config.top_p": "top_p",
    "generation_config.stop_sequences": "stop",
    "generation_config.response_logprobs": "top_logprobs",
    "generation_config.logprobs": "top_logprobs",
    "generation_config.response_schema": "text.format",
    "generation_config.response_json_schema": "text.format",
}


# Google's documented budgets; every model accepts the largest.
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_LEVELS = {"none": "MINIMAL", "xhigh": "HIGH", "max": "HIGH"}  # others have the same names
# Pro models always think.
_ALWAYS = "*pro*"
_MIN_BUDGET, _MIN_LEVEL = 128, "LOW"


def _takes_budget(model: str, options: RequestOptions) -> bool:
    return any(fnmatchcase(model, glob) for glob in options.thinking_budget)


def thinking_config(state: TranslationState, model: str) -> JSONObject:
    """
    Translate `reasoning` into `thinkingConfig`: a level since Gemini 3, before that a token budget.

    https://ai.google.dev/gemini-api/docs/thinking
    """
    reasoning, options = state.request.reasoning, state.options
    if reasoning is None:
        return {}
    if options.effort == "none":
        if reasoning.effort:
            state.warnings.add("This backend does not support reasoning effort; reasoning.effort was ignored.")
        return {}
    config: JSONObject = {"includeThoughts": True} if reasoning.summary else {}
    effort = options.effort_map.get(reasoning.effort, reasoning.effort) if reasoning.effort else None
    if not effort:
        return config
    always = fnmatchcase(model, _ALWAYS)
    if _takes_budget(model, options):
        budget = _BUDGETS.get(effort, _BUDGETS["medium"])
        return {**config, "thinkingBudget": max(budget, _MIN_BUDGET) if always else budget}
    level = _LEVELS.get(effort, effort.upper())
    return {**config, "thinkingLevel": _MIN_LEVEL if always and level == "MINIMAL" else level}
