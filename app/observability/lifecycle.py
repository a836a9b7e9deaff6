"""A response's lifecycle and its observers, called at starts and ends, never per event."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from app.core.prices import NANO, format_money
from app.core.request.model_request import Attempts
from app.core.types import JSONObject, Usage
from app.core.types.request import TERMINAL, Response
from app.errors import APIError
from app.tools import Account

logger = logging.getLogger(__name__)

Delivery: TypeAlias = Literal["json", "sse", "websocket", "background", "passthrough"]

clock = time.perf_counter

MAX_STEPS = 200  # steps stored per response


class ResponseAccount(Account):
    """Charged for a response. This class charges nothing. Methods must not raise, except `check_limits`."""

    def charge(self, lifecycle: ResponseLifecycle, usage: Usage) -> None:
        """
        Charge the usage since the last call; `usage` is the response's total so far.

        Called after each round, and before clients can see the end: delivered output is charged even if the process is
        killed.
        """

    def settle(self, lifecycle: ResponseLifecycle) -> None:
        """Charge the remaining usage at the response's end, after the observers; with any `lifecycle.status`."""


NO_ACCOUNT = ResponseAccount()


@dataclass(slots=True)
class ResponseLifecycle:
    """`began` and `last` are times by `clock`."""

    response: Response
    delivery: Delivery
    observers: Sequence[Observer] = ()
    account: ResponseAccount = NO_ACCOUNT
    began: float = field(default_factory=clock)
    seconds_to_first: float | None = None  # from the start to the first output
    last: float | None = None  # time of the last output, before storage
    seconds: float = 0.0  # duration; 0 until the end
    failure: APIError | None = None
    observed: bool = False  # whether observers were notified of the start
    usage: Usage = field(default_factory=Usage)  # empty if no backend was queried
    attempts: Attempts = field(default_factory=Attempts)
    cost: int | None = None  # in nanos (`app.core.prices`); None without a price or reported cost
    shows_cost: bool = False  # whether the response contains its cost: see `app.core.request.COST`
    owner: str = ""
    key: str = ""  # the key's name
    steps: list[JSONObject] = field(default_factory=list)  # finished rounds and tool calls: see `measures`
    stopped: APIError | None = None  # reason for an early end
    task: asyncio.Task[object] | None = None  # the generating task, set while it can be stopped

    @property
    def status(self) -> str:
        """The terminal status; without one, `failed` after an error, else `interrupted`."""
        status: str = self.response["status"]
        if status in TERMINAL:
            return status
        return "failed" if self.failure else "interrupted"

    @property
    def backend(self) -> str:
        """The last backend that answered, or ""."""
        return self.attempts.answered_by[-1] if self.attempts.answered_by else ""

    def end_of_log(self, usage: Usage | None) -> tuple[int, JSONObject]:
        """The final log line's level and fields."""
        failure, attempts = self.failure, self.attempts
        fields: JSONObject = {"model": self.response["model"], "status": self.status, "usage": usage}
        if attempts.answered_by:
            fields["backend"] = self.backend
        if self.cost is not None:
            fields["cost"] = format_money(self.cost)
        if (first := self.seconds_to_first) is not None:
            fields["first_token_ms"] = round(first * 1000)
        if queued := round(attempts.queued * 1000):
            fields["queued_ms"] = queued
        if attempts.retries:
            fields["attempts"] = attempts.retries + 1
        if failure is None:
            return logging.INFO, fields
        failure.reported = True
        return logging.WARNING if failure.status >= 500 else logging.INFO, fields | failure.log_fields()

    def measures(self) -> JSONObject:
        """
        The times, cost, backend, key and delivery to store with the response.

        Times are in seconds since the start; `queued_seconds` sums the waits for backend slots. With hosted tools,
        `steps` lists the start and end of session setup (`kind: "tools"`), model answers and calls.
        """
        return {
            "seconds": self._since(self.last or clock()),
            "first_token_seconds": None if self.seconds_to_first is None else round(self.seconds_to_first, 6),
            "cost": None if self.cost is None else self.cost / NANO,
            "backend": self.backend or None,
            "key": self.key,
            "delivery": self.delivery,
            "queued_seconds": round(self.attempts.queued, 3),
            "steps": sorted(self.steps, key=lambda step: (step["start"], step["end"])),
        }

    def _since(self, time: float) -> float:
        return round(time - self.began, 6)

    def step(self, kind: str, start: float, end: float, **fields: object) -> None:
        """Add a step to `measures`, up to `MAX_STEPS`; times are by `clock`."""
        if len(self.steps) < MAX_STEPS:
            self.steps.append({"kind": kind, "start": self._since(start), "end": self._since(end), **fields})

    @property
    def seconds_per_token(self) -> float | None:
        """None with fewer than two tokens."""
        tokens = self.usage.get("output_tokens", 0)
        if self.seconds_to_first is None or self.last is None or tokens < 2:
            return None
        return (self.last - self.began - self.seconds_to_first) / (tokens - 1)

    @contextmanager
    def tool_call(self, tool: str, function: str, call_id: str = "") -> Iterator[ToolCallRecord]:
        """
        Observes and logs a tool call.

        `tool` is the tool's table in the settings. The caller sets the record's `status`.
        """
        record = ToolCallRecord(self.response, tool, function, call_id=call_id)
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(observer.tool_call(record))
            try:
                yield record
            finally:
                fields = {"tool": tool, "function": function, "status": record.status}
                self.step("tool", record.began, clock(), call_id=call_id, **fields)
                logger.info("tool call ended", extra={**fields, "seconds": round(record.age, 3)})

    @contextmanager
    def round(self, number: int) -> Iterator[RoundRecord]:
        """Observes a hosted tool round; the caller completes the record."""
        record = RoundRecord(self.response, number)
        queued_before = self.attempts.queued
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(observer.round(record))
            try:
                yield record
            finally:
                tokens = record.usage.get("output_tokens", 0)
                answered = record.answered or clock()
                fields: JSONObject = {"round": number, "status": record.status, "output_tokens": tokens}
                if queued := round(self.attempts.queued - queued_before, 3):
                    fields["queued"] = queued
                self.step("model", record.began, answered, **fields)

    def stop(self, error: APIError) -> None:
        """End the response as failed, unless its generation has ended."""
        if self.stopped is None:
            self.stopped = error
            if self.task:
                self.task.cancel()

    def __enter__(self) -> None:
        """The context of a generation: `stop` interrupts it, and raises its error there, even before it has begun."""
        if self.stopped:
            raise self.stopped
        self.task = asyncio.current_task()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task, self.task = self.task, None
        if kind is asyncio.CancelledError and self.stopped and task and not task.uncancel():
            raise self.stopped from None


class Watched:
    """
    Observes a response's start and end, then calls `log_end`. Nested contexts do nothing.

    A generator would be twice as slow.
    """

    __slots__ = ("_lifecycle", "_log_end", "_outer", "_usage")

    def __init__(
        self, lifecycle: ResponseLifecycle, usage: Callable[[], Usage], log_end: Callable[[], None] = lambda: None
    ) -> None:
        self._lifecycle, self._usage, self._log_end = lifecycle, usage, log_end
        self._outer = False

    def __enter__(self) -> None:
        lifecycle = self._lifecycle
        if not lifecycle.observed:
            self._outer = lifecycle.observed = True
            lifecycle.began = clock()
            for observer in lifecycle.observers:
                observer.on_start(lifecycle)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        lifecycle = self._lifecycle
        if isinstance(error, APIError):
            lifecycle.failure = error
        if self._outer:
            lifecycle.seconds = clock() - lifecycle.began
            lifecycle.usage = lifecycle.usage or self._usage()
            for observer in lifecycle.observers:
                observer.on_end(lifecycle)
            lifecycle.account.settle(lifecycle)
            self._log_end()


@dataclass(slots=True)
class ToolCallRecord:
    response: Response
    tool: str  # its table in the settings
    function: str
    status: str = "interrupted"  # at the end `completed`, `incomplete` or `failed`
    call_id: str = ""
    began: float = field(default_factory=clock)

    @property
    def age(self) -> float:
        return clock() - self.began


@dataclass(slots=True)
class RoundRecord:
    """A model request and the resulting calls of hosted tools."""

    response: Response
    number: int  # from 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)  # the model request's usage
    status: str = "interrupted"  # at the end `completed`, `incomplete` or `failed`
    began: float = field(default_factory=clock)
    answered: float | None = None  # time of the model answer's end


_UNOBSERVED = nullcontext()


class Observer:
    """Observes responses. Methods must be fast and must not raise."""

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        """Handle the start of a response."""

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """With any `lifecycle.status`."""

    def tool_call(self, call: ToolCallRecord) -> AbstractContextManager[None]:
        return _UNOBSERVED

    def round(self, record: RoundRecord) -> AbstractContextManager[None]:
        return _UNOBSERVED
