"""Protocols for the path from an answer's bytes to its deltas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from app.core.types import JSONObject
from app.core.types.deltas import Delta
from app.errors import BackendError

# The error in part of an answer, in all servers' forms: `{"error": ...}`.
ErrorIn: TypeAlias = Callable[[JSONObject], BackendError | None]


class AnswerDecoder(Protocol):
    """Decodes an answer's body, fed in pieces; synchronous, without a clock."""

    ending: bool  # a finish reason, the end mark or an error was received
    done: bool  # the server marked the answer's end
    finished: bool  # received a finish reason; afterwards a broken connection is harmless
    resumed: bool  # output followed a finish reason, which some gateways send with every delta
    empty: bool  # the body ended without a delta
    failure: BackendError | None  # the reported error, or why the body is not an answer
    warnings: list[str]  # a sentence for each omitted part of the answer

    @property
    def continuation(self) -> JSONObject | None:
        """The request that continues a paused answer; None if the answer is over."""
        ...

    def resume(self) -> None: ...

    def decode(self, data: bytes) -> list[Delta]: ...

    def end(self) -> list[Delta]: ...

    def cut(self) -> list[Delta]:
        """Held deltas when the connection breaks; an incomplete event is lost."""
        ...


Tap: TypeAlias = Callable[[Sequence[Delta]], None]
