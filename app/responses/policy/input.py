"""Policy review of model input: requests, conversation items and tool results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from app.core.history.compaction import TRIGGER
from app.core.history.context import RequestContext
from app.core.types.request import CreateResponse, Item
from app.errors import InvalidRequest
from app.responses.policy import PolicyHooks, PolicyUnavailable
from app.tools import HostedFunction, Outcome

INSTRUCTIONS_ID = "instructions"

# Request fields sent as items, or outside the model's input.
_NOT_SENT = {"input", "instructions", "prompt", "stream", "store", "background", "previous_response_id", "conversation"}


class PolicyRefusal(InvalidRequest):
    code = "policy_violation"


class InputReview:
    def __init__(self, hooks: PolicyHooks, model: str, key: str) -> None:
        self._decide = partial(hooks.decide, "input", model, key)

    async def request(self, request: CreateResponse, context: RequestContext) -> CreateResponse | None:
        """
        A request's replacement, or None if it is allowed.

        The service receives the model's input: the instructions first, files and references resolved. Raises
        `PolicyRefusal` and `PolicyUnavailable`.
        """
        items: list[Any] = [*context.items[len(context.items) - context.added :]]
        if request.instructions:
            items.insert(0, _instructions(request.instructions))
        others = request.model_dump(exclude=_NOT_SENT, exclude_unset=True, by_alias=True, serialize_as_any=True)
        decision = await self._decide(items, request={**others, **(request.model_extra or {})})
        if decision.action == "refuse":
            raise PolicyRefusal(decision.message, param="input")
        return _replaced(request, decision.items, context) if decision.action == "replace" else None

    async def items(self, items: Sequence[Item]) -> list[Item] | None:
        """New items' replacements, or None if they are allowed."""
        decision = await self._decide(items)
        if decision.action == "refuse":
            raise PolicyRefusal(decision.message, param="items")
        return _validated(decision.items).items() if decision.action == "replace" else None

    async def result(self, call_id: str, name: str, outcome: Outcome) -> Outcome:
        """A call's reviewed result; a refusal becomes a failed call."""
        item = {"type": "function_call_output", "call_id": call_id, "name": name, "output": outcome.output}
        decision = await self._decide([item])
        if decision.action == "refuse":
            return Outcome.failed(f"The result was blocked by a policy: {decision.message}")
        if decision.action == "allow":
            return outcome
        output = decision.items[0].get("output") if decision.items else ""
        if not isinstance(output, str | list):
            raise PolicyUnavailable
        fields = {"output": output} if isinstance(outcome.fields.get("output"), str) else {}
        return replace(outcome, output=output, fields=fields, sources=())

    async def tools(self, label: str, functions: Sequence[HostedFunction]) -> str | None:
        """The refusal of an MCP server's tools, or None."""
        tools = [
            {"name": function.name, "description": function.description, "input_schema": function.parameters}
            for function in functions
        ]
        return await self.refusal([{"type": "mcp_list_tools", "server_label": label, "tools": tools}])

    async def description(self, text: str) -> str:
        """The reviewed description; raises `PolicyRefusal` and `PolicyUnavailable`."""
        content = [{"type": "input_text", "text": text}]
        decision = await self._decide([{"type": "message", "role": "user", "content": content}])
        if decision.action == "refuse":
            raise PolicyRefusal(decision.message)
        if decision.action == "replace":
            return "\n".join(_text_of(item) for item in decision.items)
        return text

    async def refusal(self, items: Sequence[Item]) -> str | None:
        """The refusal of a hosted tool's items, or None."""
        decision = await self._decide(items)
        return None if decision.action == "allow" else decision.message


def _instructions(text: str) -> Mapping[str, object]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": INSTRUCTIONS_ID, "role": "system", "content": content}


def _replaced(request: CreateResponse, items: Sequence[Any], context: RequestContext) -> CreateResponse:
    """The request with new input; an item with `INSTRUCTIONS_ID` is the instructions."""
    instructions, new = None, [*items]
    if request.instructions and new and new[0].get("id") == INSTRUCTIONS_ID:
        instructions = _text_of(new.pop(0))
    # A stored message's id would turn the item into a reference.
    new = [{**item, "id": None} if item["type"] == "message" else item for item in new]
    if context.compacts:
        new.append({"type": TRIGGER})
    return request.model_copy(update={"input": _validated(new).input, "instructions": instructions})


def _validated(items: Sequence[Any]) -> CreateResponse:
    try:
        return CreateResponse.model_validate({"input": [*items]})
    except ValidationError:
        raise PolicyUnavailable from None


def _text_of(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))
