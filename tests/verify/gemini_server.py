"""A rule-based Gemini server, with the rules in `tests/conformance/upstream.py`."""

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
from tests.support.gemini_server import Refused, check, signed

Json = dict[str, Any]

_FINISH_REASONS = {"length": "MAX_TOKENS"}
_MODES = {"ANY": "required", "AUTO": "auto", "VALIDATED": "auto", "NONE": "none"}


async def models(request: Request) -> Response:
    """List the model."""
    methods = ["generateContent", "countTokens"]
    return JSONResponse({"models": [{"name": f"models/{MODEL}", "supportedGenerationMethods": methods}]})


async def generate(request: Request) -> Response:
    """Answer a conversation, or count its tokens."""
    model, _, method = request.path_params["method"].partition(":")
    body = await request.json()
    if method == "countTokens":
        body = body["generateContentRequest"]
        body.pop("model")
    if model != MODEL:
        return _refused(404, "NOT_FOUND", f"models/{model} is not found for API version v1beta.")
    try:
        check(body, level=False)
    except Refused as refused:
        return _refused(400, "INVALID_ARGUMENT", str(refused))
    chat = _as_chat(body)
    if wrong := wrong_parameter(chat):
        return _refused(400, "INVALID_ARGUMENT", f"Invalid value of {wrong}.", wrong)
    try:
        chunks = list(answer_chunks(chat))
    except APIError as error:
        return _refused(error.status, "INVALID_ARGUMENT", error.message)
    if method == "countTokens":
        return JSONResponse({"totalTokens": _usage(chunks)["prompt_tokens"]})
    events = (f"data: {json.dumps(event)}\r\n\r\n" for event in _events(chunks))
    return StreamingResponse(events, media_type="text/event-stream")


def _refused(code: int, status: str, message: str, field: str = "") -> Response:
    violations = [{"field": f"generation_config.{field}", "description": message}] if field else []
    details = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
    error = {"code": code, "message": message, "status": status, "details": details}
    return JSONResponse([{"error": error}], code)


def _as_chat(body: Json) -> Json:
    """Return a request as Chat Completions has it."""
    config = body.get("generationConfig", {})
    names = {"temperature": "temperature", "topP": "top_p", "maxOutputTokens": "max_tokens", "stopSequences": "stop"}
    chat: Json = {
        "model": MODEL,
        "messages": [message for content in body["contents"] for message in _messages(content)],
        "stream": True,
        **{name: config[own] for own, name in names.items() if own in config},
    }
    if "systemInstruction" in body:
        chat["messages"].insert(0, {"role": "system", "content": _texts(body["systemInstruction"]["parts"])})
    if config.get("responseLogprobs"):
        chat |= {"logprobs": True, "top_logprobs": config.get("logprobs", 0)}
    if schema := config.get("responseJsonSchema"):
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    elif "responseMimeType" in config:
        chat["response_format"] = {"type": "json_object"}
    if thinking := config.get("thinkingConfig"):
        chat["reasoning_effort"] = "high" if thinking.get("thinkingBudget", 1) else "none"
    if functions := [function for tool in body.get("tools", ()) for function in tool["functionDeclarations"]]:
        chat["tools"] = [{"type": "function", "function": _function(function)} for function in functions]
        calling = body.get("toolConfig", {}).get("functionCallingConfig", {"mode": "AUTO"})
        names_allowed = calling.get("allowedFunctionNames", ())
        chat["tool_choice"] = _MODES[calling["mode"]]
        if names_allowed and calling["mode"] == "ANY":
            chat["tool_choice"] = {"type": "function", "function": {"name": names_allowed[0]}}
    return chat


def _function(function: Json) -> Json:
    parameters = function.get("parametersJsonSchema", {"type": "object", "properties": {}})
    return {"name": function["name"], "description": function.get("description"), "parameters": parameters}


def _texts(parts: list[Json]) -> str:
    return "\n".join(part["text"] for part in parts if "text" in part)


def _messages(content: Json) -> Iterator[Json]:
    parts = content["parts"]
    if content["role"] == "model":
        calls = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["args"])},
            }
            for number, call in enumerate(part["functionCall"] for part in parts if "functionCall" in part)
        ]
        yield {"role": "assistant", "content": _texts(parts), **({"tool_calls": calls} if calls else {})}
        return
    responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
    for number, response in enumerate(responses):
        yield {"role": "tool", "tool_call_id": f"call_{number}", "content": response["response"]["output"]}
    if rest := [_part(part) for part in parts if "functionResponse" not in part]:
        yield {"role": "user", "content": rest}


def _part(part: Json) -> Json:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    data = part.get("inlineData") or part["fileData"]
    return {"type": "image_url" if data["mimeType"].startswith("image/") else "file"}


def _usage(chunks: list[Json]) -> Json:
    return next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))


def _events(chunks: list[Json]) -> Iterator[Json]:
    usage, reason = _usage(chunks), "stop"
    calls: dict[int, Json] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        reason = choice["finish_reason"] or reason
        delta, more = choice["delta"], _logprobs(choice.get("logprobs"))
        if thought := delta.get("reasoning_content"):
            yield _event([{"text": thought, "thought": True}])
        if text := delta.get("content"):
            yield _event([{"text": text}], **more)
        for piece in delta.get("tool_calls", ()):
            call = calls.setdefault(piece["index"], {"name": "", "arguments": ""})
            for name, value in piece["function"].items():
                call[name] += value or ""
    for call in calls.values():
        if reason != "length":
            made = {"name": call["name"], "args": json.loads(call["arguments"] or "{}")}
            yield _event([signed({"functionCall": made})])
    counts = {"promptTokenCount": usage["prompt_tokens"], "candidatesTokenCount": usage["completion_tokens"]}
    yield {**_event([], finishReason=_FINISH_REASONS.get(reason, "STOP")), "usageMetadata": counts}


def _event(parts: list[Json], **fields: Any) -> Json:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, **fields}], "modelVersion": MODEL}


def _logprobs(logprobs: Any) -> Json:
    if not logprobs:
        return {}
    tokens = logprobs["content"]
    chosen = [{"token": token["token"], "logProbability": token["logprob"]} for token in tokens]
    tops = [
        [{"token": top["token"], "logProbability": top["logprob"]} for top in token["top_logprobs"]] for token in tokens
    ]
    return {"logprobsResult": {"chosenCandidates": chosen, "topCandidates": [{"candidates": top} for top in tops]}}


app = Starlette(
    routes=[
        Route("/v1/models", models),
        Route("/v1/models/{method}", generate, methods=["POST"]),
    ]
)
