"""A conversation's turns reach the replica with their cached prefix, even if the client stores the conversation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio

from tests.support.serving import antiphon
from tests.support.upstream import Received, Step, Upstream, completion

AGENTS, TURNS = 20, 12
AT_ONCE = 3  # few enough for a free replica per agent

TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
]


class PrefixCache(Upstream):
    """A server that remembers prompts, and counts prompts beginning with the previous turn's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[bytes] = set()
        self.hits: list[bool] = []
        self.always(completion("I see."))

    def answer_to(self, request: Received) -> list[Step]:
        if request.method == "POST":
            messages = request.json["messages"]
            beginnings = [orjson.dumps(messages[:length]) for length in range(1, len(messages) + 1)]
            longest = next((at for at, known in enumerate(reversed(beginnings)) if known in self.seen), None)
            # The previous prompt lacks its answer and the new input.
            self.hits.append(longest is not None and longest <= 2)
            self.seen.add(beginnings[-1])
        return super().answer_to(request)


@pytest_asyncio.fixture
async def replicas() -> AsyncIterator[tuple[PrefixCache, PrefixCache]]:
    async with PrefixCache() as one, PrefixCache() as two:
        yield one, two


def stateless(agent: int) -> Iterator[dict[str, Any]]:
    """An agent with its whole history in each turn."""
    items = [{"role": "user", "content": f"Find the fault number {agent}."}]
    for turn in itertools.count():
        yield {"input": items, "store": False}
        items += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": f"Go on with {turn}."}]


def stored_but_sent(agent: int) -> Iterator[dict[str, Any]]:
    """The same, with the default for `store`."""
    for body in stateless(agent):
        del body["store"]
        yield body


def with_results(agent: int) -> Iterator[dict[str, Any]]:
    """An agent with calls and results as turns."""
    items: list[dict[str, Any]] = [{"role": "user", "content": f"Find the fault number {agent}."}]
    for turn in itertools.count():
        yield {"input": items, "store": False}
        items += [
            {"type": "function_call", "call_id": f"call_{turn}", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"call_{turn}", "output": f"Result {turn}."},
        ]


@pytest.mark.parametrize("client", [stateless, stored_but_sent, with_results])
async def test_every_turn_but_the_first_reaches_the_replica_with_its_prefix(
    replicas: tuple[PrefixCache, PrefixCache], client: Callable[[int], Iterator[dict[str, Any]]]
) -> None:
    one, two = replicas
    backends = {"pool": {"url": one.url, "replicas": [two.url]}}
    waiting: asyncio.Queue[tuple[int, Iterator[dict[str, Any]]]] = asyncio.Queue()
    for agent in range(AGENTS):
        waiting.put_nowait((TURNS, client(agent)))

    async def worker(http: httpx.AsyncClient) -> None:
        while not waiting.empty():
            left, turns = waiting.get_nowait()
            body = {"model": "m", "instructions": "You are a careful engineer.", "tools": TOOLS, **next(turns)}
            answer = await http.post("/v1/responses", json=body)
            assert answer.json()["status"] == "completed", answer.text
            if left > 1:
                waiting.put_nowait((left - 1, turns))

    async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        await asyncio.gather(*(worker(http) for _ in range(AT_ONCE)))
    hits = [*one.hits, *two.hits]
    assert (len(hits), sum(hits)) == (AGENTS * TURNS, AGENTS * (TURNS - 1))
    assert one.hits and two.hits  # the agents are spread


async def test_all_ways_to_continue_lead_to_one_replica(replicas: tuple[PrefixCache, PrefixCache]) -> None:
    one, two = replicas
    backends = {"pool": {"url": one.url, "replicas": [two.url]}}
    async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
        for number in range(6):
            before = len(one.hits), len(two.hits)
            hi = {"role": "user", "content": f"Hi, I am {number}."}
            more = {"role": "user", "content": "More."}

            async def ask(**body: Any) -> Any:
                return (await http.post("/responses", json={"model": "m", "instructions": "Be kind.", **body})).json()

            first = await ask(input=[hi])
            await ask(input=[more], previous_response_id=first["id"])
            await ask(input=[hi, first["output"][0], more], store=False)
            await ask(input=[hi, {"type": "item_reference", "id": first["output"][0]["id"]}, more])
            conversation = (await http.post("/conversations", json={"items": [hi]})).json()["id"]
            await ask(input=[more], conversation=conversation)
            assert sorted((len(one.hits) - before[0], len(two.hits) - before[1])) == [0, 5]


async def test_key_of_the_callers_has_precedence(replicas: tuple[PrefixCache, PrefixCache]) -> None:
    one, two = replicas
    backends = {"pool": {"url": one.url, "replicas": [two.url]}}
    async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        for turn in range(12):
            body = {"model": "m", "input": f"ModelRequest {turn}", "prompt_cache_key": "one"}
            await http.post("/v1/responses", json=body)
    assert sorted((len(one.hits), len(two.hits))) == [0, 12]


async def test_routers_behind_a_server_receive_the_conversation() -> None:
    async with Upstream() as up:
        up.always(completion())
        overrides = {"request.session_header": "x-session-id"}
        async with antiphon(backend_url=up.url, backend_overrides=overrides) as url:
            async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
                hi, other = {"role": "user", "content": "Hi."}, {"role": "user", "content": "Another."}
                for items in ([hi], [hi, {"role": "assistant", "content": "hi"}, other], [other]):
                    await http.post("/responses", json={"model": "m", "input": items, "store": False})
                await http.post("/responses", json={"model": "m", "input": "x", "prompt_cache_key": "a\r\nx: ż"})
                await http.post("/chat/completions", json={"model": "m", "messages": [hi]})
        first, second, another, keyed, chat = (request.headers["x-session-id"] for request in up.requests)
    assert first == second == chat
    assert len({first, another, keyed}) == 3 and {len(first), len(keyed)} == {32}


async def test_session_header_without_the_option_is_not_sent() -> None:
    async with Upstream() as up:
        up.always(completion())
        async with antiphon(backend_url=up.url) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            await http.post("/v1/responses", json={"model": "m", "input": "Hi."})
        assert not [name for name in up.requests[0].headers if "session" in name or "routing" in name]
