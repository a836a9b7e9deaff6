"""
Translate a conversation's items into Messages messages.

Model output keeps its order: the server rejects changed or moved thinking blocks. User and assistant messages
alternate; one user message with all tool results directly follows their calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from app.core.bounded_json import loads
from app.core.items import as_json_object
from app.core.request.caching import THINKING_BLOCKS
from app.core.request.content import ChatPart
from app.core.request.files import is_pdf
from app.core.request.messages import AssistantTurn, ConversationReader
from app.core.request.reasoning import UNSIGNED, has_plain_text
from app.core.request.roles import Message, is_blank
from app.core.types import JSONObject
from app.core.types.request import Item, Part
from app.errors import InvalidRequest

_DATA_URL = re.compile(r"data:([\w.+/-]*)[^,]*;base64,", re.IGNORECASE)
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_WEB = ("https://", "http://")


def _image_block(made: ChatPart) -> JSONObject:
    url: str = made["image_url"]["url"]
    if url.startswith(_WEB):
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": _base64_image(url, "image_url")}


def _base64_image(url: str, field: str) -> JSONObject:
    match = _DATA_URL.match(url)
    media_type = match[1].lower().replace("image/jpg", "image/jpeg") if match else ""
    if match is None or media_type not in _IMAGES:
        message = "This backend supports images only as JPEG, PNG, GIF or WebP, as a URL or base64 data."
        raise InvalidRequest(message, param=field)
    return {"type": "base64", "media_type": media_type, "data": url[match.end() :]}


def _file_block(made: ChatPart) -> JSONObject:
    file: JSONObject = made["file"]
    data = file.get("file_data")
    if data is None:
        source = {"type": "url", "url": file["file_url"]}
    elif is_pdf(file):
        match = _DATA_URL.match(data)
        source = {"type": "base64", "media_type": "application/pdf", "data": data[match.end() if match else 0 :]}
    elif data.lower().startswith("data:image/"):
        return {"type": "image", "source": _base64_image(data, "file_data")}
    else:
        raise InvalidRequest("This backend supports only text, PDF and image files.", param="file_data")
    return {"type": "document", "source": source, **({"title": name} if (name := file.get("filename")) else {})}


def _refused_block(made: ChatPart) -> JSONObject:
    kind = "audio" if made["type"] == "input_audio" else "video"
    raise InvalidRequest(f"This backend does not support {kind}.")


# By chat part type.
_BLOCKS: dict[str, Callable[[ChatPart], JSONObject]] = {
    "text": lambda made: made,
    "image_url": _image_block,
    "file": _file_block,
    "input_audio": _refused_block,
    "video_url": _refused_block,
}

THINKING = "thinking"  # bound field in a reasoning item: the signed block


class MessagesConversation(ConversationReader):
    def part(self, made: ChatPart, part: Part) -> JSONObject:
        return super().part(_BLOCKS[made["type"]](made), part)

    def text(self, text: str) -> None:
        """The server rejects blank text."""
        if text and not text.isspace():
            self.current().content.append({"type": "text", "text": text})

    def reasoning(self, position: int, item: Item) -> None:
        """The server accepts only signed blocks as reasoning."""
        block = self.own_fields(item).get(THINKING)
        if isinstance(block, dict):
            self.current().content.append(block)
        elif has_plain_text(item, self.source(item)):
            self.warnings.add(UNSIGNED)

    def assistant(self, turn: AssistantTurn) -> list[Message]:
        sent_back = self.sends_reasoning(turn)
        content = [block for block in turn.content if sent_back or block["type"] not in THINKING_BLOCKS]
        calls = [self.items[call] for call in turn.calls]
        ids = [self.ids.next_id(call["call_id"], self.source(call)) for call in calls]
        content += [
            {
                "type": "tool_use",
                "id": call_id,
                "name": self.offered.chat_name_of(call),
                "input": loads(as_json_object(call["arguments"])),
            }
            for call_id, call in zip(ids, calls, strict=True)
        ]
        while content and content[-1]["type"] in THINKING_BLOCKS:  # the server rejects a thought at the end
            content.pop()
        messages: list[Message] = [{"role": "assistant", "content": content}] if content else []
        if calls:
            results: list[JSONObject] = []
            for call, call_id in zip(turn.calls, ids, strict=True):
                parts, _ = self.output_parts(call)
                shown = [part for part in parts if not is_blank(part)]
                results.append({"type": "tool_result", "tool_use_id": call_id, **({"content": shown} if shown else {})})
            messages.append({"role": "user", "content": results})
        return messages
