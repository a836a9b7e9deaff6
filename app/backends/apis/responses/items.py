from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Literal

from app.core.items import ITEM_TYPES, as_json_object, is_by_user
from app.core.items.readings import HOSTED, NOTES
from app.core.profile import ContentOptions, RequestOptions
from app.core.request.call_ids import CallIds
from app.core.request.content import ChatPart, PartError, check_known, param_in_item, read_content
from app.core.request.messages import compacted_past, lenient_content
from app.core.request.model_request import TranslationState
from app.core.request.reasoning import (
    BOUND,
    PLAIN,
    bound_fields,
    is_sent_back,
    reasoning_text,
    warn_bound_elsewhere,
)
from app.core.request.tool_items import PairedCalls, missing_output
from app.core.request.tools import Function, ToolSet
from app.core.types import JSONObject
from app.core.types.request import Item, Part
from app.errors import InvalidRequest, quote

_SILENT = frozenset(row.type for row in ITEM_TYPES.values() if row.silent)
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


def input_items(
    state: TranslationState, tools: ToolSet, items: Sequence[Item], positions: Sequence[int]
) -> list[JSONObject]:
    """
    The items to send, oldest first; raises `InvalidRequest` for unsupported content.

    In `items`, all calls except native calls are function calls. `positions` are positions in the model request's
    items.
    """
    conversation = _Conversation(state, tools, items, positions)
    if state.upstream:
        warn_bound_elsewhere(items, state.upstream, state.profile, state.warnings)
    for position, item in enumerate(items):
        conversation.add(position, item)
    return _without_loose_reasoning(conversation.sent)


def _without_loose_reasoning(sent: Sequence[JSONObject]) -> list[JSONObject]:
    """Drop reasoning without subsequent output: servers reject it after an interrupted answer."""
    kept: list[JSONObject] = []
    follows = False
    for item in reversed(sent):
        if item["type"] != "reasoning":
            follows = item.get("role", "assistant") == "assistant" and not item["type"].endswith("_output")
        elif not follows:
            continue
        kept.append(item)
    return kept[::-1]


class _Conversation:
    def __init__(
        self, state: TranslationState, tools: ToolSet, items: Sequence[Item], positions: Sequence[int]
    ) -> None:
        self.state = state
        self.warnings = state.warnings
        self.options = state.options
        self.tools = tools
        self.items = items
        self.positions = positions
        self.input_start = state.model_request.input_start
        self.sent: list[JSONObject] = []
        self.ids = CallIds()
        self.call_ids: dict[int, str] = {}  # by the call's position
        self.stays = stays_native(state, items)
        self.paired = PairedCalls(items)
        self.replay = None if self.options.reasoning_replay == "never" else self.options.reasoning_replay
        self.turns = [*accumulate(map(is_by_user, items))]  # user message count up to each item
        self.with_tools = {turn for turn, item in zip(self.turns, items, strict=True) if item["type"] in _OUTPUTS}

    def add(self, position: int, item: Item) -> None:
        type_ = item["type"]
        if add := _ITEMS.get(type_):
            add(self, position, item)
        elif native := self.native(item):
            self.sent.append(native)
        elif ":" not in type_ and type_ not in _SILENT:
            self.warnings.add(f"Items of unknown type {quote(type_)} were ignored.")

    def native(self, item: Item) -> JSONObject | None:
        if not self.stays(item):
            return None
        upstream = self.state.upstream.get(str(item.get("id")), {})
        item_id = bound_fields(upstream, self.state.profile).get("id")
        return {**item, "id": item_id} if item_id else {**item}

    def message(self, position: int, item: Item) -> None:
        role = item["role"]
        if role == "assistant":
            self.answer(position, item)
            return
        check_known(item.get("content"), self.input_index(position))
        parts = self.parts(position, "content") or [_text("")]
        self.sent.append({"type": "message", "role": role, "content": parts})

    def answer(self, position: int, item: Item) -> None:
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
        message = {"type": "message", "id": f"msg_{len(self.sent)}", "role": "assistant", "status": status}
        self.sent.append({**message, "content": parts, **phase})

    def reasoning(self, position: int, item: Item) -> None:
        """Reasoning as received from the server, or else as text if the profile allows it."""
        upstream = self.state.upstream.get(str(item.get("id")), {})
        original = bound_fields(upstream, self.state.profile).get(NATIVE)
        text = reasoning_text(item, upstream)
        if isinstance(original, Mapping):
            self.sent.append(dict(original))
        elif self.replay and text:
            if is_sent_back(self.replay, self.turns[position], last=self.turns[-1], with_tools=self.with_tools):
                content = [{"type": "reasoning_text", "text": text}]
                self.sent.append({"type": "reasoning", "id": f"rs_{len(self.sent)}", "summary": [], "content": content})
        elif text and BOUND not in upstream:
            self.warnings.add(PLAIN)

    def call(self, position: int, item: Item) -> None:
        self.call_ids[position] = call_id = self.ids.next_id(item["call_id"])
        if item["type"] == "custom_tool_call":
            written = {"input": item["input"]}
        else:
            arguments = item["arguments"]
            written = {"arguments": as_json_object(arguments) if self.options.repair_arguments else arguments or "{}"}
        name = self.tools.called(item)
        named = native_name(name, self.tools.functions.get(name), self.options)
        self.sent.append({"type": item["type"], "call_id": call_id, **named, **written})
        output = self.paired.outputs.get(position)
        if output is None or position in self.paired.late:
            self.add_output(position, missing_output(item, self.warnings, strict=self.state.model_request.strict))
        elif output < position:  # some clients send results first
            self.output_of(position, output)

    def output(self, position: int, item: Item) -> None:
        call = self.paired.callers.get(position)
        if call is None or call in self.paired.late:
            if introduction := self.paired.introduction(position, self.warnings):
                self.output_as_message(position, introduction)
        elif call < position:
            self.output_of(call, position)

    def output_of(self, call: int, position: int) -> None:
        content = self.items[position].get("output")
        self.add_output(call, content if isinstance(content, str) else self.parts(position, "output"))

    def add_output(self, call: int, content: str | list[JSONObject]) -> None:
        type_ = _OUTPUTS[self.items[call]["type"]]
        self.sent.append({"type": type_, "call_id": self.call_ids[call], "output": content})

    def output_as_message(self, position: int, introduction: str) -> None:
        self.add_message([_text(introduction), *self.parts(position, "output")])

    def compaction(self, position: int, item: Item) -> None:
        self.add_message([_text(compacted_past(item, self.state.upstream, self.warnings))])

    def item_reference(self, position: int, item: Item) -> None:
        raise InvalidRequest(f"Item with id {quote(item['id'])} not found.", param=self.param(position, ".id"))

    def add_message(self, parts: list[JSONObject]) -> None:
        self.sent.append({"type": "message", "role": "user", "content": parts})

    def parts(self, position: int, name: Literal["content", "output"]) -> list[JSONObject]:
        item = self.items[position]
        content = item.get(name)
        if not isinstance(content, list):
            return [_text(content)] if content else []
        options = lenient_content(self.options.content) if item.get(HOSTED) else self.options.content
        parts: list[JSONObject] = []
        for index, part in enumerate(content):
            try:
                parts += self.part(part, options)
            except PartError as error:
                error.index = index
                raise InvalidRequest(error.message, param=self.param(position, f".{name}{error.where}")) from None
        return parts

    def part(self, part: Part, options: ContentOptions) -> list[JSONObject]:
        kept = {"prompt_cache_breakpoint": mark} if (mark := part.get("prompt_cache_breakpoint")) else {}
        return [{**_PARTS[made["type"]](made, part), **kept} for made in read_content([part], options, self.warnings)]

    def input_index(self, position: int) -> int:
        return self.positions[position] - self.input_start

    def param(self, position: int, field: str) -> str:
        return param_in_item(self.input_index(position), field)


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

_ITEMS: dict[str, Callable[[_Conversation, int, Item], None]] = {
    "message": _Conversation.message,
    "reasoning": _Conversation.reasoning,
    "function_call": _Conversation.call,
    "custom_tool_call": _Conversation.call,
    "function_call_output": _Conversation.output,
    "compaction": _Conversation.compaction,
    "item_reference": _Conversation.item_reference,
}


def native_name(name: str, function: Function | None, options: RequestOptions) -> JSONObject:
    if function is None or function.source is None or not is_in_namespace(function, options):
        return {"name": name}
    return {"name": function.source.name, "namespace": function.source.namespace}


def is_in_namespace(function: Function, options: RequestOptions) -> bool:
    return bool(function.source and function.source.namespace) and "namespace" in options.native_tools
