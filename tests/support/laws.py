"""
Laws for every stream from any backend: the laws in `antiphon verify`, and independently written types.
`openresponses-types` checks the specification's schema, and `openai` covers OpenAI's additions.
"""

from __future__ import annotations

import re
import typing
from typing import Any

from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from openresponses_types import types
from pydantic import BaseModel

from app.core.stream.event_builder import TERMINAL_EVENTS
from app.core.types.request import Event
from openresponses_verify.laws import breaches_of

# OpenAI's names for events in the specification, and its additional events.
_OPENAI = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


# Items outside the specification, and calls of all kinds.
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


def _by_type(union: Any) -> dict[str, type[BaseModel]]:
    """Return a union's models by type, because trying them in turn is slow."""
    models = typing.get_args(typing.get_args(union)[0])
    return {type_: model for model in models for type_ in typing.get_args(model.model_fields["type"].annotation)}


OPENAI_EVENTS = _by_type(ResponseStreamEvent)
_OPENAI_ITEM_TYPES = _by_type(ResponseOutputItem)


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
    """
    Check a complete stream against the laws, Antiphon's own promises, and the types.

    An `mcp_call`'s `done` event always has an object. If the model wrote none, the joined deltas differ from it.
    """
    broken = [f"{law.name}: {breach.message} (event {breach.event})" for law, breach in breaches_of(events)]
    assert [one for one in broken if '"_raw"' not in one or not one.startswith("deltas-joined")] == []
    antiphons_own(events)
    for event in events:
        valid(event)


def antiphons_own(events: list[Event]) -> None:
    """
    This server's own promises: usage even for failed responses, an event for each failure, and no other truncation.
    """
    response = events[-1]["response"]
    names = [event["type"] for event in events]
    assert ("response.queued" in names) == bool(events[0]["response"]["background"])
    assert names[-1] == TERMINAL_EVENTS.get(response["status"], f"response.{response['status']}")
    assert response["usage"] is not None
    assert ("error" in names) == (response["status"] == "failed")
    cut = [item for item in response["output"] if item.get("status", "completed") not in ("completed", "failed")]
    assert not (cut and response["status"] == "completed")
    assert all(item["type"] in _CALLS for item in cut if item is not response["output"][-1])


def valid(event: Any) -> None:
    if event["type"] == "keepalive" or event["type"].startswith("antiphon:"):
        return
    type_ = _OPENAI.get(event["type"], event["type"])
    if _OPENAI_EVENTS.match(type_) or event.get("item", {}).get("type") in _OPENAI_ITEMS or _cites_files(event):
        if event["type"] == "response.output_item.added" and event["item"]["type"] == "web_search_call":
            # OpenAI's own stream has no action there yet, whatever the type of its SDK says.
            event = {**event, "item": {"action": {"type": "search", "query": ""}, **event["item"]}}
        parsed = OPENAI_EVENTS[event["type"]].model_validate(event).model_dump(exclude_unset=True, by_alias=True)
        assert parsed == event
        return
    if "response" in event:
        extended = [item for item in event["response"]["output"] if item["type"] in _OPENAI_ITEMS]
        for item in extended:
            _OPENAI_ITEM_TYPES[item["type"]].model_validate(item)
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
    """Return a message without OpenAI's own citations."""
    if item["type"] != "message" or not _cites_files({"item": item}):
        return item
    _OPENAI_ITEM_TYPES["message"].model_validate(item)
    content = [
        {**part, "annotations": [one for one in part["annotations"] if one["type"] == "url_citation"]}
        if "annotations" in part
        else part
        for part in item["content"]
    ]
    return {**item, "content": content}


def _cites_files(event: Any) -> bool:
    """Tell whether an event has an annotation outside the specification."""
    annotations = [event.get("annotation"), *event.get("part", {}).get("annotations", ())]
    annotations += [one for part in event.get("item", {}).get("content", ()) for one in part.get("annotations", ())]
    return any(one and one["type"] != "url_citation" for one in annotations)
