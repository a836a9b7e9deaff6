"""A response's record, and the calls to its observers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.core.request.model_request import Attempts
from app.core.types import Usage
from app.errors import APIError, BackendError, InvalidRequest
from app.observability.lifecycle import (
    Observer,
    ResponseAccount,
    ResponseLifecycle,
    RoundRecord,
    ToolCallRecord,
    Watched,
)


class Listener(Observer):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        self.calls.append("start")

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        self.calls.append(f"end {lifecycle.status} {lifecycle.usage}")

    @contextmanager
    def tool_call(self, call: ToolCallRecord) -> Iterator[None]:
        yield
        self.calls.append(f"call {call.function} {call.status}")

    @contextmanager
    def round(self, record: RoundRecord) -> Iterator[None]:
        self.calls.append(f"round {record.number}")
        yield
        self.calls.append(f"round {record.number} {record.status}")


class Ledger(ResponseAccount):
    """An account that records its calls."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def charge(self, lifecycle: ResponseLifecycle, usage: Usage) -> None:
        self.calls.append(f"charge {usage}")

    def charge_request(self, model: str, backend: str, usage: Usage, cost: int | None = None) -> None:
        self.calls.append(f"charge {model} {cost}")

    async def check_limits(self) -> None:
        self.calls.append("check")

    def settle(self, lifecycle: ResponseLifecycle) -> None:
        self.calls.append(f"settle {lifecycle.usage}")


def lifecycle(*observers: Observer, status: str = "completed", **fields: Any) -> ResponseLifecycle:
    return ResponseLifecycle(
        {"id": "resp_1", "model": "m", "status": status, "output": []}, "json", observers, **fields
    )


def test_observers_are_called_for_start_rounds_calls_and_end_once() -> None:
    listener = Listener()
    course = lifecycle(listener, Observer())
    with Watched(course, lambda: {"output_tokens": 2}), Watched(course, lambda: {}):
        with course.round(0) as record:
            with course.tool_call("lab", "echo") as call:
                call.status = "completed"
            record.status = "completed"
    assert listener.calls == [
        *("start", "round 0", "call echo completed", "round 0 completed"),
        "end completed {'output_tokens': 2}",
    ]
    assert [step["kind"] for step in course.steps] == ["tool", "model"]


async def test_account_is_charged_and_settled_after_the_observers() -> None:
    listener = Listener()
    course = lifecycle(listener, account=Ledger(listener.calls))
    with Watched(course, lambda: {"output_tokens": 2}):
        await course.account.check_limits()
        course.account.charge_request("image", "b", {}, 5)
        course.account.charge(course, {"output_tokens": 1})
    assert listener.calls == [
        *("start", "check", "charge image 5", "charge {'output_tokens': 1}"),
        *("end completed {'output_tokens': 2}", "settle {'output_tokens': 2}"),
    ]


async def test_response_without_an_account_is_not_charged() -> None:
    course = lifecycle()
    await course.account.check_limits()
    course.account.charge_request("image", "b", {}, 5)
    course.account.charge(course, {"output_tokens": 1})
    assert course.cost is None


def test_error_that_leaves_the_context_is_the_failure() -> None:
    listener = Listener()
    course = lifecycle(listener, status="in_progress")
    with pytest.raises(APIError), Watched(course, lambda: {}):
        raise APIError("No.")
    assert listener.calls == ["start", "end failed {}"]
    assert course.failure and course.failure.message == "No."


def test_response_that_is_cut_off_is_interrupted() -> None:
    listener = Listener()
    with pytest.raises(KeyboardInterrupt), Watched(lifecycle(listener, status="in_progress"), lambda: {}):
        raise KeyboardInterrupt
    assert listener.calls == ["start", "end interrupted {}"]


def test_log_of_the_end_has_only_what_happened() -> None:
    assert lifecycle().end_of_log(None) == (logging.INFO, {"model": "m", "status": "completed", "usage": None})


def test_log_of_the_end_has_times_attempts_backend_and_cost() -> None:
    attempts = Attempts(["local", "cloud"], retries=1, queued=0.25)
    course = lifecycle(began=1.0, seconds_to_first=0.5, last=2.0, attempts=attempts, cost=3_000_000)
    _, fields = course.end_of_log({"output_tokens": 2})
    assert fields == {
        **{"model": "m", "status": "completed", "usage": {"output_tokens": 2}, "backend": "cloud", "cost": "0.003"},
        **{"first_token_ms": 500, "queued_ms": 250, "attempts": 2},
    }


@pytest.mark.parametrize(
    ("failure", "level"), [(BackendError("Gone."), logging.WARNING), (InvalidRequest("No."), logging.INFO)]
)
def test_log_of_a_failure_is_a_warning_unless_it_is_the_callers(failure: APIError, level: int) -> None:
    log_level, fields = lifecycle(status="failed", failure=failure).end_of_log(None)
    assert (log_level, fields["code"], failure.reported) == (level, failure.code, True)
