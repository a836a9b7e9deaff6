"""Policy review of model output: each item before its first event, or, in `observe` mode, after the response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from app.core.items.readings import NOTES
from app.core.stream.event_batch import EventBatch
from app.core.stream.replay import item_events
from app.core.types import JSONObject, Usage, with_fields
from app.core.types.request import TERMINAL, Item
from app.core.usage import usage_of
from app.errors import APIError
from app.responses.delivery import NO_DELIVERY, EventWriter
from app.responses.generate import Generation, abort_response
from app.responses.policy import PolicyHooks, PolicyUnavailable
from app.responses.preparation import Preparation
from app.runtime.tasks import cancel

MAX_WAITING = 8  # finished items awaiting a decision until reading pauses

# Response fields that each builder sets; all others are copied from the inner response.
_OWN = frozenset({"id", "output", "status", "completed_at", "incomplete_details", "error"})
# Notes kept for a replaced call; the result for the model is dropped.
_KEPT_NOTES = ("call_id", "round", "namespace", "name")


class ReviewedGeneration(Generation):
    """
    Sends items only after the policy service allows them.

    The inner generation has its own builder. Each finished item is reviewed in order and added, perhaps replaced, to
    the outer builder. A refusal cancels the inner generation and ends the response as incomplete (`content_filter`),
    with a refusal in place of the item.
    """

    def __init__(self, generation: Generation, hooks: PolicyHooks, preparation: Preparation) -> None:
        super().__init__(preparation.builder())
        self._inner = generation
        self._decide = partial(
            hooks.decide, "output", str(preparation.response["model"]), preparation.caller.access.name
        )
        self._reasoning = preparation.reasoning
        self._delivery: EventWriter = NO_DELIVERY
        self._finished: dict[int, Item] = {}  # unreviewed items by inner index
        self._next = 0  # inner index of the next review
        self._changed = asyncio.Event()
        self._resumed = asyncio.Event()

    @property
    def warnings(self) -> list[str]:
        return self._inner.warnings

    @property
    def body(self) -> JSONObject:
        return self._inner.body

    def usage(self) -> Usage:
        return self.builder.response["usage"] or self._inner.usage()

    async def generate(self, delivery: EventWriter, open_after: float | None) -> None:
        """Deliver all events except the terminal event; raises `PolicyUnavailable`. See `Generation`."""
        self._delivery = delivery
        inner = asyncio.create_task(self._inner.generate(self, open_after))
        inner.add_done_callback(lambda _: self._changed.set())
        try:
            refusal: str | None = None
            while refusal is None and not inner.done():
                await self._changed.wait()
                self._changed.clear()
                refusal = await self._review()
            if refusal is None:
                inner.result()
                self.send(self._inner.builder.pop_events())
                refusal = await self._review()
            if refusal is None:
                self._end()
            else:
                await cancel(inner)
                usage = self._stopped_usage()
                self.builder.refusal(refusal)
                self.builder.incomplete("content_filter")
                self.builder.response["usage"] = usage
        finally:
            await cancel(inner)
            self._delivery = NO_DELIVERY

    def abort(self, error: APIError | None) -> None:
        usage = self._stopped_usage()
        abort_response(self.builder, error)
        self.builder.response["usage"] = usage

    @property
    def paused(self) -> bool:
        return len(self._finished) >= MAX_WAITING or self._delivery.paused

    def send(self, events: EventBatch) -> None:
        """Collect finished inner items for review; the first events open the response."""
        if not self.builder.started:
            self.builder.start()
            self._deliver()
        for event in events:
            if not isinstance(event, tuple) and event["type"] == "response.output_item.done":
                self._finished[event["output_index"]] = event["item"]
                self._changed.set()

    async def drain(self) -> None:
        while self.paused:
            if self._delivery.paused:
                await self._delivery.drain()
            else:
                self._resumed.clear()
                await self._resumed.wait()

    def _deliver(self) -> None:
        if events := self.builder.pop_events():
            self._delivery.send(events)

    async def _review(self) -> str | None:
        """Add the finished items up to a refusal; return its message."""
        while (item := self._finished.get(self._next)) is not None:
            decision = await self._decide([item])
            if decision.action == "refuse":
                return decision.message
            del self._finished[self._next]
            self._next += 1
            if decision.action == "replace":
                self._add_replaced(item, decision.items)
            else:
                self._add(item, self._inner.builder.upstream.get(item["id"]))
            self._deliver()
            await self._delivery.drain()
            self._resumed.set()
        return None

    def _add(self, item: Item, upstream: JSONObject | None) -> None:
        if upstream is not None:
            self.builder.upstream[item["id"]] = upstream  # the same object: signatures can arrive later
        index = len(self.builder.response["output"])
        self.builder.add_finished(item, item_events(index, item, self._reasoning))

    def _add_replaced(self, original: Item, items: Sequence[Any]) -> None:
        for number, fields in enumerate(items):
            item = self._replacement(original, fields, first=number == 0)
            notes = self._inner.builder.upstream.get(original["id"], {}).get(NOTES, {})
            kept = {name: notes[name] for name in _KEPT_NOTES if name in notes}
            same = number == 0 and item["type"] == original["type"]
            self._add(item, {NOTES: kept} if kept and same else None)

    def _replacement(self, original: Item, fields: JSONObject, *, first: bool) -> Item:
        """A message, or an item of the original type. Raises `PolicyUnavailable`."""
        if fields["type"] == "message":
            content = fields.get("content")
            if isinstance(content, str):
                content = [{"type": "output_text", "text": content}]
            if not isinstance(content, list):
                raise PolicyUnavailable
            content = [_part(part) for part in content]
            item_id = original["id"] if first and original["type"] == "message" else self.builder.new_id("msg")
            message = {"id": item_id, "role": "assistant", "status": "completed", "content": content}
            return with_fields({"type": "message"}, message)
        if fields["type"] != original["type"] or not first:
            raise PolicyUnavailable
        fixed: JSONObject = {
            name: original.get(name) for name in ("id", "type", "status", "call_id") if name in original
        }
        return with_fields(original, {**fields, **fixed})

    def _end(self) -> None:
        inner, builder = self._inner.builder, self.builder
        status, details = inner.response["status"], inner.response["incomplete_details"]
        if inner.failure:
            builder.fail(inner.failure)
        elif status == "incomplete" and details:
            builder.incomplete(details["reason"])
        else:
            builder.complete()
        builder.stop_sequence = inner.stop_sequence
        builder.response.update({name: value for name, value in inner.response.items() if name not in _OWN})  # type: ignore[typeddict-item]

    def _stopped_usage(self) -> Usage:
        if self._inner.builder.response["status"] not in TERMINAL:
            self._inner.abort(None)
        return self._inner.builder.response["usage"] or usage_of(None, {}, [])


def _part(part: object) -> JSONObject:
    """Validate and complete a content part; raises `PolicyUnavailable`."""
    if isinstance(part, dict) and part.get("type") == "output_text" and isinstance(part.get("text"), str):
        return {"type": "output_text", "text": part["text"], "annotations": [], "logprobs": []}
    if isinstance(part, dict) and part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "refusal", "refusal": part["refusal"]}
    raise PolicyUnavailable
