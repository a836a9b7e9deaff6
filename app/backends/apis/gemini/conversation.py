"""
Translate a conversation's items into Gemini's contents.

Signatures (`thoughtSignature`) return unchanged to their own server, on the same part. User and model contents
alternate; function responses are a separate content after their calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from app.backends.apis.gemini.parts import GEMINI_PARTS, IN_RESPONSES, media_type, own_part, sent_part
from app.core.bounded_json import loads
from app.core.items import as_json_object
from app.core.items.readings import HOSTED
from app.core.json_values import json_objects, json_text
from app.core.request.content import ChatPart, media, texts
from app.core.request.messages import AssistantTurn, ConversationReader
from app.core.request.reasoning import BOUND, UNSIGNED, bound_fields, is_sent_back, reasoning_text
from app.core.request.roles import OPENING, SYSTEM, Message
from app.core.types import JSONObject
from app.core.types.request import Item
from app.errors import quote

# Bound fields: signed parts (messages, reasoning items), id and signature (calls).
SIGNED_PARTS, CALL_ID, SIGNATURE = "parts", "id", "signature"
THOUGHT_SIGNATURE = "thoughtSignature"

_RESULTS = "tool"  # keeps function responses in a separate content
_ROLES = {"user": "user", _RESULTS: "user", "assistant": "model"}


class GeminiConversation(ConversationReader):
    part_form = GEMINI_PARTS

    def accepts_later_system(self) -> bool:
        return False

    def message(self, position: int, item: Item) -> None:
        if item["role"] != "assistant":
            super().message(position, item)
            return
        text = self.text_content(position, item.get("content"), role="assistant", separator="")
        parts = _with_signed(text, json_objects(self.own_fields(item).get(SIGNED_PARTS)))
        self.current().content += [own_part(part) for part in parts]

    def reasoning(self, position: int, item: Item) -> None:
        fields = self.upstream.get(item.get("id") or "") or {}
        if own := self.own_fields(item):
            self.current().content += [own_part(part) for part in json_objects(own.get(SIGNED_PARTS))]
        elif BOUND not in fields and reasoning_text(item, fields):
            self.warnings.add(UNSIGNED)

    def own_fields(self, item: Item) -> Mapping[str, object]:
        return bound_fields(self.upstream.get(item.get("id") or ""), self.profile)

    def assistant(self, turn: AssistantTurn) -> list[Message]:
        policy = self.options.reasoning_replay or "always"
        back = is_sent_back(policy, turn.number, last=self.turn, with_tools=self.with_tools)
        written = [part["part"] for part in turn.content]
        content = written if back else [*filter(None, map(_unsigned, written))]
        calls = [self.items[call] for call in turn.calls]
        parts = [self._call(call, signed=back) for call in calls]
        if parts and THOUGHT_SIGNATURE not in parts[0] and (placeholder := self.options.reasoning_placeholder):
            parts[0][THOUGHT_SIGNATURE] = placeholder
        content = [*content, *parts]
        if all(part.get("thought") for part in content):
            return []
        messages: list[Message] = [{"role": "assistant", "content": [*map(own_part, content)]}]
        if calls:
            messages.append({"role": _RESULTS, "content": self._results(turn.calls)})
        return messages

    def _call(self, call: Item, *, signed: bool) -> JSONObject:
        own = self.own_fields(call)
        arguments = cast(JSONObject, loads(as_json_object(call["arguments"])))
        part: JSONObject = {"functionCall": {**_id_of(own), "name": self.offered.called(call), "args": arguments}}
        if signed and (signature := own.get(SIGNATURE)):
            part[THOUGHT_SIGNATURE] = signature
        return part

    def _results(self, calls: Sequence[int]) -> list[ChatPart]:
        """Function responses, then media that they cannot contain."""
        responses: list[ChatPart] = []
        others: list[ChatPart] = []
        for call in calls:
            output = None if call in self.paired.late else self.paired.outputs.get(call)
            parts = self.no_output(call) if output is None else self.parts(output, "output")
            kept, moved = self._split(output, parts) if media(parts) else (parts, [])
            name = self.offered.called(self.items[call])
            response: JSONObject = {
                **_id_of(self.own_fields(self.items[call])),
                "name": name,
                "response": {"output": "\n".join(texts(kept))},
            }
            if inner := [sent_part(part) for part in media(kept)]:
                response["parts"] = inner
            responses.append(own_part({"functionResponse": response}))
            if moved:
                others += [{"type": "text", "text": f"Content from the result of the function {quote(name)}:"}, *moved]
        return [*responses, *others]

    def _split(self, output: int | None, parts: list[ChatPart]) -> tuple[list[ChatPart], list[ChatPart]]:
        position = output or 0
        options = self.hosted_content if self.items[position].get(HOSTED) else self.content
        match options.tool_images:
            case "error":
                return self.refuse(position, parts)
            case "drop":
                return self.drop(position, parts)
            case "hoist":
                return self.hoist(position, parts)
        moved = [part for part in media(parts) if not media_type(part).startswith(IN_RESPONSES)]
        return [part for part in parts if part not in moved], moved


def _id_of(own: Mapping[str, object]) -> JSONObject:
    """Only the server that assigned an id accepts it."""
    return {"id": call_id} if (call_id := own.get(CALL_ID)) else {}


def _with_signed(text: str, signed: Sequence[JSONObject]) -> list[JSONObject]:
    """Split a text at its signed parts; if it has changed, an empty part carries the signature."""
    parts: list[JSONObject] = []
    for part in reversed(signed):
        before, found, after = text.rpartition(words) if (words := json_text(part.get("text"))) else (text, " ", "")
        if not found:
            part, before, after = {**part, "text": ""}, text, ""
        parts = [part, *_text(after), *parts]
        text = before
    return [*_text(text), *parts]


def _text(text: str) -> list[JSONObject]:
    return [{"text": text}] if text and not text.isspace() else []


def _unsigned(part: JSONObject) -> JSONObject | None:
    """None for thoughts, and for parts with only a signature."""
    if part.get("thought") or not part.get("text", " "):
        return None
    return {name: value for name, value in part.items() if name != THOUGHT_SIGNATURE}


def system_and_contents(messages: Iterable[Message]) -> tuple[list[JSONObject], list[JSONObject]]:
    """The system instruction, and contents that begin and end with the user's."""
    system: list[JSONObject] = []
    runs: list[tuple[str, list[JSONObject]]] = []
    for message in messages:
        role = str(message["role"])
        parts = [sent_part(part) for part in cast(list[ChatPart], message["content"]) if not _is_blank(part)]
        if role in SYSTEM:
            system += parts
        elif parts and runs and runs[-1][0] == role != _RESULTS:
            runs[-1][1].extend(parts)
        elif parts:
            runs.append((role, parts))
    if not runs or runs[0][0] != "user":
        runs.insert(0, _OPENING)
    if runs[-1][0] == "assistant":
        runs.append(_OPENING)
    return system, [{"role": _ROLES[role], "parts": parts} for role, parts in runs]


_OPENING: tuple[str, list[JSONObject]] = ("user", [{"text": OPENING["content"]}])


def _is_blank(part: ChatPart) -> bool:
    return part["type"] == "text" and (not part["text"] or part["text"].isspace())
