"""
What holds of every stream, whatever the backend sends. The spec's schema is asked through `openresponses-types`, and
OpenAI's, for what only that has, through `openai`.
"""

from __future__ import annotations

import json
import re
import typing
from typing import Any

from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from openresponses_types import types
from pydantic import BaseModel, TypeAdapter

from app.core.stream.event_builder import TERMINAL_EVENTS
from app.core.types.request import TERMINAL, Event

# OpenAI's names for what the spec calls otherwise, and what it has beside.
_OPENAI = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


# Items that the spec does not have, and the calls of all kinds.
_CLIENT_ITEMS = frozenset({"custom_tool_call", "tool_search_call"})
_HOSTED_ITEMS = frozenset(
    [
        *("mcp_list_tools", "mcp_call", "mcp_approval_request", "web_search_call", "file_search_call"),
        *("code_interpreter_call", "image_generation_call", "shell_call_output"),
    ]
)
_CLIENT_RUN = frozenset({"local_shell_call", "shell_call", "apply_patch_call", "computer_call"})
_OPENAI_ITEMS = _CLIENT_ITEMS | _HOSTED_ITEMS | _CLIENT_RUN
_CALLS = _OPENAI_ITEMS | {"function_call"}
_OPENAI_EVENTS = re.compile(
    r"response\.(custom_tool_call|mcp_|web_search_call|file_search_call|code_interpreter_call|image_generation_call|shell_)"
)
_OPENAI_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_OPENAI_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)


def _models() -> dict[str, type[BaseModel]]:
    models = {}
    for name in dir(types):
        model = getattr(types, name)
        if name.endswith("StreamingEvent"):
            kind = model.model_fields["type"].annotation
            models[typing.get_args(kind)[0] if typing.get_args(kind) else next(iter(kind)).value] = model
    return models


SCHEMA = _models()


def check(events: list[Event]) -> None:
    """Hold every law of the stream against a whole one."""
    numbered(events)
    framed(events)
    items_added_and_done_once(events)
    parts_open_and_close(events)
    deltas_are_the_whole(events)
    incomplete_is_told(events)
    for event in events:
        valid(event)


def valid(event: Event) -> None:
    if event["type"] == "keepalive" or event["type"].startswith("antiphon:"):
        return
    type_ = _OPENAI.get(event["type"], event["type"])
    if _OPENAI_EVENTS.match(type_) or event.get("item", {}).get("type") in _OPENAI_ITEMS or _cites_files(event):
        if event["type"] == "response.output_item.added" and event["item"]["type"] == "web_search_call":
            # OpenAI's own stream has no action there yet, whatever the type of its SDK says.
            event = {**event, "item": {"action": {"type": "search", "query": ""}, **event["item"]}}
        told = _OPENAI_EVENT.validate_python(event).model_dump(exclude_unset=True, by_alias=True)
        assert told == event
        return
    if "response" in event:
        extended = [item for item in event["response"]["output"] if item["type"] in _OPENAI_ITEMS]
        for item in extended:
            assert _OPENAI_ITEM.validate_python(item).type == item["type"]
        rest = [_without_files(item) for item in event["response"]["output"] if item not in extended]
        # The spec's own schema has no place for a JSON schema in a response: `JsonSchemaResponseFormat.schema` is null.
        format = {
            name: None if name == "schema" else value for name, value in event["response"]["text"]["format"].items()
        }
        text = {**event["response"]["text"], "format": format}
        # Nor for tools other than functions.
        tools = [tool for tool in event["response"]["tools"] if tool["type"] == "function"]
        event = {**event, "response": {**event["response"], "output": rest, "text": text, "tools": tools}}
    SCHEMA[type_].model_validate({**event, "type": type_})


def _without_files(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the citations that the spec does not have, each of which is OpenAI's."""
    if item["type"] != "message" or not _cites_files({"item": item}):
        return item
    _OPENAI_ITEM.validate_python(item)
    content = [
        {**part, "annotations": [one for one in part["annotations"] if one["type"] == "url_citation"]}
        if "annotations" in part
        else part
        for part in item["content"]
    ]
    return {**item, "content": content}


def _cites_files(event: Event) -> bool:
    """Tell whether an event has an annotation that the spec does not have."""
    annotations = [event.get("annotation"), *event.get("part", {}).get("annotations", ())]
    annotations += [one for part in event.get("item", {}).get("content", ()) for one in part.get("annotations", ())]
    return any(one and one["type"] != "url_citation" for one in annotations)


def numbered(events: list[Event]) -> None:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def framed(events: list[Event]) -> None:
    names = [event["type"] for event in events]
    queued = ["response.queued"] if events[0]["response"]["background"] else []
    opening = ["response.created", *queued, "response.in_progress"]
    assert names[: len(opening)] == opening
    terminal = [name for name in names if name.removeprefix("response.") in TERMINAL]
    assert terminal == names[-1:]
    last = events[-1]["response"]
    assert names[-1] == TERMINAL_EVENTS.get(last["status"], f"response.{last['status']}")
    assert last["usage"] is not None
    assert ("error" in names) == (last["status"] == "failed")


_NEVER_CHANGING = ("id", "type", "call_id", "name", "namespace", "execution")


def items_added_and_done_once(events: list[Event]) -> None:
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    assert [event["output_index"] for event in added] == list(range(len(added)))
    assert len(done) == len(added) == sum(event["type"] == "response.output_item.done" for event in events)
    assert [done[index] for index in sorted(done)] == events[-1]["response"]["output"]
    for event in added:
        item = done[event["output_index"]]
        assert all(event["item"].get(name) == item.get(name) for name in _NEVER_CHANGING)
    ids = [item["id"] for item in done.values()]
    assert len(set(ids)) == len(ids)
    calls = [item for item in done.values() if not item["type"].endswith("_output")]
    call_ids = [item["call_id"] for item in calls if "call_id" in item]
    assert len(set(call_ids)) == len(call_ids)


def parts_open_and_close(events: list[Event]) -> None:
    """Every part is added once, at the next index, before its first delta, and done once, before its item."""
    opened: dict[tuple[str, str, int], bool] = {}
    done_items = set()
    for event in events:
        if event["type"] == "response.output_item.done":
            done_items.add(event["item"]["id"])
        if "item_id" in event:
            assert event["item_id"] not in done_items
        for position in ("content_index", "summary_index"):
            if position not in event:
                continue
            key = (event["item_id"], position, event[position])
            if event["type"].endswith("part.added"):
                assert key not in opened
                assert event[position] == sum(other[:2] == key[:2] for other in opened)
                opened[key] = True
            else:
                assert opened[key]
            if event["type"].endswith("part.done"):
                opened[key] = False
    assert not any(opened.values())


def deltas_are_the_whole(events: list[Event]) -> None:
    """Deltas joined equal the `done` text, and that equals the item."""
    pieces: dict[tuple[Any, ...], str] = {}
    wholes: dict[tuple[Any, ...], str] = {}
    for event in events:
        if event["type"].startswith("response.shell_call_output_content"):
            continue  # two streams at once, which the item has as one list
        where = tuple(event.get(name) for name in ("item_id", "content_index", "summary_index"))
        kind = event["type"].rpartition(".")[0]
        if kind.startswith("response.shell_call_output"):
            continue  # what commands print, which is an object
        if event["type"].endswith(".delta") and "item_id" in event:
            pieces[kind, *where] = pieces.get((kind, *where), "") + event["delta"]
        elif event["type"].endswith(".done") and "item_id" in event and "part" not in event:
            wholes[kind, *where] = next(
                event[name] for name in ("text", "refusal", "arguments", "input", "code") if name in event
            )
    told = {key: _as_written(text) for key, text in wholes.items() if text and not (text == "{}" and key not in pieces)}
    assert told == pieces
    items = {item["id"]: item for item in events[-1]["response"]["output"]}
    for (_, id, content, summary), text in wholes.items():
        item = items[id]
        if content is not None:
            part = item["content"][content]
        elif summary is not None:
            part = item["summary"][summary]
        else:
            part = {"text": next(item[name] for name in ("input", "arguments", "code") if name in item)}
        assert text == part.get("text", part.get("refusal"))


def _as_written(text: str) -> str:
    """The arguments of an `mcp_call` are an object for certain, whatever the model wrote."""
    if not text.startswith('{"_raw": '):
        return text
    raw: str = json.loads(text)["_raw"]
    return raw


def incomplete_is_told(events: list[Event]) -> None:
    """A response is not complete if an item is cut; and only calls may be cut beside the last item."""
    response = events[-1]["response"]
    cut = [item for item in response["output"] if item.get("status", "completed") not in ("completed", "failed")]
    assert not (cut and response["status"] == "completed")
    assert all(item["type"] in _CALLS for item in cut if item is not response["output"][-1])
