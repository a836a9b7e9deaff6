"""
What is kept of a conversation, and how it is found again.

A chain is a tree of turns: each turn has its response, the input items of its own, and a pointer to its parent. The
history of a turn is the path from the root to it, so that continuing from an earlier response forks, and siblings never
leak in. Nothing is copied from turn to turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from app.core.stream.event_builder import Upstream
from app.core.types.ids import new_id
from app.core.types.items import OUTPUTS, id_prefix
from app.core.types.request import CreateResponse, Item, Response
from app.errors import InvalidRequest


class Turn(NamedTuple):
    """One stored response."""

    response: Response
    input: list[Item]  # of this turn, not of those before
    upstream: dict[str, Upstream]  # what the backend really said, by the id of the item
    request: Mapping[str, Any] | None = None  # see `recorded_request`; older records have none
    warnings: Sequence[str] | None = None  # of what was left out or changed of the request

    def record(self) -> bytes:
        return orjson.dumps(self._asdict())

    def entry(self) -> bytes:
        """Return what a list of responses shows of this one, as JSON."""
        response = self.response
        return orjson.dumps({**{name: response.get(name) for name in _LISTED}, "preview": preview(self.input)})

    @staticmethod
    def of(record: bytes) -> Turn:
        said = orjson.loads(record)
        return Turn(*(said.get(name) for name in Turn._fields))  # a newer version may have written more

    @property
    def items(self) -> list[Item]:
        return [*self.input, *self.response["output"]]


_LISTED = ("id", "created_at", "status", "model", "previous_response_id", "conversation", "usage", "background")
_PREVIEW = 200  # characters


def preview(items: Sequence[Item]) -> str:
    """Return the beginning of what the user says in a turn's input; where there is nothing, of a call's output."""
    texts = (text for item in reversed(items) if item.get("role") == "user" for text in _texts(item.get("content")))
    outputs = (text for item in reversed(items) for text in _texts(item.get("output")))
    found = next((text for text in (*texts, *outputs) if text.strip()), "")
    return " ".join(found[: 4 * _PREVIEW].split())[:_PREVIEW]


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


# Parameters that a request to a backend depends on, and that the resource of the response tells only with the defaults
# that took effect, or not at all.
_RECORDED = {
    "frequency_penalty",
    "include",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "temperature",
    "text",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
}


def recorded_request(request: CreateResponse, beside: Collection[str]) -> dict[str, Any]:
    """
    Return what has to be stored of a request, beside its input and its response, to make its chat request anew.

    `beside` are the parameters that the API does not have, but the backend: others are not stored.
    """
    given = request.model_dump(exclude_unset=True, include=_RECORDED, by_alias=True, serialize_as_any=True)
    return given | {name: value for name, value in (request.model_extra or {}).items() if name in beside}


def request_of(turn: Turn) -> CreateResponse:
    """Return the request that a stored turn was made for, with the input that it added."""
    response = turn.response
    echoed = {} if turn.request is not None else {name: response.get(name) for name in _RECORDED}
    given = {
        **{name: response.get(name) for name in ("model", "instructions")},
        "tools": [{name: value for name, value in tool.items() if value is not None} for tool in response["tools"]],
        **echoed,
        **(turn.request or {}),
    }
    request = CreateResponse.model_validate({name: value for name, value in given.items() if value not in (None, [])})
    return request.model_copy(update={"input": turn.input})


def path(records: Mapping[str, bytes], response_id: str) -> list[Turn] | None:
    """
    Return the turns from the first to that of `response_id`, or None if one of them is not there.

    A history with a hole would be a lie: the model would answer as if what is missing had never been said.
    """
    turns: list[Turn] = []
    wanted: str | None = response_id
    while wanted:
        record = records.get(wanted)
        if record is None:
            return None
        turns.append(Turn.of(record))
        wanted = turns[-1].response["previous_response_id"]
    return turns[::-1]


def find_item(records: Iterable[bytes], item_id: str) -> tuple[Item, Upstream] | None:
    """Return the item of that id, and what the backend said for it, from whichever turn of a chain has it."""
    mark = item_id.encode()
    for record in records:
        if mark not in record:
            continue  # much cheaper than decoding it
        turn = Turn.of(record)
        for item in turn.items:
            if item.get("id") == item_id:
                return item, turn.upstream.get(item_id, {})
    return None


def check_outputs(said: Iterable[Item], new: Sequence[Item]) -> None:
    """
    Raise `InvalidRequest` for a new output that answers no call of the conversation.

    This is for conversations that are kept here. Clients that keep their own may have cut the call off.
    """
    calls = {item["call_id"] for item in (*said, *new) if "call_id" in item and not item["type"].endswith("_output")}
    for index, item in enumerate(new):
        call_id = item.get("call_id")  # an output without one answers no call at all
        if item["type"] in OUTPUTS and call_id is not None and call_id not in calls:
            message = f"No tool call found for {item['type'].replace('_', ' ')} with call_id '{call_id}'."
            raise InvalidRequest(message, param=f"input[{index}].call_id", code="invalid_value")


_TEXT_OF = {"assistant": "output_text"}


def input_item(item: Item, key: str) -> Item:
    """Return an input item as the API lists it: with an id, a status, and its content in parts."""
    type_ = item["type"]
    listed = {**item, "id": item.get("id") or new_id(id_prefix(type_), key)}
    if type_ == "message":
        listed["content"] = parts_of(item.get("content"), item["role"])
    if type_ == "message" or type_.endswith(("_call", "_output")):
        listed["status"] = item.get("status") or "completed"
    return listed


def parts_of(content: Any, role: str) -> list[dict[str, Any]]:
    """Return the content of a message with that role in parts, as a list of them or a string may tell it."""
    if isinstance(content, str):
        content = [{"type": _TEXT_OF.get(role, "input_text"), "text": content}]
    return [{"annotations": [], **part} if part.get("type") == "output_text" else part for part in content or []]
