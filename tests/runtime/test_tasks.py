"""The end of unawaited tasks, and turns for other callbacks."""

from __future__ import annotations

import asyncio

import pytest

from app.runtime.tasks import cancel, end, let_others_run


async def fail() -> None:
    raise ValueError("a bug")


async def test_task_that_has_failed_is_logged_when_it_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    failed, running = asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(60))
    await asyncio.wait({failed})
    await end(None, failed, running)
    assert running.cancelled()
    (record,) = caplog.records
    assert record.message == "unexpected error"
    assert record.exc_info and isinstance(record.exc_info[1], ValueError)


async def test_task_that_has_failed_is_returned_by_cancel(caplog: pytest.LogCaptureFixture) -> None:
    failed = asyncio.create_task(fail())
    await asyncio.wait({failed})
    assert [str(error) for error in await cancel(failed)] == ["a bug"]
    assert not caplog.records


async def test_due_timer_runs_before_let_others_run_returns() -> None:
    ran = asyncio.Event()
    asyncio.get_running_loop().call_later(0, ran.set)
    await let_others_run()
    assert ran.is_set()
