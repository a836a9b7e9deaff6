"""Concurrency per backend, queues, unavailable servers, and reloaded tables."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from app.backends import LOW_PRIORITY
from app.backends.routing.replicas import Circuit, Lease, Replica, ReplicaPool, is_server_failure, may_fail_over
from app.errors import BackendError
from tests.support.exchanges import reads
from tests.support.routing import DOWN, Build, ask, build, model_request, nobody, refusal, settings, three
from tests.support.scripted import Scripted
from tests.support.upstream import DONE as END
from tests.support.upstream import HANG, RESET, Upstream, chunk, finish, sse, status

__all__ = ["build", "three"]  # fixtures


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def acquire(pool: ReplicaPool, conversation: Callable[[], str] = str) -> Lease:
    return pool.acquire(conversation, ()) or await pool.queue(())


@contextlib.asynccontextmanager
async def leased(pool: ReplicaPool, conversation: Callable[[], str] = str) -> AsyncIterator[Replica]:
    lease = await acquire(pool, conversation)
    try:
        yield lease.replica
    except BaseException as error:
        pool.release(lease, error)
        raise
    pool.release(lease, None)


# Limits.


async def test_requests_beyond_max_in_progress_wait_in_order(build: Build, three: list[Upstream]) -> None:
    go = [asyncio.Event() for _ in range(5)]
    for event in go:
        three[0].say(sse(chunk("a"), event, finish(), END))
    router = build(local={"url": three[0].url, "max_concurrency": 2})
    async with asyncio.TaskGroup() as running:
        for n in range(5):
            running.create_task(ask(router, conversation=f"model request {n}"))
        for n, event in enumerate(go):
            expected = min(5, n + 2)
            await until(lambda expected=expected: len(three[0].requests) == expected)  # type: ignore[misc]
            await asyncio.sleep(0.01)
            assert len(three[0].requests) == expected
            event.set()
    texts = [request.json["messages"][0]["content"] for request in three[0].requests]
    assert [*sorted(texts[:2]), *texts[2:]] == [f"model request {n}" for n in range(5)]


async def test_requests_of_low_priority_wait_behind_those_that_come_later(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].say(sse(chunk("a"), go, finish(), END))
    three[0].always(sse(chunk("a"), finish(), END))
    router = build(local={"url": three[0].url, "max_concurrency": 1})

    async def ask_late(conversation: str) -> None:
        LOW_PRIORITY.set(True)
        await ask(router, conversation=conversation)

    async with asyncio.TaskGroup() as running:
        running.create_task(ask(router, conversation="first"))
        await until(lambda: len(three[0].requests) == 1)
        running.create_task(ask_late("of a batch"))
        await until(lambda: router.state()[0]["queued"] == 1)
        running.create_task(ask(router, conversation="of a caller"))
        await until(lambda: router.state()[0]["queued"] == 2)
        go.set()
    texts = [request.json["messages"][0]["content"] for request in three[0].requests]
    assert texts == ["first", "of a caller", "of a batch"]


async def test_request_with_a_full_queue_is_refused_with_retry_after(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("a"), go, finish(), END))
    router = build(local={"url": three[0].url, "max_concurrency": 1, "max_queue": 1})
    async with asyncio.TaskGroup() as running:
        running.create_task(ask(router))
        running.create_task(ask(router))
        await until(lambda: len(three[0].requests) == 1)
        error = await refusal(router)
        go.set()
    assert (error.status, error.type, error.code) == (429, "too_many_requests", "rate_limit_exceeded")
    assert error.headers() == {"Retry-After": "2"}
    assert error.message == (
        "Backend 'local' is at its concurrency limit, and its queue is full (1 requests). Please try again in 2s."
    )


async def test_request_that_waited_too_long_is_refused(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("a"), go, finish(), END))
    router = build(local={"url": three[0].url, "max_concurrency": 1, "queue_timeout": 0.05})
    async with asyncio.TaskGroup() as running:
        running.create_task(ask(router))
        await until(lambda: len(three[0].requests) == 1)
        error = await refusal(router)
        go.set()
    assert (error.status, len(three[0].requests)) == (429, 1)
    assert "this request timed out in its queue" in error.message


async def test_waiting_request_that_is_cancelled_takes_no_slot(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("a"), go, finish(), END))
    router = build(local={"url": three[0].url, "max_concurrency": 1})
    async with asyncio.TaskGroup() as running:
        running.create_task(ask(router))
        await until(lambda: len(three[0].requests) == 1)
        gone = running.create_task(ask(router))
        last = running.create_task(ask(router))
        await asyncio.sleep(0)
        gone.cancel()
        go.set()
        assert await last == "a"
    assert len(three[0].requests) == 2


async def test_answer_that_is_closed_early_frees_its_slot(build: Build, three: list[Upstream]) -> None:
    three[0].say(sse(chunk("a"), HANG))
    router = build(local={"url": three[0].url, "max_concurrency": 1})
    async with router.open(model_request()) as answer:
        await anext(reads(answer))
    assert await ask(router) == "Hello"


async def test_backend_that_is_full_is_replaced_by_its_fallback(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("a"), go, finish(), END))
    router = build(
        local={"url": three[0].url, "max_concurrency": 1, "max_queue": 0},
        cloud={"url": three[1].url},
    )
    async with asyncio.TaskGroup() as running:
        running.create_task(ask(router))
        await until(lambda: len(three[0].requests) == 1)
        assert await ask(router) == "Hello"
        go.set()
    assert [len(server.requests) for server in three] == [1, 1, 0]


async def test_replicas_have_slots_of_their_own(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    for server in three:
        server.always(sse(chunk("a"), go, finish(), END))
    router = build(local={"url": three[0].url, "replicas": [three[1].url], "max_concurrency": 1, "max_queue": 0})
    async with asyncio.TaskGroup() as running:
        running.create_task(ask(router))
        running.create_task(ask(router))
        await until(lambda: sum(len(server.requests) for server in three) == 2)
        assert (await refusal(router)).status == 429
        go.set()


async def test_slots_are_neither_lost_nor_taken_twice() -> None:
    (served,) = settings(local={"url": "http://a/v1", "replicas": ["http://b/v1"], "max_concurrency": 3}).values()
    pool = ReplicaPool("local", served, lambda one: Scripted([]))
    chance = random.Random(1)
    most: Counter[str] = Counter()
    count = 0

    async def visit() -> None:
        nonlocal count
        with contextlib.suppress(BackendError):
            async with leased(pool, lambda: f"{chance.randrange(5)}") as replica:
                most[replica.url] = max(most[replica.url], replica.load)
                await asyncio.sleep(chance.random() / 500)
                count += 1
                if chance.random() < 0.2:
                    raise BackendError("The caller's fault.", status=400)

    visits = []
    for _ in range(30):
        visits += [asyncio.create_task(visit()) for _ in range(10)]
        await asyncio.sleep(chance.random() / 200)
        for visiting in chance.sample(visits, 3):
            visiting.cancel()
    await asyncio.gather(*visits, return_exceptions=True)
    assert most == {"http://a/v1": 3, "http://b/v1": 3}
    assert [replica.load for replica in pool.replicas] == [0, 0]
    assert count > 50
    async with leased(pool):
        pass


# Health.


async def test_server_that_fails_repeatedly_gets_no_requests(build: Build, three: list[Upstream]) -> None:
    three[0].always(DOWN)
    router = build(local={"url": three[0].url, "max_failures": 3, "check_interval": 0, "recovery": 17})
    for _ in range(3):
        assert (await refusal(router)).message == "The backend 'local' answered 500: Oh no."
    error = await refusal(router)
    assert (error.status, error.headers()) == (503, {"Retry-After": "17"})
    assert error.message == "Backend 'local' is temporarily unavailable after repeated failures: 502 server_error"
    assert len(three[0].requests) == 3


async def test_server_without_alternatives_is_tried_however_often_it_failed(
    build: Build, three: list[Upstream]
) -> None:
    three[0].always(DOWN)
    router = build(local={"url": three[0].url})
    for _ in range(8):
        assert (await refusal(router)).message == "The backend 'local' answered 500: Oh no."
    assert len(three[0].requests) == 8


async def test_server_with_an_open_circuit_is_replaced_by_others(build: Build, three: list[Upstream]) -> None:
    three[0].always(DOWN)
    router = build(
        local={"url": three[0].url, "max_failures": 1, "check_interval": 0},
        cloud={"url": three[1].url},
    )
    for _ in range(5):
        assert await ask(router) == "Hello"
    assert [len(server.requests) for server in three] == [1, 5, 0]


async def test_callers_errors_do_not_open_the_circuit(build: Build, three: list[Upstream]) -> None:
    three[0].always(status(400, {"error": {"message": "What?"}}))
    router = build(local={"url": three[0].url, "max_failures": 1})
    for _ in range(3):
        assert (await refusal(router)).status == 400
    assert len(three[0].requests) == 3


async def test_streams_that_break_off_count_as_failures(build: Build, three: list[Upstream]) -> None:
    three[0].always(sse(chunk("a"), RESET))
    router = build(local={"url": three[0].url, "max_failures": 2, "check_interval": 0})
    for _ in range(2):
        assert "ended early" in (await refusal(router)).message
    assert (await refusal(router)).status == 503


async def test_server_that_answers_a_check_gets_requests_again(
    build: Build, three: list[Upstream], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "app.backends")
    three[0].say(DOWN)
    router = build(local={"url": three[0].url, "max_failures": 1, "check_interval": 0.02, "recovery": 3600})
    await refusal(router)
    await until(lambda: "backend server recovered" in caplog.text)
    assert await ask(router) == "Hello"
    paused = next(each for each in caplog.records if each.getMessage() == "backend server paused after failures")
    assert {"backend": "local", "server": three[0].url}.items() <= vars(paused).items()
    assert vars(paused)["reason"].startswith("502 server_error")


async def test_waiting_request_fails_when_the_last_server_fails(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].say([go, RESET])
    router = build(
        local={"url": three[0].url, "max_concurrency": 1, "max_failures": 1, "check_interval": 0},
        cloud={"url": three[1].url},
    )
    async with asyncio.TaskGroup() as running:
        first = running.create_task(ask(router))
        await until(lambda: len(three[0].requests) == 1)
        waiting = running.create_task(ask(router))
        await asyncio.sleep(0.01)
        go.set()
        assert (await first, await waiting) == ("Hello", "Hello")
    assert [len(server.requests) for server in three] == [1, 2, 0]


async def test_waiting_requests_get_the_server_whose_pause_ends_once_one_is_answered() -> None:
    (served,) = settings(
        local={
            "url": "http://a/v1",
            "replicas": ["http://b/v1"],
            "max_concurrency": 2,
            "max_failures": 1,
            "check_interval": 0,
            "recovery": 0.5,
        }
    ).values()
    pool = ReplicaPool("local", served, lambda one: Scripted([]))
    with pytest.raises(BackendError):
        async with leased(pool):
            raise BackendError("Down.")
    (paused,) = (replica for replica in pool.replicas if replica.circuit.open)
    async with asyncio.timeout(60), leased(pool) as one, leased(pool) as two:
        assert paused not in (one, two)
        first, second = asyncio.create_task(acquire(pool)), asyncio.create_task(acquire(pool))
        trial = await first
        assert trial.replica is paused
        await asyncio.sleep(0.6)
        assert not second.done()
        pool.answered(trial)
        later = await second
        assert later.replica is paused
        for lease in (trial, later):
            pool.release(lease, None)


async def test_request_that_leaves_during_a_trial_allows_no_second_trial() -> None:
    (served,) = settings(
        local={"url": "http://a/v1", "max_failures": 1, "check_interval": 0, "recovery": 0.01}
    ).values()
    pool = ReplicaPool("local", served, lambda one: Scripted([]))
    earlier, failing = await acquire(pool), await acquire(pool)
    pool.release(failing, BackendError("Down."))
    await until(lambda: earlier.replica.circuit.ready)
    trial = await acquire(pool)
    pool.release(earlier, asyncio.CancelledError())
    with pytest.raises(BackendError):
        await acquire(pool)
    pool.release(trial, asyncio.CancelledError())
    await acquire(pool)


async def test_request_refused_and_cancelled_at_once_is_cancelled() -> None:
    (served,) = settings(
        local={"url": "http://a/v1", "max_concurrency": 1, "max_failures": 1, "check_interval": 0}
    ).values()
    pool = ReplicaPool("local", served, lambda one: Scripted([]))
    waited: list[BaseException] = []

    async def wait() -> None:
        try:
            async with leased(pool):
                pass
        except BaseException as error:
            waited.append(error)
            raise

    with pytest.raises(BackendError):
        async with leased(pool):
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(waiting.cancel)
            raise BackendError("Down.")
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert [type(error) for error in waited] == [asyncio.CancelledError]
    assert pool.replicas[0].load == 0


# Another table.


async def test_new_requests_after_a_reload_see_the_new_table(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("old"), go, finish(), END))
    router = build(local={"url": three[0].url})
    running = asyncio.create_task(ask(router))
    await until(lambda: len(three[0].requests) == 1)
    router.reconfigure(settings(local={"url": three[1].url}))
    assert await ask(router) == "Hello"
    go.set()
    assert await running == "old"
    await until(lambda: three[0].requests[0].answered.is_set())


async def test_request_waiting_for_a_removed_backend_still_gets_its_turn(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("old"), go, finish(), END))
    router = build(local={"url": three[0].url, "max_concurrency": 1})
    async with asyncio.TaskGroup() as running:
        running.create_task(ask(router))
        waiting = running.create_task(ask(router))
        await until(lambda: len(three[0].requests) == 1)
        router.reconfigure(settings(local={"url": three[1].url}))
        go.set()
        assert await waiting == "old"


async def test_removed_fallback_still_serves_earlier_requests(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always([go, RESET])
    router = build(local={"url": three[0].url}, cloud={"url": three[1].url})
    running = asyncio.create_task(ask(router))
    await until(lambda: len(three[0].requests) == 1)
    router.reconfigure(settings(local={"url": three[2].url}))
    go.set()
    assert await running == "Hello"
    assert len(three[1].requests) == 1


async def test_unchanged_backends_keep_their_connections(build: Build, three: list[Upstream]) -> None:
    router = build(local={"url": three[0].url}, other={"url": three[1].url, "models": ["x"]})
    await ask(router)
    router.reconfigure(settings(other={"url": three[1].url, "models": ["x", "y"]}, local={"url": three[0].url}))
    await ask(router)
    assert three[0].connections == 1


async def test_removed_backends_are_closed(build: Build, three: list[Upstream]) -> None:
    router = build(local={"url": three[0].url})
    await ask(router)
    router.reconfigure(settings(local={"url": three[1].url}))
    await until(lambda: not three[0]._lines)


async def test_table_that_cannot_be_built_changes_nothing(build: Build, three: list[Upstream]) -> None:
    router = build(local={"url": three[0].url})
    with pytest.raises(AttributeError):
        router.reconfigure({"local": settings(local={"url": nobody()})["local"], "odd": object()})  # type: ignore[dict-item]
    assert await ask(router) == "Hello"


async def test_closing_ends_requests_in_progress(build: Build, three: list[Upstream]) -> None:
    three[0].always(sse(chunk("a"), HANG))
    router = build(local={"url": three[0].url})
    async with router.open(model_request()) as answer:
        stream = reads(answer)
        await anext(stream)
        await router.aclose()
        with pytest.raises(BackendError):
            await anext(stream)


async def test_more_slots_after_a_reload_shorten_the_wait() -> None:
    (served,) = settings(
        local={"url": "http://a/v1", "replicas": ["http://b/v1"], "max_concurrency": 2, "max_queue": 7}
    ).values()
    pool = ReplicaPool("local", served, lambda one: Scripted([]))
    async with contextlib.AsyncExitStack() as leases:
        for _ in range(4):
            await leases.enter_async_context(leased(pool))
        waiting = [asyncio.create_task(leases.enter_async_context(leased(pool))) for _ in range(7)]
        await asyncio.sleep(0)
        with pytest.raises(BackendError) as refused:
            await leases.enter_async_context(leased(pool))
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
    assert refused.value.headers() == {"Retry-After": "2"}  # eight with a second each, four at a time


async def test_refusal_between_two_failures_resets_the_count(build: Build, three: list[Upstream]) -> None:
    for answer in (DOWN, status(400, {"error": {"message": "What?"}}), DOWN):
        three[0].say(answer)
    router = build(local={"url": three[0].url, "max_failures": 2, "check_interval": 0})
    assert [(await refusal(router)).status for _ in range(3)] == [502, 400, 502]
    assert await ask(router) == "Hello"


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
