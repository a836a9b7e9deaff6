"""Replicas on a Redis Cluster of real nodes: slots move and nodes are lost while conversations and runs go on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from app.stores import EventSegment, RunKey
from tests.load.cluster import Cluster, caught_up, cluster, replicated, until
from tests.load.conversations import TURNS, talk
from tests.load.echo import Echo, answer_to
from tests.load.proxy import balanced
from tests.responses.test_background import events_of
from tests.support import laws
from tests.support.redis_server import RedisServer
from tests.support.serving import antiphon
from tests.support.store_locations import redis_store
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, usage

RUN = RunKey("a:moving", "resp_1")
MANY = 48  # enough for each of three nodes to have some


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@contextlib.asynccontextmanager
async def two_replicas(store_url: str, model: Upstream, **settings: Any) -> AsyncIterator[str]:
    """Two servers that share only the store, behind a balancer; yields its address."""
    settings = {"store_url": store_url, "backend_url": model.url, "secret_key": "k", "shutdown_grace": 0, **settings}
    async with antiphon(**settings) as one, antiphon(**settings) as other:
        async with balanced([httpx.URL(url).port or 0 for url in (one, other)]) as (_, url):
            yield url


async def test_run_can_begin_while_its_slot_moves(nodes: Cluster) -> None:
    store = redis_store(nodes.url)
    log = store.log(ttl=1000, lease=20)
    slot = nodes.slot(RUN.partition)
    target = (nodes.holder(slot) + 1) % 3
    nodes.begin_to_move(slot, target)

    # Neither of its keys is anywhere yet, so the nodes tell us to try again until the slot has arrived.
    beginning = asyncio.create_task(log.begin(RUN, "w1"))
    await asyncio.sleep(0.3)
    nodes.end_to_move(slot, target)
    await beginning
    assert await log.append(RUN, "w1", EventSegment(0, 0, b"a")) == "held"

    target = (target + 1) % 3
    nodes.begin_to_move(slot, target)
    assert nodes.move_keys(slot, target, count=1) == 1
    appending = asyncio.create_task(log.append(RUN, "w1", EventSegment(1, 1, b"b", ends=True)))
    await asyncio.sleep(0.3)
    nodes.move_keys(slot, target)
    nodes.end_to_move(slot, target)
    assert await appending == "held"

    assert await log.read(RUN, -1) == [EventSegment(0, 0, b"a"), EventSegment(1, 1, b"b", ends=True)]
    await log.aclose()
    await store.aclose()


async def test_conversations_go_on_while_their_slots_move(nodes: Cluster) -> None:
    moved = 0

    async def move_about() -> None:
        nonlocal moved
        async with asyncio.timeout(300):
            while moved < 100:
                await asyncio.sleep(0.005)  # in the beginning, there may be nothing
                for slot in nodes.used():
                    await nodes.move(slot, pause=0.005)
                    moved += 1

    async with Echo() as model, two_replicas(nodes.url, model) as url:
        figures = await talk(url, move_about(), conversations=24, at_once=8)

    assert figures.wrong == []
    assert figures.asked_again == 0
    assert figures.turns.total() == figures.kept == TURNS * figures.conversations


async def test_redis_replica_that_takes_over_loses_nothing() -> None:
    go = asyncio.Event()
    with replicated() as (nodes, successor):
        async with Echo(pace=0) as model, Upstream() as slow:
            slow.always(sse(chunk("Hel"), go, chunk("lo"), finish(), usage(), DONE))
            async with (
                two_replicas(nodes.url, model) as url,
                two_replicas(nodes.url, slow, background_lease=120) as background,
                httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http,
                httpx.AsyncClient(base_url=f"{background}/v1", timeout=120, trust_env=False) as runs,
            ):
                first = [(await ask(http, f"{number}")).json() for number in range(MANY)]
                begun = [(await ask(runs, "Hi", background=True)).json()["id"] for _ in range(24)]
                following = [asyncio.create_task(events_of(runs, id)) for id in begun]
                await until_asked(slow, len(begun))
                await asyncio.sleep(0.5)
                assert holders(nodes, first) == {server.port for server in nodes.primaries}

                await lose(nodes, successor)
                assert holders(nodes, first) == {successor.port, *(server.port for server in nodes.primaries[1:])}
                second = [
                    (await ask(http, f"{number} again", previous_response_id=one["id"])).json()
                    for number, one in enumerate(first)
                ]
                go.set()
                events = [await task for task in following]
                kept = [(await runs.get(f"/responses/{id}")).json() for id in begun]

    assert [text_of(response) for response in second] == [answer_to([f"{n}", f"{n} again"]) for n in range(MANY)]
    for each, response in zip(events, kept, strict=True):
        laws.check(each)
        assert each[-1]["response"] == response
        assert text_of(response) == "Hello"


def holders(nodes: Cluster, responses: list[dict[str, Any]]) -> set[int]:
    """Return the ports of the nodes with some responses."""
    return {nodes.port(nodes.slot(f"anonymous:{response['id'][-24:]}")) for response in responses}


async def lose(nodes: Cluster, successor: RedisServer) -> None:
    """Kill the first primary after its replica has caught up; return after the failover."""
    caught_up(nodes.primaries[0], successor)
    nodes.primaries[0].stop(signal.SIGKILL)

    async def taken_over() -> bool:
        return nodes.knows(successor)

    await until(taken_over)


async def ask(http: httpx.AsyncClient, input: str, **more: Any) -> httpx.Response:
    """Ask as clients do: again, while the store is said to be unavailable."""
    async with asyncio.timeout(120):
        while True:
            answer = await http.post("/responses", json={"model": "m", "input": input, **more})
            if answer.status_code != 503:
                assert answer.status_code == 200, answer.text
                return answer
            await asyncio.sleep(0.1)


async def until_asked(model: Upstream, times: int) -> None:
    async def enough() -> bool:
        return len(model.requests) >= times

    await until(enough)


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text
