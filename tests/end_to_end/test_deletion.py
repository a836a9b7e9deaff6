"""
Deleted data stays deleted despite concurrent work: after the answer, the store contains no byte of it.

Two workers share the store (in memory, a single worker). The first worker's write is held until the second worker has
deleted the object.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.history.resource import new_response
from app.core.history.turns import Turn
from app.core.types.request import CreateResponse
from app.errors import StoreUnavailable
from app.main import expiring
from app.responses.background import Background
from app.stores import Change, EventSegment, RunKey, ServerStore
from app.stores.memory import MemoryStore
from tests.faults.servers import server
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.store_locations import STORES, Memory, SQLite, StoreLocation, location_of

CANARY = "c4n4ry"


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


class Holding:
    """A store that holds the first change matched by `held`, until released."""

    def __init__(self, store: ServerStore) -> None:
        self._store = store
        self.held: Callable[[Change], bool] = lambda change: False
        self.reached, self.let_go, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        await self.apply(Change(bucket, {name: record}))

    async def apply(self, *changes: Change) -> bool:
        hold = not self.reached.is_set() and any(map(self.held, changes))
        if hold:
            self.reached.set()
            await self.let_go.wait()
        made = await self._store.apply(*changes)
        if hold:
            self.done.set()
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def stored_as(status: str) -> Callable[[Change], bool]:
    return lambda change: status in statuses(change)


def statuses(change: Change) -> set[str]:
    """Response statuses in a change."""
    return {Turn.of(record).response["status"] for name, record in change.put.items() if name.startswith("resp_")}


@dataclass
class Workers:
    location: StoreLocation
    store: Holding  # the first worker's
    one: httpx.AsyncClient
    other: httpx.AsyncClient

    def left(self) -> bool:
        """Whether any of the texts is left."""
        return CANARY.encode() in self.location.contents()


@contextlib.asynccontextmanager
async def workers(location: StoreLocation) -> AsyncIterator[Workers]:
    backend = Scripted([delta(content=f"{CANARY} from the model")])
    store = Holding(location.open())
    async with contextlib.AsyncExitStack() as stack:

        async def serve(store: Any) -> httpx.AsyncClient:
            url = await stack.enter_async_context(antiphon(backend, store, shutdown_grace=0))
            http = httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False)
            return await stack.enter_async_context(http)

        one = await serve(store)
        other = one if isinstance(location, Memory) else await serve(location.open())
        yield Workers(location, store, one, other)


def request_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": f"{CANARY} from the caller", **fields}


async def ended(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    while True:
        response: dict[str, Any] = (await http.get(f"/responses/{id}")).json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["json", "sse", "background"])
async def test_conversation_deleted_during_a_turn_stays_deleted(location: StoreLocation, way: str) -> None:
    async with workers(location) as both:
        made = await both.one.post("/conversations", json={"items": [{"role": "user", "content": f"{CANARY} before"}]})
        conversation = made.json()["id"]
        both.store.held = stored_as("completed")
        body = request_body(conversation=conversation, stream=way == "sse", background=way == "background")
        asking = asyncio.create_task(both.one.post("/responses", json=body))
        await both.store.reached.wait()
        assert (await both.other.delete(f"/conversations/{conversation}")).status_code == 200
        both.store.let_go.set()
        answer = await asking

        [id] = {line.split('"')[0] for line in answer.text.split('"id":"')[1:] if line.startswith("resp_")}
        response = await ended(both.other, id)
        assert (response["status"], response["conversation"]) == ("completed", {"id": conversation})
        assert (await both.other.get(f"/conversations/{conversation}/items")).status_code == 404
        # Responses stay when their conversation goes. When they are deleted too, nothing is left.
        assert (await both.other.delete(f"/responses/{id}")).status_code == 200
        assert not both.left()


async def test_response_deleted_while_it_runs_stays_deleted(location: StoreLocation) -> None:
    async with workers(location) as both:
        both.store.held = stored_as("completed")
        id = (await both.one.post("/responses", json=request_body(background=True))).json()["id"]
        await both.store.reached.wait()
        assert both.left()
        assert (await both.other.delete(f"/responses/{id}")).status_code == 200
        assert not both.left()
        both.store.let_go.set()
        # In its own worker the run is ended before it comes to store anything.
        await (both.store.done.wait() if both.other is not both.one else asyncio.sleep(0))
        assert not both.left()
        assert (await both.one.get(f"/responses/{id}")).status_code == 404


async def test_metadata_changed_while_the_conversation_is_deleted_is_gone(location: StoreLocation) -> None:
    async with workers(location) as both:
        id = (await both.one.post("/conversations", json={})).json()["id"]
        both.store.held = lambda change: any(CANARY.encode() in record for record in change.put.values())
        changing = asyncio.create_task(both.one.post(f"/conversations/{id}", json={"metadata": {"note": CANARY}}))
        await both.store.reached.wait()
        assert (await both.other.delete(f"/conversations/{id}")).status_code == 200
        both.store.let_go.set()
        assert (await changing).status_code == 404
        assert not both.left()


async def test_items_of_one_record_deleted_at_once_are_both_gone(location: StoreLocation) -> None:
    async with workers(location) as both:
        texts = ["one", f"two {CANARY}", "three"]
        items = [{"role": "user", "content": text} for text in texts]
        conversation = (await both.one.post("/conversations", json={"items": items})).json()["id"]
        path = f"/conversations/{conversation}/items"
        ids = [item["id"] for item in (await both.one.get(path, params={"order": "asc"})).json()["data"]]
        # It has read the record, and is about to store it without the first item.
        both.store.held = lambda change: any(CANARY.encode() in record for record in change.put.values())
        deleting = asyncio.create_task(both.one.delete(f"{path}/{ids[0]}"))
        await both.store.reached.wait()
        assert (await both.other.delete(f"{path}/{ids[1]}")).status_code == 200
        assert not both.left()
        both.store.let_go.set()
        assert (await deleting).status_code == 200
        assert not both.left()
        assert [item["id"] for item in (await both.one.get(path)).json()["data"]] == [ids[2]]


async def test_response_deleted_while_it_is_ended_for_a_dead_worker_stays_deleted(location: StoreLocation) -> None:
    store = Holding(location.open())
    store.held = stored_as("failed")
    run = RunKey(f"anonymous:{'c0ffee' * 4}", f"resp_{'0' * 16}{'c0ffee' * 4}")
    request = CreateResponse(model="m", input=CANARY, background=True)
    response = new_response(request, response_id=run.id, created_at=1, model="m")
    await store.put(*run, Turn({**response, "instructions": CANARY}, [], {}).record())
    log = store.log(ttl=60, lease=60)
    background = Background(store, log)
    ending = asyncio.create_task(background.ended(run))  # it has no log: its worker died early
    await store.reached.wait()
    assert await store.delete(*run)
    await background.delete(run)
    assert CANARY.encode() not in location.contents()
    store.let_go.set()
    await ending
    assert CANARY.encode() not in location.contents()
    assert await log.state(run) == "absent"
    assert await log.append(run, "anybody", EventSegment(0, 0, CANARY.encode())) == "lost"
    await background.aclose()
    await store.aclose()


class Half(MemoryStore):
    """A store that fails while a turn is added, and records the response's readable state."""

    def __init__(self) -> None:
        super().__init__(ttl=60)
        self.seen: set[str] = set()

    async def apply(self, *changes: Change) -> bool:
        if any(change.partition.endswith(":conversation") and "conversation" not in change.put for change in changes):
            raise StoreUnavailable
        made = await super().apply(*changes)
        self.seen |= {status for change in changes for status in statuses(change)}
        return made


async def test_response_that_cannot_be_added_to_its_conversation_is_never_completed() -> None:
    store = Half()
    async with (
        antiphon(Scripted([delta(content="Hello")]), store) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http,
    ):
        conversation = (await http.post("/conversations", json={})).json()["id"]
        response = (await http.post("/responses", json=request_body(conversation=conversation))).json()
        assert (response["status"], response["error"]["code"]) == ("failed", "store_unavailable")
        assert "completed" not in store.seen
        assert (await http.get(f"/conversations/{conversation}/items")).json()["data"] == []


def ask(url: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(
        f"{url}/v1/responses", json={**request_body(**fields), "model": "demo"}, timeout=60, trust_env=False
    )
    response: dict[str, Any] = answer.raise_for_status().json()
    return response


async def test_purge_goes_on_after_failures() -> None:
    purged = asyncio.Queue[int]()

    class Failing(MemoryStore):
        async def delete_expired(self) -> None:
            purged.put_nowait(purged.qsize())
            raise [StoreUnavailable, ValueError][purged.qsize() % 2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.main.EXPIRY_INTERVAL", 0.001)
        async with expiring(Failing(ttl=1)):
            for _ in range(5):
                await purged.get()


def test_content_that_expired_while_no_server_ran_is_purged_at_start(tmp_path: Path) -> None:
    location = SQLite(tmp_path / "antiphon.db")
    with server(store_url=location.url, store_ttl=2) as served:
        ask(served.url)
        served.process.kill()
        served.process.wait()
    assert CANARY.encode() in location.contents()
    time.sleep(2)
    with server(store_url=location.url, store_ttl=2):
        while CANARY.encode() in location.contents():
            time.sleep(0.05)
