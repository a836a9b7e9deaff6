"""
How a response comes about, and who is told of it: metrics, traces, limits.

They are told twice for each response, when it begins and when it is over, and never of what is in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from app.core.types.request import TERMINAL, Response
from app.errors import APIError

logger = logging.getLogger(__name__)

# How a caller hears of a response.
Transport: TypeAlias = Literal["json", "sse", "websocket", "background"]

clock = time.perf_counter


@dataclass(slots=True)
class ResponseLifecycle:
    """The lifecycle of one response, whose moments are those of `clock`, in seconds."""

    response: Response  # as it stands
    way: Transport
    observers: Sequence[Observer] = ()
    began: float = field(default_factory=clock)
    first: float | None = None  # the first of its output was there
    last: float | None = None  # all of it was there; to store it takes longer
    ended: float | None = None
    failure: APIError | None = None
    told: bool = False  # do those who watch know of it?
    usage: Mapping[str, Any] = field(default_factory=dict)  # empty, if nothing was asked

    @property
    def status(self) -> str:
        """The response's own when it has ended; `failed` for one that was refused, `interrupted` for one left alone."""
        status = str(self.response["status"])
        if status in TERMINAL:
            return status
        return "failed" if self.failure else "interrupted"

    @property
    def confirmed(self) -> bool:
        """Whether a backend has answered to the model's name, which anybody can make up."""
        return self.first is not None and self.status in ("completed", "incomplete")

    @property
    def seconds(self) -> float:
        """The time from the beginning to the end."""
        return (self.ended or clock()) - self.began

    @property
    def seconds_to_first(self) -> float | None:
        """The time to the first token; None if there was none."""
        return None if self.first is None else self.first - self.began

    @property
    def seconds_per_token(self) -> float | None:
        """The time for each output token after the first; None if there were not two."""
        tokens: int = self.usage.get("output_tokens", 0)
        if self.first is None or self.last is None or tokens < 2:
            return None
        return (self.last - self.first) / (tokens - 1)

    @contextmanager
    def tool_call(self, tool: str, function: str, call_id: str = "") -> Iterator[ToolCallRecord]:
        """
        Tell those who watch tools of a call that runs while the context lasts, and the log when it is over.

        `tool` is the name of the tool's table in the settings. Whoever runs the call notes its `status`.
        """
        record = ToolCallRecord(self.response, tool, function, call_id=call_id)
        with ExitStack() as stack:
            for observer in self.observers:
                if isinstance(observer, ToolCallObserver):
                    stack.enter_context(observer.tool_call(record))
            try:
                yield record
            finally:
                fields = {"tool": tool, "function": function, "status": record.status}
                logger.info("tool call ended", extra={**fields, "seconds": round(record.age, 3)})

    @contextmanager
    def watched(self, usage: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
        """
        Tell those who watch that the response begins, and that it is over when the context ends.

        Where one of these is within another, it is the outer one that tells.
        """
        outer = not self.told
        if outer:
            self.told = True
            self.began = clock()
            for observer in self.observers:
                observer.on_start(self)
        try:
            yield
        except APIError as error:
            self.failure = error
            raise
        finally:
            if outer:
                self.ended = clock()
                self.usage = usage()
                for observer in self.observers:
                    observer.on_end(self)


@dataclass(slots=True)
class ToolCallRecord:
    """One call of a hosted tool."""

    response: Response
    tool: str  # the name of its table in the settings
    function: str
    status: str = "interrupted"  # `completed`, `incomplete` or `failed` when it has come to an end
    call_id: str = ""
    began: float = field(default_factory=clock)

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return clock() - self.began


@runtime_checkable
class ToolCallObserver(Protocol):
    """Who is told of the calls of hosted tools too; entering and leaving may not raise, nor take long."""

    def tool_call(self, call: ToolCallRecord) -> AbstractContextManager[None]:
        """Return the context in which a call runs."""
        ...


class Observer(Protocol):
    """Who is told of the lifecycle of a response; neither call may raise, nor take long."""

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        """A response is being made."""
        ...

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """It is over, in whichever way: `lifecycle.status`."""
        ...
