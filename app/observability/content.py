"""
Prompts and answers in OpenTelemetry's form, for span content if enabled.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/#capturing-instructions-inputs-and-outputs
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import orjson

from app.core.types import JSONMapping, JSONObject
from app.core.types.deltas import Delta, ReasoningDelta, ReasoningSummaryDelta, RefusalDelta, TextDelta, ToolCallDelta
from app.core.usage import DATA, conversation_of

# Finish reasons with another name in the conventions.
_FINISH_REASONS = {"tool_calls": "tool_call", None: "error"}
_DATA_URL = re.compile(r"data:([\w.+/-]+)[;,]")
_MODALITIES = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "file": "file",
    "input_file": "file",
    "video_url": "video",
}
_MEDIA = ("image_url", "file_url", "file_data", "input_audio")  # fields with media in the Responses API


def input_messages(body: JSONMapping) -> list[dict[str, object]]:
    """Messages with `role` and `parts`; media lose their data."""
    messages = [_message(message) for message in conversation_of(body)]
    instructions = body.get("instructions")
    before = [{"role": "system", "parts": [{"type": "text", "content": instructions}]}] if instructions else []
    return [*before, *messages]


def _item(item: JSONMapping) -> JSONObject:
    """A Responses API item other than a message."""
    if "output" in item and str(item["type"]).endswith("_output"):
        response = {"type": "tool_call_response", "id": item.get("call_id"), "response": item["output"]}
        return {"role": "tool", "parts": [response]}
    if item.get("call_id"):
        arguments = item.get("arguments")
        if not isinstance(arguments, str):
            arguments = orjson.dumps({"input": item.get("input")}).decode()
        return {"role": "assistant", "parts": [_call(item["call_id"], item.get("name"), arguments)]}
    texts = [part.get("text") for part in item.get("content") or item.get("summary") or () if isinstance(part, dict)]
    return {"role": "assistant", "parts": [{"type": "reasoning", "content": text} for text in texts if text]}


def _message(message: object) -> JSONObject:
    if not isinstance(message, dict) or not {"role", "type"} & message.keys():  # an unknown API's message
        return {"role": "user", "parts": [{"type": "text", "content": text} for text in _texts(message)]}
    if message.get("type", "message") != "message":
        return _item(message)
    role = str(message.get("role"))
    if role == "tool":
        call_id, content = message.get("tool_call_id"), message.get("content")
        response = {"type": "tool_call_response", "id": call_id, "response": content}
        return {"role": role, "parts": [response]}
    parts: list[dict[str, object]] = []
    if reasoning := message.get("reasoning_content"):
        parts.append({"type": "reasoning", "content": reasoning})
    content = message.get("content")
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []:
        if isinstance(part, dict):
            parts.append(_part(part))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(_call(call.get("id"), function.get("name"), function.get("arguments")))
    return {"role": role, "parts": parts}


def _texts(value: object) -> Iterator[str]:
    """A JSON value's texts without media data."""
    if isinstance(value, str):
        yield from () if _DATA_URL.match(value) else (value,)
    elif isinstance(value, dict):
        yield from (text for name, inner in value.items() if name not in DATA for text in _texts(inner))
    elif isinstance(value, list):
        yield from (text for inner in value for text in _texts(inner))


def _part(part: Mapping[str, object]) -> dict[str, object]:
    part_type = str(part.get("type"))
    if isinstance(text := part.get("text") or part.get("refusal"), str):
        return {"type": "text", "content": text}
    value = part.get(part_type) or next((part[name] for name in _MEDIA if part.get(name)), None)
    fields = value if isinstance(value, dict) else {"url": value}
    url = fields.get("url") or fields.get("file_data")
    modality = _MODALITIES.get(part_type, part_type)
    if file_id := fields.get("file_id"):
        return {"type": "file", "modality": modality, "file_id": file_id}
    if isinstance(url, str) and not url.startswith("data:"):
        return {"type": "uri", "modality": modality, "uri": url}
    media_type = _DATA_URL.match(url) if isinstance(url, str) else None
    # The conventions require `content`; the data is omitted.
    return {"type": "blob", "modality": modality, "mime_type": media_type[1] if media_type else None, "content": ""}


def _call(call_id: str | None, name: str | None, arguments: str | None) -> JSONObject:
    """Arguments are parsed, as in the conventions, unless they are invalid JSON."""
    parsed: object = arguments
    with contextlib.suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(arguments or "null")
    return {"type": "tool_call", "id": call_id, "name": name or "", "arguments": parsed}


class OutputMessage:
    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}  # by part type
        self._calls: dict[object, JSONObject] = {}  # id, name and arguments by index

    def feed(self, delta: Delta) -> None:
        match delta:
            case TextDelta(texts):
                self._texts.setdefault("text", []).extend(texts)
            case ReasoningDelta(texts):
                self._texts.setdefault("reasoning", []).extend(texts)
            case ReasoningSummaryDelta(text):
                self._texts.setdefault("reasoning", []).append(text)
            case RefusalDelta(text):
                self._texts.setdefault("text", []).append(text)
            case ToolCallDelta(index, call_id, name, arguments):
                call = self._calls.setdefault(index, {"id": None, "name": None, "arguments": ""})
                call["id"] = call_id or call["id"]
                call["name"] = name or call["name"]
                call["arguments"] += "".join(arguments)

    def messages(self, finish_reason: str | None) -> list[JSONObject]:
        """The message in a list, empty without content."""
        parts = [{"type": part_type, "content": "".join(texts)} for part_type, texts in self._texts.items()]
        parts = [part for part in parts if part["content"]] + [
            _call(call["id"], call["name"], call["arguments"]) for call in self._calls.values()
        ]
        reason = _FINISH_REASONS.get(finish_reason, finish_reason)
        return [{"role": "assistant", "parts": parts, "finish_reason": reason}] if parts else []
