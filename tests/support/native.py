"""
Output of Responses servers: events in OpenAI's order, with OpenAI's fields.

    answer = Native().reasoning("Hm.", encrypted="gAAA").message("Hi", "!").completed()
    up.say(answer.steps())
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Self

from tests.support.upstream import Step, sse

USAGE = {
    "input_tokens": 81,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 24},
    "total_tokens": 121,
}


class Native:
    """Builds an answer's events; each item gets an id."""

    def __init__(self, name: str = "up") -> None:
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []
        self.event("response.created", response=self.response("in_progress"))
        self.event("response.in_progress", response=self.response("in_progress"))

    def response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{self.name}",
            "object": "response",
            "created_at": 1790000000,
            "status": status,
            "model": "m",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "output": [],
            "usage": None,
            **fields,
        }

    def event(self, type_: str, **fields: Any) -> Self:
        self.events.append({"type": type_, "sequence_number": len(self.events), **fields})
        return self

    def added(self, item: dict[str, Any]) -> Self:
        return self.event("response.output_item.added", output_index=len(self.items), item=item)

    def done(self, item: dict[str, Any]) -> Self:
        self.items.append(item)
        return self.event("response.output_item.done", output_index=len(self.items) - 1, item=item)

    def id(self, prefix: str) -> str:
        return f"{prefix}_{self.name}{len(self.items)}"

    def message(self, *deltas: str, phase: str | None = None, annotations: Iterable[dict[str, Any]] = ()) -> Self:
        item = {"id": self.id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        item |= {"phase": phase} if phase else {}
        where = {"item_id": item["id"], "output_index": len(self.items), "content_index": 0}
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.added(item).event("response.content_part.added", **where, part=part)
        for delta in deltas:
            self.event("response.output_text.delta", **where, delta=delta, logprobs=[], obfuscation="xY1")
        for index, annotation in enumerate(annotations):
            fields = {"annotation_index": index, "annotation": annotation}
            self.event("response.output_text.annotation.added", **where, **fields)
        part = {**part, "text": "".join(deltas), "annotations": [*annotations]}
        self.event("response.output_text.done", **where, text=part["text"], logprobs=[])
        self.event("response.content_part.done", **where, part=part)
        return self.done({**item, "status": "completed", "content": [part]})

    def reasoning(self, *summaries: str, encrypted: str | None = "gAAAAABo") -> Self:
        item: dict[str, Any] = {"id": self.id("rs"), "type": "reasoning", "summary": []}
        self.added(item)
        for index, text in enumerate(summaries):
            where = {"item_id": item["id"], "output_index": len(self.items), "summary_index": index}
            empty, part = {"type": "summary_text", "text": ""}, {"type": "summary_text", "text": text}
            self.event("response.reasoning_summary_part.added", **where, part=empty)
            self.event("response.reasoning_summary_text.delta", **where, delta=text)
            self.event("response.reasoning_summary_text.done", **where, text=text)
            self.event("response.reasoning_summary_part.done", **where, part=part)
        summary = [{"type": "summary_text", "text": text} for text in summaries]
        return self.done({**item, "summary": summary, **({"encrypted_content": encrypted} if encrypted else {})})

    def thought(self, *deltas: str) -> Self:
        """Raw reasoning, which is not encrypted."""
        item: dict[str, Any] = {"id": self.id("rs"), "type": "reasoning", "summary": [], "content": []}
        where = {"item_id": item["id"], "output_index": len(self.items), "content_index": 0}
        self.added(item)
        for delta in deltas:
            self.event("response.reasoning_text.delta", **where, delta=delta)
        text = "".join(deltas)
        self.event("response.reasoning_text.done", **where, text=text)
        return self.done({**item, "content": [{"type": "reasoning_text", "text": text}]})

    def call(self, name: str, *deltas: str, call_id: str = "call_1", **fields: Any) -> Self:
        return self._call("function_call", "arguments", name, deltas, call_id, fields)

    def custom_call(self, name: str, *deltas: str, call_id: str = "call_1", **fields: Any) -> Self:
        return self._call("custom_tool_call", "input", name, deltas, call_id, fields)

    def _call(
        self, kind: str, field: str, name: str, deltas: tuple[str, ...], call_id: str, fields: dict[str, Any]
    ) -> Self:
        event = "response.function_call_arguments" if field == "arguments" else "response.custom_tool_call_input"
        item = {"id": self.id("fc"), "type": kind, "call_id": call_id, "name": name, field: "", **fields}
        item |= {"status": "in_progress"}
        where = {"item_id": item["id"], "output_index": len(self.items)}
        self.added(item)
        for delta in deltas:
            self.event(f"{event}.delta", **where, delta=delta)
        named = {"name": name} if field == "arguments" else {}
        self.event(f"{event}.done", **where, **named, **{field: "".join(deltas)})
        return self.done({**item, "status": "completed", field: "".join(deltas)})

    def completed(self, **fields: Any) -> Self:
        return self.ended("completed", **fields)

    def incomplete(self, reason: str = "max_output_tokens") -> Self:
        return self.ended("incomplete", incomplete_details={"reason": reason})

    def ended(self, status: str, **fields: Any) -> Self:
        whole = {"output": self.items, "usage": USAGE, "service_tier": "default", **fields}
        return self.event(f"response.{status}", response=self.response(status, **whole))

    def frames(self) -> list[bytes]:
        return [b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in self.events]

    def steps(self, *more: Step) -> list[Step]:
        return sse(*self.frames(), *more)
