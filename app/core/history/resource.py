from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from app.core.types import JSONObject
from app.core.types.hosted import FILE_SEARCH_RESULTS
from app.core.types.request import CreateResponse, PlainFormat, Response, TextOptions

# A new response, in the order of the spec's fields; unset parameters have their effective default.
_DEFAULTS: Mapping[str, object] = {
    "id": "",
    "object": "response",
    "created_at": 0,
    "completed_at": None,
    "status": "in_progress",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "model": "",
    "output": [],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",  # unless the backend reports another
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "truncation": "disabled",
    "usage": None,
    "metadata": {},
}
_ECHOED = (CreateResponse.model_fields.keys() & _DEFAULTS) - {"model", "service_tier"}


def new_response(request: CreateResponse, response_id: str, created_at: int, model: str) -> Response:
    """The JSON schema in `text.format` is echoed, although the spec has null: clients parse the output by it."""
    fields = request.__dict__  # attributes of pydantic models are ten times slower
    response: JSONObject = {**_DEFAULTS, "id": response_id, "created_at": created_at, "model": model, "output": []}
    for name in request.__pydantic_fields_set__ & _ECHOED:
        if (value := fields[name]) is not None:
            response[name] = _CHANGED[name](value) if name in _CHANGED else value
    if fields["background"]:
        response["status"] = "queued"
    if fields["conversation"]:
        response["conversation"] = {"id": fields["conversation"]}
    if fields["prompt"]:
        response["prompt"] = fields["prompt"].model_dump()
    return cast(Response, response)


def _text(text: TextOptions) -> JSONObject:
    if isinstance(text.format, PlainFormat):
        echoed: JSONObject = {"format": {"type": text.format.type, **(text.format.model_extra or {})}}
    else:
        echoed = {"format": text.format.model_dump(by_alias=True)}
        echoed["format"].setdefault("description", None)
    if text.verbosity:
        echoed["verbosity"] = text.verbosity
    return echoed


_WEB_SEARCH: Mapping[str, object] = {
    "search_context_size": "medium",
    "user_location": {"type": "approximate", "city": None, "country": None, "region": None, "timezone": None},
}
_TOOL_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "function": {"description": None, "parameters": None, "strict": False},
    "custom": {"format": {"type": "text"}},
    "tool_search": {"description": None, "parameters": None},
    "web_search": {"filters": None, **_WEB_SEARCH},
    "web_search_2025_08_26": {"filters": None, **_WEB_SEARCH},
    "web_search_preview": _WEB_SEARCH,
    "web_search_preview_2025_03_11": _WEB_SEARCH,
    "file_search": {
        "filters": None,
        "max_num_results": FILE_SEARCH_RESULTS,
        "ranking_options": {"ranker": "auto", "score_threshold": 0.0},
    },
    "image_generation": {
        "background": "auto",
        "moderation": "auto",
        "n": 1,
        "output_compression": 100,
        "output_format": "png",
        "quality": "auto",
        "size": "auto",
    },
}
# Defaults that also complete partially set objects.
_COMPLETED = ("user_location", "ranking_options")


def _tool(tool: Mapping[str, object]) -> dict[str, object]:
    defaults = _TOOL_DEFAULTS.get(str(tool["type"]), {})
    echoed = {**defaults, **tool, **{name: value for name, value in defaults.items() if tool.get(name) is None}}
    for name in _COMPLETED:
        default, value = defaults.get(name), tool.get(name)
        if isinstance(default, dict) and isinstance(value, dict):
            echoed[name] = {**default, **value}
    return echoed


def declared_tool(tool: Mapping[str, object]) -> dict[str, object]:
    """An echoed tool without default values."""
    defaults = _TOOL_DEFAULTS.get(str(tool["type"]), {})
    return {name: value for name, value in tool.items() if value is not None and value != defaults.get(name)}


def _tool_choice(choice: object) -> object:
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        return {**choice, "mode": choice.get("mode") or "auto"}
    return choice


# Echoed in another form.
_CHANGED: Mapping[str, Callable[[Any], object]] = {
    "reasoning": lambda reasoning: {"effort": reasoning.effort, "summary": reasoning.summary},
    "text": _text,
    "tool_choice": _tool_choice,
    "tools": lambda tools: [_tool(tool) for tool in tools],
}
