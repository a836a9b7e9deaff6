"""
Send earlier reasoning back to the backend that thought it: where it is wanted, and under the name it had.

There are backends that refuse a conversation without it (DeepSeek, Kimi, Gemini's signatures, MiniMax), those that
make use of it, and those that refuse it (Groq, Mistral): the profile tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import orjson

from app.core.profile import Profile, ThinkTagOptions
from app.core.request.roles import joined
from app.core.stream.reasoning_fragments import ReasoningDetails
from app.core.stream.tool_calls import ORIGINAL_ID
from app.core.types import list_field
from app.core.types.readings import NOTES
from app.core.types.request import Item

_DEFAULT = "reasoning_content"  # the name that most backends understand
_TEXTS = ("reasoning_content", "reasoning", "reasoning_text", "think_tags")


def upstream_reasoning(item: Item, upstream: Mapping[str, object] | None) -> Mapping[str, object]:
    """
    Return what was thought in a reasoning item, by the backend's own names of fields.

    `upstream` is what the backend really said; of an item that is not ours there is only its own content, else its
    summary.
    """
    if upstream and (said := {name: value for name, value in upstream.items() if value}):
        return said
    parts = list_field(item, "content") or list_field(item, "summary")
    text = "\n".join(text for part in parts if isinstance(text := part.get("text"), str) and text)
    return {_DEFAULT: text} if text else {}


def is_sent_back(policy: str, turn: int, *, last: int, with_tools: Collection[int]) -> bool:
    """
    Tell if the reasoning of a turn goes back.

    A turn is all that the model said between two messages of the user; `last` is the present one and `with_tools` are
    those in which it called a tool. DeepSeek wants the reasoning of all messages of such a turn, not only of those
    that make the calls.
    """
    match policy:
        case "always":
            return True
        case "tool_turns":
            return turn in with_tools
        case "current_turn":
            return turn == last
    return False


_DEFAULT_TAGS = ThinkTagOptions()


class ReasoningFields:
    """What a profile wants back, and how."""

    def __init__(self, profile: Profile) -> None:
        options = profile.request
        self._field = options.reasoning_field
        self._placeholder = options.reasoning_placeholder
        tags = profile.response.think_tags
        self._tags = tags if isinstance(tags, ThinkTagOptions) else _DEFAULT_TAGS

    def reasoning(self, sources: Sequence[Mapping[str, object]]) -> tuple[str, dict[str, object]]:
        """Return what stands before the text of an assistant message (in think tags), and the message's fields."""
        make = _FIELDS.get(self._field)
        fields = make(sources) if make else {}
        if not fields and self._placeholder and self._field != "extra_content":
            name = _DEFAULT if self._field == "auto" else self._field
            fields = _FIELDS[name]([{_DEFAULT: self._placeholder}])
        thought = fields.pop("think_tags", "")
        return (f"{self._tags.open}\n{thought}\n{self._tags.close}\n\n" if thought else ""), fields

    def calls(self, sources: Sequence[Mapping[str, object] | None]) -> list[dict[str, object]]:
        """
        Return the extra fields of each tool call of one message, such as Gemini's `extra_content`.

        The placeholder of a backend that keeps its thoughts there is a JSON object, and goes on the first call.
        """
        if self._field not in ("auto", "extra_content"):
            return [{} for _ in sources]
        fields = [
            {name: value for name, value in (source or {}).items() if value and self._takes(name)} for source in sources
        ]
        if self._field == "extra_content" and self._placeholder and fields and not any(fields):
            fields[0] = {"extra_content": orjson.loads(self._placeholder)}
        return fields

    def _takes(self, name: str) -> bool:
        return name == "extra_content" or (
            self._field == "auto" and name not in ("id", "type", "function", ORIGINAL_ID, NOTES)
        )


def _as_it_came(sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
    names = dict.fromkeys(name for source in sources for name in source)
    return {name: joined([source[name] for source in sources if name in source], "\n") for name in names}


def _text_as(name: str) -> Callable[[Sequence[Mapping[str, object]]], dict[str, object]]:
    def make(sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
        text = "\n".join(filter(None, map(_text, sources)))
        return {name: text} if text else {}

    return make


def _details(sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
    details: list[object] = []
    for source in sources:
        if isinstance(known := source.get("reasoning_details"), list):
            details += known
        elif text := _text(source):
            details.append({"type": "reasoning.text", "text": text})
    return {"reasoning_details": details} if details else {}


def _extra(sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
    extra = [source["extra_content"] for source in sources if "extra_content" in source]
    return {"extra_content": joined(extra)} if extra else {}


_FIELDS: dict[str, Callable[[Sequence[Mapping[str, object]]], dict[str, object]]] = {
    "auto": _as_it_came,
    "reasoning_details": _details,
    "extra_content": _extra,
} | {name: _text_as(name) for name in _TEXTS}


def _text(source: Mapping[str, object]) -> str:
    """Return the thought in plain words: gateways repeat it under several names, so the first one counts."""
    for name in _TEXTS:
        if isinstance(text := source.get(name), str) and text:
            return text
    details = source.get("reasoning_details")
    if isinstance(details, list):
        return "".join(ReasoningDetails.texts(details))
    return details if isinstance(details, str) else ""
