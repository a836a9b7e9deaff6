"""Long conversations stay in memory between turns, and match the store's current state."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.history.turns import Turn
from app.core.profile import Profile
from app.core.types.request import CreateResponse
from app.errors import APIError
from app.responses import Caller, GenerationOptions
from app.responses.context import MAX_AGE, HistoryCache, past_after
from app.stores import ServerStore
from app.stores.memory import MemoryStore
from tests.support.build import delta, responses_on
from tests.support.scripted import Scripted
from tests.support.store_locations import TTL, Memory, StoreLocation

ANSWER = [delta(reasoning_content="Well..."), delta(content="Yes.")]
ALICE, BOB = Caller("alice"), Caller("bob")
PROFILE = Profile().override({"request.reasoning_replay": "always"})


class Worker:
    """A process: its responses, its cache, and its backend's requests."""

    def __init__(self, store: ServerStore, history_cache: int = 10_000_000) -> None:
        self.backend = Scripted([*ANSWER], profile=PROFILE)
        self.store = store
        self.responses = responses_on(self.backend, store, GenerationOptions(history_cache=history_cache))

    @property
    def cache(self) -> HistoryCache:
        return self.responses._loader.cache

    async def say(self, text: str, previous: str | None = None, caller: Caller = ALICE) -> str:
        """Make a turn; return its response id."""
        request = CreateResponse.model_validate({"model": "m", "input": text, "previous_response_id": previous})
        run = await self.responses.create(request, caller)
        await run.drain()
        return str(run.response["id"])

    async def model_messages(self, text: str, previous: str | None, caller: Caller) -> Any:
        """Return the model's messages, or the error, without any cache."""
        request = CreateResponse.model_validate({"model": "m", "input": text, "previous_response_id": previous})
        uncached = responses_on(self.backend, self.store, GenerationOptions(history_cache=0))
        try:
            context = await uncached.context(request, caller)
        except APIError as error:
            return error.payload()
        _, encoded = await uncached.preparation(request, context, caller, "m").first_request()
        return encoded.body["messages"]


@pytest.fixture
async def workers(location: StoreLocation) -> AsyncIterator[list[Worker]]:
    """Two processes with a shared store."""
    stores = [location.open()]
    stores.append(stores[0] if isinstance(location, Memory) else location.open())
    yield [Worker(store) for store in stores]
    for store in stores:
        await store.aclose()


async def test_next_turn_is_made_from_memory_whichever_process_made_the_last(workers: list[Worker]) -> None:
    last = None
    for turn in range(8):
        last = await workers[turn % 2].say(f"Message {turn}.", last)

    expected = [
        {"role": "user", "content": f"Message {n // 2}."}
        if n % 2 == 0
        else {"role": "assistant", "content": "Yes.", "reasoning_content": "Well..."}
        for n in range(15)
    ]
    assert workers[1].backend.received[-1]["messages"] == expected
    for worker in workers:
        assert 1 <= len(worker.cache) <= 3
        assert worker.cache.bytes > 0


async def test_response_deleted_by_another_process_is_gone_at_once(workers: list[Worker]) -> None:
    here, there = workers
    ids: list[str | None] = [None]
    for turn in range(5):
        ids.append(await here.say(f"Message {turn}.", ids[-1]))
    assert ids[2]
    await there.responses.stored.delete(ids[2], ALICE)

    with pytest.raises(APIError, match="not found"):
        await here.say("And now?", ids[-1])
    assert await here.say("And now?", ids[1])  # an unrelated conversation continues


async def test_response_that_has_expired_is_gone(location: StoreLocation, workers: list[Worker]) -> None:
    last = None
    for turn in range(3):
        last = await workers[0].say(f"Message {turn}.", last)
    location.advance(1.1 * TTL)

    with pytest.raises(APIError, match="not found"):
        await workers[0].say("Still there?", last)


async def test_conversation_that_goes_on_does_not_expire(location: StoreLocation, workers: list[Worker]) -> None:
    last = None
    for turn in range(5):
        last = await workers[0].say(f"Message {turn}.", last)
        location.advance(0.7 * TTL)

    assert len(workers[0].backend.received[-1]["messages"]) == 9


async def test_response_of_another_owner_cannot_be_continued(workers: list[Worker]) -> None:
    last = await workers[0].say("Hello!")
    last = await workers[0].say("I am Alice.", last)
    for worker in workers:
        with pytest.raises(APIError, match="not found"):
            await worker.say("Who am I?", last, BOB)


moves = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 3), st.integers(0, 1), st.sampled_from([ALICE, ALICE, ALICE, BOB])),
    st.tuples(st.just("say"), st.just(0), st.integers(0, 1), st.just(ALICE)),
    st.tuples(st.just("delete"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("advance"), st.integers(1, 3)),
)


@given(moves=st.lists(moves, min_size=8, max_size=20), small=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_model_is_sent_what_it_would_be_sent_without_a_cache(
    location: StoreLocation, workers: list[Worker], moves: list[tuple[Any, ...]], small: bool
) -> None:
    workers = [Worker(worker.responses.store, 30_000 if small else 10_000_000) for worker in workers]
    ids = [await workers[0].say("Begin.")]
    for number, move in enumerate(moves):
        match move:
            case "advance", steps:
                location.advance(steps * 0.3 * TTL)
            case "delete", back, which:
                await _deleted(workers[which], ids[-1 - back % len(ids)])
            case "say", back, which, caller:
                worker, previous, text = workers[which], ids[-1 - back % len(ids)], f"Message {number}."
                expected = await worker.model_messages(text, previous, caller)
                try:
                    ids.append(await worker.say(text, previous, caller))
                except APIError as error:
                    assert error.payload() == expected
                    ids.append(await worker.say("Begin again."))
                else:
                    assert worker.backend.received[-1]["messages"] == expected
        assert all(worker.cache.bytes <= worker.cache.max_bytes for worker in workers)


async def _deleted(worker: Worker, id: str) -> None:
    try:
        await worker.responses.stored.delete(id, ALICE)
    except APIError as error:
        assert error.status == 404


async def test_history_cache_is_bounded() -> None:
    limit = 2_000_000
    store = MemoryStore(ttl=1e6)
    worker = Worker(store, limit)
    text = "What I say is long enough to be something. " * 20
    ids = [await worker.say(text) for _ in range(3)]
    tracemalloc.start()
    try:
        for turn in range(40):
            ids = [await worker.say(f"{turn}: {text}", id) for id in ids]
            worker.backend.received.clear()
        assert worker.cache.bytes <= limit
        assert len(worker.cache) < 120
        before, _ = tracemalloc.get_traced_memory()
        for key in [*worker.cache._entries]:
            worker.cache.remove(*key)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert before - after <= 1.2 * limit
    assert worker.cache.bytes == 0


async def test_history_cache_of_size_zero_is_none() -> None:
    worker = Worker(MemoryStore(ttl=1e6), 0)
    last = None
    for turn in range(4):
        last = await worker.say(f"Message {turn}.", last)

    assert (len(worker.cache), worker.cache.bytes) == (0, 0)
    assert len(worker.backend.received[-1]["messages"]) == 7


async def test_history_cache_frees_the_unused_and_the_deleted() -> None:
    now = 0.0
    cache = HistoryCache(1_000_000, lambda: now)
    turns = [Turn({"id": f"resp_{n}", "output": [], "previous_response_id": None}, [], {}) for n in range(3)]
    entries = [past_after([turn]) for turn in turns]
    for entry in entries:
        cache.put("alice", entry)
    cache.put("bob", past_after(turns[:1]))
    now = MAX_AGE
    assert cache.get("alice", "resp_1") is entries[1]
    now += 1
    cache.delete_expired()
    assert [cache.get("alice", f"resp_{n}") for n in range(3)] == [None, entries[1], None]

    cache.put("alice", past_after(turns[2:], entries[1]))
    cache.put("bob", past_after(turns[1:2]))
    cache.remove_with("alice", "resp_1")
    assert [cache.get("alice", f"resp_{n}") for n in range(3)] == [None, None, None]
    assert cache.get("bob", "resp_1")
    assert len(cache) == 1
