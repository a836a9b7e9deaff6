"""
Translate conversation items into chat messages.

A turn's model output (text, reasoning, calls, in any order) becomes one assistant message, directly followed by its
call results, in call order. Backends reject any other order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from app.core.items import ITEM_TYPES, as_json_object
from app.core.items.readings import HOSTED
from app.core.profile import ContentOptions
from app.core.request.content import (
    ChatPart,
    cache_control,
    check_known,
    media,
    param_in_item,
    plain_text,
    read_content,
    string_or_parts,
    text_content,
    texts,
)
from app.core.request.model_request import TranslationState
from app.core.request.reasoning import (
    ReasoningFields,
    bound_fields,
    upstream_reasoning,
    warn_bound_elsewhere,
)
from app.core.request.roles import SYSTEM, Message, as_note
from app.core.request.tool_items import CallIds, PairedCalls, missing_output
from app.core.request.tools import ToolSet
from app.core.types import JSONObject
from app.core.types.request import Item, Part
from app.errors import InvalidRequest, Warnings, quote

UNREADABLE_PAST = "(An earlier part of this conversation was compacted by another server and cannot be read.)"
_ACCEPT_ALL = ContentOptions(files="pass", audio="pass", images="pass")  # for content that is dropped anyway
_Split: TypeAlias = tuple[list[ChatPart], list[ChatPart]]  # for the tool message, and for a message after it

_NO_FIELDS: Mapping[str, object] = {}
_HOISTED = "(See the next message.)"
_DROPPED = "(The result of the tool cannot be shown.)"


class AssistantTurn:
    __slots__ = ("before_text", "calls", "content", "number", "reasoning", "waiting")

    def __init__(self, number: int) -> None:  # faster than a dataclass with default factories
        self.number = number  # preceding user messages
        self.content: list[Any] = []  # texts; for APIs that keep the order, blocks of text and reasoning
        self.reasoning: list[Mapping[str, object]] = []
        self.before_text = 0  # entries in `reasoning` before the first text
        self.calls: list[int] = []
        self.waiting = 0  # calls with an output later in the items


class ConversationReader:
    """
    Builds Chat Completions messages; `open` is the current assistant turn.

    Subclasses for other APIs override `part`, `assistant` and `inline_media`, or the methods for item types.
    """

    def __init__(
        self,
        items: Sequence[Item],
        state: TranslationState,
        offered: ToolSet,
        positions: Sequence[int],
    ) -> None:
        """`positions`: each item's position in the model request's items."""
        self.items = items
        self.state = state
        self.options = state.options
        self.content_options = state.options.content
        self.offered = offered
        self.upstream = state.upstream
        self.warnings = state.warnings
        self.positions = positions
        self.in_parts = self.content_options.parts == "array"
        self.turn = 0  # user messages so far
        self.turns_with_calls: set[int] = set()
        self.open: AssistantTurn | None = None
        self.entries: list[Message | AssistantTurn] = []

    # Only for some conversations.

    @cached_property
    def input_start(self) -> int:
        return self.state.model_request.input_start

    @cached_property
    def paired(self) -> PairedCalls:
        return PairedCalls(self.items)

    @cached_property
    def ids(self) -> CallIds:
        return CallIds(self.options.tool_ids)

    @cached_property
    def replay(self) -> ReasoningFields:
        return ReasoningFields(self.state.profile)

    @cached_property
    def output_options(self) -> ContentOptions:
        return _ACCEPT_ALL if self.content_options.tool_images == "drop" else self.content_options

    @cached_property
    def hosted_output_options(self) -> ContentOptions:
        """Callers cannot change hosted tool results, so drop instead of rejecting."""
        options = self.output_options
        refused = (name for name in ("tool_images", "images", "files", "audio") if getattr(options, name) == "error")
        changes: dict[str, Any] = dict.fromkeys(refused, "drop")
        return replace(options, **changes)

    def messages(self) -> list[Message]:
        """
        Messages, oldest first.

        Raises `InvalidRequest`, with the item's index in its `param`, for content that cannot be sent.
        """
        if self.upstream:
            warn_bound_elsewhere(self.items, self.upstream, self.state.profile, self.warnings)
        for position, item in enumerate(self.items):
            if (type_ := item["type"]) in _ITEMS:
                getattr(self, type_)(position, item)
            else:
                self.other(position, item)
        self.close()
        messages: list[Message] = []
        for entry in self.entries:
            if isinstance(entry, dict):
                messages.append(entry)
            else:
                messages += self.assistant(entry)
        return messages

    # Items.

    def other(self, position: int, item: Item) -> None:
        type_ = item["type"]
        if ":" not in type_ and type_ not in _SILENT:  # extension items are ignored without a warning
            self.warnings.add(f"Items of unknown type {quote(type_)} were ignored.")

    def message(self, position: int, item: Item) -> None:
        role, content = item["role"], item.get("content")
        plain = plain_text(content)
        if role == "assistant":  # joined like `output_text` in the SDKs
            self.text(self.text_content(position, content, role=role, separator="") if plain is None else plain)
            return
        if plain is None:
            check_known(content, self.input_index(position))
        self.close()
        if role == "user":
            self.turn += 1
            if plain is None or self.in_parts:
                self.add(role, string_or_parts(self.parts(position, "content"), self.content_options.parts))
            else:
                self.entries.append({"role": role, "content": plain})
            return
        text = self.text_content(position, content, role=role, separator="\n")
        role = self.options.roles.developer if role == "developer" else role
        parts = self.parts(position, "content") if self.state.cached else []
        if any("cache_control" in part for part in parts):
            self.instruct(role, [part for part in parts if part["type"] == "text"])
        elif text and not text.isspace():
            self.instruct(role, text_content(text, self.content_options.parts))

    def instruct(self, role: str, content: str | list[ChatPart]) -> None:
        """
        Add a system or developer message, or a note in the user's turn if the server rejects the message there.

        Moving the message to the front would change the prompt prefix and invalidate the prompt cache.
        """
        roles = self.options.roles
        if role in SYSTEM and (roles.system != "any" or roles.alternate) and not self.is_at_start():
            role, content = "user", as_note(content)
        self.add(role, content)

    def is_at_start(self) -> bool:
        return all(isinstance(entry, dict) and entry["role"] in SYSTEM for entry in self.entries)

    def text(self, text: str) -> None:
        if not text or text.isspace():
            return
        turn = self.open or self.current()
        if turn.content and not turn.calls:  # two separate messages from the model
            self.close()
            later = turn.reasoning[turn.before_text :]
            del turn.reasoning[turn.before_text :]
            turn = self.current()
            turn.reasoning = later
        if not turn.content:
            turn.before_text = len(turn.reasoning)
        turn.content.append(text)

    def reasoning(self, position: int, item: Item) -> None:
        if thought := upstream_reasoning(item, self.source(item)):
            (self.open or self.current()).reasoning.append(thought)

    def function_call(self, position: int, item: Item) -> None:
        turn = self.open or self.current()
        turn.calls.append(position)
        turn.waiting += self.paired.outputs.get(position, -1) > position and position not in self.paired.late
        self.turns_with_calls.add(turn.number)

    def function_call_output(self, position: int, item: Item) -> None:
        call = self.paired.callers.get(position)
        if call is None or call in self.paired.late:
            if introduction := self.paired.introduction(position, self.warnings):
                self.output_as_message(position, introduction)
        else:
            self.mark_answered(call, position)

    def mark_answered(self, call: int, output: int) -> None:
        if (turn := self.open) and turn.calls and turn.calls[0] <= call < output:
            turn.waiting -= 1
            if not turn.waiting:
                self.close()

    def output_as_message(self, position: int, introduction: str) -> None:
        self.close()
        parts = [{"type": "text", "text": introduction}, *self.parts(position, "output")]
        if self.content_options.tool_images in ("drop", "error"):
            parts, _ = self.split_media(position, parts)
        self.add("user", string_or_parts(parts, self.content_options.parts))

    def compaction(self, position: int, item: Item) -> None:
        self.close()
        self.add("user", text_content(compacted_past(item, self.upstream, self.warnings), self.content_options.parts))

    def item_reference(self, position: int, item: Item) -> None:
        raise InvalidRequest(f"Item with id {quote(item['id'])} not found.", param=self.param(position, ".id"))

    # Assistant turns.

    def current(self) -> AssistantTurn:
        if self.open is None:
            self.open = AssistantTurn(self.turn)
        return self.open

    def close(self) -> None:
        if self.open:
            self.entries.append(self.open)
            self.open = None

    def assistant(self, turn: AssistantTurn) -> list[Message]:
        calls = turn.calls
        back, thought = False, ""
        fields: dict[str, object] = {}
        if calls or turn.reasoning or self.options.reasoning_placeholder:
            back = self.sends_reasoning(turn)
            thought, fields = self.replay.reasoning(turn.reasoning) if back else ("", {})
        text = thought + "\n\n".join(turn.content)
        if not (text or calls or (turn.reasoning and fields)):
            return []
        message: Message = {"role": "assistant"}
        if text:
            message["content"] = [{"type": "text", "text": text}] if self.in_parts else text
        elif not calls or self.content_options.assistant_null != "omit":
            message["content"] = None if calls and self.content_options.assistant_null == "null" else ""
        if fields:
            message |= fields
        if not calls:
            return [message]
        sources: list[Mapping[str, object]] = []
        ids: list[str] = []
        sent: list[JSONObject] = []
        for position in calls:
            call = self.items[position]
            source = self.source(call)
            call_id = self.ids.next_id(call["call_id"], source)
            sources.append(source)
            ids.append(call_id)
            sent.append({"id": call_id, "type": "function", "function": self.function_of(call)})
        if back and (self.replay.placeholder or any(sources)):
            for made, extra in zip(sent, self.replay.calls(sources), strict=True):
                made |= extra
        message["tool_calls"] = sent
        return [message, *self.tool_messages(calls, ids)]

    def sends_reasoning(self, turn: AssistantTurn) -> bool:
        """By `request.reasoning_replay`. If a turn has calls, servers require the reasoning of all its messages."""
        policy = self.options.reasoning_replay
        if policy in (None, "tool_turns"):
            return turn.number in self.turns_with_calls
        return policy == "always" or (policy == "current_turn" and turn.number == self.turn)

    def function_of(self, call: Item) -> dict[str, str]:
        arguments = as_json_object(call["arguments"]) if self.options.repair_arguments else call["arguments"] or "{}"
        return {"name": self.offered.chat_name_of(call), "arguments": arguments}

    # Tool results.

    def tool_messages(self, calls: Sequence[int], ids: Sequence[str]) -> list[Message]:
        """A tool message per call, then a user message with all their images and files."""
        messages: list[Message] = []
        hoisted: list[ChatPart] = []
        for call, call_id in zip(calls, ids, strict=True):
            parts, moved = self.output_parts(call)
            if moved:
                about = f"Content from the result of the tool call {quote(call_id)}:"
                hoisted += [{"type": "text", "text": about}, *moved]
            content = string_or_parts(parts, self.content_options.tool_content)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        if hoisted:
            messages.append({"role": "user", "content": hoisted})
        return messages

    def output_parts(self, call: int) -> _Split:
        output = None if call in self.paired.late else self.paired.outputs.get(call)
        if output is None:
            text = missing_output(self.items[call], self.warnings, strict=self.state.model_request.strict)
            return [{"type": "text", "text": text}], []
        if plain := plain_text(self.items[output].get("output")):
            return [{"type": "text", "text": plain}], []
        return self.split_media(output, self.parts(output, "output"))

    def split_media(self, output: int, parts: list[ChatPart]) -> _Split:
        """Most servers reject images, files and audio in tool messages."""
        if not media(parts):
            return parts, []
        match (self.hosted_output_options if self.items[output].get(HOSTED) else self.content_options).tool_images:
            case "error":
                message = "This backend supports only text in tool results."
                raise InvalidRequest(message, param=self.param(output, ".output"))
            case "drop":
                self.warnings.add("This backend supports only text in tool results; other content was dropped.")
                return _texts_or(parts, _DROPPED), []
            case "hoist":
                return _texts_or(parts, _HOISTED), media(parts)
        return self.inline_media(parts)

    def inline_media(self, parts: list[ChatPart]) -> _Split:
        return parts, []

    # Content.

    def part(self, made: ChatPart, part: Part) -> JSONObject:
        """The API's form of a chat part, made from an item's `part`."""
        if self.state.cached and isinstance(mark := part.get("prompt_cache_breakpoint"), Mapping):
            return {**made, "cache_control": cache_control(mark.get("ttl"))}
        return made

    def source(self, item: Item) -> Mapping[str, object]:
        """The item's fields from its server."""
        return self.upstream.get(item.get("id") or "") or _NO_FIELDS

    def own_fields(self, item: Item) -> Mapping[str, object]:
        """The fields bound to this server."""
        return bound_fields(self.source(item), self.state.profile)

    def add(self, role: str, content: str | list[ChatPart]) -> None:
        self.entries.append({"role": role, "content": content})

    def parts(
        self,
        position: int,
        name: Literal["content", "output"],
        form: Callable[[ChatPart, Part], JSONObject] | None = None,
    ) -> list[ChatPart]:
        """`form` as in `read_content`; by default the API's."""
        options = self.output_options if name == "output" else self.content_options
        if self.items[position].get(HOSTED):
            options = self.hosted_output_options
        try:
            return read_content(self.items[position].get(name), options, self.warnings, form or self.part)
        except InvalidRequest as error:
            error.param = self.param(position, f".{name}{error.param}")
            raise

    def text_content(self, position: int, content: Any, *, role: str, separator: str) -> str:
        """For roles with only text; warns about other parts."""
        if isinstance(content, str):
            return content
        parts = self.parts(position, "content", lambda made, part: made)
        for part in media(parts):
            self.warnings.add(f"Content of type {part['type']} is not supported in {role} messages and was ignored.")
        return separator.join(texts(parts))

    def input_index(self, position: int) -> int:
        """The item's index in the request's own input, negative for earlier turns."""
        return self.positions[position] - self.input_start

    def param(self, position: int, field: str) -> str:
        return param_in_item(self.input_index(position), field)


# `Configuration` applies the updates.
_SILENT = {row.type for row in ITEM_TYPES.values() if row.silent} | {"configuration_update"}

# Item types with a method of the same name. `ITEM_TYPES` converts all others to these.
_ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output", "compaction", "item_reference"})


def _texts_or(parts: list[ChatPart], otherwise: str) -> list[ChatPart]:
    if any(texts(parts)):
        return [part for part in parts if part["type"] == "text"]
    return [{"type": "text", "text": otherwise}]


def compacted_past(item: Item, upstream: Mapping[str, Mapping[str, object]], warnings: Warnings) -> str:
    if summary := upstream.get(item.get("id") or "", {}).get("summary"):
        return f"Summary of the conversation before this message:\n\n{summary}"
    warnings.add("A compaction from another server cannot be read; the model does not see the compacted items.")
    return UNREADABLE_PAST
