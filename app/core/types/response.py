"""The response resource: what it says of the request, and its usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.core.types.request import CreateResponse, Response
from app.core.types.token_estimate import estimate, estimate_chat


def new_response(
    request: CreateResponse, *, id: str, created_at: int, model: str, store: bool = True, schema: bool = False
) -> Response:
    """
    Return the resource of a response that is about to be made: every required field is there, what was asked is
    echoed, and what was not is told with the default that took effect. With `schema` that of an answer is echoed, too.
    """
    reasoning = request.reasoning
    return {
        "id": id,
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
        "service_tier": "default",  # which is used, as long as the backend names no other
        "store": store,
        "temperature": _or(request.temperature, 1.0),
        "text": _text(request, schema),
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


def _text(request: CreateResponse, schema: bool) -> dict[str, Any]:
    text = request.text
    shown: dict[str, Any] = {"format": text.format.model_dump(by_alias=True)}
    if text.format.type == "json_schema":
        shown["format"].setdefault("description", None)
        if not schema:
            shown["format"]["schema"] = None
    if text.verbosity:
        shown["verbosity"] = text.verbosity
    return shown


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Echo a tool; a function has all of its fields, null where the caller said nothing."""
    if tool["type"] != "function":
        return dict(tool)
    return {"description": None, "parameters": None, "strict": None, **tool}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        return {**choice, "mode": choice.get("mode") or "auto"}
    return choice


def usage_of(said: Mapping[str, Any] | None, body: Mapping[str, Any], output: list[Any]) -> dict[str, Any]:
    """
    Return the usage of a response, in tokens, from what the backend said of it; estimated where it said nothing.

    Never null, and always consistent: input and output add up to the total, and the details are parts of them.
    (Clients loop or crash on a finished response without usage.) Where the backend does not count reasoning, its
    tokens are estimated: the share of the output's that reasoning has of the output's text.
    """
    told = said or {}
    counts = [told.get(name) for name in ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")]
    if not any(_is_count(count) for count in counts):
        reasoning, rest = _estimates(output)
        return _usage(estimate_chat(body), reasoning + rest, reasoning=reasoning)
    input_tokens, output_tokens = _count(*counts[:2]), _count(*counts[2:])
    prompt = _details(told, "prompt_tokens_details", "input_tokens_details")
    completion = _details(told, "completion_tokens_details", "output_tokens_details")
    # DeepSeek and Moonshot tell the cached tokens beside, as gateways to Claude do; SGLang the reasoning tokens.
    beside = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    cached = _count(prompt.get("cached_tokens"), *(told.get(name) for name in beside))
    written = _count(prompt.get("cache_write_tokens"), told.get("cache_creation_input_tokens"))
    reasoning = _count(completion.get("reasoning_tokens"), told.get("reasoning_tokens"))
    total = _count(told.get("total_tokens"))
    missing = total - input_tokens - output_tokens
    # xAI and Gemini do not count reasoning as output, and Gemini does not tell it; OpenAI, and the API here, do.
    # Claude does not count what was cached as input. Where both could be meant, the names of the fields decide.
    if missing > 0 and missing in (cached, cached + written) and (missing != reasoning or _names_claude(told)):
        input_tokens += missing
    elif missing > 0:
        output_tokens += missing
        reasoning = reasoning or missing
    elif not total and reasoning > output_tokens:
        output_tokens += reasoning
    # Servers that do not count it leave it out, or say 0 (SGLang).
    reasoning = reasoning or _share(output_tokens, output)
    return _usage(input_tokens, output_tokens, min(cached, input_tokens), written, min(reasoning, output_tokens))


def added_usage(usage: Mapping[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Return the sum of two usages, field by field."""
    if usage is None:
        return more
    return {
        name: added_usage(usage.get(name) or {}, value) if isinstance(value, dict) else usage.get(name, 0) + value
        for name, value in more.items()
    }


def _names_claude(told: Mapping[str, Any]) -> bool:
    """Tell whether the cached tokens are under Claude's own names."""
    return any(_count(told.get(name)) for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))


def _share(output_tokens: int, output: list[Any]) -> int:
    """Return how many of the output's tokens are reasoning, by its share of the text."""
    reasoning, rest = _estimates(output)
    return -(-output_tokens * reasoning // (reasoning + rest)) if reasoning else 0


def _estimates(output: Iterable[Mapping[str, Any] | str]) -> tuple[int, int]:
    """Return about how many tokens of items, or of texts that are to be in one, are reasoning, and how many are not."""
    reasoning = rest = 0
    for item in output:
        tokens = sum(map(estimate, _said(item)))
        if isinstance(item, Mapping) and item.get("type") == "reasoning":
            reasoning += tokens
        else:
            rest += tokens
    return reasoning, rest


def _usage(
    input_tokens: int, output_tokens: int, cached: int = 0, written: int = 0, reasoning: int = 0
) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        # `cache_write_tokens` is OpenAI's; its SDK asks for it.
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens,
    }


def _details(said: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((said[name] for name in names if isinstance(said.get(name), dict)), {})


_ENDLESS = 2**53  # what is not between 0 and this is no count: negative, infinite, not a number


def _is_count(value: Any) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and len(value) < 16
    return isinstance(value, int | float) and 0 <= value < _ENDLESS


def _count(*values: Any) -> int:
    """Return the first number among values as a count."""
    return next((int(value) for value in values if _is_count(value)), 0)


def _said(item: Mapping[str, Any] | str) -> Iterator[str]:
    """Yield what the model wrote of an item, or of a text that is to be in one: not its id, nor what else is ours."""
    if isinstance(item, str):
        yield item
        return
    for name in ("name", "arguments", "input"):
        if isinstance(value := item.get(name), str):
            yield value
    for part in item.get("content") or item.get("summary") or ():  # raw reasoning may be shown in both
        yield part.get("text") or part.get("refusal") or ""
