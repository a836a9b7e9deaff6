"""
Translate a conversation's items into Gemini's contents.

Signatures (`thoughtSignature`) return unchanged to their own server, on the same part. User and model contents
alternate; function responses are a separate content after their calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from mimetypes import guess_type
from typing import cast
from urllib.parse import urlsplit

from app.core.bounded_json import loads
from app.core.items import as_json_object
from app.core.request.content import ChatPart, media, texts
from app.core.request.files import is_pdf
from app.core.request.messages import AssistantTurn, ConversationReader
from app.core.request.reasoning import UNSIGNED, has_plain_text
from app.core.request.roles import Message
from app.core.types import JSONMapping, JSONObject, json_objects, json_text
from app.core.types.request import Item, Part
from app.errors import InvalidRequest, quote

_DATA_URL = re.compile(r"data:([\w.+/-]*)[^,]*;base64,", re.IGNORECASE)
_FILE_TYPES = ("image/", "audio/", "video/", "application/pdf")
# Allowed inside a function response; other media follow it.
_IN_RESPONSES = ("image/", "application/pdf")


def _wrapped(part: JSONObject) -> JSONObject:
    """A part in Gemini's form, marked as already translated; see `unwrapped`."""
    return {"type": "part", "part": part}


def media_type(part: JSONMapping) -> str:
    """Empty for text."""
    own = part["part"] if part["type"] == "part" else {}
    data = own.get("inlineData") or own.get("fileData") or {}
    return str(data.get("mimeType", ""))


def _media_part(url: str, default: str, field: str) -> JSONObject:
    if match := _DATA_URL.match(url):
        return _inline_part(match[1].lower().replace("image/jpg", "image/jpeg") or default, url[match.end() :])
    if "://" not in url[:20]:
        raise InvalidRequest("Must be a URL, or a data URL in base64.", param=field)
    guessed = None
    with suppress(ValueError):
        guessed, _ = guess_type(urlsplit(url).path)
    return _wrapped({"fileData": {"mimeType": guessed or default, "fileUri": url}})


def _inline_part(media_type: str, data: str) -> JSONObject:
    return _wrapped({"inlineData": {"mimeType": media_type, "data": data}})


def _file_part(made: ChatPart) -> JSONObject:
    file: JSONObject = made["file"]
    data = file.get("file_data")
    if data is None:
        return _media_part(file["file_url"], "application/pdf", "file_url")
    match = _DATA_URL.match(data)
    declared = match[1].lower() if match else ""
    name = file.get("filename")
    if is_pdf(file):
        declared = "application/pdf"
    elif declared in ("", "application/octet-stream"):
        declared = (isinstance(name, str) and guess_type(name)[0]) or ""
    if not declared.startswith(_FILE_TYPES):
        message = "This backend supports only text, PDF, image, audio and video files."
        raise InvalidRequest(message, param="file_data")
    return _inline_part(declared, data[match.end() if match else 0 :])


# By chat part type.
_PARTS: dict[str, Callable[[ChatPart], JSONObject]] = {
    "text": lambda made: made,
    "image_url": lambda made: _media_part(made["image_url"]["url"], "image/jpeg", "image_url"),
    "file": _file_part,
    "input_audio": lambda made: _inline_part(f"audio/{made['input_audio']['format']}", made["input_audio"]["data"]),
    "video_url": lambda made: _media_part(made["video_url"]["url"], "video/mp4", "video_url"),
}


# Bound fields: signed parts (messages, reasoning items), id and signature (calls).
SIGNED_PARTS, CALL_ID, SIGNATURE = "parts", "id", "signature"
THOUGHT_SIGNATURE = "thoughtSignature"

_ROLES = {"user": "user", "tool": "user", "assistant": "model"}


class GeminiConversation(ConversationReader):
    def part(self, made: ChatPart, part: Part) -> JSONObject:
        return _PARTS[made["type"]](made)

    def message(self, position: int, item: Item) -> None:
        if item["role"] != "assistant":
            super().message(position, item)
            return
        text = self.text_content(position, item.get("content"), role="assistant", separator="")
        self.current().content += _with_signed(text, json_objects(self.own_fields(item).get(SIGNED_PARTS)))

    def reasoning(self, position: int, item: Item) -> None:
        if own := self.own_fields(item):
            self.current().content += json_objects(own.get(SIGNED_PARTS))
        elif has_plain_text(item, self.source(item)):
            self.warnings.add(UNSIGNED)

    def assistant(self, turn: AssistantTurn) -> list[Message]:
        sent_back = self.sends_reasoning(turn)
        content = turn.content if sent_back else [*filter(None, map(_unsigned, turn.content))]
        calls = [self.items[call] for call in turn.calls]
        parts = [self._call(call, signed=sent_back) for call in calls]
        if parts and THOUGHT_SIGNATURE not in parts[0] and (placeholder := self.options.reasoning_placeholder):
            parts[0][THOUGHT_SIGNATURE] = placeholder
        content = [*content, *parts]
        if all(part.get("thought") for part in content):
            return []
        messages: list[Message] = [{"role": "assistant", "content": [*map(_wrapped, content)]}]
        if calls:
            messages.append({"role": "tool", "content": self._results(turn.calls)})
        return messages

    def _call(self, call: Item, *, signed: bool) -> JSONObject:
        own = self.own_fields(call)
        arguments = cast(JSONObject, loads(as_json_object(call["arguments"])))
        part: JSONObject = {"functionCall": {**_id_of(own), "name": self.offered.chat_name_of(call), "args": arguments}}
        if signed and (signature := own.get(SIGNATURE)):
            part[THOUGHT_SIGNATURE] = signature
        return part

    def _results(self, calls: Sequence[int]) -> list[ChatPart]:
        """Function responses, then media that they cannot contain."""
        responses: list[ChatPart] = []
        others: list[ChatPart] = []
        for call in calls:
            kept, moved = self.output_parts(call)
            name = self.offered.chat_name_of(self.items[call])
            response: JSONObject = {
                **_id_of(self.own_fields(self.items[call])),
                "name": name,
                "response": {"output": "\n".join(texts(kept))},
            }
            if inner := unwrapped(media(kept)):
                response["parts"] = inner
            responses.append(_wrapped({"functionResponse": response}))
            if moved:
                others += [{"type": "text", "text": f"Content from the result of the function {quote(name)}:"}, *moved]
        return [*responses, *others]

    def inline_media(self, parts: list[ChatPart]) -> tuple[list[ChatPart], list[ChatPart]]:
        moved = [part for part in media(parts) if not media_type(part).startswith(_IN_RESPONSES)]
        return [part for part in parts if part not in moved], moved


def _id_of(own: Mapping[str, object]) -> JSONObject:
    """Only the server that assigned an id accepts it."""
    return {"id": call_id} if (call_id := own.get(CALL_ID)) else {}


def _with_signed(text: str, signed: Sequence[JSONObject]) -> list[JSONObject]:
    """Split a text at its signed parts; if it has changed, an empty part carries the signature."""
    parts: list[JSONObject] = []
    for part in reversed(signed):
        words = json_text(part.get("text"))
        if words and words in text:
            text, _, after = text.rpartition(words)
            parts = [part, *_text(after), *parts]
        else:
            parts = [{**part, "text": ""}, *parts]
    return [*_text(text), *parts]


def _text(text: str) -> list[JSONObject]:
    return [{"text": text}] if text and not text.isspace() else []


def _unsigned(part: JSONObject) -> JSONObject | None:
    """None for thoughts, and for parts with only a signature."""
    if part.get("thought") or not part.get("text", " "):
        return None
    return {name: value for name, value in part.items() if name != THOUGHT_SIGNATURE}


def as_content(turn: Message) -> JSONObject:
    return {"role": _ROLES[str(turn["role"])], "parts": unwrapped(cast(list[ChatPart], turn["content"]))}


def unwrapped(parts: Iterable[ChatPart]) -> list[JSONObject]:
    return [{"text": part["text"]} if part["type"] == "text" else part["part"] for part in parts]
