"""
Run hosted calls, and add their items, events and notes to the response.

A round's calls run concurrently; their events are delivered meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from app.core.history.approvals import ApprovedCall, answered_before
from app.core.items import ITEM_TYPES
from app.core.items.readings import NOTES
from app.core.request.tools import deferred_tools
from app.core.stream.citations import cited_by
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import OpenCall, ToolBinding
from app.core.types import JSONMapping, JSONObject, Usage, with_fields
from app.core.types.hosted import HostedFunction
from app.core.types.request import TERMINAL, Item
from app.core.usage import Counts, added_counts
from app.errors import StoreUnavailable, Warnings
from app.observability.lifecycle import ResponseLifecycle
from app.responses.delivery import EventWriter
from app.responses.generate import DeadlineExceeded
from app.responses.images import StoredImages
from app.responses.policy import InputReview
from app.responses.preparation import Preparation
from app.responses.tool_loop.sessions import (
    DeclaredTool,
    SessionFunction,
    ToolSessions,
    call_signature,
    parsed_arguments,
)
from app.stores import LayeredStore, Store
from app.tools import Outcome, OutcomeStatus, Report, ToolCall

logger = logging.getLogger(__name__)

SAME_CALLS = 3  # identical calls until the model must answer without tools
CANCEL_TIMEOUT = 5.0  # seconds until a cancelled call is abandoned

ALREADY_USED = "This approval was already used. The call was not run again."
NO_OBJECT = "The arguments must be a JSON object. The call was not run. Call the tool again with valid arguments."


class HostedCalls:
    def __init__(
        self,
        builder: EventBuilder,
        preparation: Preparation,
        declared: Sequence[DeclaredTool],
        layers: LayeredStore,
        lifecycle: ResponseLifecycle,
        review: InputReview | None,
    ) -> None:
        """`review` reviews results before the model sees them."""
        self.started = 0
        self.repeats = False  # whether the model made the same call `SAME_CALLS` times
        self.usage: Counts = {}  # for the response's `tool_usage`
        self.builder = builder
        self.preparation = preparation
        self.declared = declared
        self.lifecycle = lifecycle
        self.review = review
        request, self._context, owner = preparation.request, preparation.context, preparation.caller.owner
        self._include = request.include
        self._client_tools = deferred_tools(request.tools, self._context.items)  # for tool search
        self.deadline = preparation.options.deadline()  # of all rounds
        limits = preparation.options.tool_limits
        self.sessions = ToolSessions(declared, limits)
        self._limit = asyncio.Semaphore(limits.parallel if request.parallel_tool_calls else 1)
        self._approvals = Approvals(layers.store, owner)
        self.images = StoredImages(layers, owner, self._context.images)  # from earlier turns
        self.changed = asyncio.Event()  # set when events can be delivered
        self.warnings = Warnings()  # from calls and finished rounds
        self._same: Counter[str] = Counter()
        self._releases: dict[str, Callable[[], Awaitable[None]]] = {}  # of running calls' approvals, by item id

    async def open(self, delivery: EventWriter, quiet: float | None) -> None:
        """Open the sessions; deliver their events after `quiet` seconds (None: never)."""

        async def open_and_review() -> None:
            report = SessionReport(self)
            await self.sessions.open(self._context.items, report)
            if self.review:
                await self.sessions.review(self.review, report)

        await self._deliver_while([asyncio.create_task(open_and_review())], delivery, quiet)
        self.builder.encrypt_calls(item["id"] for item in self.builder.response["output"])  # lists of tools

    async def run(self, delivery: EventWriter, calls: Sequence[OpenCall], number: int) -> None:
        """Run calls and deliver their events; `number` is the round, 0 for approved calls."""
        step = self.builder.begin_step("tools")
        self.builder.framework("tool_round_started", round=number, tool_count=len(calls))
        if self.deadline:
            self.deadline.start()
        tasks = [asyncio.create_task(self._run(call)) for call in calls]
        await self._deliver_while(tasks, delivery)
        self.builder.encrypt_calls(call.item["id"] for call in calls)
        self.builder.framework("tool_round_completed", round=number, tool_count=len(calls))
        self.builder.end_step(step, "tools")

    async def run_approved(self, delivery: EventWriter) -> None:
        calls = [await self._approved_call(approval) for approval in self._context.approved]
        running = [call for call in calls if call in self.builder.running]
        await self.run(delivery, running, 0)

    async def _approved_call(self, approval: ApprovedCall) -> OpenCall:
        """
        Add an approved call with its stored arguments.

        A call that was run before, or with a used approval, ends at once. A call without a session uses no approval.
        """
        request = approval.request
        label, name = str(request.get("server_label")), str(request.get("name"))
        function = next(
            (
                candidate.function
                for candidate in self.sessions.functions
                if (candidate.function.server_label, candidate.function.name) == (label, name)
            ),
            HostedFunction(name, "mcp_call", namespace=label),
        )
        kind, fields = ITEM_TYPES[function.item], dict(function.item_fields)
        if "approval_request_id" in kind.empty:
            fields["approval_request_id"] = request["id"]
        call = self.builder.call(approval.call_id or self.builder.new_id("call"), ToolBinding(kind, fields, function))
        self.builder.arguments(call, str(request.get("arguments") or "{}"))
        self.builder.close_call(call)
        self.add_notes(call.item["id"], approval_request_id=request["id"], round=-1)
        if approval.earlier:
            item, upstream = approval.earlier
            own = ("id", "type", "status", "approval_request_id")
            fields = {name: value for name, value in item.items() if name not in own}
            if (notes := upstream.get(NOTES)) and "output" in notes:
                self.add_notes(call.item["id"], output=notes["output"])
            self.builder.end_call(call, str(item.get("status") or "completed"), fields)
        elif self.sessions.find(function):
            if release := await self._approvals.claim(request["id"]):
                self._releases[call.item["id"]] = release
            else:
                self._end(call, Outcome.failed(ALREADY_USED, begun=False))
        return call

    async def _run(self, call: OpenCall) -> None:
        assert call.binding and call.binding.hosted
        function, builder = call.binding.hosted, self.builder
        self.started += 1
        arguments = parsed_arguments(call.written, call.kind.argument)
        signature = call_signature(function, arguments, call.written)
        self._same[signature] += 1
        self.repeats = self.repeats or self._same[signature] >= SAME_CALLS
        async with self._limit:
            builder.run_call(call)
            builder.framework("tool_call_started", name=function.name, call_id=call.call_id)
            self.changed.set()
            target = self.sessions.find(function)
            name = target.tool.name if target else "unknown"
            with self.lifecycle.tool_call(name, function.name, call.call_id) as observed:
                outcome = await self._outcome(call, target, arguments)
                if review := self.review:
                    outcome = await review.result(call.call_id or "", function.name, outcome)
                observed.status = outcome.status
        if not outcome.begun and (release := self._releases.get(call.item["id"])):
            with contextlib.suppress(StoreUnavailable):  # the approval stays used
                await release()
        self._end(call, outcome)

    async def _outcome(self, call: OpenCall, target: SessionFunction | None, arguments: JSONObject | None) -> Outcome:
        assert call.binding and call.binding.hosted
        function = call.binding.hosted
        if target is None:
            return Outcome.failed(f"The tool {function.name!r} is no longer available.", begun=False)
        if arguments is None:
            return Outcome.failed(NO_OBJECT)
        unfinished = {call.item["id"] for call in self.builder.running}
        finished = [item for item in self.builder.response["output"] if item["id"] not in unfinished]
        items = [*self._context.items, *finished]
        approval = self.notes(call.item["id"]).get("approval_request_id")
        functions = [entry.function for entry in self.sessions.functions if entry.function.deferred]
        deferred = [*self._client_tools, *(function.deferred_tool for function in functions)]
        running = ToolCall(call.item["id"], target.function, arguments, items, approval, call.call_id or "", deferred)
        return await self.sessions.run(target.session, running, SessionReport(self, call))

    def _end(self, call: OpenCall, outcome: Outcome) -> None:
        assert call.binding and call.binding.hosted
        kind, function = call.kind, call.binding.hosted
        fields = dict(outcome.fields)
        if outcome.status == "failed" and not fields and isinstance(outcome.output, str):
            fields = kind.error(outcome.output)
        output = self.sessions.truncated(outcome.output)
        for name, value in kind.included.items():
            if name in fields and value not in self._include:
                del fields[name]
        item = with_fields(call.item, fields)
        notes: dict[str, object] = {}
        if kind.own_output(item) != output:
            notes["output"] = output
        if kind.field is None:
            notes["arguments"] = call.written
        if not outcome.begun:
            notes["begun"] = False
        if (item.get("server_label"), item.get("name")) != (function.namespace, function.name):
            notes |= {"namespace": function.key[0], "name": function.name}
        if sources := cited_by((source.mark, source.annotation) for source in outcome.sources):
            self.builder.cite(sources)
            notes["sources"] = sources
        if not kind.call_id:  # otherwise the output is a separate item
            self.add_notes(call.item["id"], **notes)
        self.usage = added_counts(self.usage, outcome.usage)
        self.builder.end_call(call, outcome.status, fields)
        failed = outcome.status != "completed"
        error = outcome.output if failed and isinstance(outcome.output, str) else None
        self.builder.framework("tool_call_completed", name=function.name, call_id=call.call_id, error=error)
        self.changed.set()

    async def _deliver_while(
        self, tasks: Collection[asyncio.Task[None]], delivery: EventWriter, quiet: float | None = 0
    ) -> None:
        """
        Deliver events while tasks run, after `quiet` seconds (None: never).

        Raises `DeadlineExceeded`, or a task's exception; all other tasks are then cancelled.
        """
        clock = asyncio.get_running_loop().time
        deliver_at = None if quiet is None else clock() + quiet
        pending = {*tasks}
        try:
            while pending:
                await self._wait(pending, deliver_at)
                for task in [task for task in pending if task.done()]:
                    pending.remove(task)
                    task.result()
                if deliver_at is not None and clock() >= deliver_at and (events := self.builder.pop_events()):
                    delivery.send(events)
                    await delivery.drain()
        finally:
            for task in pending:
                task.cancel()
            if pending:
                _, stuck = await asyncio.wait(pending, timeout=CANCEL_TIMEOUT)
                for task in stuck:
                    logger.error("hosted tool call not stopped by cancellation", extra={"task": task.get_name()})

    async def _wait(self, tasks: Collection[asyncio.Task[None]], deliver_at: float | None) -> None:
        clock = asyncio.get_running_loop().time
        times = (self.deadline.at if self.deadline else None, deliver_at)
        until = [time for time in times if time and time > clock()]
        changed = asyncio.ensure_future(self.changed.wait())
        try:
            timeout = min(until) - clock() if until else None
            await asyncio.wait({*tasks, changed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        self.changed.clear()
        if self.deadline and self.deadline.at is not None and clock() >= self.deadline.at:
            raise DeadlineExceeded

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.add(message)
            logger.warning("hosted tool warning", extra={"reason": message})
            self.changed.set()

    def add_notes(self, item_id: str, **notes: object) -> None:
        """Notes are stored with the item, for later requests."""
        upstream = self.builder.upstream.setdefault(item_id, {})
        upstream[NOTES] = {**upstream.get(NOTES, {}), **notes}

    def notes(self, item_id: str) -> JSONMapping:
        upstream = self.builder.upstream.get(item_id) or self._context.upstream.get(item_id) or {}
        notes: Mapping[str, object] = upstream.get(NOTES, {})
        return notes


class SessionReport(Report):
    def __init__(self, calls: HostedCalls, call: OpenCall | None = None) -> None:
        """`call` is None while functions are listed."""
        self.id = call.item["id"] if call else ""
        self._calls = calls
        self._call = call

    def event(self, name: str, **fields: object) -> None:
        assert self._call
        self._calls.builder.progress(self._call, name, fields)
        self._calls.changed.set()

    def add(self, item_type: str, **fields: object) -> SessionReport:
        kind, builder = ITEM_TYPES[item_type], self._calls.builder
        if builder.response["status"] in TERMINAL:  # discarded
            added = OpenCall(None, {"type": kind.type, "id": builder.new_id(kind.prefix)}, kind)
        else:
            added = builder.add_item(kind, fields)
            self._calls.changed.set()
        return SessionReport(self._calls, added)

    def close(self, status: OutcomeStatus = "completed", **fields: Any) -> None:
        assert self._call
        self._calls.builder.end_call(self._call, status, fields)
        self._calls.changed.set()

    def set_private_data(self, **data: object) -> None:
        self._calls.add_notes(self.id, session={**self.private_data({"id": self.id}), **data})

    def private_data(self, item: JSONMapping) -> JSONMapping:
        notes = self._calls.notes(str(item.get("id"))).get("session")
        return notes if isinstance(notes, Mapping) else {}

    def has_stored_image(self, item: Item) -> bool:
        return item.get("id") in self._calls.images

    async def stored_image(self, item: Item) -> str | None:
        images = self._calls.images
        return await images.load(item["id"]) if item.get("id") in images else None

    def warn(self, message: str) -> None:
        self._calls.warn(message)

    async def check_limits(self) -> None:
        await self._calls.lifecycle.account.check_limits()

    def charge_request(self, model: str, backend: str, usage: Usage, cost: int | None = None) -> None:
        self._calls.lifecycle.account.charge_request(model, backend, usage, cost)


_USED, _RELEASED = "used", "released"
_APPROVED, _DENIED = b"1", b"denied"


class Approvals:
    """
    Claims an owner's approvals, each for a single request across all processes.

    An approval has a record per claim and per released claim (the call was not started). Records are never deleted, so
    a repeated write cannot release another request's claim. A denial is a claim that is never released. Records contain
    a hash of the request's id: the request itself may be unstored.
    """

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def claim(self, request_id: str) -> Callable[[], Awaitable[None]] | None:
        """
        None if the approval is used or denied, else a function that releases the claim if the call was not started.

        Both raise `StoreUnavailable`.
        """
        partition, attempt = await self._next(request_id)
        if not await self._store.add(partition, f"{_USED}{attempt}", _APPROVED):
            return None
        return partial(self._store.put, partition, f"{_RELEASED}{attempt}", _APPROVED)

    async def _next(self, request_id: str) -> tuple[str, str]:
        """The approval's partition, and the suffix of its next claim: the number of released claims, if any."""
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]
        partition = f"{self._owner}:{name}:approval"
        released = sum(name.startswith(_RELEASED) for name in await self._store.names(partition))
        return partition, str(released or "")

    async def _is_denied(self, partition: str, attempt: str) -> bool:
        return await self._store.get(partition, f"{_USED}{attempt}") == _DENIED

    async def decide(self, approved: Iterable[ApprovedCall], denied: Iterable[tuple[str, str]]) -> None:
        """
        Store a request's denials, so that the calls cannot be approved later.

        Raises `InvalidRequest` for contradictory answers, and `StoreUnavailable`.
        """
        for call in approved:
            if await self._is_denied(*await self._next(call.request["id"])):
                raise answered_before(call.path, denied=True)
        for request_id, path in denied:
            partition, attempt = await self._next(request_id)
            added = await self._store.add(partition, f"{_USED}{attempt}", _DENIED)
            if not added and not await self._is_denied(partition, attempt):
                raise answered_before(path, denied=False)
