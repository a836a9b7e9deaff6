"""
Reads a Messages request as `CreateResponse` fields.

    read_messages({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello!"}]}, {})
    # fields: {"model": "m", "max_output_tokens": 100, "input": [{"type": "message", "role": "user", ...}], ...}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from app.api.client_apis import ClientRequest
from app.api.client_apis.messages.blocks import ItemReader
from app.api.client_apis.messages.hosted import SHOWN_FIELDS
from app.api.client_apis.messages.schema import MessagesRequest
from app.api.client_apis.messages.tools import read_tools, short_name
from app.api.request_body import validate
from app.core.json_values import json_list, json_object, json_text
from app.core.types import JSONMapping, JSONObject
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest, Warnings, quote

THREAD_UNSUPPORTED = "thread_unsupported_request"  # SDKs then resend without `thread`

# Claude Code's first system prompt line can differ in each request, which would invalidate prompt caches.
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")

# Ignored without a warning.
_IGNORED = frozenset({"cache_control", "diagnostics", "betas"})

# Agents send an effort and cache breakpoints to every model.
_PREFERENCES = frozenset({"reasoning", "reasoning.effort", "prompt_cache_breakpoint"})

_MAX_IDENTIFIER = 128  # characters


class WriterOptions(NamedTuple):
    shows_thinking: bool = True
    names: Mapping[str, str] = {}  # original tool names by truncated names


def read_messages(body: JSONObject, headers: Mapping[str, str]) -> ClientRequest:
    """Raises `InvalidRequest` with the invalid field."""
    request = validate({name: value for name, value in body.items() if value is not None}, MessagesRequest, 0)
    extra = request.model_extra or {}
    _refuse_unsupported(extra)
    warnings = Warnings()
    tools = read_tools(request.tools, request.mcp_servers, request.tool_choice, warnings)
    reader = ItemReader(warnings, short_name)
    instructions = _read_system(request, reader)
    for index, message in enumerate(request.messages):
        reader.read(index, message)
    for path, known in _KNOWN_FIELDS.items():
        for name, value in json_object(getattr(request, path)).items():
            if name not in known and value is not None:
                warnings.add(f"The unknown parameter {quote(f'{path}.{name}')} was ignored.")
    if request.messages[-1]["role"] == "assistant":
        warnings.add("The conversation ends with an assistant message; not every model continues it.")
    fields: JSONObject = {
        **_unknown(extra, warnings),
        **tools.fields,
        **_options(request),
        **_reasoning(request),
        **_metadata(request),
        "input": reader.items,
        "include": ["reasoning.encrypted_content", *SHOWN_FIELDS],
        "stream": request.stream,
    }
    if instructions:
        fields["instructions"] = instructions
    thinking = json_object(request.thinking)
    shown = thinking.get("type") != "disabled" and thinking.get("display") != "omitted"
    client_paths = {**_CLIENT_PATHS, **tools.client_paths, **reader.client_paths}
    return ClientRequest(fields, [*warnings], client_paths, WriterOptions(shown, tools.names), _PREFERENCES)


# For errors and warnings.
_CLIENT_PATHS = {
    "instructions": "system",
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
    "safety_identifier": "metadata.user_id",
    "reasoning": "thinking",
    "reasoning.effort": "output_config.effort",
    "text.format": "output_config.format",
    "input": "messages",
}


def _refuse_unsupported(extra: JSONMapping) -> None:
    """Unsupported fields would change the response."""
    if extra.get("thread"):
        message = "Invalid 'thread': threads are not supported. Send the whole conversation without 'thread'."
        raise InvalidRequest(message, param="thread", code=THREAD_UNSUPPORTED)
    if extra.get("compaction"):
        message = "Invalid 'compaction': not supported for the Messages API."
        raise InvalidRequest(message, param="compaction", code="unsupported_parameter")


# By object path.
_KNOWN_FIELDS = {
    "thinking": frozenset({"type", "budget_tokens", "display"}),
    "output_config": frozenset({"effort", "format"}),
    "metadata": frozenset({"user_id"}),
    "tool_choice": frozenset({"type", "name", "disable_parallel_tool_use"}),
}


def _unknown(extra: JSONMapping, warnings: Warnings) -> JSONObject:
    """Unknown fields, except names with another meaning in `CreateResponse`."""
    unknown = {name: value for name, value in extra.items() if name not in _IGNORED}
    for name in unknown.keys() & CreateResponse.model_fields.keys():
        del unknown[name]
        warnings.add(f"The unknown parameter {quote(name)} was ignored.")
    return unknown


def _read_system(request: MessagesRequest, reader: ItemReader) -> str:
    """A plain-text system prompt. A prompt of blocks becomes the first item, to keep its cache breakpoints."""
    system = request.system
    if not isinstance(system, list):
        return _BILLING_LINE.sub("", system or "")
    blocks = [{**block, "text": _BILLING_LINE.sub("", block["text"])} for block in system]
    reader.read_blocks("system", [block for block in blocks if block["text"]], "system")
    return ""


def _options(request: MessagesRequest) -> JSONObject:
    fields: JSONObject = {
        "model": request.model,
        "max_output_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences or None,
        "service_tier": {"auto": "auto", "standard_only": "default"}.get(request.service_tier or ""),
    }
    if output := json_object(request.output_config).get("format") or request.output_format:
        schema = output["schema"]
        fields["text"] = {
            "format": {"type": "json_schema", "name": "response", "schema": schema, "strict": _is_strict(schema)}
        }
    return {name: value for name, value in fields.items() if value is not None}


def _is_strict(schema: object) -> bool:
    """OpenAI's strict mode requires every object property."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties = json_object(schema.get("properties"))
    if properties.keys() - {*map(str, json_list(schema.get("required")))}:
        return False
    return all(map(_is_strict, schema.values()))


# By minimum thinking budget, in tokens.
_BUDGETS = ((16_384, "high"), (4_096, "medium"), (0, "low"))


def _reasoning(request: MessagesRequest) -> JSONObject:
    thinking = json_object(request.thinking)
    effort = json_object(request.output_config).get("effort")
    if thinking.get("type") == "disabled":
        return {"reasoning": {"effort": "none"}}
    if not effort and (budget := thinking.get("budget_tokens")) is not None:
        effort = next(name for least, name in _BUDGETS if budget >= least)
    reasoning: JSONObject = {"effort": effort} if effort else {}
    if thinking:
        reasoning["summary"] = "auto"
    return {"reasoning": reasoning} if reasoning else {}


def _metadata(request: MessagesRequest) -> JSONObject:
    """The `prompt_cache_key` routes a user's requests to one replica."""
    user = json_text(json_object(request.metadata).get("user_id"))
    if not user:
        return {}
    digest = hashlib.sha256(user.encode("utf-8", "replace")).hexdigest()
    known = len(user) <= _MAX_IDENTIFIER and "\0" not in user
    return {"safety_identifier": user if known else digest, "prompt_cache_key": digest}
