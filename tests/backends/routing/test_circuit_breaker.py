"""A circuit breaker, by a clock of its own."""

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
        made.sent()
        made.failed()
    return made


def test_it_opens_after_some_failures_in_a_row() -> None:
    clock = Clock()
    assert circuit(clock, failures=2).ready
    tripped = circuit(clock, failures=3)
    assert (tripped.ready, tripped.open, tripped.wait) == (False, True, 30)


def test_an_answer_that_came_to_its_end_ends_the_row() -> None:
    mended = circuit(Clock(), failures=2)
    mended.succeeded()
    mended.failed()
    mended.failed()
    assert mended.ready


def test_an_answer_that_has_only_begun_does_not() -> None:
    crashing = circuit(Clock())
    for _ in range(3):
        crashing.sent()
        crashing.answered()
        crashing.failed()
    assert not crashing.ready


def test_after_the_pause_one_may_try_and_no_other() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 29
    assert not tripped.ready
    clock.now += 1
    assert tripped.ready
    tripped.sent()
    assert not tripped.ready
    tripped.answered()
    assert tripped.ready and not tripped.open


def test_one_who_tried_in_vain_opens_it_again() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 30
    tripped.sent()
    tripped.failed()
    assert (tripped.ready, tripped.wait) == (False, 30)


def test_one_who_was_answered_and_then_broken_off_opens_it_again() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 30
    tripped.sent()
    tripped.answered()
    tripped.failed()
    assert not tripped.ready


def test_one_who_went_away_leaves_the_try_to_another() -> None:
    clock = Clock()
    tripped = circuit(clock, failures=3)
    clock.now += 30
    tripped.sent()
    tripped.cancelled()
    assert tripped.ready


def test_a_check_that_is_answered_ends_the_pause() -> None:
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
def test_which_errors_count_as_failures_of_the_server(
    status: int, type: str, code: str, ill: bool, elsewhere: bool
) -> None:
    error = BackendError("Oh.", status=status, error_type=type, code=code)
    assert (is_server_failure(error), may_fail_over(error)) == (ill, elsewhere)
