"""
Webhooks for finished background responses and batches, signed according to Standard Webhooks, like OpenAI's.

Each event is stored, before the response's log ends, until its delivery. A process claims each attempt; if it dies,
another repeats the attempt, with the same `webhook-id`.

https://www.standardwebhooks.com
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from app.core.types import JSONObject
from app.core.types.request import Response
from app.errors import StoreUnavailable
from app.runtime.outbound import RequestFailed, send_request
from app.runtime.tasks import end, wait_for_event
from app.stores import Change, Store

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

PARTITION = "webhooks:pending"  # the store's partition for all owners
# Seconds before each retry: three days in all, like OpenAI.
RETRY_DELAYS = (5, 30, 120, 600, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600, 24 * 3600)
TIMEOUT = 15.0  # seconds per attempt
CLAIM = 60.0  # seconds until another process repeats an unfinished attempt
CHECK_INTERVAL = 30.0  # seconds between checks for other processes' events
MAX_ATTEMPTS_AT_ONCE = 16
_GRACE = 5.0  # seconds for running attempts at shutdown


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """Receives the types in `events`, signed with `key`."""

    name: str
    url: str
    key: bytes
    events: frozenset[str]


class _Delivery(NamedTuple):
    """`due` is Unix time."""

    event: JSONObject
    endpoint: str
    attempts: int  # started attempts
    due: float

    @property
    def name(self) -> str:
        """Each attempt changes the record's name, so that a single process can claim it."""
        return f"{self.event['id']}:{self.endpoint}:{self.attempts}:{self.due:.3f}"

    def record(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def of(cls, record: bytes) -> _Delivery:
        return cls(**json.loads(record))


class Webhooks:
    def __init__(
        self,
        endpoints: Mapping[str, WebhookEndpoint],
        store: Store,
        http: httpx.AsyncBaseTransport,
        *,
        clock: Callable[[], float] = time.time,
        delays: tuple[float, ...] = RETRY_DELAYS,
    ) -> None:
        """`http` must not follow redirects; `clock` returns Unix time."""
        self._endpoints = endpoints
        self._store = store
        self._http = http
        self._clock = clock
        self._delays = delays
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._attempts: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def announce(self, response: Response) -> None:
        """Store a finished response's event; idempotent. Raises `StoreUnavailable`."""
        await self.announce_event(f"response.{response['status']}", response["id"], response.get("completed_at"))

    async def announce_event(self, event_type: str, object_id: str, created_at: int | None = None) -> None:
        """Store an event; idempotent. Raises `StoreUnavailable`."""
        digest = hashlib.sha256(f"webhook:{object_id}".encode()).hexdigest()
        event = {
            "id": f"evt_{digest[:32]}",
            "object": "event",
            "type": event_type,
            "created_at": int(created_at or self._clock()),
            "data": {"id": object_id},
        }
        deliveries = [
            _Delivery(event, endpoint.name, 0, 0.0)
            for endpoint in self._endpoints.values()
            if event_type in endpoint.events
        ]
        if deliveries:
            put = {delivery.name: delivery.record() for delivery in deliveries}
            await self._store.apply(Change(PARTITION, put))
            self._wake.set()

    async def aclose(self) -> None:
        await end(self._task)
        if self._attempts:
            await asyncio.wait(self._attempts, timeout=_GRACE)
        await end(*self._attempts)
        await self._http.aclose()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            pause = CHECK_INTERVAL
            try:
                pause = await self._begin_due()
            except StoreUnavailable:
                pass
            except Exception:
                logger.exception("unexpected error")
            await wait_for_event(self._wake, pause)

    async def _begin_due(self) -> float:
        """Start due attempts; return the seconds until the next check."""
        now = self._clock()
        next_due = now + CHECK_INTERVAL
        for name, record in (await self._store.all(PARTITION)).items():
            delivery = _Delivery.of(record)
            if delivery.endpoint not in self._endpoints:
                # Other processes may know the endpoint: keep the event until the last retry is past.
                if now - delivery.event["created_at"] > sum(self._delays):
                    await self._store.delete(PARTITION, name)
            elif delivery.due > now:
                next_due = min(next_due, delivery.due)
            elif len(self._attempts) >= MAX_ATTEMPTS_AT_ONCE:
                break  # a finished attempt wakes this task
            elif claimed := await self._update(delivery, delivery.attempts + 1, now + CLAIM):
                attempt = asyncio.create_task(self._attempt(claimed))
                self._attempts.add(attempt)
                attempt.add_done_callback(self._ended)
        return max(0.0, next_due - self._clock())

    def _ended(self, attempt: asyncio.Task[None]) -> None:
        self._attempts.discard(attempt)
        self._wake.set()
        if not attempt.cancelled() and (error := attempt.exception()) and not isinstance(error, StoreUnavailable):
            logger.error("unexpected error", exc_info=error)

    async def _update(self, delivery: _Delivery, attempts: int, due: float) -> _Delivery | None:
        """None if another process was first."""
        updated = delivery._replace(attempts=attempts, due=due)
        change = Change(PARTITION, {updated.name: updated.record()}, delete=[delivery.name], requires=delivery.name)
        return updated if await self._store.apply(change) else None

    async def _attempt(self, delivery: _Delivery) -> None:
        failure = await self._send(delivery)
        fields = {
            "webhook": delivery.endpoint,
            "event": delivery.event["type"],
            "response_id": delivery.event["data"]["id"],
            "attempt": delivery.attempts,
        }
        if not failure:
            await self._store.delete(PARTITION, delivery.name)
            logger.info("webhook delivered", extra=fields)
        elif delivery.attempts > len(self._delays):
            await self._store.delete(PARTITION, delivery.name)
            logger.error("webhook delivery abandoned", extra={**fields, "reason": failure})
        else:
            delay = self._delays[delivery.attempts - 1] * random.uniform(0.9, 1.1)
            await self._update(delivery, delivery.attempts, self._clock() + delay)
            logger.warning("webhook failed", extra={**fields, "reason": failure, "retry_in": round(delay)})

    async def _send(self, delivery: _Delivery) -> str:
        """The reason for a failure, or ""."""
        import httpx

        endpoint = self._endpoints[delivery.endpoint]
        body = json.dumps(delivery.event, separators=(",", ":")).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "antiphon",
            **signature_headers(endpoint.key, delivery.event["id"], int(self._clock()), body),
        }
        request = httpx.Request("POST", endpoint.url, headers=headers, content=body)
        try:
            response = await send_request(self._http, request, TIMEOUT, read=False)
        except RequestFailed as error:
            return str(error)
        return "" if response.is_success else f"HTTP {response.status_code}"


def signature_headers(key: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """`timestamp` is Unix time."""
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
