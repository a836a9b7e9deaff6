"""
The stored turns of a conversation.

A chain is a tree of turns. A turn's history is the path from the root, so continuing an earlier response creates a
fork, and siblings are excluded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from app.core.bounded_json import dumps
from app.core.history.resource import declared_tool
from app.core.ids import new_id
from app.core.items import OUTPUTS, id_prefix
from app.core.stream.event_builder import Upstream
from app.core.types import json_list
from app.core.types.request import CreateResponse, Item, Part, Response, is_uncalled
from app.errors import InvalidRequest


class Turn(NamedTuple):
    response: Response
    input: list[Item]  # without earlier turns
    upstream: dict[str, Upstream]  # backend fields by item id
    request: Mapping[str, object] | None = None  # see `recorded_request`; None in older records
    warnings: Sequence[str] | None = None  # about omitted or changed request parameters
    images: Mapping[str, str] | None = None
    measures: Mapping[str, object] | None = None  # times and cost of a finished response

    def record(self) -> bytes:
        """A reasoning text that is also a backend field is stored once, in the item."""
        turn = self._asdict()
        upstream, same = {**self.upstream}, {}
        for item_id, text in _reasoning(self.response) if upstream else ():
            fields = upstream.get(item_id, {})
            if name := next((name for name, value in fields.items() if value is text), None):
                same[item_id] = name
                upstream[item_id] = {other: value for other, value in fields.items() if other != name}
        return dumps(turn | {"upstream": upstream, _TEXT_FIELDS: same} if same else turn)

    def entry(self) -> bytes:
        response, measures = self.response, self.measures or {}
        steps = json_list(measures.get("steps"))[:_STEPS]
        output = response.get("output") or ()
        answer = (text for item in output if item.get("type") == "message" for text in _texts(item.get("content")))
        return dumps(
            {
                **dict(zip(_LISTED, map(response.get, _LISTED), strict=True)),
                **dict(zip(_MEASURED, map(measures.get, _MEASURED), strict=True)),
                "steps": [{name: step[name] for name in _STEP if name in step} for step in steps],
                "tools": tools_used(output),
                "error": (error := response.get("error")) and error.get("code"),
                "metadata": response.get("metadata") or {},
                "preview": preview(self.input),
                "answer": _beginning("\n".join(itertools.islice(answer, 2))),
            }
        )

    @staticmethod
    def of(record: bytes) -> Turn:
        fields = orjson.loads(record)
        if same := fields.get(_TEXT_FIELDS):
            for item_id, text in _reasoning(fields["response"]):
                if item_id in same:
                    fields["upstream"][item_id][same[item_id]] = text
        return Turn(*map(fields.get, Turn._fields))  # newer versions can store more fields

    @property
    def items(self) -> list[Item]:
        return [*self.input, *self.response["output"]]


# Omitted upstream field names, by reasoning item id.
_TEXT_FIELDS = "text_fields"


def _reasoning(response: Response) -> Iterator[tuple[str, str]]:
    for item in response.get("output") or ():
        if item.get("type") == "reasoning" and (texts := _texts(item.get("content")) or _texts(item.get("summary"))):
            yield item["id"], texts[0]


_LISTED = ("id", "created_at", "status", "model", "previous_response_id", "conversation", "usage", "background")
_MEASURED = ("seconds", "first_token_seconds", "queued_seconds", "cost", "backend", "key", "delivery")
_STEPS = 20
_STEP = ("kind", "start", "end", "function", "status")
_PREVIEW = 200  # characters
_TOOLS = 10


def tools_used(output: Sequence[Item]) -> list[str]:
    """The first tools called: function names, MCP server labels or hosted tool types."""
    tools: dict[str, None] = {}
    for item in output:
        kind = str(item.get("type"))
        if kind.endswith("_call"):
            name = item.get("server_label") if kind == "mcp_call" else item.get("name")
            tools[str(name or kind.removesuffix("_call"))] = None
    return [*tools][:_TOOLS]


def preview(items: Sequence[Item]) -> str:
    """Start of the last user message, or call output, or approval decision."""
    texts = (text for item in reversed(items) if item.get("role") == "user" for text in _texts(item.get("content")))
    outputs = (text for item in reversed(items) for text in _texts(item.get("output")))
    answers = (
        "Approved." if item.get("approve") else "Denied."
        for item in reversed(items)
        if item.get("type") == "mcp_approval_response"
    )
    text = next((text for text in itertools.chain(texts, outputs, answers) if text.strip()), "")
    return _beginning(text)


def _beginning(text: str) -> str:
    return " ".join(text[: 4 * _PREVIEW].split())[:_PREVIEW]


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text", part.get("refusal")) for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


# Already in the response resource, or without effect on later requests.
_NOT_RECORDED = {
    "background",
    "background_options",
    "context_management",
    "conversation",
    "input",
    "instructions",
    "max_tool_calls",
    "model",
    "previous_response_id",
    "prompt",
    "prompt_cache_options",
    "prompt_cache_retention",
    "store",
    "stream",
    "stream_options",
    "tools",
}
_RECORDED = {name for name in CreateResponse.model_fields if name not in _NOT_RECORDED}


def recorded_request(request: CreateResponse, extra_names: Collection[str]) -> dict[str, object]:
    """`extra_names` are the backend's own parameters."""
    fields: dict[str, object] = {}
    if not request.model_fields_set.isdisjoint(_RECORDED):
        fields = request.model_dump(exclude_unset=True, include=_RECORDED, by_alias=True, serialize_as_any=True)
    return fields | {name: value for name, value in (request.model_extra or {}).items() if name in extra_names}


def request_of(turn: Turn) -> CreateResponse:
    response = turn.response
    echoed = {} if turn.request is not None else {name: response.get(name) for name in _RECORDED}
    fields = {
        **{name: response.get(name) for name in ("model", "instructions")},
        "tools": [declared_tool(tool) for tool in response["tools"]],
        **echoed,
        **(turn.request or {}),
    }
    request = CreateResponse.model_validate({name: value for name, value in fields.items() if value not in (None, [])})
    return request.model_copy(update={"input": turn.input})


def path(
    records: Mapping[str, bytes], response_id: str, is_known: Callable[[str], bool] | None = None
) -> list[Turn] | None:
    """
    The turns up to `response_id`, oldest first; None if any is missing.

    The path stops before a response that `is_known`. A partial history would mislead the model.
    """
    turns: list[Turn] = []
    next_id: str | None = response_id
    while next_id and not (is_known and is_known(next_id)):
        record = records.get(next_id)
        if record is None:
            return None
        turns.append(Turn.of(record))
        next_id = turns[-1].response["previous_response_id"]
    return turns[::-1]


def find_item(records: Iterable[bytes], item_id: str) -> tuple[Item, Turn] | None:
    """An output item takes precedence over copies in later input."""
    mark = item_id.encode()
    sent: tuple[Item, Turn] | None = None
    for record in records:
        if mark not in record:
            continue  # cheaper than decoding
        turn = Turn.of(record)
        for item in turn.response["output"]:
            if item.get("id") == item_id:
                return item, turn
        sent = sent or next(((item, turn) for item in turn.input if item.get("id") == item_id), None)
    return sent


def check_outputs(history: Sequence[Item], new: Sequence[Item]) -> None:
    """
    Raises `InvalidRequest` for a new output without a call in the conversation.

    Only for stored conversations: a client's own history may lack the call. An output with a tool name needs no call.
    """
    outputs = [
        (index, item)
        for index, item in enumerate(new)
        if item["type"] in OUTPUTS and (item.get("call_id") or (is_uncalled(item) and not item.get("name")))
    ]
    unanswered = {item.get("call_id") or "" for _, item in outputs}
    for item in itertools.chain(reversed(new), reversed(history)):
        if not unanswered:
            return
        if not item["type"].endswith("_output"):
            unanswered.discard(item.get("call_id"))
    for index, item in outputs:
        if (call_id := item.get("call_id") or "") in unanswered:
            message = f"No tool call found for {item['type'].replace('_', ' ')} with call_id '{call_id}'."
            raise InvalidRequest(message, param=f"input[{index}].call_id", code="invalid_value")


def input_item(item: Item, key: str) -> Item:
    """An input item as listed by the API: with an id, a status, and a list of parts."""
    type_ = item["type"]
    listed = item.copy()  # uses less memory than a new dict
    listed["id"] = item.get("id") or new_id(id_prefix(type_), key)
    if type_ == "message":
        listed["content"] = parts_of(item.get("content"), item["role"])
    if type_ == "message" or type_.endswith(("_call", "_output")):
        listed["status"] = item.get("status") or "completed"
    return listed


def parts_of(content: str | Sequence[Part] | None, role: str) -> list[Part]:
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    return [{"annotations": [], **part} if part.get("type") == "output_text" else part for part in content or []]


_IMAGE_CALL = "image_generation_call"


class ImageReference(NamedTuple):
    turn_id: str  # the record's name
    part: str  # the chain's part: see `partition_of`


def image_references(turn: Turn) -> dict[str, ImageReference]:
    return {item_id: ImageReference(turn.response["id"], part) for item_id, part in (turn.images or {}).items()}


def detach_images(turn: Turn, part: str) -> tuple[Turn, bytes | None]:
    """
    Move a turn's images to a record of their own, with the turn's lifetime.

    Turns load the whole conversation, but not its images (megabytes of base64).
    """
    images: dict[str, str] = {}
    items = [_without_image(item, images) for item in turn.input]
    output = [_without_image(item, images) for item in turn.response.get("output", ())]
    if not images:
        return turn, None
    response: Response = {**turn.response, "output": output}
    return turn._replace(response=response, input=items, images=dict.fromkeys(images, part)), orjson.dumps(images)


def _without_image(item: Item, images: dict[str, str]) -> Item:
    """Move an item's image to `images`; a different image with the same id stays."""
    if item["type"] != _IMAGE_CALL:
        return item
    item_id, image = item.get("id"), item.get("result")
    if not item_id or not isinstance(image, str) or images.setdefault(item_id, image) != image:
        return item
    return {**item, "result": None}


def attach_images(turn: Turn, record: bytes | None) -> Turn:
    """Deleted images become None."""
    images = read_images(record)
    output = [with_image(item, images) for item in turn.response["output"]]
    response: Response = {**turn.response, "output": output}
    return turn._replace(response=response, input=[with_image(item, images) for item in turn.input], images=None)


def read_images(record: bytes | None) -> dict[str, str]:
    images: dict[str, str] = orjson.loads(record) if record else {}
    return images


def with_image(item: Item, images: Mapping[str, object]) -> Item:
    if item["type"] != _IMAGE_CALL or item.get("result") or item.get("id") not in images:
        return item
    return {**item, "result": images[item["id"]]}


def without_images(record: bytes | None, deleted: set[str]) -> bytes | None:
    images = {item_id: image for item_id, image in read_images(record).items() if item_id not in deleted}
    return orjson.dumps(images) if images else None
