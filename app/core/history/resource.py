from __future__ import annotations

from collections.abc import Mapping

from app.core.types import JSONObject
from app.core.types.hosted import FILE_SEARCH_RESULTS
from app.core.types.request import CreateResponse, PlainFormat, Response


def new_response(
    request: CreateResponse, *, response_id: str, created_at: int, model: str, store: bool = True
) -> Response:
    """
    Unset parameters get their effective default.

    The JSON schema in `text.format` is echoed, although the spec has null: clients parse the output by it.
    """
    reasoning = request.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "queued" if request.background else "in_progress",
        "background": request.background,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",  # unless the backend reports another
        "store": store,
        "temperature": _or(request.temperature, 1.0),
        "text": _text(request),
        "tool_choice": _tool_choice(request.tool_choice),
        "tools": [_tool(tool) for tool in request.tools],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": _or(request.top_p, 1.0),
        "presence_penalty": _or(request.presence_penalty, 0.0),
        "frequency_penalty": _or(request.frequency_penalty, 0.0),
        "truncation": request.truncation,
        "usage": None,
        "metadata": request.metadata,
    }


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _text(request: CreateResponse) -> dict[str, object]:
    text = request.text
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
