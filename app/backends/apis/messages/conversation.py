"""
Translate a conversation's items into Messages messages.

Model output keeps its order: the server rejects changed or moved thinking blocks. User and assistant messages
alternate; one user message with all tool results directly follows their calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from app.core.bounded_json import loads
from app.core.items import as_json_object
from app.core.items.readings import HOSTED
from app.core.profile import ContentOptions
from app.core.request.caching import THINKING_BLOCKS
from app.core.request.content import CHAT_PARTS, PartError, PartForm
from app.core.request.files import is_pdf
from app.core.request.messages import AssistantTurn, ConversationReader
from app.core.request.reasoning import BOUND, UNSIGNED, bound_fields, is_sent_back, reasoning_text
from app.core.request.roles import OPENING, SYSTEM, Message
from app.core.stream.tool_calls import ORIGINAL_ID, ORIGINAL_ID_V1
from app.core.types import JSONObject
from app.core.types.request import Item, Part

_DATA_URL = re.compile(r"data:([\w.+/-]*)[^,]*;base64,", re.IGNORECASE)
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_WEB = ("https://", "http://")


def _text_block(part: Part, options: ContentOptions) -> JSONObject:
    return CHAT_PARTS.parts[part["type"]](part, options)


def _image_block(part: Part, options: ContentOptions) -> JSONObject:
    url: str = CHAT_PARTS.parts["input_image"](part, options)["image_url"]["url"]
    if url.startswith(_WEB):
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": _base64_image(url, "image_url")}


def _base64_image(url: str, field: str) -> JSONObject:
    match = _DATA_URL.match(url)
    media_type = match[1].lower().replace("image/jpg", "image/jpeg") if match else ""
    if match is None or media_type not in _IMAGES:
        raise PartError("This backend supports images only as JPEG, PNG, GIF or WebP, as a URL or base64 data.", field)
    return {"type": "base64", "media_type": media_type, "data": url[match.end() :]}


def _file_block(part: Part, options: ContentOptions) -> JSONObject:
    made = CHAT_PARTS.parts["input_file"](part, options)
    if made["type"] == "text":
        return made
    file: JSONObject = made["file"]
    data = file.get("file_data")
    if data is None:
        source = {"type": "url", "url": file["file_url"]}
    elif is_pdf(part):
        match = _DATA_URL.match(data)
        source = {"type": "base64", "media_type": "application/pdf", "data": data[match.end() if match else 0 :]}
    elif data.lower().startswith("data:image/"):
        return {"type": "image", "source": _base64_image(data, "file_data")}
    else:
        raise PartError("This backend supports only text, PDF and image files.", "file_data")
    return {"type": "document", "source": source, **({"title": name} if (name := file.get("filename")) else {})}


def _refused_part(kind: str) -> Any:
    def refuse(part: Part, options: ContentOptions) -> JSONObject:
        raise PartError(f"This backend does not support {kind}.")

    return refuse


PARTS = PartForm(
    {
        **dict.fromkeys(CHAT_PARTS.parts, _text_block),
        "input_image": _image_block,
        "input_file": _file_block,
        "input_audio": _refused_part("audio"),
        "input_video": _refused_part("video"),
    }
)
_CACHED_PARTS = PARTS._replace(breakpoints=True)


THINKING = "thinking"  # bound field in a reasoning item: the signed block


class MessagesConversation(ConversationReader):
    part_form = PARTS

    def accepts_later_system(self) -> bool:
        return False

    def text(self, text: str) -> None:
        """The server rejects blank text."""
        if text and not text.isspace():
            self.current().content.append({"type": "text", "text": text})

    def reasoning(self, position: int, item: Item) -> None:
        """The server accepts only signed blocks as reasoning."""
        fields = self.upstream.get(item.get("id") or "") or {}
        block = bound_fields(fields, self.state.profile).get(THINKING)
        if isinstance(block, dict):
            self.current().content.append(block)
        elif BOUND not in fields and reasoning_text(item, fields):
            self.warnings.add(UNSIGNED)

    def assistant(self, turn: AssistantTurn) -> list[Message]:
        policy = self.options.reasoning_replay
        back = is_sent_back(policy, turn.number, last=self.turn, with_tools=self.with_tools)
        content = [block for block in turn.content if back or block["type"] not in THINKING_BLOCKS]
        calls = [self.items[call] for call in turn.calls]
        ids = [self.ids.next_id(call["call_id"], self._own_id(call)) for call in calls]
        content += [
            {
                "type": "tool_use",
                "id": call_id,
                "name": self.offered.called(call),
                "input": loads(as_json_object(call["arguments"])),
            }
            for call_id, call in zip(ids, calls, strict=True)
        ]
        messages: list[Message] = [{"role": "assistant", "content": content}] if content else []
        if calls:
            messages.append({"role": "user", "content": [*self._results(turn.calls, ids)]})
        return messages

    def _own_id(self, call: Item) -> object:
        source = self.upstream.get(call.get("id") or "") or {}
        return source.get(ORIGINAL_ID) or source.get(ORIGINAL_ID_V1)

    def _results(self, calls: Sequence[int], ids: Sequence[str]) -> Iterator[JSONObject]:
        for call, call_id in zip(calls, ids, strict=True):
            output = None if call in self.paired.late else self.paired.outputs.get(call)
            parts = self.no_output(call) if output is None else self.parts(output, "output")
            content = [part for part in parts if not _is_blank(part)]
            if output is not None and any(part["type"] != "text" for part in content):
                content = self._within_limits(output, content)
            yield {"type": "tool_result", "tool_use_id": call_id, **({"content": content} if content else {})}

    def _within_limits(self, output: int, content: list[JSONObject]) -> list[JSONObject]:
        """Drop or refuse images and documents if tools may return only text."""
        options = self.hosted_content if self.items[output].get(HOSTED) else self.content
        if options.tool_images == "error":
            return self.refuse(output, content)[0]
        return self.drop(output, content)[0] if options.tool_images == "drop" else content


class CachedConversation(MessagesConversation):
    """Keeps the caller's prompt cache breakpoints."""

    part_form = _CACHED_PARTS


def _is_blank(block: JSONObject) -> bool:
    return block["type"] == "text" and (not block["text"] or block["text"].isspace())


def system_and_messages(messages: Iterable[Message]) -> tuple[list[JSONObject], list[Message]]:
    """
    System blocks, and messages in an accepted order.

    The first and last messages are the user's, because newer models reject a final assistant message. Assistant
    messages do not end with a thought.
    """
    system: list[JSONObject] = []
    conversation: list[Message] = []
    for message in messages:
        if message["role"] in SYSTEM:
            system += _blocks(message)
        else:
            conversation.append(message)
    alternating = _alternating(conversation)
    if any(message["role"] == "assistant" and _ends_with_thought(message) for message in alternating):
        alternating = _alternating(map(_without_last_thoughts, alternating))
    if not alternating or alternating[0]["role"] != "user":
        alternating.insert(0, _OPENING)
    if alternating[-1]["role"] != "user":
        alternating.append(_OPENING)
    return system, alternating


_OPENING: Message = {"role": "user", "content": [{"type": "text", "text": OPENING["content"]}]}


def _alternating(messages: Iterable[Message]) -> list[Message]:
    """Merge messages with the same role; drop blank blocks and empty messages."""
    runs: list[list[Message]] = []
    for message in messages:
        content = cast(list[JSONObject], message["content"])
        if not content or any(map(_is_blank, content)):
            message = {**message, "content": _blocks(message)}
        if not message["content"]:
            continue
        if runs and runs[-1][0]["role"] == message["role"]:
            runs[-1].append(message)
        else:
            runs.append([message])
    return [run[0] if len(run) == 1 else _merged(run) for run in runs]


def _merged(run: Sequence[Message]) -> Message:
    return {**run[0], "content": [block for message in run for block in cast(list[JSONObject], message["content"])]}


def _blocks(message: Message) -> list[JSONObject]:
    return [block for block in cast(list[JSONObject], message["content"]) if not _is_blank(block)]


def _ends_with_thought(message: Message) -> bool:
    return cast(list[JSONObject], message["content"])[-1]["type"] in THINKING_BLOCKS


def _without_last_thoughts(message: Message) -> Message:
    content = _blocks(message)
    while message["role"] == "assistant" and content and content[-1]["type"] in THINKING_BLOCKS:
        content.pop()
    return {**message, "content": content}
