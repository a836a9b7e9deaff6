from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from app.core.items import as_json_object
from app.core.items.readings import NOTES
from app.core.profile import ContentOptions, RequestOptions
from app.core.request.content import ChatPart, check_known, plain_text
from app.core.request.messages import AssistantTurn, ConversationReader, compacted_past
from app.core.request.model_request import TranslationState
from app.core.request.reasoning import PLAIN, has_plain_text, reasoning_text
from app.core.request.roles import Message
from app.core.request.tool_items import missing_output
from app.core.request.tools import Function
from app.core.types import JSONObject
from app.core.types.request import Item, Part
from app.errors import quote

_OUTPUTS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}

# Bound field: the item as received.
NATIVE = "item"


def native_item_types(options: RequestOptions) -> set[str]:
    return {re.sub(r"(_preview)?(_\d.*)?$", "", type_) + "_call" for type_ in options.passes}


def stays_native(state: TranslationState, items: Sequence[Item]) -> Callable[[Item], bool]:
    """A predicate for items sent natively: custom calls, calls to native tools, and their outputs."""
    options, upstream = state.options, state.upstream
    types = native_item_types(options)

    def is_call(item: Item) -> bool:
        type_ = item["type"]
        if type_ == "custom_tool_call":
            return "custom" in options.native_tools
        return type_ in types and NOTES not in upstream.get(str(item.get("id")), {})

    answered = {item.get("call_id") for item in items if is_call(item)} if types else frozenset()

    def stays(item: Item) -> bool:
        is_output = item["type"].removesuffix("_output") in types and item.get("call_id") in answered
        return is_output or is_call(item)

    return stays


def _without_loose_reasoning(sent: Sequence[Message]) -> list[Message]:
    """Drop reasoning without subsequent output: servers reject it after an interrupted answer."""
    kept: list[Message] = []
    follows = False
    for item in reversed(sent):
        if item["type"] != "reasoning":
            follows = item.get("role", "assistant") == "assistant" and not str(item["type"]).endswith("_output")
        elif not follows:
            continue
        kept.append(item)
    return kept[::-1]


class ResponsesConversation(ConversationReader):
    """
    Builds items, oldest first.

    In `items`, all calls except native calls (`stays`) are function calls.
    """

    @cached_property
    def stays(self) -> Callable[[Item], bool]:
        return stays_native(self.state, self.items)

    @cached_property
    def call_ids(self) -> dict[int, str]:
        """By the call's position."""
        return {}

    @cached_property
    def output_options(self) -> ContentOptions:
        return self.content_options

    def messages(self) -> list[Message]:
        return _without_loose_reasoning(super().messages())

    def other(self, position: int, item: Item) -> None:
        if item["type"] == "custom_tool_call":
            self.function_call(position, item)
        elif self.stays(item):
            item_id = self.own_fields(item).get("id")
            self.entries.append({**item, "id": item_id} if item_id else {**item})
        else:
            super().other(position, item)

    def message(self, position: int, item: Item) -> None:
        role, content = item["role"], item.get("content")
        if role == "assistant":
            self.answer(item)
            return
        self.turn += role == "user"
        if (text := plain_text(content)) is not None:
            self.add(role, [_text(text)])
            return
        check_known(content, self.input_index(position))
        self.add(role, self.parts(position, "content") or [_text("")])

    def answer(self, item: Item) -> None:
        """The message needs an id, but nothing refers to it."""
        parts: list[JSONObject] = []
        content = item.get("content")
        for part in [{"type": "output_text", "text": content}] if isinstance(content, str) else content or ():
            if isinstance(text := part.get("text"), str):
                if text:
                    parts.append({"type": "output_text", "text": text, "annotations": []})
            elif isinstance(refusal := part.get("refusal"), str):
                parts.append({"type": "refusal", "refusal": refusal})
            else:
                self.warnings.add(
                    f"Content of type {quote(part['type'])} is not supported in assistant messages and was ignored."
                )
        if not parts:
            return
        phase = {"phase": item.get("phase")} if item.get("phase") else {}
        status = "incomplete" if item.get("status") == "incomplete" else "completed"
        message = {"type": "message", "id": f"msg_{len(self.entries)}", "role": "assistant", "status": status}
        self.entries.append({**message, "content": parts, **phase})

    def reasoning(self, position: int, item: Item) -> None:
        """Reasoning as received from the server, or else as text if the profile allows it."""
        original = self.own_fields(item).get(NATIVE)
        text = reasoning_text(item, self.source(item))
        if isinstance(original, Mapping):
            self.entries.append(dict(original))
        elif text and self.options.reasoning_replay not in (None, "never"):
            turn = AssistantTurn(self.turn)
            content = [{"type": "reasoning_text", "text": text}]
            turn.content.append(
                {"type": "reasoning", "id": f"rs_{len(self.entries)}", "summary": [], "content": content}
            )
            self.entries.append(turn)
        elif has_plain_text(item, self.source(item)):
            self.warnings.add(PLAIN)

    def assistant(self, turn: AssistantTurn) -> list[Message]:
        """Reasoning as text."""
        return turn.content if self.sends_reasoning(turn) else []

    def function_call(self, position: int, item: Item) -> None:
        self.turns_with_calls.add(self.turn)
        self.call_ids[position] = call_id = self.ids.next_id(item["call_id"])
        if item["type"] == "custom_tool_call":
            written = {"input": item["input"]}
        else:
            arguments = item["arguments"]
            written = {"arguments": as_json_object(arguments) if self.options.repair_arguments else arguments or "{}"}
        name = self.offered.chat_name_of(item)
        named = native_name(name, self.offered.functions.get(name), self.options)
        self.entries.append({"type": item["type"], "call_id": call_id, **named, **written})
        output = self.paired.outputs.get(position)
        if output is None or position in self.paired.late:
            strict = self.state.model_request.strict
            self.add_output(position, missing_output(item, self.warnings, strict=strict))
        elif output < position:  # some clients send results first
            self.output_of(position, output)

    def mark_answered(self, call: int, output: int) -> None:
        if call < output:
            self.output_of(call, output)

    def output_of(self, call: int, output: int) -> None:
        content = self.items[output].get("output")
        self.add_output(call, content if isinstance(content, str) else self.parts(output, "output"))

    def add_output(self, call: int, content: str | list[JSONObject]) -> None:
        type_ = _OUTPUTS[self.items[call]["type"]]
        self.entries.append({"type": type_, "call_id": self.call_ids[call], "output": content})

    def output_as_message(self, position: int, introduction: str) -> None:
        self.add("user", [_text(introduction), *self.parts(position, "output")])

    def compaction(self, position: int, item: Item) -> None:
        self.add("user", [_text(compacted_past(item, self.upstream, self.warnings))])

    def add(self, role: str, content: str | list[ChatPart]) -> None:
        self.entries.append({"type": "message", "role": role, "content": content})

    def part(self, made: ChatPart, part: Part) -> JSONObject:
        kept = {"prompt_cache_breakpoint": mark} if (mark := part.get("prompt_cache_breakpoint")) else {}
        return {**_PARTS[made["type"]](made, part), **kept}


def _text(text: object) -> JSONObject:
    return {"type": "input_text", "text": text}


def _image(made: ChatPart, part: Part) -> JSONObject:
    return {"type": "input_image", "image_url": made["image_url"]["url"], "detail": part.get("detail") or "auto"}


def _file(made: ChatPart, part: Part) -> JSONObject:
    detail = {"detail": part["detail"]} if part.get("detail") else {}
    return {"type": "input_file", **made["file"], **detail}


# By Chat Completions part type.
_PARTS: dict[str, Callable[[ChatPart, Part], JSONObject]] = {
    "text": lambda made, part: _text(made["text"]),
    "image_url": _image,
    "file": _file,
    "input_audio": lambda made, part: made,
    "video_url": lambda made, part: {"type": "input_video", "video_url": made["video_url"]["url"]},
}


def native_name(name: str, function: Function | None, options: RequestOptions) -> JSONObject:
    if function is None or function.source is None or not is_in_namespace(function, options):
        return {"name": name}
    return {"name": function.source.name, "namespace": function.source.namespace}


def is_in_namespace(function: Function, options: RequestOptions) -> bool:
    return bool(function.source and function.source.namespace) and "namespace" in options.native_tools
