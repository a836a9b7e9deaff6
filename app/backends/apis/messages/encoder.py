from __future__ import annotations

from dataclasses import replace

from app.backends.apis.messages.conversation import CachedConversation, MessagesConversation, system_and_messages
from app.backends.apis.messages.schema import enforceable
from app.backends.apis.messages.thinking import add_thinking
from app.core.profile import Profile, RequestOptions
from app.core.request import encoded_request, read_request, warn_dropped_fields
from app.core.request.caching import CACHE_FIELDS, set_breakpoints
from app.core.request.call_ids import VERBATIM
from app.core.request.model_request import EncodedRequest, ModelRequest, TranslationState
from app.core.request.response_format import response_format
from app.core.request.tool_choice import Choice
from app.core.stream.stop_sequences import stop_sequences
from app.core.types import JSONObject
from app.errors import InvalidRequest

_JSON = "Answer only with a JSON object. Do not use a code fence."


def to_messages_request(model_request: ModelRequest, profile: Profile) -> EncodedRequest:
    options = _options(profile.request)
    cached = options.cache != "off"
    read = read_request(model_request, profile, options, CachedConversation if cached else MessagesConversation)
    state, choice = read.state, read.choice
    messages = read.messages()
    system, text_format = _system(state)
    if not system and not messages:
        raise InvalidRequest("Nothing to answer. Send `input` or `instructions`.", param="input")
    if choice.request:
        messages = [*messages, {"role": "user", "content": [{"type": "text", "text": choice.request}]}]
    system_blocks, messages = system_and_messages(messages)
    blocks = [*system, *system_blocks]
    body: JSONObject = {
        **_parameters(state, CACHE_FIELDS if cached else frozenset()),
        "model": options.model_map.get(model_request.model, model_request.model),
        "max_tokens": state.request.max_output_tokens or options.default_max_tokens,
        **({"system": blocks} if blocks else {}),
        "messages": messages,
        "stream": True,
        **_tools(state, choice),
        **({"output_config": {"format": text_format}} if text_format else {}),
    }
    add_thinking(state, body)
    if cached:
        set_breakpoints(state, body)
    return encoded_request(state, body, choice)


def _options(options: RequestOptions) -> RequestOptions:
    content = options.content
    return replace(
        options,
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


def _system(state: TranslationState) -> tuple[list[JSONObject], JSONObject | None]:
    form, instruction = response_format(state)
    text_format: JSONObject | None = None
    if form and form["type"] == "json_schema" and state.request.text.format.type == "json_schema":
        schema = form["json_schema"]["schema"]
        text_format = {
            "type": "json_schema",
            "schema": enforceable(schema) if state.options.schema_reduce else schema,
        }
    elif form:
        instruction = instruction or _JSON
    lead = "\n\n".join(filter(None, (state.request.instructions, instruction)))
    return ([{"type": "text", "text": lead}] if lead and not lead.isspace() else []), text_format


# Same meaning in both APIs.
_SAMPLING = ("temperature", "top_p")
_UNSENT = ("presence_penalty", "frequency_penalty", "top_logprobs", "seed", "logit_bias")
_TIERS = {"auto": "auto", "default": "standard_only"}


def _parameters(state: TranslationState, kept: frozenset[str]) -> dict[str, object]:
    request, options = state.request, state.options
    warn_dropped_fields(state, kept)
    extra = state.extra
    for name in _UNSENT:
        if getattr(request, name, None) or extra.get(name):
            state.warnings.add(f"The parameter '{name}' is not supported by this backend and was ignored.")
    fields: dict[str, object] = {name: getattr(request, name) for name in _SAMPLING}
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
        tool |= {"strict": True, "input_schema": enforceable(schema) if options.schema_reduce else schema}
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
