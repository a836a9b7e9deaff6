"""
Client for a policy service that allows, refuses or replaces model input and output, and the review of input.

Each decision is a POST of `{"direction", "model", "key", "items"}`, answered by `{"action": "allow" | "refuse" |
"replace", "message", "items"}`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson
from pydantic import ValidationError

from app.core.bounded_json import dumps
from app.core.history.compaction import TRIGGER
from app.core.history.context import RequestContext
from app.core.types import frozen
from app.core.types.request import CreateResponse, Item
from app.errors import APIError, InvalidRequest
from app.observability.lifecycle import Observer, ResponseLifecycle
from app.runtime.outbound import send_request
from app.runtime.tasks import end
from app.tools import HostedFunction, Outcome

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

Direction: TypeAlias = Literal["input", "output"]
Action: TypeAlias = Literal["allow", "refuse", "replace"]

REFUSED = "This content is not allowed by this server's policy."
MAX_DECISION_BYTES = 64 * 1024 * 1024  # the same limit as for requests
MAX_REASON = 2000  # characters
MAX_OBSERVED = 100  # concurrent decisions in `observe` mode; more are skipped
_ACTIONS = ("allow", "refuse", "replace")


@frozen
class Decision:
    """With `replace`, `items` replace the reviewed items."""

    action: Action = "allow"
    message: str = REFUSED
    items: Sequence[Any] = field(default_factory=tuple)


ALLOWED = Decision()


class PolicyUnavailable(APIError):
    """No valid decision, and `fail` is `closed`."""

    status = 503
    code = "policy_unavailable"

    def __init__(self) -> None:
        super().__init__("This server's policy service is unavailable. Try again.", retry_after=1)


class PolicyHooks(Observer):
    def __init__(
        self,
        urls: Mapping[Direction, str],
        http: httpx.AsyncBaseTransport,
        *,
        blocks: bool = True,
        timeout: float = 2.0,
        fails_open: bool = False,
    ) -> None:
        """`http` must limit answers and not follow redirects; `timeout` is in seconds."""
        self.blocks = blocks
        self._urls = urls
        self._http = http
        self._timeout = timeout
        self._fails_open = fails_open
        self._observing: set[asyncio.Task[None]] = set()

    def reviews(self, direction: Direction) -> bool:
        return direction in self._urls

    @property
    def blocks_output(self) -> bool:
        return self.blocks and self.reviews("output")

    async def decide(
        self, direction: Direction, model: str, key: str, items: Sequence[object], **more: object
    ) -> Decision:
        """
        Decide about items; `observe` mode allows all and only logs.

        `key` is the key's name; `more` are additional request fields. Raises `PolicyUnavailable`.
        """
        if not self.reviews(direction):
            return ALLOWED
        body = {"direction": direction, "model": model, "key": key, "items": items, **more}
        if self.blocks:
            return await self._decision(body)
        self._observe(body)
        return ALLOWED

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """In `observe` mode, log the decision about a finished response's output."""
        items = [*lifecycle.response["output"]]
        if items and self.reviews("output") and not self.blocks:
            model = str(lifecycle.response["model"])
            self._observe({"direction": "output", "model": model, "key": lifecycle.key, "items": items})

    async def check(self, direction: Direction) -> Action:
        """Test the service with a greeting; raises `ValueError` with the reason."""
        content = [{"type": "input_text" if direction == "input" else "output_text", "text": "Hello."}]
        role = "user" if direction == "input" else "assistant"
        items = [{"type": "message", "role": role, "content": content}]
        answer = await self._answer({"direction": direction, "model": "check", "key": "check", "items": items})
        return answer.action

    async def aclose(self) -> None:
        await end(*self._observing)
        await self._http.aclose()

    def _observe(self, body: Mapping[str, object]) -> None:
        if len(self._observing) >= MAX_OBSERVED:
            logger.warning("policy observation skipped", extra={"reason": f"{MAX_OBSERVED} decisions are in progress"})
            return
        task = asyncio.create_task(self._observed(body))
        self._observing.add(task)
        task.add_done_callback(self._observing.discard)

    async def _observed(self, body: Mapping[str, object]) -> None:
        try:
            await self._decision(body)
        except PolicyUnavailable:
            pass  # already logged
        except Exception:
            logger.exception("policy observation failed")

    async def _decision(self, body: Mapping[str, object]) -> Decision:
        fields = {"direction": body["direction"], "model": body["model"], "mode": "block" if self.blocks else "observe"}
        try:
            decision = await self._answer(body)
        except ValueError as error:
            logger.warning("policy service failed", extra={**fields, "reason": str(error)})
            if self._fails_open:
                return ALLOWED
            raise PolicyUnavailable from None
        if decision.action != "allow":
            logger.info("policy decision", extra={**fields, "action": decision.action})
        return decision

    async def _answer(self, body: Mapping[str, Any]) -> Decision:
        """Raises `ValueError` with the reason."""
        import httpx

        content = dumps(body)
        headers = {"Content-Type": "application/json", "User-Agent": "antiphon"}
        request = httpx.Request("POST", self._urls[body["direction"]], headers=headers, content=content)
        response = await send_request(self._http, request, self._timeout)
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code}")
        return _parsed_decision(response.content)


def _parsed_decision(answer: bytes) -> Decision:
    """Raises `ValueError`."""
    try:
        fields = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise ValueError("the answer is not JSON") from None
    if not isinstance(fields, dict) or (action := fields.get("action")) not in _ACTIONS:
        raise ValueError("the answer must have an 'action': allow, refuse or replace")
    if action == "allow":
        return ALLOWED
    message, items = fields.get("message"), fields.get("items")
    if action == "refuse":
        return Decision(action, message[:MAX_REASON] if isinstance(message, str) and message.strip() else REFUSED)
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("type"), str) for item in items
    ):
        raise ValueError("with the action 'replace', 'items' must be a list of objects with a 'type'")
    return Decision(action, items=items)


_VIOLATION = "policy_violation"
INSTRUCTIONS_ID = "instructions"

# Request fields sent as items, or outside the model's input.
_NOT_SENT = {"input", "instructions", "prompt", "stream", "store", "background", "previous_response_id", "conversation"}


class InputReview:
    def __init__(self, hooks: PolicyHooks, model: str, key: str) -> None:
        self._decide = partial(hooks.decide, "input", model, key)

    async def request(self, request: CreateResponse, context: RequestContext) -> CreateResponse | None:
        """
        A request's replacement, or None if it is allowed.

        The service receives the model's input: the instructions first, files and references resolved. Raises
        `InvalidRequest` and `PolicyUnavailable`.
        """
        items: list[Any] = [*context.items[len(context.items) - context.added :]]
        if request.instructions:
            content = [{"type": "input_text", "text": request.instructions}]
            items.insert(0, {"type": "message", "id": INSTRUCTIONS_ID, "role": "system", "content": content})
        others = request.model_dump(exclude=_NOT_SENT, exclude_unset=True, by_alias=True, serialize_as_any=True)
        decision = await self._decide(items, request={**others, **(request.model_extra or {})})
        if decision.action == "refuse":
            raise InvalidRequest(decision.message, param="input", code=_VIOLATION)
        return _replaced(request, decision.items, context) if decision.action == "replace" else None

    async def items(self, items: Sequence[Item]) -> list[Item] | None:
        """New items' replacements, or None if they are allowed."""
        decision = await self._decide(items)
        if decision.action == "refuse":
            raise InvalidRequest(decision.message, param="items", code=_VIOLATION)
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
        """The reviewed description; raises `InvalidRequest` and `PolicyUnavailable`."""
        content = [{"type": "input_text", "text": text}]
        decision = await self._decide([{"type": "message", "role": "user", "content": content}])
        if decision.action == "refuse":
            raise InvalidRequest(decision.message, code=_VIOLATION)
        if decision.action == "replace":
            return "\n".join(_text_of(item) for item in decision.items)
        return text

    async def refusal(self, items: Sequence[Item]) -> str | None:
        """The refusal of a hosted tool's items, or None."""
        decision = await self._decide(items)
        return None if decision.action == "allow" else decision.message


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
