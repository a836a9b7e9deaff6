"""A rule-based Messages server, with the rules in `tests/conformance/upstream.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.errors import APIError
from tests.conformance.upstream import MODEL, answer_chunks, wrong_parameter

Json = dict[str, Any]

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"any": "required", "auto": "auto", "none": "none"}
# A content block's start and delta, by the text field in a chunk's delta.
_TEXTS = {
    "reasoning_content": ({"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking"),
    "content": ({"type": "text", "text": ""}, "text_delta", "text"),
}


async def models(request: Request) -> Response:
    """List the model."""
    model = {"type": "model", "id": MODEL, "display_name": "Demo", "created_at": "2026-01-01T00:00:00Z"}
    return JSONResponse({"data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL})


async def messages(request: Request) -> Response:
    """Answer a conversation."""
    return await _answered(request, _answer)


async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation."""
    return await _answered(
        request, lambda body, chunks: JSONResponse({"input_tokens": _usage(chunks)["prompt_tokens"]})
    )


async def _answered(request: Request, answer: Any) -> Response:
    body = await request.json()
    if body.get("model") != MODEL:
        return _refused(404, "not_found_error", f"model: {body.get('model')}")
    chat = _as_chat(body)
    if wrong := wrong_parameter(chat):
        return _refused(400, "invalid_request_error", f"{wrong}: Input should be valid")
    try:
        return answer(body, list(answer_chunks(chat)))  # type: ignore[no-any-return]
    except APIError as error:
        return _refused(error.status, "invalid_request_error", error.message)


def _refused(status: int, error_type: str, message: str) -> Response:
    error = {"type": "error", "error": {"type": error_type, "message": message}, "request_id": "req_1"}
    return JSONResponse(error, status)


def _answer(body: Json, chunks: list[Json]) -> Response:
    events = list(_events(chunks))
    if body.get("stream"):
        return StreamingResponse(
            (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events),
            media_type="text/event-stream",
        )
    return JSONResponse(_joined(events))


def _as_chat(body: Json) -> Json:
    """Return a request as Chat Completions has it."""
    config, choice = body.get("output_config") or {}, body.get("tool_choice") or {"type": "auto"}
    form = config.get("format")
    chat: Json = {
        "model": body["model"],
        "messages": [message for turn in body["messages"] for message in _messages(turn)],
        "max_tokens": body.get("max_tokens"),
        "stop": body.get("stop_sequences"),
        **{name: body[name] for name in ("temperature", "top_p", "stream") if name in body},
    }
    if body.get("system"):
        chat["messages"].insert(0, {"role": "system", "content": _texts(body["system"])})
    if form:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["schema"]}}
    if (body.get("thinking") or {}).get("type", "disabled") != "disabled":
        chat["reasoning_effort"] = config.get("effort", "high")
    if body.get("tools"):
        functions = [
            {"name": tool["name"], "parameters": tool["input_schema"], "description": tool.get("description")}
            for tool in body["tools"]
        ]
        chat["tools"] = [{"type": "function", "function": function} for function in functions]
        name = choice.get("name")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}} if name else _CHOICES[choice["type"]]
    return chat


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _texts(content: Any) -> str:
    return "\n".join(block["text"] for block in _blocks(content) if block["type"] == "text")


def _messages(turn: Json) -> Iterator[Json]:
    blocks = _blocks(turn["content"])
    if turn["role"] == "assistant":
        calls = [
            {
                "id": one["id"],
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["input"])},
            }
            for one in blocks
            if one["type"] == "tool_use"
        ]
        yield {"role": "assistant", "content": _texts(blocks), **({"tool_calls": calls} if calls else {})}
        return
    for block in blocks:
        if block["type"] == "tool_result":
            content = list(map(_part, _blocks(block.get("content") or "")))
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}
    if rest := [_part(block) for block in blocks if block["type"] != "tool_result"]:
        yield {"role": "user", "content": rest}


def _part(block: Json) -> Json:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    return {"type": "image_url" if block["type"] == "image" else "file"}


def _usage(chunks: list[Json]) -> Json:
    return next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))


def _events(chunks: list[Json]) -> Iterator[Json]:
    usage = _usage(chunks)
    counts = {"input_tokens": usage["prompt_tokens"], "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {**counts, "output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    opened, index, reason = "", -1, "stop"
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        reason = choice["finish_reason"] or reason
        for kind, begin, delta in _deltas(choice["delta"]):
            if begin and kind != opened:
                if opened:
                    yield from _end(opened, index)
                opened, index = kind, index + 1
                yield {"type": "content_block_start", "index": index, "content_block": begin}
            if delta:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
    if opened:
        yield from _end(opened, index)
    delta = {"stop_reason": _STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {**counts, "output_tokens": usage["completion_tokens"]}}
    yield {"type": "message_stop"}


def _deltas(delta: Json) -> Iterator[tuple[str, Json | None, Json | None]]:
    """Yield for each piece in a chunk its block type, the block's start, and the piece."""
    for field, (begin, delta_type, name) in _TEXTS.items():
        if text := delta.get(field):
            yield field, begin, {"type": delta_type, name: text}
    for piece in delta.get("tool_calls", ()):
        function = piece["function"]
        start: Json = {"type": "tool_use", "id": piece.get("id"), "name": function.get("name"), "input": {}}
        text = function.get("arguments")
        yield (
            "call",
            start if "id" in piece else None,
            {"type": "input_json_delta", "partial_json": text} if text else None,
        )


def _end(kind: str, index: int) -> Iterator[Json]:
    if kind == "reasoning_content":
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        yield {"type": "content_block_delta", "index": index, "delta": signed}
    yield {"type": "content_block_stop", "index": index}


def _joined(events: list[Json]) -> Json:
    """Join events to a message."""
    message: Json = dict(events[0]["message"])
    content: list[Json] = []
    for event in events:
        if event["type"] == "content_block_start":
            content.append({**event["content_block"]})
        elif event["type"] == "content_block_delta":
            for name, text in event["delta"].items():
                if name == "partial_json":
                    content[-1]["text"] = content[-1].get("text", "") + text
                elif name != "type":
                    content[-1][name] += text
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] = event["usage"]
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("text", "") or "{}")
    return {**message, "content": content}


app = Starlette(
    routes=[
        Route("/v1/models", models),
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]
)
