"""
The loop of hosted tools: query the model, run its hosted calls, repeat with their results.

Each iteration is a *round*. All rounds share a response, a builder and a stream. If a round's prompt exceeds
`compact_threshold`, the conversation and the output so far are compacted first.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.core.items import ITEM_TYPES, MCP_APPROVAL_REQUEST, waits_for_client
from app.core.stream.event_builder import EventBuilder, Upstream, resolve_upstream
from app.core.stream.tool_calls import CallRules
from app.core.types import JSONObject, Response, Usage
from app.core.types.hosted import HostedTools
from app.core.types.request import TERMINAL
from app.core.usage import added_usage, complete_tool_usage, estimate_prompt, usage_of
from app.errors import APIError, BackendError, InvalidRequest
from app.observability.lifecycle import ResponseLifecycle, RoundRecord, clock
from app.responses.delivery import EventWriter
from app.responses.generate import (
    DeadlineExceeded,
    Generation,
    ModelQuery,
    abort_response,
    finish_response,
    respond,
    unreadable,
)
from app.responses.policy import InputReview
from app.responses.preparation import Preparation
from app.responses.tool_loop.calls import HostedCalls
from app.responses.tool_loop.sessions import SessionFunction, declared_tools
from app.runtime.threads import run_in_thread_if_large
from app.stores import LayeredStore
from app.tools import HostedTool

logger = logging.getLogger(__name__)

NOT_COMPACTED = (
    "The prompt exceeds 'compact_threshold', but was not compacted: user messages are never summarized, and the other "
    "items are too short."
)


# The minimum saving of a compaction, as a share of the threshold. User messages are never summarized; if these alone
# exceed the threshold, repeated summaries cost more than they save.
_WORTHWHILE = 0.1


class ToolLoop(Generation):
    def __init__(self, calls: HostedCalls, compact_threshold: int | None) -> None:
        """`compact_threshold`: prompt tokens; None: never compact."""
        super().__init__(calls.builder)
        self._calls = calls
        self._preparation = calls.preparation
        self._lifecycle = calls.lifecycle
        self._compact_threshold = compact_threshold
        self._round = 0
        self._again = False
        self._last_reason: str | None = None  # why the next round must be the last
        self._call_ids: set[str] = set()
        self._hosted: HostedTools | None = None  # the same until the last round
        self._hosted_names: set[str] = set()
        self._usage: Usage | None = None  # finished rounds and summaries
        self._written = 0  # output tokens of finished rounds
        self._first_item = 0  # this round's first index in the output

    @property
    def warnings(self) -> list[str]:
        latest = self._query.warnings if self._query else ()
        return list(dict.fromkeys([*self._calls.warnings, *latest]))

    async def generate(self, delivery: EventWriter, open_after: float | None) -> None:
        """
        Deliver all events except the terminal event; see `respond` for `open_after` and the exceptions.

        Cancellation stops running tools and closes their sessions.
        """
        self.builder.start()
        try:
            await self._all(delivery, open_after)
        except DeadlineExceeded:
            self.builder.incomplete("max_output_seconds")
        except APIError as error:
            if not self.builder.delivered:
                raise
            self.builder.fail(error)
        except Exception:
            if not self.builder.delivered:
                raise
            logger.exception("response with hosted tools failed")
            self.builder.fail(unreadable())
        finally:
            await self._calls.sessions.close()
        self._record()
        self._deliver(delivery)

    def _deliver(self, delivery: EventWriter) -> None:
        if events := self.builder.pop_events():
            delivery.send(events)

    async def first_body(self) -> JSONObject:
        """The first request, without hosted functions. Raises `InvalidRequest`."""
        query = await self._preparation.in_round(
            self.builder,
            hosted=self._hosted_tools(),
            output=(),
            upstream={},
            changes={"tool_choice": self._choice(last=True)},
        )
        return query.body

    async def _all(self, delivery: EventWriter, open_after: float | None) -> None:
        opens_at = None if open_after is None else asyncio.get_running_loop().time() + open_after
        began = clock()
        await self._calls.open(delivery, open_after)
        self._lifecycle.step("tools", began, clock())
        if self._preparation.context.approved:
            self._deliver(delivery)  # errors must be events from now on
            await self._calls.run_approved(delivery)
        while True:
            with self._lifecycle.round(self._round) as record:
                await self._one_round(record, delivery, opens_at)
            if not self._again:
                return
            self._round += 1
            await self._lifecycle.account.check_limits()

    def _time_to_open(self, at: float | None) -> float | None:
        """Seconds until the response must open; None if it opens only when the backend answers."""
        return None if at is None or self.builder.delivered else max(0.0, at - asyncio.get_running_loop().time())

    async def _one_round(self, record: RoundRecord, delivery: EventWriter, opens_at: float | None) -> None:
        query = await self._next_query()
        if query and await self._must_compact(query):
            await self._compact(delivery, self._time_to_open(opens_at))
            query = await self._next_query()
        self._query, self._again = query, False
        if query is None:
            record.status = "incomplete"
            return
        await respond(
            query,
            delivery,
            open_after=self._time_to_open(opens_at),
            deadline=self._calls.deadline,
            finish=partial(self._finish_round, record),
        )
        if self._again:
            self._charge()
            calls = [*self.builder.running]
            hosted = {call.item["id"] for call in calls}
            made = self.builder.response["output"][self._first_item :]
            waits = any(waits_for_client(item) for item in made if item["id"] not in hosted)
            record.calls = len(calls)
            await self._calls.run(delivery, calls, self._round)
            # The outputs of shell calls are items of their own.
            outputs = [
                item
                for item in self.builder.response["output"][self._first_item :]
                if item["type"] == "shell_call_output"
            ]
            review = self._calls.review
            if review and outputs and (refusal := await review.refusal(outputs)):
                self._again = False
                self.builder.refusal(refusal)
                self.builder.incomplete("content_filter")
            elif waits:
                self._again = False
                self.builder.complete()
        status = str(self.builder.response["status"])
        record.status = status if status in TERMINAL else "completed"

    async def _next_query(self) -> ModelQuery | None:
        """None ends the response."""
        request = self._preparation.request
        for warning in self._query.warnings if self._query else ():
            self._calls.warnings.add(warning)
        left = request.max_output_tokens
        if left is not None:
            left -= self._written
            if left <= 0:
                self.builder.incomplete("max_output_tokens")
                return None
        most_calls = math.inf if request.max_tool_calls is None else request.max_tool_calls
        calls_left = max(0, most_calls - self._calls.started)
        if self._calls.repeats:
            self._last_reason = "the model repeated the same call too often"
        if calls_left == 0:
            self._last_reason = "'max_tool_calls' was reached"
        elif self._round >= self._preparation.options.tool_limits.max_rounds:
            self._last_reason = "this server's limit of rounds was reached"
        if self._last_reason:
            self._calls.warn(f"Tool calls were stopped: {self._last_reason}.")
        if self._hosted is None or self._last_reason:
            self._hosted = self._hosted_tools([] if self._last_reason else self._calls.sessions.functions)
        output = [*self.builder.response["output"]]
        self._first_item = len(output)
        changes: JSONObject = {"max_output_tokens": left}
        if self._round or self._last_reason:
            changes["tool_choice"] = self._choice(last=bool(self._last_reason))
        forbidden = frozenset(self._hosted_names) if self._last_reason else frozenset()
        query = await self._preparation.in_round(
            self.builder,
            hosted=self._hosted,
            output=output,
            upstream=self._upstream(),
            changes=changes,
            rules=partial(CallRules, forbidden=forbidden, max_hosted=calls_left, ids=self._call_ids),
        )
        self._hosted_names |= {
            name
            for name, binding in query.encoded.bindings.items()
            if binding.hosted or binding.kind is MCP_APPROVAL_REQUEST
        }
        return query

    def _hosted_tools(self, functions: Sequence[SessionFunction] = ()) -> HostedTools:
        return HostedTools(
            [(entry.function, entry.tool.types) for entry in functions],
            frozenset(tool.position for tool in self._calls.declared),
            frozenset(type_name for tool in self._calls.declared for type_name in tool.types),
        )

    def _choice(self, *, last: bool) -> Any:
        """`tool_choice` after the first round: not forced; without hosted tools in the `last` round."""
        choice: Any = self._preparation.request.tool_choice
        if isinstance(choice, str):
            return "none" if choice == "none" else "auto"
        if choice["type"] != "allowed_tools":
            return "auto"
        types = self._hosted_tools().types
        tools = [tool for tool in choice["tools"] if not (last and tool["type"] in types)]
        return {**choice, "mode": "auto", "tools": tools} if tools else "none"

    def _upstream(self) -> dict[str, Upstream]:
        return {item_id: resolve_upstream(fields) for item_id, fields in self.builder.upstream.items()}

    async def _must_compact(self, query: ModelQuery) -> bool:
        """Whether the prompt exceeds the threshold. Warns if a compaction would not save enough tokens."""
        threshold = self._compact_threshold
        if threshold is None or estimate_prompt(query.body) <= threshold:
            return False
        output = self.builder.response["output"]
        arguments = query.body, output, self._upstream()
        tokens = await run_in_thread_if_large(self._preparation.compactable_tokens, *arguments)
        if tokens < threshold * _WORTHWHILE:
            self._calls.warn(NOT_COMPACTED)
            return False
        return True

    async def _compact(self, delivery: EventWriter, open_after: float | None) -> None:
        """
        Add a summary of the earlier conversation to the output.

        If the model writes no summary, the response continues with a warning. Raises the `BackendError` of `respond`.
        """
        response: Response = {**self.builder.response, "output": [], "usage": None}
        summary = EventBuilder(response, new_id=self.builder.new_id)
        summary.events = None  # only the finished item is added to the response
        summary.delivered = self.builder.delivered
        summary.on_delivery = partial(self._deliver, delivery)
        query = await self._preparation.summary(summary, [*self.builder.response["output"]], self._upstream())
        step = self.builder.begin_step("model")
        try:
            await respond(query, delivery, open_after=open_after, deadline=self._calls.deadline)
        finally:
            # charge after a disconnection, too; summaries do not count against `max_output_tokens`
            self._usage = added_usage(self._usage, summary.response["usage"] or query.usage([]))
            self._charge()
        self.builder.end_step(step, "model")
        if not summary.response["output"]:
            self._calls.warn("The conversation could not be compacted: the model wrote no summary.")
            return
        item = summary.response["output"][-1]
        added = self.builder.add_item(ITEM_TYPES[item["type"]], {"encrypted_content": ""})
        self.builder.upstream[added.item["id"]] = summary.upstream[item["id"]]
        self.builder.end_call(added, "completed", {"encrypted_content": item["encrypted_content"]})

    def _finish_round(
        self,
        record: RoundRecord,
        query: ModelQuery,
        ended: str | None,
        failure: BackendError | None,
    ) -> None:
        builder = self.builder
        query.reader.end(cut=ended != "completed")
        builder.close_item()
        output = builder.response["output"][self._first_item :]
        for item in output:  # later requests send a round's calls as a single message
            row = ITEM_TYPES.get(item["type"])
            if row and (row.role in ("call", "hosted") or row is MCP_APPROVAL_REQUEST):
                self._calls.add_notes(item["id"], round=self._round)
        self._again = ended == "completed" and bool(builder.running)
        if not self._again:
            finish_response(query, ended, failure)
        record.answered = clock()
        record.usage = query.usage([*output])
        self._usage = added_usage(self._usage, record.usage)
        self._written += record.usage["output_tokens"]

    def _charge(self) -> None:
        if self._usage:
            self._lifecycle.account.charge(self._lifecycle, self._usage)

    def _record(self) -> None:
        response = self.builder.response
        response["usage"] = self._usage or usage_of(None, {}, [])
        if self._preparation.caller.dialect.tool_usage and self._calls.usage:
            response["tool_usage"] = complete_tool_usage(self._calls.usage)

    def usage(self) -> Usage:
        """Usage so far, with an estimate for an unfinished round."""
        if self.builder.response["usage"]:
            return self.builder.response["usage"]
        query = self._query
        if query is None or self._again or self.builder.response["status"] in TERMINAL:
            return self._usage or {}
        output = self.builder.partial_output()[self._first_item :]
        return added_usage(self._usage, query.usage(output))

    def abort(self, error: APIError | None) -> None:
        usage = self.usage()
        self.builder.start()
        if self._query and not self._again:
            self._query.reader.end(cut=True)
        abort_response(self.builder, error)
        self._usage = usage or self._usage
        self._record()


def tool_loop_of(
    preparation: Preparation,
    builder: EventBuilder,
    tools: Mapping[str, HostedTool],
    layers: LayeredStore,
    lifecycle: ResponseLifecycle,
    review: InputReview | None,
    *,
    generate: bool,
) -> ToolLoop | None:
    """
    None for a single answer, or without a generation.

    Raises as `declared_tools`, also without a generation. `review` reviews tool results.
    """
    request, context, caller = preparation.request, preparation.context, preparation.caller
    declared = declared_tools(tools, request, caller, context, preparation.response["id"])
    if context.approved and not (declared and generate):
        message = "Invalid 'tools': must contain the tools of all approved calls."
        raise InvalidRequest(message, param="tools")
    threshold: int | None = None
    if request.context_management and not context.compacts:
        default = preparation.options.compact_threshold
        threshold = min(entry.compact_threshold or default for entry in request.context_management)
    if not generate or not (declared or threshold is not None):
        return None
    return ToolLoop(HostedCalls(builder, preparation, declared, layers, lifecycle, review), threshold)
