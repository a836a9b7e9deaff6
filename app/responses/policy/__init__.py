"""
Client for a policy service that allows, refuses or replaces model input and output.

Each decision is a POST of `{"direction", "model", "key", "items"}`, answered by `{"action": "allow" | "refuse" |
"replace", "message", "items"}`.
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


class PolicyHooks:
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

    def observe_output(self, model: str, key: str, items: Sequence[object]) -> None:
        """In `observe` mode, log the decision about a finished response's output."""
        if self.reviews("output") and not self.blocks:
            self._observe({"direction": "output", "model": model, "key": key, "items": items})

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
        return parsed_decision(response.content)


def parsed_decision(answer: bytes) -> Decision:
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
    if not (isinstance(items, list) and all(map(_is_item, items))):
        raise ValueError("with the action 'replace', 'items' must be a list of objects with a 'type'")
    return Decision(action, items=items)


def _is_item(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("type"), str)
