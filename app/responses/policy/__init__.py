"""
Client of a policy service, which allows, refuses or replaces the input and output of models.

Each decision is one POST of `{"direction", "model", "key", "items"}`. The service answers
`{"action": "allow" | "refuse" | "replace", "message", "items"}`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson

from app.core.bounded_json import dumps
from app.core.types.frozen import frozen
from app.errors import APIError
from app.runtime.outbound import send_request
from app.runtime.tasks import end
from app.runtime.threads import run_in_thread_if_large

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

Direction: TypeAlias = Literal["input", "output"]
Action: TypeAlias = Literal["allow", "refuse", "replace"]

REFUSED = "This content is not allowed by this server's policy."
MAX_DECISION_BYTES = 64 * 1024 * 1024  # of the service: as much as a request may have
MAX_REASON = 2000  # characters of a refusal
MAX_OBSERVED = 100  # decisions in progress in the mode `observe`; further ones are not requested
_ACTIONS = ("allow", "refuse", "replace")


@frozen
class Decision:
    """A decision. With the action `replace`, `items` take the place of the reviewed items."""

    action: Action = "allow"
    message: str = REFUSED
    items: Sequence[Any] = field(default_factory=tuple)


ALLOWED = Decision()


class PolicyUnavailable(APIError):
    """The policy service made no valid decision, and `fail` is `closed`."""

    status = 503
    code = "policy_unavailable"

    def __init__(self) -> None:
        super().__init__("This server's policy service is unavailable. Try again.", retry_after=1)


class PolicyHooks:
    """Asks the policy service."""

    def __init__(
        self,
        urls: Mapping[Direction, str],
        http: httpx.AsyncBaseTransport,
        *,
        blocks: bool = True,
        timeout: float = 2.0,
        fails_open: bool = False,
    ) -> None:
        """`http` limits the size of answers and follows no redirects; `timeout` is in seconds."""
        self.blocks = blocks
        self._urls = urls
        self._http = http
        self._timeout = timeout
        self._fails_open = fails_open
        self._observing: set[asyncio.Task[None]] = set()

    def reviews(self, direction: Direction) -> bool:
        """Return whether the service reviews this direction."""
        return direction in self._urls

    @property
    def blocks_output(self) -> bool:
        """Whether callers see output only after its review."""
        return self.blocks and self.reviews("output")

    async def decide(
        self, direction: Direction, model: str, key: str, items: Sequence[object], **more: object
    ) -> Decision:
        """
        Return the decision about items; in the mode `observe` it is only logged, and they are allowed.

        `key` is the name of the caller's key; `more` are further fields of the request. Raises `PolicyUnavailable`.
        """
        if not self.reviews(direction):
            return ALLOWED
        body = {"direction": direction, "model": model, "key": key, "items": items, **more}
        if self.blocks:
            return await self._decision(body)
        self._observe(body)
        return ALLOWED

    def observe_output(self, model: str, key: str, items: Sequence[object]) -> None:
        """Log the decision about the output of a response that has ended, in the mode `observe`."""
        if self.reviews("output") and not self.blocks:
            self._observe({"direction": "output", "model": model, "key": key, "items": items})

    async def check(self, direction: Direction) -> Action:
        """Return the decision about a greeting; raises `ValueError` with the reason if there is none."""
        content = [{"type": "input_text" if direction == "input" else "output_text", "text": "Hello."}]
        role = "user" if direction == "input" else "assistant"
        items = [{"type": "message", "role": role, "content": content}]
        answer = await self._answer({"direction": direction, "model": "check", "key": "check", "items": items})
        return answer.action

    async def aclose(self) -> None:
        """Stop observing, and close the connections."""
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
            pass  # logged
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
        """Return the service's decision; raises `ValueError` with the reason if there is none."""
        import httpx

        content = await run_in_thread_if_large(dumps, body)
        headers = {"Content-Type": "application/json", "User-Agent": "antiphon"}
        request = httpx.Request("POST", self._urls[body["direction"]], headers=headers, content=content)
        response = await send_request(self._http, request, self._timeout)
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code}")
        return await run_in_thread_if_large(parsed_decision, response.content)


def parsed_decision(answer: bytes) -> Decision:
    """Return the decision in the JSON of an answer; raises `ValueError`."""
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
    if not (isinstance(items, list) and all(map(_is_item, items))):
        raise ValueError("with the action 'replace', 'items' must be a list of objects with a 'type'")
    return Decision(action, items=items)


def _is_item(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("type"), str)
