"""A response as a Messages message: content blocks, stop reason, usage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pydantic_core

from app.api.client_apis import Ending
from app.api.client_apis.messages.hosted import hosted_blocks, server_tool_usage
from app.api.client_apis.messages.reader import WriterOptions
from app.core.json_values import json_object, json_text
from app.core.types import Item, JSONMapping, JSONObject, Response, list_field

PARAGRAPH = "\n\n"  # separates reasoning parts, which share a block
_TIERS = {"default": "standard", "priority": "priority"}


def message_id(response: Response) -> str:
    return f"msg_{response['id'].partition('_')[2]}"


def empty_message(response: Response) -> JSONObject:
    usage = {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    return {
        "id": message_id(response),
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def whole_message(ending: Ending, options: WriterOptions) -> JSONObject:
    response = ending.response
    content = [block for item in response["output"] for block in blocks_of(item, options)]
    return {**empty_message(response), "content": content, **stop_fields(ending), "usage": usage_fields(response)}


def blocks_of(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    """Yield nothing for item types without blocks."""
    make = _BLOCKS.get(item["type"])
    if make:
        yield from make(item, options)
    else:
        yield from hosted_blocks(item)


def _message_blocks(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    for part in list_field(item, "content"):
        text = json_text(part.get("text")) or json_text(part.get("refusal"))
        citations = [citation(each) for each in part.get("annotations") or ()]
        if text or citations:
            yield {"type": "text", "text": text, **({"citations": citations} if citations else {})}


def _reasoning_blocks(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    parts = [*list_field(item, "summary"), *list_field(item, "content")]
    text = PARAGRAPH.join(filter(None, (json_text(part.get("text")) for part in parts)))
    signature = item.get("encrypted_content") or ""
    if text and options.shows_thinking:
        yield {"type": "thinking", "thinking": text, "signature": signature}
    elif signature:
        yield {"type": "redacted_thinking", "data": signature}


def tool_use(item: Item, options: WriterOptions) -> JSONObject:
    """The initial block, without input."""
    name = options.names.get(item["name"], item["name"])
    return {"type": "tool_use", "id": item["call_id"], "name": name, "input": {}}


def _call_blocks(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    yield {**tool_use(item, options), "input": tool_input(item["arguments"])}


def tool_input(arguments: str) -> JSONObject:
    """Truncated JSON yields the complete fields, invalid JSON {}."""
    try:
        return json_object(pydantic_core.from_json(arguments, allow_partial=True))
    except ValueError:
        return {}


_BLOCKS: Mapping[str, Callable[[Item, WriterOptions], Iterator[JSONObject]]] = {
    "message": _message_blocks,
    "reasoning": _reasoning_blocks,
    "function_call": _call_blocks,
}


def citation(annotation: JSONMapping) -> JSONObject:
    title = annotation.get("title") or annotation.get("filename")
    if annotation.get("type") == "url_citation":
        return {
            "type": "web_search_result_location",
            "url": json_text(annotation.get("url")),
            "title": title,
            "encrypted_index": "",
            "cited_text": json_text(annotation.get("cited_text")),
        }
    return {
        "type": "search_result_location",
        "source": json_text(annotation.get("file_id")),
        "title": title,
        "search_result_index": 0,
        "start_block_index": 0,
        "end_block_index": 0,
        "cited_text": json_text(annotation.get("cited_text")),
    }


def stop_fields(ending: Ending) -> JSONObject:
    response = ending.response
    output, refusal = response["output"], _refusal(response)
    if response["status"] == "incomplete":
        details: Any = response.get("incomplete_details") or {}
        reason = "refusal" if details.get("reason") == "content_filter" else "max_tokens"
    elif ending.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": ending.stop_sequence}
    elif any(item["type"] == "function_call" for item in output):
        reason = "tool_use"
    else:
        reason = "end_turn" if refusal is None else "refusal"
    fields: JSONObject = {"stop_reason": reason, "stop_sequence": None}
    if reason == "refusal":
        fields["stop_details"] = {"type": "refusal", "category": None, "explanation": refusal}
    return fields


def _refusal(response: Response) -> str | None:
    parts = [part for item in response["output"] if item["type"] == "message" for part in list_field(item, "content")]
    texts = [json_text(part.get("refusal")) for part in parts if part["type"] == "refusal"]
    return "\n".join(texts) if texts else None


def usage_fields(response: Response) -> JSONObject:
    """Unlike in the Responses API, `input_tokens` excludes cached tokens."""
    usage: Any = response.get("usage") or {}
    details = usage.get("input_tokens_details") or {}
    cached, written = details.get("cached_tokens", 0), details.get("cache_write_tokens", 0)
    fields: JSONObject = {
        "input_tokens": max(0, usage.get("input_tokens", 0) - cached - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("output_tokens", 0),
    }
    if thinking := (usage.get("output_tokens_details") or {}).get("reasoning_tokens"):
        fields["output_tokens_details"] = {"thinking_tokens": thinking}
    if counts := server_tool_usage(response["output"]):
        fields["server_tool_use"] = counts
    if tier := _TIERS.get(response.get("service_tier", "")):
        fields["service_tier"] = tier
    return fields
