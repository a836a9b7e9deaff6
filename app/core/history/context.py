"""
Combine a conversation's stored turns and a request's input into the items sent to the model.

Items without a counterpart in chat are rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter

import orjson

from app.core.history.approvals import ApprovedCall
from app.core.history.compaction import COMPACTION, has_compaction, is_compaction, without_compacted
from app.core.history.turns import ImageReference, Turn, check_outputs, image_references, parts_of
from app.core.items import is_by_user
from app.core.stream.event_builder import Upstream
from app.core.types import frozen
from app.core.types.request import CreateResponse, Item, Part, ReasoningOptions, TextOptions, is_uncalled
from app.errors import InvalidRequest, Warnings, quote


@frozen
class Configuration:
    """Parameters from `configuration_update` items, which override the request's."""

    effort: str | None = None
    text_format: Mapping[str, object] | None = None  # as in `text.format`

    def updated(self, items: Iterable[Item]) -> Configuration:
        effort, text_format = self.effort, self.text_format
        updates = [item for item in items if item["type"] == "configuration_update"]
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
        response_ids, upstream, images = [*self.response_ids], {**self.upstream}, {**self.images}
        model, has_unstored = self.model, self.has_unstored
        new: list[Item] = []
        for turn in turns:
            response_ids.append(turn.response["id"])
            new += turn.items
            upstream |= turn.upstream
            images |= image_references(turn)
            model = turn.response.get("model", model)
            has_unstored = has_unstored or turn.response.get("store") is False
        warnings = Warnings(dict.fromkeys(self.warnings))
        sent, _ = self.sent_with(new, warnings)
        return Past(
            response_ids=response_ids,
            items=[*self.items, *new],
            sent=sent,
            upstream=upstream,
            model=model,
            has_unstored=has_unstored,
            configuration=self.configuration.updated(new),
            warnings=[*warnings],
            images=images,
        )

    def sent_with(self, new: Sequence[Item], warnings: Warnings) -> tuple[list[Item], int]:
        """`sent`, continued by `new`, and the number of its last items made from `new`."""
        added = rewrite_items(new, warnings)
        if has_compaction(added):
            sent = without_compacted(rewrite_items([*self.items, *new], warnings))
            return sent, len(sent)
        return [*self.sent, *added], len(added)

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
}


@frozen
class RequestContext:
    key: str  # the response's chain
    model: str | None  # the last response's model
    items: list[Item]  # as sent to the model, oldest first
    new: list[Item]  # from the request
    added: int  # number of trailing `items` from `new`
    upstream: dict[str, Upstream]  # backend fields, by item id
    decrypted: dict[str, Upstream]  # the part of `upstream` sent in encrypted form
    compacts: bool  # whether the request is for a summary
    warnings: Warnings
    approved: Sequence[ApprovedCall] = ()
    denied: Sequence[tuple[str, str]] = ()  # approval request ids, and each denial's path in the request
    configuration: Configuration = UNCHANGED  # set by conversation items
    images: Mapping[str, ImageReference] = field(default_factory=dict)  # stored separately, by item id


@frozen
class NewInput:
    """A request's input, with referenced items and decrypted fields."""

    items: list[Item]
    upstream: dict[str, Upstream] = field(default_factory=dict)  # for the conversation, and for items from elsewhere
    decrypted: dict[str, Upstream] = field(default_factory=dict)
    warnings: Warnings = field(default_factory=Warnings)
    approved: Sequence[ApprovedCall] = ()
    denied: Sequence[tuple[str, str]] = ()  # approval request ids, and each denial's path in the request


_MESSAGE = frozenset({"message"})
_TYPE = itemgetter("type")


def are_messages(items: Iterable[Item]) -> bool:
    """Whether no item refers to another item, is encrypted, or is rewritten."""
    return _MESSAGE.issuperset(map(_TYPE, items))


def first_context(messages: list[Item], key: str) -> RequestContext:
    """The context of messages that start a conversation."""
    return RequestContext(key, None, messages, messages, len(messages), {}, {}, False, Warnings())


def continue_past(past: Past, new_input: NewInput, request: CreateResponse, key: str) -> RequestContext:
    """Raises `InvalidRequest` for input that does not fit the conversation."""
    new, warnings = new_input.items, new_input.warnings
    if request.conversation:
        known = past.items_by_id()
        new = [item for item in new if str(item.get("id")) not in known]
        if not request.store:
            warnings.add("This turn is not added to the conversation, because `store` is false.")
    if request.store and past.has_unstored:
        warnings.add("This response continues an unstored response, so it can be continued only on this connection.")
    if past.response_ids:
        check_outputs(past.items, new)
        new = drop_repetitions(past.items, new, warnings)
    return join(past, replace(new_input, items=new), key)


def join(past: Past, new_input: NewInput, key: str) -> RequestContext:
    new, warnings = new_input.items, new_input.warnings
    compacts = is_compaction(new)
    if compacts:
        new = new[:-1]
        if not past.items and not new:
            raise InvalidRequest("Nothing to compact. Send `input`, or continue a response.", param="input")
    warnings.update(dict.fromkeys(past.warnings))
    items, added = past.sent_with(new, warnings)
    return RequestContext(
        key=key,
        model=past.model,
        items=items,
        new=new,
        added=added,
        upstream=new_input.upstream | new_input.decrypted if new_input.decrypted else new_input.upstream,
        decrypted=new_input.decrypted,
        compacts=compacts,
        warnings=warnings,
        approved=new_input.approved,
        denied=new_input.denied,
        configuration=past.configuration.updated(new),
        images=past.images,
    )


def drop_repetitions(history: Sequence[Item], new: Sequence[Item], warnings: Warnings) -> list[Item]:
    return _without_repeated_message(history, _without_repeated_answer(history, new, warnings), warnings)


def _without_repeated_answer(history: Sequence[Item], new: Sequence[Item], warnings: Warnings) -> list[Item]:
    """
    Drop earlier responses' calls and compactions, and repeated items before them.

    Open WebUI repeats the answer with the calls, VS Code the last compaction. The model would see each call twice, once
    without a result; a repeated compaction would replace the calls.
    """
    if not any(map(_is_answer_item, new)):
        return [*new]
    calls = {*map(_call_id, new)}
    known = {_identity(item) for item in history if _call_id(item) in calls} - {None}
    repeated = [_identity(item) in known for item in new]
    end = max((at + 1 for at, item in enumerate(new) if repeated[at] and _is_answer_item(item)), default=0)
    if end:
        warnings.add("Repeated calls or compactions of earlier responses were dropped.")
    return [*(item for item, is_repeated in zip(new[:end], repeated, strict=False) if not is_repeated), *new[end:]]


def _is_answer_item(item: Item) -> bool:
    return item["type"] == COMPACTION or (_call_id(item) is not None and not item["type"].endswith("_output"))


def _call_id(item: Item) -> str | None:
    call_id = item.get("call_id")
    return call_id if isinstance(call_id, str) else None


def _identity(item: Item) -> tuple[object, ...] | None:
    """Parts that stay equal when an item is repeated without its id; None if not comparable."""
    type_ = item["type"]
    if type_ == COMPACTION:
        return (type_, item["id"]) if item.get("id") else None
    if call_id := _call_id(item):
        content = item.get("output") if type_.endswith("_output") else item.get("arguments", item.get("input"))
        return type_, call_id, str(item.get("name")), _canonical(content)
    if type_ == "message" and item["role"] == "assistant":
        return type_, "".join(str(part.get("text")) for part in parts_of(item.get("content"), "assistant"))
    return None


def _canonical(content: object) -> bytes | str:
    try:
        return orjson.dumps(orjson.loads(content) if isinstance(content, str) else content, option=orjson.OPT_SORT_KEYS)
    except (ValueError, TypeError):
        return str(content)


def _without_repeated_message(history: Sequence[Item], new: Sequence[Item], warnings: Warnings) -> list[Item]:
    """Drop the last user message if repeated before a tool result, as Semantic Kernel does."""
    last = max((position for position, item in enumerate(new) if item["type"].endswith("_output")), default=0)
    if not any(map(is_by_user, new[:last])):  # nearly all requests; a history can be long
        return [*new]
    question = next(filter(is_by_user, reversed(history)), None)
    if question is None:
        return [*new]
    words = parts_of(question.get("content"), "user")
    repeated = [is_by_user(item) and parts_of(item.get("content"), "user") == words for item in new[:last]]
    if any(repeated):
        warnings.add("The last user message was repeated with the tool results; the repetition was dropped.")
    return [*(item for item, is_repeated in zip(new, repeated, strict=False) if not is_repeated), *new[last:]]
