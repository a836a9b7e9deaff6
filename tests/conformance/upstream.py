"""
A rule-based Chat Completions server for any gateway, with the rules of Antiphon's demo backend.

    python -m tests.conformance.upstream --port 9100

It refuses invalid requests like real servers; supports `tools`, `tool_choice`, `response_format`, `max_tokens`, `stop`
and `logprobs`; and counts words in messages as `prompt_tokens`, to show the input that reached the model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.backends.demo import demo_answer
from app.core.types.deltas import (
    AnswerMetadata,
    Finished,
    ReasoningDelta,
    StreamDone,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from app.errors import APIError

MODEL = "demo"


async def models(request: Request) -> Response:
    model = {"id": MODEL, "object": "model", "created": int(time.time()), "owned_by": "tests"}
    return JSONResponse({"object": "list", "data": [model]})


async def completions(request: Request) -> Response:
    try:
        body = await request.json()
    except ValueError:
        return _refused(400, "The body is not JSON.", None, None)
    if body.get("model") != MODEL:
        return _refused(404, f"The model {body.get('model')!r} does not exist.", "model_not_found", "model")
    if wrong := wrong_parameter(body):
        return _refused(400, f"Invalid value of {wrong}.", "invalid_value", wrong)
    try:
        chunks = list(answer_chunks(body))
    except APIError as error:
        return _refused(error.status, error.message, error.code, None)
    if body.get("stream"):
        return StreamingResponse(_lines(chunks, body), media_type="text/event-stream")
    return JSONResponse(_joined(chunks))


_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
_PARTS = {"text", "image_url", "input_audio", "file", "refusal"}
_EFFORTS = {"none", "minimal", "low", "medium", "high", "xhigh", "max"}


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _names(tools: Any) -> list[Any]:
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return [function.get("name") for function in functions if isinstance(function, dict)]


def _is_choice(choice: Any, names: list[Any]) -> bool:
    if isinstance(choice, dict):
        return "allowed_tools" in choice or (choice.get("function") or {}).get("name") in names
    return choice in ("auto", "none", "required")


def _is_format(format: Any) -> bool:
    if not isinstance(format, dict) or format.get("type") not in ("text", "json_object", "json_schema"):
        return False
    schema = format.get("json_schema")
    return format["type"] != "json_schema" or (
        isinstance(schema, dict) and bool(schema.get("name")) and isinstance(schema.get("schema", {}), dict)
    )


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return all(isinstance(part, dict) and part.get("type") in _PARTS for part in parts)


def wrong_parameter(body: dict[str, Any]) -> str:
    """Return the first parameter that a Chat Completions server would refuse, or ""."""
    given = {name: value for name, value in body.items() if value is not None}
    tools, messages = given.get("tools", []), given.get("messages")
    good = {
        "messages": isinstance(messages, list) and bool(messages) and all(map(_is_message, messages)),
        "temperature": _is_number(given.get("temperature", 1), 0, 2),
        "top_p": _is_number(given.get("top_p", 1), 0, 1),
        "top_logprobs": _is_number(given.get("top_logprobs", 0), 0, 20),
        "max_tokens": _is_number(given.get("max_tokens", 1), 1, 10**9),
        "max_completion_tokens": _is_number(given.get("max_completion_tokens", 1), 1, 10**9),
        "stream": isinstance(given.get("stream", False), bool),
        "tools": isinstance(tools, list) and len(list(filter(None, _names(tools)))) == len(tools),
        "tool_choice": _is_choice(given.get("tool_choice", "auto"), _names(tools)),
        "response_format": _is_format(given.get("response_format", {"type": "text"})),
        "reasoning_effort": given.get("reasoning_effort", "none") in _EFFORTS,
    }
    return next((name for name, is_good in good.items() if not is_good), "")


def _refused(status: int, message: str, code: str | None, param: str | None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": param}
    return JSONResponse({"error": error}, status)


def answer_chunks(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the answer's chunks."""
    _, deltas = demo_answer(body)
    about = {"object": "chat.completion.chunk", "created": int(time.time()), "model": MODEL}
    for delta in deltas:
        match delta:
            case AnswerMetadata(id):
                about["id"] = id
                yield _chunk(about, {"role": "assistant", "content": ""})
            case ReasoningDelta(texts):
                yield _chunk(about, {"reasoning_content": "".join(texts)})
            case TextDelta(texts, logprobs):
                yield _chunk(about, {"content": "".join(texts)}, logprobs={"content": logprobs} if logprobs else None)
            case ToolCallDelta(index, id, name, arguments):
                function = {"arguments": "".join(arguments), **({"name": name} if name else {})}
                call = {"index": index, "function": function, **({"id": id, "type": "function"} if id else {})}
                yield _chunk(about, {"tool_calls": [call]})
            case Finished(reason):
                yield _chunk(about, {}, finish_reason=reason)
            case UsageReported(usage):
                total = usage.prompt + usage.completion
                counts = {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion, "total_tokens": total}
                yield {**about, "choices": [], "usage": counts}
            case StreamDone():
                return
            case _:
                raise AssertionError(f"no chunk has {delta}")


def _chunk(about: dict[str, Any], delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**about, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **fields}]}


async def _lines(chunks: list[dict[str, Any]], body: dict[str, Any]) -> AsyncIterator[str]:
    wanted = (body.get("stream_options") or {}).get("include_usage")
    for chunk in chunks:
        if chunk["choices"] or wanted:
            yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Join chunks to a completion."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: list[dict[str, Any]] = []
    logprobs: list[Any] = []
    reason = None
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for piece in delta.get("tool_calls", []):
            if "id" in piece:
                calls.append({"id": piece["id"], "type": "function", "function": {**piece["function"]}})
            else:
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
        logprobs += (choice.get("logprobs") or {}).get("content") or []
        reason = choice["finish_reason"] or reason
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": reason}
    choice["logprobs"] = {"content": logprobs} if logprobs else None
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    return {**chunks[0], "object": "chat.completion", "choices": [choice], "usage": usage}


app = Starlette(
    routes=[
        Route(f"{prefix}{path}", endpoint, methods=[method])
        for prefix in ("/v1", "")
        for path, endpoint, method in (
            ("/models", models, "GET"),
            ("/chat/completions", completions, "POST"),
        )
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()
