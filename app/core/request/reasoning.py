"""
Send earlier reasoning back to its backend, in its original field, if the profile says so.

Some backends reject a conversation without its reasoning, some use it if present, and some reject it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import orjson

from app.core.items.readings import NOTES
from app.core.profile import Profile, ThinkTagOptions
from app.core.request.roles import joined
from app.core.stream.reasoning_fields import ReasoningDetails
from app.core.stream.tool_calls import ORIGINAL_ID, ORIGINAL_ID_V1
from app.core.types import json_list
from app.core.types.request import Item
from app.errors import Warnings

# An upstream field with data for its own server only: `{"to": SERVER, ...}`.
BOUND = "bound"

BOUND_ELSEWHERE = "Reasoning encrypted by another server was dropped."
UNSIGNED = "Reasoning without a signature from this backend was dropped."
PLAIN = "Plain-text reasoning was dropped; to send it, set this backend's option 'request.reasoning_replay'."


def bound(profile: Profile, **fields: object) -> dict[str, object]:
    return {BOUND: {"to": profile.server, **fields}}


def bound_fields(upstream: Mapping[str, object] | None, profile: Profile) -> Mapping[str, object]:
    fields = (upstream or {}).get(BOUND)
    return fields if isinstance(fields, Mapping) and fields.get("to") == profile.server else {}


def warn_bound_elsewhere(
    items: Iterable[Item], upstream: Mapping[str, Mapping[str, object]], profile: Profile, warnings: Warnings
) -> None:
    for item in items:
        fields = upstream.get(item.get("id") or "")
        if fields and BOUND in fields and not bound_fields(fields, profile):
            warnings.add(BOUND_ELSEWHERE)
            return


_DEFAULT = "reasoning_content"  # known to most backends
_TEXTS = ("reasoning_content", "reasoning", "reasoning_text", "think_tags")


def upstream_reasoning(item: Item, upstream: Mapping[str, object] | None) -> Mapping[str, object]:
    """An item's reasoning by backend field names; otherwise its own content or summary."""
    if upstream:
        if BOUND not in upstream and all(upstream.values()):
            return upstream
        if fields := {name: value for name, value in upstream.items() if value and name != BOUND}:
            return fields
    parts = json_list(item.get("content")) or json_list(item.get("summary"))
    text = "\n".join(text for part in parts if isinstance(text := part.get("text"), str) and text)
    return {_DEFAULT: text} if text else {}


def reasoning_text(item: Item, upstream: Mapping[str, object] | None) -> str:
    return _text(upstream_reasoning(item, upstream))


def has_plain_text(item: Item, upstream: Mapping[str, object]) -> bool:
    """Whether the reasoning is readable, and not bound to a server."""
    return BOUND not in upstream and bool(reasoning_text(item, upstream))


_DEFAULT_TAGS = ThinkTagOptions()

# A call's fields that are not sent back, or have their own place.
_OWN = frozenset({"id", "type", "function", ORIGINAL_ID, ORIGINAL_ID_V1, NOTES, BOUND})


class ReasoningFields:
    def __init__(self, profile: Profile) -> None:
        options = profile.request
        self._field = options.reasoning_field
        self._make = _FIELDS.get(options.reasoning_field)
        self.placeholder = options.reasoning_placeholder
        tags = profile.response.think_tags
        self._tags = tags if isinstance(tags, ThinkTagOptions) else _DEFAULT_TAGS

    def reasoning(self, sources: Sequence[Mapping[str, object]]) -> tuple[str, dict[str, object]]:
        """Prefix for the message's text (reasoning in think tags), and the message's fields."""
        fields = self._make(sources) if self._make else {}
        if not fields and self.placeholder and self._field != "extra_content":
            name = _DEFAULT if self._field == "auto" else self._field
            fields = _FIELDS[name]([{_DEFAULT: self.placeholder}])
        if "think_tags" not in fields:
            return "", fields
        tagged = fields.pop("think_tags")
        return (f"{self._tags.open}\n{tagged}\n{self._tags.close}\n\n" if tagged else ""), fields

    def calls(self, sources: Sequence[Mapping[str, object] | None]) -> list[dict[str, object]]:
        """Extra fields per tool call; an `extra_content` placeholder is a JSON object in the first call."""
        if self._field not in ("auto", "extra_content"):
            return [{} for _ in sources]
        fields: list[dict[str, object]] = []
        for source in sources:
            sent = {name: value for name, value in (source or {}).items() if value and name not in _OWN}
            if self._field == "extra_content":
                sent = {name: value for name, value in sent.items() if name == "extra_content"}
            fields.append(sent)
        if self._field == "extra_content" and self.placeholder and fields and not any(fields):
            fields[0] = {"extra_content": orjson.loads(self.placeholder)}
        return fields


def _unchanged(sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
    if len(sources) == 1:
        fields = {**sources[0]}
        for name, value in fields.items():
            if not isinstance(value, str):
                fields[name] = joined([value])
        return fields
    names = dict.fromkeys(name for source in sources for name in source)
    return {name: joined([source[name] for source in sources if name in source], "\n") for name in names}


def _text_as(name: str, sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
    text = "\n".join(filter(None, map(_text, sources)))
    return {name: text} if text else {}


def _details(sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
    details: list[object] = []
    for source in sources:
        if isinstance(original := source.get("reasoning_details"), list):
            details += original
        elif text := _text(source):
            details.append({"type": "reasoning.text", "text": text})
    return {"reasoning_details": details} if details else {}


def _extra(sources: Sequence[Mapping[str, object]]) -> dict[str, object]:
    extra = [source["extra_content"] for source in sources if "extra_content" in source]
    return {"extra_content": joined(extra)} if extra else {}


_FIELDS: dict[str, Callable[[Sequence[Mapping[str, object]]], dict[str, object]]] = {
    "auto": _unchanged,
    "reasoning_details": _details,
    "extra_content": _extra,
    **{name: partial(_text_as, name) for name in _TEXTS},
}


def _text(source: Mapping[str, object]) -> str:
    """The first field with text: gateways repeat reasoning under several names."""
    for name in _TEXTS:
        if isinstance(text := source.get(name), str) and text:
            return text
    details = source.get("reasoning_details")
    if isinstance(details, list):
        return "".join(ReasoningDetails.texts(details))
    return details if isinstance(details, str) else ""
