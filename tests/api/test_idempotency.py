"""`Idempotency-Key`: the same response for the same request, whichever process it reaches."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import httpx
import openai
import orjson
import pytest
import pytest_asyncio

from app.api.idempotency import Idempotency, KeyClaim, digest
from app.core.bounded_json import LARGE
from app.core.types.request import Event
from app.errors import BackendError, InvalidRequest
from app.main import create_app
from app.stores import Store
from tests.support import laws
from tests.support.build import call, delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings
from tests.support.store_locations import STORES, location_of

ASK = {"model": "m", "input": "Hi"}
KEY = {"Idempotency-Key": "one"}
ANSWERS = [[delta(content=f"answer {n}")] for n in range(5)]


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = location_of(request, tmp_path).open()
    yield store
    await store.aclose()


def events_of(text: str) -> list[Event]:
    *blocks, done = [block for block in text.split("\n\n") if block]
    assert done == "data: [DONE]"
    return [json.loads(block.partition("\ndata: ")[2]) for block in blocks]


@pytest_asyncio.fixture
async def backend() -> Scripted:
    return Scripted(*ANSWERS)


@pytest_asyncio.fixture
async def http(backend: Scripted) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
        yield http


async def test_same_key_and_body_gets_the_same_response(http: httpx.AsyncClient, backend: Scripted) -> None:
    first = await http.post("/responses", json=ASK, headers=KEY)
    again = await http.post("/responses", content=b'{"input":\n"Hi", "model": "m"}', headers=KEY)
    assert first.json() == again.json()
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    assert len(backend.received) == 1
    other = await http.post("/responses", json=ASK, headers={"Idempotency-Key": "two"})
    assert other.json()["id"] != first.json()["id"]


async def test_same_key_with_another_body_is_a_409(http: httpx.AsyncClient, backend: Scripted) -> None:
    await http.post("/responses", json=ASK, headers=KEY)
    refused = await http.post("/responses", json={**ASK, "input": "Ho"}, headers=KEY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert len(backend.received) == 1


@pytest.mark.parametrize("large", [LARGE, 2])
async def test_stream_with_the_same_key_is_streamed_again(
    http: httpx.AsyncClient, backend: Scripted, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.stream.event_batch.LARGE", large)
    backend.scripts = [
        [
            delta(reasoning_content="Hm."),
            delta(content="Hel"),
            delta(content="lo"),
            call(name="f"),
            finish("tool_calls"),
        ]
    ]
    body = {**ASK, "stream": True, "tools": [{"type": "function", "name": "f", "parameters": {}}]}
    first = events_of((await http.post("/responses", json=body, headers=KEY)).text)
    again = events_of((await http.post("/responses", json=body, headers=KEY)).text)
    laws.check(again)
    assert again[-1]["response"] == first[-1]["response"]
    assert len(backend.received) == 1


async def test_official_client_retrying_a_stream_reads_it_again(http: httpx.AsyncClient) -> None:
    async with openai.AsyncOpenAI(base_url=str(http.base_url), api_key="x") as client:
        finals = []
        for _ in range(2):
            async with client.responses.stream(model="m", input="Hi", extra_headers=KEY) as stream:
                finals.append(await stream.get_final_response())
        assert finals[0].output_text == finals[1].output_text == "answer 0"
        assert finals[0].id == finals[1].id


async def test_requests_at_the_same_time_make_one_response(http: httpx.AsyncClient, backend: Scripted) -> None:
    go = asyncio.Event()
    backend.scripts = [[delta(content="Hi"), go]]
    tasks = [asyncio.create_task(http.post("/responses", json=ASK, headers=KEY)) for _ in range(8)]
    while not backend.waiting:
        await asyncio.sleep(0.01)
    go.set()
    ids = {answer.json()["id"] for answer in await asyncio.gather(*tasks)}
    assert len(ids) == len(backend.received) == 1


async def test_response_that_failed_can_be_tried_again(http: httpx.AsyncClient, backend: Scripted) -> None:
    backend.scripts = [[BackendError("Down.")], [delta(content="Hi")]]
    assert (await http.post("/responses", json=ASK, headers=KEY)).status_code == 502
    assert (await http.post("/responses", json=ASK, headers=KEY)).status_code == 200
    wrong = {**ASK, "previous_response_id": "resp_none"}
    for _ in range(2):
        assert (await http.post("/responses", json=wrong, headers={"Idempotency-Key": "w"})).status_code == 400


async def test_client_that_disconnects_frees_the_key(http: httpx.AsyncClient, backend: Scripted) -> None:
    backend.scripts = [[delta(content="Hi"), asyncio.Event()], [delta(content="again")]]
    for body in (ASK, {**ASK, "stream": True}):
        backend.scripts = [[delta(content="Hi"), asyncio.Event()], [delta(content="again")]]
        first = asyncio.create_task(http.post("/responses", json=body, headers={"Idempotency-Key": str(body)}))
        while not backend.waiting:
            await asyncio.sleep(0.01)
        first.cancel()
        answer = await http.post("/responses", json=body, headers={"Idempotency-Key": str(body)})
        assert "again" in answer.text


async def test_background_response_is_begun_once(http: httpx.AsyncClient, backend: Scripted) -> None:
    body = {**ASK, "background": True}
    first = (await http.post("/responses", json=body, headers=KEY)).json()
    again = (await http.post("/responses", json=body, headers=KEY)).json()
    assert first["id"] == again["id"]
    assert len(backend.received) <= 1


async def test_response_with_store_false_is_not_made_twice(http: httpx.AsyncClient, backend: Scripted) -> None:
    body = {**ASK, "store": False}
    assert (await http.post("/responses", json=body, headers=KEY)).status_code == 200
    refused = await http.post("/responses", json=body, headers=KEY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotent_response_not_found")
    assert len(backend.received) == 1


def test_body_with_fields_in_another_order_is_the_same() -> None:
    body = {"model": "m", "input": [{"role": "user", "content": "é"}], "a": {}}
    again = {"a": {}, "input": [{"content": "é", "role": "user"}], "model": "m"}
    assert digest(body) == digest(again) == hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
    assert digest(body) != digest({**body, "input": [{"role": "user", "content": "e"}]})


async def test_key_of_another_owner_is_another_key() -> None:
    backend = Scripted(*ANSWERS)
    async with antiphon(backend, api_keys="sk-a,sk-b") as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        ids = set()
        for key in ("sk-a", "sk-b"):
            headers = {**KEY, "Authorization": f"Bearer {key}"}
            ids.add((await http.post("/responses", json=ASK, headers=headers)).json()["id"])
    assert len(ids) == 2


@pytest.mark.parametrize("key", ["x" * 256, "a\tb"])
async def test_key_that_is_invalid_is_refused(http: httpx.AsyncClient, key: str) -> None:
    refused = await http.post("/responses", json=ASK, headers={"Idempotency-Key": key})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")


# All stores, several processes, and a fake clock.


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def only_claim(tasks: Iterable[asyncio.Task[KeyClaim | str]]) -> KeyClaim:
    """Return the claim from the first finished task, while all others wait for it."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    (first,) = done
    claim = first.result()
    assert isinstance(claim, KeyClaim)
    return claim


async def ids_for(tasks: Iterable[asyncio.Task[KeyClaim | str]], claim: KeyClaim) -> list[KeyClaim | str]:
    """Return the results of all tasks except the claim's."""
    return [result for result in await asyncio.gather(*tasks) if result is not claim]


async def test_claim_goes_to_one_process(store: Store) -> None:
    processes = [Idempotency(store, 3600) for _ in range(6)]
    tasks = [asyncio.create_task(process.claim("owner", "k", "digest")) for process in processes]
    claim = await only_claim(tasks)
    await asyncio.sleep(0)
    assert sum(task.done() for task in tasks) == 1
    claim.end("resp_1")
    assert await ids_for(tasks, claim) == ["resp_1"] * 5
    for process in processes:
        await process.aclose()


async def test_claim_that_is_freed_goes_to_the_next(store: Store) -> None:
    one, two = Idempotency(store, 3600), Idempotency(store, 3600)
    claim = await one.claim("owner", "k", "digest")
    assert isinstance(claim, KeyClaim)
    waiting = asyncio.create_task(two.claim("owner", "k", "digest"))
    claim.end(None)
    second = await waiting
    assert isinstance(second, KeyClaim)
    second.end("resp_2")
    await two.aclose()
    assert await one.claim("owner", "k", "digest") == "resp_2"
    await one.aclose()


async def test_claim_of_a_process_that_died_is_taken_over_once(store: Store) -> None:
    clock = Clock()
    dead = Idempotency(store, 3600, clock)
    lost = await dead.claim("owner", "k", "digest")
    assert isinstance(lost, KeyClaim)
    lost._renewal.cancel()
    clock.now += 31
    heirs = [Idempotency(store, 3600, clock) for _ in range(5)]
    tasks = [asyncio.create_task(heir.claim("owner", "k", "digest")) for heir in heirs]
    claim = await only_claim(tasks)
    lost.end("resp_late")  # it was still alive: its late result is ignored
    await dead.aclose()
    claim.end("resp_1")
    assert await ids_for(tasks, claim) == ["resp_1"] * 4
    for heir in heirs:
        await heir.aclose()


async def test_key_is_forgotten_after_its_ttl(store: Store) -> None:
    clock = Clock()
    keys = Idempotency(store, 3600, clock)
    claim = await keys.claim("owner", "k", "digest")
    assert isinstance(claim, KeyClaim)
    claim.end("resp_1")
    await keys.aclose()
    assert await keys.claim("owner", "k", "digest") == "resp_1"
    with pytest.raises(InvalidRequest):
        await keys.claim("owner", "k", "other")
    clock.now += 3601
    claim = await keys.claim("owner", "k", "other")
    assert isinstance(claim, KeyClaim)
    claim.end(None)
    await keys.aclose()


async def test_two_workers_with_one_key_make_one_response(store: Store) -> None:
    backends = [Scripted([delta(content="Hi")]) for _ in range(2)]
    apps = [create_app(settings(), backend=backend, store=store) for backend in backends]
    async with serving(apps[0]) as one, serving(apps[1]) as two, httpx.AsyncClient(timeout=60) as http:
        posts = [http.post(f"{url}/v1/responses", json=ASK, headers=KEY) for url in (one, two) * 4]
        answers = await asyncio.gather(*posts)
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum(len(backend.received) for backend in backends) == 1
