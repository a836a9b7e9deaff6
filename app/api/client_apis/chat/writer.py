"""
Writes Responses events as chat completion chunks, and finished responses as JSON.

In both, an empty line separates messages (hosted tools cause several) and reasoning parts. Chat Completions has no
approvals, so a request for approval becomes text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from app.core.bounded_json import dumps
from app.core.stream.event_batch import DONE_FRAME
from app.core.types import JSONMapping, JSONObject, json_list
from app.core.types.request import Event, Item, Response

_BETWEEN = "\n\n"


class ChatWriter:
    def __init__(self, *, include_usage: bool = False, metadata: Mapping[str, str] | None = None) -> None:
        """`include_usage`: a stream ends with the usage; `metadata` is returned in the JSON response."""
        self._include_usage, self._metadata = include_usage, metadata
        self._head: JSONObject = {}
        self._before = self._after = b""  # a chunk's bytes before and after its delta
        self._last_parts: dict[str, object] = {}  # of the last texts, by field
        self._images = 0
        self._calls: dict[str, tuple[int, str, str]] = {}  # index, type and argument field, by item id

    def _chunk(self, *choices: JSONObject) -> JSONObject:
        usage = {"usage": None} if self._include_usage else {}
        return {**self._head, "choices": [*choices], **usage}

    def event(self, event: Event) -> bytes:
        write = self._events.get(event["type"])
        return write(self, event) if write else b""

    def _delta(self, delta: JSONObject) -> bytes:
        return self._before + dumps(delta) + self._after

    def _separated(self, field: str, part: object, text: str) -> str:
        """Insert an empty line between a field's texts from different parts."""
        last = self._last_parts.get(field, part)
        self._last_parts[field] = part
        return text if last == part else _BETWEEN + text

    def _created(self, event: Event) -> bytes:
        self._head = _head(event["response"], "chat.completion.chunk")
        chunk = self._chunk({"index": 0, "delta": "\\", "logprobs": None, "finish_reason": None})
        self._before, _, self._after = _frame(chunk).rpartition(b'"\\\\"')
        return self._delta({"role": "assistant", "content": ""})

    def _text(self, event: JSONMapping) -> bytes:
        text = self._separated("content", event["item_id"], event["delta"])
        if not (logprobs := event.get("logprobs")):
            return self._delta({"content": text})
        choice = {"index": 0, "delta": {"content": text}, "logprobs": _logprobs(logprobs), "finish_reason": None}
        return _frame(self._chunk(choice))

    def _refusal(self, event: JSONMapping) -> bytes:
        return self._delta({"refusal": event["delta"]})

    def _thought(self, event: JSONMapping) -> bytes:
        part = event["item_id"], event.get("summary_index"), event.get("content_index")
        return self._delta({"reasoning_content": self._separated("reasoning_content", part, event["delta"])})

    def _item_added(self, event: Event) -> bytes:
        item = event["item"]
        if item["type"] == "mcp_approval_request":
            return self._delta({"content": self._separated("content", item["id"], _unapproved(item))})
        if item["type"] not in _CALLS:
            return b""
        index = len(self._calls)
        self._calls[item["id"]] = index, *_CALLS[item["type"]]
        return self._delta({"tool_calls": [{"index": index, **_call(item)}]})

    def _item_done(self, event: Event) -> bytes:
        if (image := _image(event["item"])) is None:
            return b""
        index, self._images = self._images, self._images + 1
        return self._delta({"images": [{"index": index, **image}]})

    def _call_delta(self, event: JSONMapping) -> bytes:
        index, kind, field = self._calls[event["item_id"]]
        return self._delta({"tool_calls": [{"index": index, kind: {field: event["delta"]}}]})

    def end(self, response: Response, stop_sequence: str | None = None) -> bytes:
        frames = []
        if annotations := _annotations(response["output"]):
            frames.append(self._delta({"annotations": annotations}))
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish_reason(response)}
        frames.append(_frame({**self._chunk(choice), **_service_tier(response)}))
        if self._include_usage:
            frames.append(_frame({**self._chunk(), "usage": _usage(response)}))
        return b"".join([*frames, DONE_FRAME])

    def document(self, response: Response, stop_sequence: str | None = None) -> JSONObject:
        output = response["output"]
        content, refusal, logprobs = _text_of(output)
        message: JSONObject = {"role": "assistant", "content": content, "refusal": refusal}
        if annotations := _annotations(output):
            message["annotations"] = annotations
        if reasoning := _reasoning_of(output):
            message["reasoning_content"] = reasoning
        if images := [image for item in output if (image := _image(item))]:
            message["images"] = images
        if calls := [_call(item) for item in output if item["type"] in _CALLS]:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(logprobs) if logprobs else None,
            "finish_reason": _finish_reason(response),
        }
        metadata = {"metadata": self._metadata} if self._metadata else {}
        return {
            **_head(response, "chat.completion"),
            "choices": [choice],
            "usage": _usage(response),
            **_service_tier(response),
            **metadata,
        }

    _events: ClassVar[Mapping[str, Callable[[Any, Any], bytes]]] = {
        "response.created": _created,
        "response.output_text.delta": _text,
        "response.refusal.delta": _refusal,
        "response.reasoning.delta": _thought,
        "response.reasoning_summary_text.delta": _thought,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.function_call_arguments.delta": _call_delta,
        "response.custom_tool_call_input.delta": _call_delta,
    }


def _frame(chunk: JSONObject) -> bytes:
    return b"data: " + dumps(chunk) + b"\n\n"


def _head(response: Response, kind: str) -> JSONObject:
    return {
        "id": f"chatcmpl-{response['id'].partition('_')[2]}",
        "object": kind,
        "created": response["created_at"],
        "model": response["model"],
    }


# By item type: the call's type, and the field with its arguments.
_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}


def _call(item: JSONMapping) -> JSONObject:
    kind, field = _CALLS[item["type"]]
    return {"id": item["call_id"], "type": kind, kind: {"name": item["name"], field: item[field]}}


def _unapproved(item: Item) -> str:
    call = f"{item['name']} of {item['server_label']}"
    return f"The call of {call} was not made: it requires an approval, which this API does not support."


def _image(item: Item) -> JSONObject | None:
    """A generated image in OpenRouter's format."""
    data = item.get("result") if item["type"] == "image_generation_call" else None
    if not isinstance(data, str) or not data:
        return None
    form = item.get("output_format") or "png"
    return {"type": "image_url", "image_url": {"url": f"data:image/{form};base64,{data}"}}


def _text_of(output: Iterable[Item]) -> tuple[str | None, str | None, list[object]]:
    """Joined text, joined refusals, and log probabilities."""
    texts, refusals = [], []
    logprobs: list[object] = []
    for parts in _message_parts(output):
        if text := "".join(part["text"] for part in parts if part["type"] == "output_text"):
            texts.append(text)
        refusals += [part["refusal"] for part in parts if part["type"] == "refusal"]
        for part in parts:
            logprobs += part.get("logprobs") or ()
    return _BETWEEN.join(texts) if texts else None, "".join(refusals) or None, logprobs


def _message_parts(output: Iterable[Item]) -> Iterator[list[Any]]:
    """An approval request counts as a message."""
    for item in output:
        if item["type"] == "message":
            yield json_list(item.get("content"))
        elif item["type"] == "mcp_approval_request":
            yield [{"type": "output_text", "text": _unapproved(item)}]


def _reasoning_of(output: Iterable[Item]) -> str:
    texts = []
    for item in output:
        if item["type"] == "reasoning":
            parts = [*json_list(item.get("summary")), *json_list(item.get("content"))]
            texts += [part["text"] for part in parts if part["text"]]
    return _BETWEEN.join(texts)


def _annotations(output: Iterable[Item]) -> list[JSONObject]:
    """Web citations, with positions in the joined text."""
    annotations, start = [], 0
    for parts in _message_parts(output):
        texts = [part for part in parts if part["type"] == "output_text"]
        for part in texts:
            for annotation in part.get("annotations") or ():
                if annotation.get("type") == "url_citation":
                    annotations.append(_citation(annotation, start))
            start += len(part["text"])
        if any(part["text"] for part in texts):
            start += len(_BETWEEN)
    return annotations


def _citation(annotation: JSONMapping, start: int) -> JSONObject:
    citation = {
        "start_index": annotation["start_index"] + start,
        "end_index": annotation["end_index"] + start,
        "title": annotation.get("title") or "",
        "url": annotation["url"],
    }
    return {"type": "url_citation", "url_citation": citation}


def _logprobs(logprobs: Iterable[object]) -> JSONObject:
    return {"content": [*logprobs], "refusal": None}


def _finish_reason(response: Response) -> str:
    if response["status"] == "incomplete":
        details = response.get("incomplete_details")
        return "content_filter" if details and details["reason"] == "content_filter" else "length"
    return "tool_calls" if any(item["type"] in _CALLS for item in response["output"]) else "stop"


def _usage(response: Response) -> JSONObject:
    usage = response.get("usage") or {}
    prompt, completion = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": usage.get("total_tokens", prompt + completion),
        "prompt_tokens_details": {**usage.get("input_tokens_details", {})},
        "completion_tokens_details": {**usage.get("output_tokens_details", {})},
    }


def _service_tier(response: Response) -> JSONObject:
    tier = response.get("service_tier")
    return {"service_tier": tier} if tier and tier != "auto" else {}
