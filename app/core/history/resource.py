from __future__ import annotations

from collections.abc import Mapping

from app.core.types import JSONObject
from app.core.types.hosted import FILE_SEARCH_RESULTS
from app.core.types.request import PLAIN_TEXT, CreateResponse, PlainFormat, Response


def new_response(request: CreateResponse, response_id: str, created_at: int, model: str) -> Response:
    """
    Unset parameters get their effective default.

    The JSON schema in `text.format` is echoed, although the spec has null: clients parse the output by it.
    """
    fields = request.__dict__  # attributes of pydantic models are ten times slower
    reasoning = request.reasoning
    response: Response = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "queued" if fields["background"] else "in_progress",
        "background": fields["background"],
        "error": None,
        "incomplete_details": None,
        "instructions": fields["instructions"],
        "max_output_tokens": fields["max_output_tokens"],
        "max_tool_calls": fields["max_tool_calls"],
        "model": model,
        "output": [],
        "parallel_tool_calls": fields["parallel_tool_calls"],
        "previous_response_id": fields["previous_response_id"],
        "prompt_cache_key": fields["prompt_cache_key"],
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": fields["safety_identifier"],
        "service_tier": "default",  # unless the backend reports another
        "store": fields["store"],
        "temperature": _or(fields["temperature"], 1.0),
        "text": _text(request),
        "tool_choice": _tool_choice(fields["tool_choice"]),
        "tools": [_tool(tool) for tool in fields["tools"]],
        "top_logprobs": fields["top_logprobs"] or 0,
        "top_p": _or(fields["top_p"], 1.0),
        "presence_penalty": _or(fields["presence_penalty"], 0.0),
        "frequency_penalty": _or(fields["frequency_penalty"], 0.0),
        "truncation": fields["truncation"],
        "usage": None,
        "metadata": fields["metadata"],
    }
    if fields["conversation"]:
        response["conversation"] = {"id": fields["conversation"]}
    if request.prompt:
        response["prompt"] = request.prompt.model_dump()
    return response


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _text(request: CreateResponse) -> dict[str, object]:
    text = request.text
    if text is PLAIN_TEXT:
        return {"format": {"type": "text"}}
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
