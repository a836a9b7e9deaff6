"""A circuit breaker with a fake clock."""

from __future__ import annotations

import pytest

from app.backends.routing.circuit_breaker import Circuit, is_server_failure, may_fail_over
from app.errors import BackendError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def circuit(clock: Clock, *, failures: int = 0) -> Circuit:
    made = Circuit(limit=3, pause=30, clock=clock)
    for _ in range(failures):
        made.sent("request")
        made.failed()
    return made


def test_circuit_opens_after_some_failures_in_a_row() -> None:
    clock = Clock()
    assert circuit(clock, failures=2).ready
    tripped = circuit(clock, failures=3)
    assert (tripped.ready, tripped.open, tripped.wait) == (False, True, 30)


def test_circuit_after_a_complete_answer_counts_anew() -> None:
    mended = circuit(Clock(), failures=2)
    mended.succeeded()
    mended.failed()
    mended.failed()
    assert mended.ready


def test_circuit_after_an_answer_that_only_began_goes_on_counting() -> None:
    crashing = circuit(Clock())
    for _ in range(3):
        crashing.sent("request")
        crashing.answered()
        crashing.failed()
    assert not crashing.ready


def test_circuit_after_the_pause_lets_one_request_try() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 29
    assert not tripped.ready
    clock.now += 1
    assert tripped.ready
    tripped.sent("trial")
    assert not tripped.ready
    tripped.answered()
    assert tripped.ready and not tripped.open


def test_circuit_after_a_failed_try_is_open_again() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 30
    tripped.sent("trial")
    tripped.failed()
    assert (tripped.ready, tripped.wait) == (False, 30)


def test_circuit_after_a_try_that_breaks_off_is_open_again() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 30
    tripped.sent("trial")
    tripped.answered()
    tripped.failed()
    assert not tripped.ready


def test_circuit_after_a_cancelled_try_lets_another_try() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 30
    tripped.sent("trial")
    tripped.released("trial")
    assert tripped.ready


def test_circuit_after_a_health_check_is_closed() -> None:
    tripped = circuit(Clock(), failures=3)
    tripped.checked()
    assert tripped.ready and tripped.open


@pytest.mark.parametrize(
    ("status", "type", "code", "ill", "elsewhere"),
    [
        (502, "server_error", "server_error", True, True),
        (503, "server_error", "server_is_overloaded", True, True),
        (504, "server_error", "timeout", True, True),
        (502, "server_error", "backend_auth", True, True),
        (429, "too_many_requests", "rate_limit_exceeded", False, True),
        (502, "model_error", "model_error", False, False),
        (400, "invalid_request", "context_length_exceeded", False, False),
        (401, "invalid_request", "invalid_api_key", False, False),
        (404, "not_found", "model_not_found", False, False),
    ],
)
def test_circuit_counts_failures_of_the_server_alone(
    status: int, type: str, code: str, ill: bool, elsewhere: bool
) -> None:
    error = BackendError("Oh.", status=status, error_type=type, code=code)
    assert (is_server_failure(error), may_fail_over(error)) == (ill, elsewhere)
