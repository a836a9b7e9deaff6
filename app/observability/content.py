"""
Prompts and answers in the form that OpenTelemetry's conventions have for spans, if the settings enable it.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/#capturing-instructions-inputs-and-outputs
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.core.types.chunk import Chunk, ChunkRun

_DATA_URL = re.compile(r"data:([\w.+/-]+)[;,]")
_MODALITIES = {"image_url": "image", "input_audio": "audio", "file": "file", "video_url": "video"}


def input_messages(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the messages of a Chat Completions request, each with its `role` and `parts`; media without their data."""
    return [_message(message) for message in messages if isinstance(message, dict)]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = str(message.get("role"))
    if role == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": role, "parts": [response]}
    parts: list[dict[str, Any]] = []
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


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    type = str(part.get("type"))
    if isinstance(text := part.get("text") or part.get("refusal"), str):
        return {"type": "text", "content": text}
    value = part.get(type)
    url = value.get("url") if isinstance(value, dict) else value
    modality = _MODALITIES.get(type, type)
    if isinstance(url, str) and not url.startswith("data:"):
        return {"type": "uri", "modality": modality, "uri": url}
    media_type = _DATA_URL.match(url) if isinstance(url, str) else None
    return {"type": "blob", "modality": modality, "mime_type": media_type[1] if media_type else None}


def _call(id: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


class OutputMessage:
    """Collects the answer of a backend from its chunks."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}  # by the type of the part
        self._calls: dict[object, dict[str, Any]] = {}

    def feed(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        for one in chunk.chunks() if isinstance(chunk, ChunkRun) else (chunk,):
            choices = one.get("choices")
            delta = choices[0].get("delta") if choices else None
            if delta:
                self._feed(delta)

    def _feed(self, delta: Mapping[str, Any]) -> None:
        for field, type in (("reasoning_content", "reasoning"), ("content", "text"), ("refusal", "text")):
            if isinstance(text := delta.get(field), str):
                self._texts.setdefault(type, []).append(text)
        for fragment in delta.get("tool_calls") or ():
            function = fragment.get("function") or {}
            call = self._calls.setdefault(fragment.get("index"), _call(None, None, ""))
            call["id"] = fragment.get("id") or call["id"]
            call["name"] = function.get("name") or call["name"]
            call["arguments"] += function.get("arguments") or ""

    def messages(self, finish_reason: str | None) -> list[dict[str, Any]]:
        """Return the message, in a list; empty if there was none."""
        parts = [{"type": type, "content": "".join(texts)} for type, texts in self._texts.items()]
        parts = [part for part in parts if part["content"]] + [*self._calls.values()]
        return [{"role": "assistant", "parts": parts, "finish_reason": finish_reason or "error"}] if parts else []
