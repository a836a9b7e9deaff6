"""
The loop of hosted tools: query the model, run its hosted calls, and query it again with their results.

Each iteration is a *round*. Its question to the model is translated from the conversation and the output so far, by the
code that translates a client's next turn. All rounds share one response, one builder and one stream.

Before a question that is longer than the request's `compact_threshold`, the conversation and the output so far are
compacted: see `app.responses.compaction`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from app.backends import ChatRequest
from app.core.history.approvals import ApprovedCall
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.citations import cited_by
from app.core.stream.event_batch import EventBatch, Sink
from app.core.stream.event_builder import EventBuilder, OpenCall, Upstream, resolve_upstream
from app.core.stream.event_types import ToolBinding
from app.core.types import Response, Usage, with_fields
from app.core.types.hosted import HostedFunction
from app.core.types.items import ITEM_TYPES, MCP_APPROVAL_REQUEST, ItemType, waits_for_client
from app.core.types.readings import NOTES
from app.core.types.request import TERMINAL, Item
from app.core.types.token_estimate import estimate_chat
from app.core.types.usage import added_usage, usage_of
from app.errors import APIError, BackendError
from app.observability.lifecycle import ObservedRound, ResponseLifecycle, RoundRecord
from app.responses.compaction import CompactionBuilder
from app.responses.generate import Deadline, DeadlineExceeded, Question, ending_of, finish_response, respond, unreadable
from app.responses.images import StoredImages
from app.responses.off_loop import MANY, off_loop
from app.responses.questions import Questions
from app.responses.tool_loop.options import LoopOptions
from app.responses.tool_loop.report import LoopReport
from app.responses.tool_loop.rounds import within_round
from app.responses.tool_loop.sessions import (
    SessionFunction,
    ToolSessions,
    call_signature,
    parsed_arguments,
)
from app.tools import Outcome, ToolCall

logger = logging.getLogger(__name__)

SAME_CALLS = 3  # identical calls after which the model has to answer without tools
CANCEL_TIMEOUT = 5.0  # seconds that a cancelled tool may take to stop

ALREADY_USED = "This approval has been used already, so the call was not run again."
NO_OBJECT = "The arguments of this call are not a JSON object, so it was not run."


class ToolLoop:
    """Generates one response with hosted tools."""

    def __init__(
        self,
        builder: EventBuilder,
        questions: Questions,
        options: LoopOptions,
        *,
        deadline: Deadline | None,
        lifecycle: ResponseLifecycle,
        large: bool = False,
    ) -> None:
        """`large`: whether the questions are translated in a thread, off the event loop."""
        self.builder = builder
        self._large = large
        self._warnings: list[str] = []  # of the sessions and of finished rounds
        self._questions = questions
        limits = options.limits
        self._sessions = ToolSessions(
            options.declared, max_result_chars=limits.max_result_chars, call_seconds=limits.max_call_seconds
        )
        self._options = options
        self._deadline = deadline
        self._lifecycle = lifecycle
        self._limit = asyncio.Semaphore(limits.parallel if options.parallel else 1)
        self._changed = asyncio.Event()  # set when there are events to yield
        self._opened = False  # whether events were yielded, so that errors have to be events as well
        self._round = 0
        self._again = False  # whether the model has made hosted calls, so that another round follows
        self._last_reason: str | None = None  # the limit that makes the next round the last one
        self._calls = 0  # hosted calls that were started
        self._same: Counter[str] = Counter()
        self._call_ids: set[str] = set()
        self._hosted_names: set[str] = set()
        self._question: Question | None = None
        self._sink: Sink[EventBatch] | None = None
        self._usage: Usage | None = None  # of finished rounds and of summaries
        self._written = 0  # output tokens of finished rounds
        self._tool_usage: dict[str, Counter[str]] = {}
        self._first_item = 0  # the index of this round's first output item

    @property
    def warnings(self) -> list[str]:
        """What was changed or left out so far, one sentence each."""
        latest = self._question.warnings if self._question else ()
        return list(dict.fromkeys([*self._warnings, *latest]))

    async def events(
        self, open_after: float | None, sink: Sink[EventBatch] | None = None
    ) -> AsyncGenerator[EventBatch, None]:
        """
        Yield the events of the response except the terminal one; see `respond` for `open_after` and the exceptions.

        Closing the generator stops running tools and closes their sessions.
        """
        self._sink = sink
        if not self.builder.started:
            self.builder.start()
        try:
            async with contextlib.aclosing(self._all(open_after)) as all:
                async for events in all:
                    self._opened = True
                    yield events
        except DeadlineExceeded:
            self.builder.incomplete("max_output_seconds")
        except APIError as error:
            if not self._opened:
                raise
            self.builder.fail(error)
        except Exception:
            if not self._opened:
                raise
            logger.exception("a response with hosted tools could not be made")
            self.builder.fail(unreadable())
        finally:
            await self._sessions.close()
        self._record()
        if events := self.builder.take():
            yield events

    def first_body(self) -> dict[str, Any]:
        """Return the first request without hosted functions; raises `InvalidRequest` if it cannot be translated."""
        question = self._questions.in_round(
            self.builder,
            hosted=self._options.hosted(),
            output=(),
            upstream={},
            changes={"tool_choice": self._options.choice(last=True)},
            call_ids=set(),
        )
        return question.request.body

    async def _all(self, open_after: float | None) -> AsyncGenerator[EventBatch, None]:
        opens_at = None if open_after is None else asyncio.get_running_loop().time() + open_after
        opening = asyncio.create_task(self._sessions.open(self._options.items, LoopReport(self)))
        async with contextlib.aclosing(self._events_while([opening], quiet=open_after)) as all:
            async for events in all:
                yield events
        if self._options.approvals:
            yield self.builder.take()  # from here on errors are events
            calls = [await self._approved_call(approval) for approval in self._options.approvals]
            running = [call for call in calls if call in self.builder.running]
            async with contextlib.aclosing(self._run_all(running, None)) as all:
                async for events in all:
                    yield events
        while True:
            with self._lifecycle.round(self._round) as round:
                async with contextlib.aclosing(self._one_round(round, opens_at)) as all:
                    async for events in all:
                        yield events
            if not self._again:
                return
            self._round += 1
            await self._lifecycle.check_limits()

    def _time_to_open(self, at: float | None) -> float | None:
        """Return the seconds until the response opens at loop time `at`; None if it opens with the backend's answer."""
        return None if at is None or self._opened else max(0.0, at - asyncio.get_running_loop().time())

    async def _one_round(self, round: ObservedRound, opens_at: float | None) -> AsyncGenerator[EventBatch, None]:
        """Query the model and run its hosted calls; sets `_again` if another round follows."""
        record = round.record
        question = await self._next_question()
        if question and self._must_compact(question):
            async with contextlib.aclosing(self._compact(round, self._time_to_open(opens_at))) as compacting:
                async for events in compacting:
                    yield events
            question = await self._next_question()
        self._question, self._again = question, False
        if question is None:
            record.status = "incomplete"
            return
        answer = respond(
            self.builder,
            within_round(question, round),
            open_after=self._time_to_open(opens_at),
            deadline=self._deadline,
            opened=self._opened,
            finish=partial(self._finish_round, record),
            sink=self._sink,
        )
        async with contextlib.aclosing(answer):
            async for events in answer:
                yield events
        if self._again:
            self._charge()
            waits = self._waits_for_client()
            record.calls = len(self.builder.running)
            async with contextlib.aclosing(self._run_all([*self.builder.running], round)) as all:
                async for events in all:
                    yield events
            if waits:
                self._again = False
                self.builder.complete()
        status = str(self.builder.response["status"])
        record.status = status if status in TERMINAL else "completed"

    async def _next_question(self) -> Question | None:
        """Return the question of the next round; None if the response has to end."""
        options = self._options
        self._warnings = self.warnings
        left = options.max_output_tokens
        if left is not None:
            left -= self._written
            if left <= 0:
                self.builder.incomplete("max_output_tokens")
                return None
        calls_left = None if options.max_tool_calls is None else max(0, options.max_tool_calls - self._calls)
        if calls_left == 0:
            self._last_reason = "the number of tool calls that the request allows"
        elif self._round >= options.limits.max_rounds:
            self._last_reason = "the number of rounds that this server allows"
        if self._last_reason:
            self.warn(f"The model had to answer without more tool calls: {self._last_reason} was reached.")
        functions = [] if self._last_reason else self._sessions.functions
        self._first_item = len(self.builder.response["output"])
        changes: dict[str, Any] = {"max_output_tokens": left}
        if self._round or self._last_reason:
            changes["tool_choice"] = options.choice(last=bool(self._last_reason))
        question = await off_loop(
            self._large or self._first_item > MANY,
            self._questions.in_round,
            self.builder,
            hosted=options.hosted(functions),
            output=[*self.builder.response["output"]],
            upstream=self._upstream(),
            changes=changes,
            forbidden=frozenset(self._hosted_names) if self._last_reason else frozenset(),
            hosted_left=calls_left,
            call_ids=self._call_ids,
        )
        self._hosted_names |= {
            name
            for name, binding in question.reader.calls.bindings.items()
            if binding.hosted or binding.kind is MCP_APPROVAL_REQUEST
        }
        return question

    def _upstream(self) -> dict[str, Upstream]:
        """Return the backend's fields and the notes of the output's items, by id."""
        return {id: resolve_upstream(fields) for id, fields in self.builder.upstream.items()}

    def _must_compact(self, question: Question) -> bool:
        """Return whether a question exceeds the request's threshold and a compaction would help."""
        compaction, body = self._options.compaction, question.request.body
        if compaction is None or estimate_chat(body) <= compaction.threshold:
            return False
        tokens = self._questions.compactable_tokens(body, self.builder.response["output"], self._upstream())
        return compaction.is_worthwhile(tokens)

    async def _compact(self, round: ObservedRound, open_after: float | None) -> AsyncGenerator[EventBatch, None]:
        """
        Request a summary from the model, and add it to the output as an item that replaces the earlier conversation.

        If the model writes none, the response continues without it, with a warning. Raises `BackendError` as `respond`.
        """
        assert self._options.compaction
        response: Response = {**self.builder.response, "output": [], "usage": None}
        summary = CompactionBuilder(response, new_id=self.builder.new_id, seal=self._options.compaction.seal)
        question = self._questions.summary(summary, [*self.builder.response["output"]], self._upstream())
        step = self.builder.begin_step("model")
        answer = respond(
            summary,
            within_round(question, round),
            open_after=open_after,
            deadline=self._deadline,
            opened=self._opened,
        )
        try:
            async with contextlib.aclosing(answer):
                async for _ in answer:  # the events of the summary itself are not sent
                    if events := self.builder.take():
                        yield events
        finally:
            # Also if the caller disconnects; `max_output_tokens` does not count summaries.
            used = summary.response["usage"] or usage_of(question.reader.usage, question.request.body, [])
            self._usage = added_usage(self._usage, used)
            self._charge()
        self.builder.end_step(step, "model")
        if not summary.response["output"]:
            self.warn("The conversation could not be compacted: the model wrote no summary of it.")
            return
        item = summary.response["output"][-1]
        added = self.builder.add_item(ITEM_TYPES[item["type"]], {"encrypted_content": ""})
        self.builder.upstream[added.item["id"]] = summary.upstream[item["id"]]
        self.builder.end_call(added, "completed", {"encrypted_content": item["encrypted_content"]})

    def _finish_round(
        self,
        record: RoundRecord,
        builder: EventBuilder,
        reader: ChunkReader,
        request: ChatRequest,
        failure: BackendError | None,
    ) -> None:
        """End the round; the response ends with it unless the model has made hosted calls."""
        ended = ending_of(reader, failure)
        reader.calls.end(cut=ended != "completed")
        builder.close_item()
        output = builder.response["output"][self._first_item :]
        self._note_round(output)
        self._again = ended == "completed" and bool(builder.running)
        if not self._again:
            finish_response(builder, reader, request, failure)
        record.usage = usage_of(reader.usage, request.body, [*output])
        self._usage = added_usage(self._usage, record.usage)
        self._written += record.usage["output_tokens"]

    def _note_round(self, output: Sequence[Item]) -> None:
        """Note which calls belong to one answer: they become one message in later requests."""
        for item in output:
            row = ITEM_TYPES.get(item["type"])
            if row and (row.role in ("call", "hosted") or row is MCP_APPROVAL_REQUEST):
                self.note(item["id"], round=self._round)

    def _waits_for_client(self) -> bool:
        """Return whether the round has a call that the client has to answer."""
        hosted = {call.item["id"] for call in self.builder.running}
        output = self.builder.response["output"][self._first_item :]
        return any(waits_for_client(item) for item in output if item["id"] not in hosted)

    # Calls.

    async def _approved_call(self, approval: ApprovedCall) -> OpenCall:
        """
        Add the item of an approved call, with the arguments that were stored.

        The call ends at once if it was run before, or if another request has used the approval.
        """
        request = approval.request
        label, name = str(request.get("server_label")), str(request.get("name"))
        function = next(
            (
                candidate.function
                for candidate in self._sessions.functions
                if (candidate.function.server_label, candidate.function.name) == (label, name)
            ),
            HostedFunction(name, "mcp_call", namespace=label, fields={"server_label": label, "name": name}),
        )
        kind, fields = ITEM_TYPES[function.item], dict(function.fields)
        if "approval_request_id" in kind.empty:
            fields["approval_request_id"] = request["id"]
        call = self.builder.call(approval.call_id or self.builder.new_id("call"), ToolBinding(kind, fields, function))
        self.builder.arguments(call, str(request.get("arguments") or "{}"))
        self.builder.close_call(call)
        self.note(call.item["id"], approval_request_id=request["id"], round=-1)
        if approval.earlier:
            self._repeat(call, *approval.earlier)
        elif self._options.claim and not await self._options.claim(request["id"]):
            self._end(call, Outcome.failed(ALREADY_USED))
        return call

    def _repeat(self, call: OpenCall, item: Item, upstream: Upstream) -> None:
        """End a call with the result of its earlier run."""
        own = ("id", "type", "status", "approval_request_id")
        fields = {name: value for name, value in item.items() if name not in own}
        if (notes := upstream.get(NOTES)) and "output" in notes:
            self.note(call.item["id"], output=notes["output"])
        self.builder.end_call(call, str(item.get("status") or "completed"), fields)

    async def _run_all(
        self, calls: Sequence[OpenCall], round: ObservedRound | None
    ) -> AsyncGenerator[EventBatch, None]:
        """Run calls concurrently and yield their events; `round` is None for approved calls, before the first round."""
        step = self.builder.begin_step("tools")
        self.builder.framework("tool_round_started", round=self._round, tool_count=len(calls))
        if self._deadline:
            self._deadline.start()
        with round.inside() if round else contextlib.nullcontext():
            tasks = [asyncio.create_task(self._run(call)) for call in calls]
        async with contextlib.aclosing(self._events_while(tasks)) as all:
            async for events in all:
                yield events
        self.builder.seal_calls(call.item["id"] for call in calls)
        self.builder.framework("tool_round_completed", round=self._round, tool_count=len(calls))
        self.builder.end_step(step, "tools")

    async def _run(self, call: OpenCall) -> None:
        assert call.callee and call.callee.hosted
        function, builder = call.callee.hosted, self.builder
        arguments = parsed_arguments(call.written, call.kind.argument)
        self._calls += 1
        self._count_same(call_signature(function, arguments, call.written))
        async with self._limit:
            builder.run_call(call)
            builder.framework("tool_call_started", name=function.name, call_id=call.call_id)
            self._changed.set()
            target = self._sessions.find(function.key)
            name = target.tool.name if target else "unknown"
            with self._lifecycle.tool_call(name, function.name, call.call_id) as observed:
                outcome = await self._outcome(call, target, arguments)
                observed.status = outcome.status
        self._end(call, outcome)

    def _count_same(self, signature: str) -> None:
        self._same[signature] += 1
        if self._same[signature] >= SAME_CALLS:
            self._last_reason = "the same call was made again and again, so its limit"

    async def _outcome(
        self, call: OpenCall, target: SessionFunction | None, arguments: dict[str, Any] | None
    ) -> Outcome:
        assert call.callee and call.callee.hosted
        function = call.callee.hosted
        if target is None:
            return Outcome.failed(f"There is no tool {function.name!r} any more.")
        if arguments is None:
            return Outcome.failed(NO_OBJECT)
        items = [*self._options.items, *self._finished_items()]
        approval = self._notes(call.item["id"]).get("approval_request_id")
        deferred = [entry.function for entry in self._sessions.functions if entry.function.deferred]
        running = ToolCall(call.item["id"], target.function, arguments, items, approval, call.call_id or "", deferred)
        return await self._sessions.run(target.session, running, LoopReport(self, call))

    def _finished_items(self) -> list[Item]:
        open_ = {call.item["id"] for call in self.builder.running}
        return [item for item in self.builder.response["output"] if item["id"] not in open_]

    def _end(self, call: OpenCall, outcome: Outcome) -> None:
        """End the item of a call, and note the output that the model is shown."""
        assert call.callee and call.callee.hosted
        kind, function = call.kind, call.callee.hosted
        fields = dict(outcome.fields)
        if outcome.status == "failed" and not fields and isinstance(outcome.output, str):
            fields = kind.error(outcome.output)
        output = self._sessions.shortened(outcome.output)
        for name, value in kind.included.items():
            if name in fields and value not in self._options.include:
                del fields[name]
        item = with_fields(call.item, fields)
        notes: dict[str, Any] = {}
        if kind.own_output(item) != output:
            notes["output"] = output
        if kind.field is None:
            notes["arguments"] = call.written
        if (item.get("server_label"), item.get("name")) != (function.namespace, function.name):
            notes |= {"namespace": function.key[0], "name": function.name}
        if sources := cited_by((source.mark, source.annotation) for source in outcome.sources):
            self.builder.cite(sources)
            notes["sources"] = sources
        if not kind.call_id:  # otherwise its output is an item of its own
            self.note(call.item["id"], **notes)
        for name, counts in outcome.usage.items():
            self._tool_usage.setdefault(name, Counter()).update(counts)
        self.builder.end_call(call, outcome.status, fields)
        failed = outcome.status != "completed"
        error = outcome.output if failed and isinstance(outcome.output, str) else None
        self.builder.framework("tool_call_completed", name=function.name, call_id=call.call_id, error=error)
        self._changed.set()

    # While tools work.

    async def _events_while(
        self, tasks: Collection[asyncio.Task[None]], quiet: float | None = 0
    ) -> AsyncGenerator[EventBatch, None]:
        """
        Yield events while tasks run, except during the first `quiet` seconds (None: yield no events).

        Raises `DeadlineExceeded` and any exception of a task. Leaving the generator cancels the tasks.
        """
        clock = asyncio.get_running_loop().time
        yield_at = None if quiet is None else clock() + quiet
        pending = {*tasks}
        try:
            while pending:
                await self._wait(pending, yield_at)
                for task in [task for task in pending if task.done()]:
                    pending.remove(task)
                    task.result()
                if yield_at is not None and clock() >= yield_at and (events := self.builder.take()):
                    yield events
        finally:
            for task in pending:
                task.cancel()
            if pending:
                _, stuck = await asyncio.wait(pending, timeout=CANCEL_TIMEOUT)
                for task in stuck:
                    logger.error("hosted tool does not stop", extra={"task": task.get_name()})

    async def _wait(self, tasks: Collection[asyncio.Task[None]], yield_at: float | None) -> None:
        """Wait for the end of a task, new events, `yield_at` (in loop time), or the deadline."""
        clock = asyncio.get_running_loop().time
        until = [time for time in (self._deadline.at if self._deadline else None, yield_at) if time and time > clock()]
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            timeout = min(until) - clock() if until else None
            await asyncio.wait({*tasks, changed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        self._changed.clear()
        if self._deadline and self._deadline.at is not None and clock() >= self._deadline.at:
            raise DeadlineExceeded

    def add_item(self, kind: ItemType, fields: Mapping[str, Any]) -> OpenCall:
        """Add an item for a session; after the end of the response it is discarded."""
        if self.builder.response["status"] in TERMINAL:
            return OpenCall(None, {"type": kind.type, "id": self.builder.new_id(kind.prefix)}, kind)
        self._changed.set()
        return self.builder.add_item(kind, fields)

    @property
    def images(self) -> StoredImages | None:
        """The images of earlier turns."""
        return self._options.images

    def progress(self, item: OpenCall, name: str, fields: Mapping[str, Any]) -> None:
        """Emit a progress event of a running call or of an item that a session added."""
        self.builder.progress(item, name, fields)
        self._changed.set()

    def close_item(self, item: OpenCall, status: str, fields: Mapping[str, Any]) -> None:
        """End an item that a session added."""
        self.builder.end_call(item, status, fields)
        self._changed.set()

    def warn(self, message: str) -> None:
        """Add a warning for the caller about something that was left out or changed."""
        if message not in self._warnings:
            self._warnings.append(message)
            logger.warning("request adapted", extra={"reason": message})
            self._changed.set()

    def note(self, item_id: str, **notes: Any) -> None:
        """Store notes on an item, for later requests that contain it."""
        upstream = self.builder.upstream.setdefault(item_id, {})
        upstream[NOTES] = {**upstream.get(NOTES, {}), **notes}

    def session_notes(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the notes of sessions on an item of this response or of the conversation."""
        notes = self._notes(str(item.get("id"))).get("session")
        return notes if isinstance(notes, Mapping) else {}

    def _notes(self, item_id: str) -> Mapping[str, Any]:
        upstream = self.builder.upstream.get(item_id) or self._options.upstream.get(item_id) or {}
        notes: Mapping[str, Any] = upstream.get(NOTES, {})
        return notes

    # The end.

    def _charge(self) -> None:
        if self._usage:
            self._lifecycle.charge(self._usage)

    def _record(self) -> None:
        """Set the usage of all rounds in the response."""
        response = self.builder.response
        response["usage"] = self._usage or usage_of(None, {}, [])
        if self._options.shows_tool_usage and self._tool_usage:
            response["tool_usage"] = {name: dict(counts) for name, counts in self._tool_usage.items()}

    def usage(self) -> Usage:
        """Return the usage so far, with an estimate for the unfinished round."""
        if self.builder.response["usage"]:
            return self.builder.response["usage"]
        question = self._question
        if question is None or self._again or self.builder.response["status"] in TERMINAL:
            return self._usage or {}
        output = self.builder.partial_output()[self._first_item :]
        return added_usage(self._usage, usage_of(question.reader.usage, question.request.body, output))

    def abort(self, error: APIError | None) -> None:
        """End the response after `events` was closed: as failed with that error, or as cancelled without one."""
        usage = self.usage()
        if not self.builder.started:
            self.builder.start()
        if self._question and not self._again:
            self._question.reader.calls.end(cut=True)
        if error:
            self.builder.fail(error)
        else:
            self.builder.cancel()
        self._usage = usage or self._usage
        self._record()

    @property
    def body(self) -> dict[str, Any]:
        """The latest request to the backend; {} before the first."""
        return self._question.request.body if self._question else {}
