"""
From the items of a conversation to the messages of a chat request.

What the model said until it had to wait (text, reasoning, calls, in whatever order) is one assistant message; the
results of its calls follow it directly, one for each call, in the order of the calls. Backends refuse everything else,
and would refuse it again at each later turn of the conversation.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from app.core.profile import ContentOptions, Profile
from app.core.request.call_ids import CallIds
from app.core.request.content import (
    PART_TYPES,
    ChatPart,
    PartError,
    label,
    media,
    read_content,
    said,
    string_or_parts,
    text_content,
    texts,
)
from app.core.request.reasoning import ReasoningFields, is_sent_back, upstream_reasoning
from app.core.request.roles import Message
from app.core.request.tools import ToolSet
from app.core.stream.tool_calls import ORIGINAL_ID
from app.core.types.items import ITEM_TYPES, as_json_object
from app.core.types.readings import HOSTED
from app.core.types.request import Item
from app.errors import InvalidRequest

NO_OUTPUT = "(no output)"
OUTPUT_LATER = "(This runs on; its result comes later.)"
_PASS = ContentOptions(files="pass", audio="pass", images="pass")  # of what is going to be dropped, nothing is refused
_Split: TypeAlias = tuple[list[ChatPart], list[ChatPart]]  # what stays in the tool message, what moves behind it

_HOISTED = "(see the message after this one)"
_DROPPED = "(what the tool returned cannot be shown)"


def to_messages(
    items: Sequence[Item],
    profile: Profile,
    offered: ToolSet,
    upstream: Mapping[str, Mapping[str, Any]],
    warnings: list[str],
    places: Sequence[int],
) -> list[Message]:
    """
    Return the messages of a conversation, oldest first.

    Roles are as the backend knows them, but stand where they stood: `roles.arrange` moves them. `places` are the
    positions of the items in the request's own input; those below 0 are history. Raises `InvalidRequest`, with the
    place in the request, for what cannot be sent.
    """
    conversation = _Conversation(items, profile, offered, upstream, warnings, places)
    for position, item in enumerate(items):
        conversation.take(position, item)
    return list(conversation.messages())


@dataclass(slots=True)
class _Said:
    """What the model said until it had to wait, put together from its items."""

    turn: int
    texts: list[str] = field(default_factory=list)
    reasoning: list[Mapping[str, Any]] = field(default_factory=list)
    later: list[Mapping[str, Any]] = field(default_factory=list)  # reasoning after text: of this, or of the next
    calls: list[int] = field(default_factory=list)  # the positions of their items
    waiting: int = 0  # how many of them have an output that is still to come


class _Conversation:
    """Reads items one by one; what is `open` is what the model is still saying."""

    def __init__(
        self,
        items: Sequence[Item],
        profile: Profile,
        offered: ToolSet,
        upstream: Mapping[str, Mapping[str, Any]],
        warnings: list[str],
        places: Sequence[int],
    ) -> None:
        self.items = items
        self.options = profile.request
        self.content = profile.request.content
        self.tool_content = _PASS if self.content.tool_images == "drop" else self.content
        self.hosted_content = _lenient(self.tool_content)
        self.offered = offered
        self.upstream = upstream
        self.warnings = warnings
        self.places = places
        self.replay = ReasoningFields(profile)
        self.ids = CallIds(self.options.tool_ids)
        self.outputs = _pair(items)  # the position of its output, by that of the call
        self.callers = {output: call for call, output in self.outputs.items()}
        self.late = _late(items, self.outputs)
        self.answers: dict[str, list[Any]] = {}  # what was said for the calls of each id
        for call in (position for position, item in enumerate(items) if item["type"] == "function_call"):
            answers = self.answers.setdefault(items[call]["call_id"], [])
            if call in self.outputs:
                answers.append(items[self.outputs[call]]["output"])
        self.turn = 0
        self.with_tools: set[int] = set()
        self.open: _Said | None = None
        self.read: list[Message | _Said] = []

    def take(self, position: int, item: Item) -> None:
        type_ = item["type"]
        if take := _ITEMS.get(type_):
            take(self, position, item)
        elif ":" not in type_ and type_ not in _SILENT:  # an extension's items are for those who know them
            self.warnings.append(f"Items of type {label(type_)} are not known and were left out.")

    def messages(self) -> Iterator[Message]:
        """Yield the messages of all that was taken."""
        self.close()
        for one in self.read:
            if isinstance(one, _Said):
                yield from self.assistant(one)
            else:
                yield one

    # Items.

    def message(self, position: int, item: Item) -> None:
        role, content = item["role"], item.get("content")
        if role == "assistant":
            self.text(self.said(position, content, by=role, joint=""))  # as SDKs make `output_text` of its parts
            return
        self.check_known(position, content)
        self.close()
        if role == "user":
            self.turn += 1
            self.add(role, string_or_parts(self.parts(position, "content"), self.content.parts))
        elif text := self.said(position, content, by=role, joint="\n"):
            role = self.options.roles.developer if role == "developer" else role
            self.add(role, text_content(text, self.content.parts))

    def text(self, text: str) -> None:
        if not text or text.isspace():
            return
        said = self.open
        if said and said.texts and not said.calls:  # two messages of the model, with nothing that holds them together
            self.close(later=False)
            self.saying().reasoning += said.later
        self.saying().texts.append(text)

    def reasoning(self, position: int, item: Item) -> None:
        thought = upstream_reasoning(item, self.upstream.get(item.get("id") or ""))
        if thought:
            said = self.saying()
            (said.later if said.texts else said.reasoning).append(thought)

    def function_call(self, position: int, item: Item) -> None:
        said = self.saying()
        said.calls.append(position)
        said.waiting += self.outputs.get(position, -1) > position and position not in self.late
        self.with_tools.add(said.turn)

    def function_call_output(self, position: int, item: Item) -> None:
        call = self.callers.get(position)
        if call is None:
            self.stray(position, item)
        elif call in self.late:
            self.output_as_message(position, f"The result of the tool call {label(item['call_id'])}:")
        elif (said := self.open) and said.calls and said.calls[0] <= call < position:
            said.waiting -= 1
            if not said.waiting:
                self.close()

    def stray(self, position: int, item: Item) -> None:
        """
        Keep an output that answers no call as context.

        An invented call would put words in the model's mouth; a second output of one call may be a correction of the
        first, so both are kept, unless they are the same.
        """
        name = label(item["call_id"])
        if (answers := self.answers.get(item["call_id"])) is not None:
            if item["output"] in answers:
                return
            about = f"Another result of the tool call {name}:"
            self.warnings.append(f"The call {name} has more than one output; those after the first go as messages.")
        else:
            about = f"The result of the tool call {name}, which is not in this conversation:"
            self.warnings.append(f"The output of {name} answers no call of this conversation; it goes as a message.")
        self.output_as_message(position, about)

    def output_as_message(self, position: int, about: str) -> None:
        """Add an output as a message of the user, which can stand anywhere."""
        self.close()
        parts = [{"type": "text", "text": about}, *self.parts(position, "output")]
        if media(parts) and self.content.tool_images in ("drop", "error"):
            parts, _ = _MEDIA[self.content.tool_images](self, position, parts)
        self.add("user", string_or_parts(parts, self.content.parts))

    def compaction(self, position: int, item: Item) -> None:
        summary = self.upstream.get(item.get("id") or "", {}).get("summary")
        if not summary:
            self.warnings.append("A compaction item could not be read, so what it stands for was left out.")
            return
        self.close()
        text = f"A summary of the conversation before this message:\n\n{summary}"
        self.add("user", text_content(text, self.content.parts))

    def item_reference(self, position: int, item: Item) -> None:
        raise InvalidRequest(f"Item with id {label(item['id'])} not found.", param=self.place(position, ".id"))

    # What the model says.

    def saying(self) -> _Said:
        if self.open is None:
            self.open = _Said(self.turn)
        return self.open

    def close(self, *, later: bool = True) -> None:
        """End what the model is saying; `later`: with what it thought after the last of its text."""
        said, self.open = self.open, None
        if said:
            self.read.append(said)
            if later:
                said.reasoning += said.later

    def assistant(self, said: _Said) -> Iterator[Message]:
        policy = self.options.reasoning_replay
        back = is_sent_back(policy, said.turn, last=self.turn, with_tools=self.with_tools)
        thought, fields = self.replay.reasoning(said.reasoning) if back else ("", {})
        text = thought + "\n\n".join(said.texts)
        if not (text or said.calls or (said.reasoning and fields)):
            return
        message: Message = {"role": "assistant"}
        if text:
            message["content"] = text_content(text, self.content.parts)
        elif not said.calls or self.content.assistant_null != "omit":
            message["content"] = None if said.calls and self.content.assistant_null == "null" else ""
        message |= fields
        if not said.calls:
            yield message
            return
        calls = [self.items[call] for call in said.calls]
        heard = [self.upstream.get(call.get("id") or "") or {} for call in calls]
        ids = [
            self.ids.take(call["call_id"], source.get(ORIGINAL_ID)) for call, source in zip(calls, heard, strict=True)
        ]
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": self.called(call), **extra}
            for id, call, extra in zip(ids, calls, self.replay.calls(heard) if back else [{}] * len(calls), strict=True)
        ]
        yield message
        yield from self.tools(said.calls, ids)

    def called(self, call: Item) -> dict[str, str]:
        arguments = as_json_object(call["arguments"]) if self.options.repair_arguments else call["arguments"] or "{}"
        return {"name": self.offered.called(call), "arguments": arguments}

    # What tools say.

    def tools(self, calls: Sequence[int], ids: Sequence[str]) -> Iterator[Message]:
        """Yield the results of one message's calls, and last, in one message of the user, what is not text in them."""
        hoisted: list[ChatPart] = []
        for call, id in zip(calls, ids, strict=True):
            output = None if call in self.late else self.outputs.get(call)
            parts = self.no_output(call) if output is None else self.parts(output, "output")
            if media(parts):
                hosted = output is not None and self.items[output].get(HOSTED)
                form = self.hosted_content.tool_images if hosted else self.content.tool_images
                parts, moved = _MEDIA[form](self, output or 0, parts)
                if moved:
                    hoisted += [{"type": "text", "text": f"From the result of the tool call {label(id)}:"}, *moved]
            yield {"role": "tool", "tool_call_id": id, "content": string_or_parts(parts, self.content.tool_content)}
        if hoisted:
            yield {"role": "user", "content": hoisted}

    def no_output(self, call: int) -> list[ChatPart]:
        """Return what stands in the place of an output that is not there: that of an asynchronous call is not due."""
        item = self.items[call]
        if item.get("async") is True:
            return [{"type": "text", "text": OUTPUT_LATER}]
        self.warnings.append(f"The call {label(item['call_id'])} has no output; the backend was told so.")
        return [{"type": "text", "text": NO_OUTPUT}]

    def hoist(self, output: int, parts: list[ChatPart]) -> _Split:
        return _texts_or(parts, _HOISTED), media(parts)

    def inline(self, output: int, parts: list[ChatPart]) -> _Split:
        return parts, []

    def drop(self, output: int, parts: list[ChatPart]) -> _Split:
        self.warnings.append("This backend takes only text from tools; what else they returned was left out.")
        return _texts_or(parts, _DROPPED), []

    def refuse(self, output: int, parts: list[ChatPart]) -> _Split:
        raise InvalidRequest("This backend takes only text from tools.", param=self.place(output, ".output"))

    # Content.

    def add(self, role: str, content: str | list[ChatPart]) -> None:
        self.read.append({"role": role, "content": content})

    def parts(self, position: int, name: str) -> list[ChatPart]:
        options = self.tool_content if name == "output" else self.content
        if self.items[position].get(HOSTED):
            options = self.hosted_content
        try:
            return read_content(self.items[position].get(name), options, self.warnings)
        except PartError as error:
            raise self.refused(position, name, error) from None

    def check_known(self, position: int, content: Any) -> None:
        """Raise `InvalidRequest` for a message of the request with nothing in it that a model can be shown."""
        if self.places[position] < 0 or not isinstance(content, list) or not content:
            return
        if all(part["type"] not in PART_TYPES for part in content):
            message = f"There is nothing here that is known: send parts of the types {', '.join(sorted(PART_TYPES))}."
            raise InvalidRequest(message, param=self.place(position, ".content"), code="invalid_value")

    def said(self, position: int, content: Any, *, by: str, joint: str) -> str:
        try:
            return said(content, self.content, self.warnings, by=by, joint=joint)
        except PartError as error:
            raise self.refused(position, "content", error) from None

    def refused(self, position: int, name: str, error: PartError) -> InvalidRequest:
        return InvalidRequest(error.message, param=self.place(position, f".{name}{error.where}"))

    def place(self, position: int, field: str) -> str:
        """Name the field at fault, as the caller knows it: what came before the request is not in its input."""
        own = self.places[position]
        return f"input[{own}]{field}" if own >= 0 else "previous_response_id"


_SILENT = frozenset(row.type for row in ITEM_TYPES.values() if row.silent)

# The items that chat knows. How each other one is read as some of these is in the table of item types.
_ITEMS: dict[str, Callable[[_Conversation, int, Item], None]] = {
    "message": _Conversation.message,
    "reasoning": _Conversation.reasoning,
    "function_call": _Conversation.function_call,
    "function_call_output": _Conversation.function_call_output,
    "compaction": _Conversation.compaction,
    "item_reference": _Conversation.item_reference,
}

# What becomes of images, files and sound in the result of a tool. OpenAI, LM Studio and DeepSeek refuse them there.
_MEDIA: dict[str, Callable[[_Conversation, int, list[ChatPart]], _Split]] = {
    "hoist": _Conversation.hoist,
    "inline": _Conversation.inline,
    "drop": _Conversation.drop,
    "error": _Conversation.refuse,
}


def _lenient(content: ContentOptions) -> ContentOptions:
    """Return options that drop what they would refuse: the caller has no hand in what a hosted tool returns."""
    refused = [name for name in ("tool_images", "images", "files", "audio") if getattr(content, name) == "error"]
    return content.model_copy(update=dict.fromkeys(refused, "drop")) if refused else content


def _texts_or(parts: list[ChatPart], otherwise: str) -> list[ChatPart]:
    """Return the text parts alone; if there is no text, a note in their place."""
    if any(texts(parts)):
        return [part for part in parts if part["type"] == "text"]
    return [{"type": "text", "text": otherwise}]


def _pair(items: Sequence[Item]) -> dict[int, int]:
    """
    Return the position of the output of each call, by that of the call.

    An output answers the last call of its id that is before it and has none yet; else, for there are clients that
    send results first, the first one after it.
    """
    pairs: dict[int, int] = {}
    waiting: dict[str, int] = {}
    early: dict[str, deque[int]] = {}
    answered: set[str] = set()
    for position, item in enumerate(items):
        if item["type"] == "function_call":
            id = item["call_id"]
            if earlier := early.get(id):
                pairs[position] = earlier.popleft()
            else:
                waiting[id] = position
        elif item["type"] == "function_call_output":
            id = item["call_id"]
            if (call := waiting.pop(id, None)) is not None:
                pairs[call] = position
                answered.add(id)
            elif id not in answered:
                early.setdefault(id, deque()).append(position)
    return pairs


def _late(items: Sequence[Item], outputs: Mapping[int, int]) -> set[int]:
    """Return the positions of the asynchronous calls whose output came when the conversation had gone on."""
    messages = [*itertools.accumulate(item["type"] == "message" for item in items)]
    return {
        call
        for call, output in outputs.items()
        if items[call].get("async") is True and messages[output] > messages[call]
    }
