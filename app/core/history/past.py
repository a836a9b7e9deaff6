"""A stored conversation, and the rewriting of items without a counterpart in chat."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from app.core.history.compaction import has_compaction, without_compacted
from app.core.history.turns import ImageReference, Turn, image_references, parts_of
from app.core.stream.event_builder import Upstream
from app.core.types import frozen
from app.core.types.request import CreateResponse, Item, Part, ReasoningOptions, TextOptions, is_uncalled
from app.errors import Warnings, quote

# With a prefix, because unknown extension items are ignored.
_UPDATE = "openai:configuration_update"


@frozen
class Configuration:
    """Parameters from `configuration_update` items, which override the request's."""

    effort: str | None = None
    text_format: Mapping[str, object] | None = None  # as in `text.format`

    def updated(self, items: Iterable[Item]) -> Configuration:
        effort, text_format = self.effort, self.text_format
        updates = [item for item in items if item["type"] == _UPDATE]
        for item in updates:
            effort = (item.get("reasoning") or {}).get("effort") or effort
            text = item.get("text")
            text_format = text["format"] if isinstance(text, Mapping) else text_format
        return Configuration(effort, text_format) if updates else self

    def applied(self, request: CreateResponse) -> CreateResponse:
        changes: dict[str, object] = {}
        if self.effort:
            reasoning = request.reasoning or ReasoningOptions()
            changes["reasoning"] = reasoning.model_copy(update={"effort": self.effort})
        if self.text_format:
            new = TextOptions.model_validate({"format": self.text_format})
            changes["text"] = request.text.model_copy(update={"format": new.format})
        return request.model_copy(update=changes) if changes else request


UNCHANGED = Configuration()


@frozen
class Past:
    """A stored conversation, oldest first; immutable, because requests share it."""

    response_ids: Sequence[str] = ()
    items: Sequence[Item] = ()  # in stored form
    sent: Sequence[Item] = ()  # as sent to the model: rewritten, and without compacted items
    upstream: dict[str, Upstream] = field(default_factory=dict)
    model: str | None = None
    has_unstored: bool = False
    configuration: Configuration = UNCHANGED  # for later responses
    warnings: Sequence[str] = ()  # about items that cannot be sent
    images: Mapping[str, ImageReference] = field(default_factory=dict)

    @staticmethod
    def of(turns: Iterable[Turn]) -> Past:
        return Past().extended(turns)

    def extended(self, turns: Iterable[Turn]) -> Past:
        response_ids, items, upstream = [*self.response_ids], [*self.items], {**self.upstream}
        model, has_unstored = self.model, self.has_unstored
        warnings, images = Warnings(), {**self.images}
        added: list[Item] = []
        for turn in turns:
            new = turn.items
            response_ids.append(turn.response["id"])
            items += new
            added += rewrite_items(new, warnings)
            upstream |= turn.upstream
            images |= image_references(turn)
            model = turn.response.get("model", model)
            has_unstored = has_unstored or turn.response.get("store") is False
        configuration = self.configuration.updated(added)
        before = self
        if has_compaction(added):
            before, added = Past(), without_compacted(rewrite_items(items, Warnings()))
        return Past(
            response_ids=response_ids,
            items=items,
            sent=[*before.sent, *added],
            upstream=upstream,
            model=model,
            has_unstored=has_unstored,
            configuration=configuration,
            warnings=[*self.warnings, *warnings],
            images=images,
        )

    def items_by_id(self) -> dict[str, Item]:
        """The first version, if a client repeats an item."""
        return {item["id"]: item for item in reversed(self.items) if isinstance(item.get("id"), str)}


# OpenAI's encrypted content format. Other servers send plain text.
_SEALED = re.compile(r"gAAAAA[\w-]{80,}={0,2}")


def rewrite_items(items: Iterable[Item], warnings: Warnings) -> list[Item]:
    """Turn agent messages, and outputs without a call, into user messages."""
    return [rewrite(item, warnings) if (rewrite := _REWRITES.get(item["type"])) else item for item in items]


def _from_agent(item: Item, warnings: Warnings) -> Item:
    content: list[Part] = []
    for part in parts_of(item.get("content"), "user"):
        text = part.get("encrypted_content")
        if part["type"] != "encrypted_content" or not isinstance(text, str):
            content.append(part)
        elif _SEALED.fullmatch(text):
            warnings.add("An agent_message encrypted by OpenAI cannot be read and was dropped.")
        else:
            content.append({"type": "input_text", "text": text})
    return {"type": "message", "role": "user", "content": content}


def _from_tool(item: Item, warnings: Warnings) -> Item:
    if not is_uncalled(item):
        return item
    tool = f"The tool {quote(name)}" if (name := item.get("name")) else "A tool"
    introduction: Part = {"type": "input_text", "text": f"{tool} returned this result without a call:"}
    return {"type": "message", "role": "user", "content": [introduction, *parts_of(item["output"], "user")]}


_REWRITES: dict[str, Callable[[Item, Warnings], Item]] = {
    "agent_message": _from_agent,
    "function_call_output": _from_tool,
    "custom_tool_call_output": _from_tool,
    "configuration_update": lambda item, warnings: {**item, "type": _UPDATE},
}
