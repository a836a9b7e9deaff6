"""Generated images are stored separately from turns: conversations with images continue as fast as those without."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.history.turns import Turn
from app.main import create_app
from app.stores import EventSegment, RunKey, Store
from app.stores.memory import MemoryStore
from app.stores.sqlite import SQLiteStore
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings
from tests.support.sockets import dial, hear_out, send
from tests.support.store_locations import STORES, TTL, StoreLocation, location_of
from tests.tools.test_image_generation import ANSWER, TOOL, ImagesServer, drawing

BYTES = b"c4n4ry" * 20_000
IMAGE = base64.b64encode(BYTES).decode()
SMALL = 20_000  # bytes, more than the texts of a test and less than its image

DRAW = drawing(prompt="A cat"), ANSWER
EDIT = drawing(prompt="Make it blue", action="edit"), ANSWER


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


class Loads:
    """A store with a counter for bytes read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, bucket: str, name: str) -> bytes | None:
        record = await self._store.get(bucket, name)
        self.bytes += len(record or b"")
        return record

    async def all(self, bucket: str) -> dict[str, bytes]:
        records = await self._store.all(bucket)
        self.bytes += sum(map(len, records.values()))
        return records


@dataclass
class Studio:
    """A server with image generation, and its store."""

    http: httpx.AsyncClient
    url: str
    store: Loads
    images: ImagesServer

    async def ask(self, **fields: Any) -> dict[str, Any]:
        body = {"model": "m", "input": "Go on.", "tools": [TOOL], **fields}
        answer = await self.http.post("/responses", json=body)
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = answer.json()
        return response

    async def get(self, path: str) -> Any:
        return (await self.http.get(path)).raise_for_status().json()

    async def delete(self, path: str) -> None:
        (await self.http.delete(path)).raise_for_status()


@contextlib.asynccontextmanager
async def studio(store: Store, *answers: list[Any], **values: Any) -> AsyncIterator[Studio]:
    images, counting = ImagesServer(), Loads(store)
    images.image = IMAGE
    async with serving(images.app) as url:
        art = {"url": f"{url}/v1", "api_key": "sk-art", "models": ["none"]}
        backends = {"art": art, "default": {"backend": "demo"}}
        tools = {"image_generation": {"backend": "art", "model": "gpt-image-1"}, **values.pop("tools", {})}
        app = create_app(
            settings(tools=tools, backends=backends, **values),
            backend=Scripted(*answers),
            store=counting,  # type: ignore[arg-type]
        )
        async with serving(app) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            yield Studio(http, url, counting, images)


def images_in(items: list[dict[str, Any]]) -> list[object]:
    return [item["result"] for item in items if item["type"] == "image_generation_call"]


def left(location: StoreLocation) -> bool:
    """Is anything left of an image?"""
    return IMAGE[:64].encode() in location.contents()


@pytest.mark.parametrize("cache", [0, 64 * 1024 * 1024])
async def test_stored_image_is_not_loaded_by_a_later_turn(location: StoreLocation, cache: int) -> None:
    async with studio(location.open(), *DRAW, ANSWER, ANSWER, history_cache=cache) as at:
        first = await at.ask()
        assert images_in(first["output"]) == [IMAGE]
        at.store.bytes = 0
        second = await at.ask(previous_response_id=first["id"])
        await at.ask(previous_response_id=second["id"])
        assert at.store.bytes < SMALL
        records = await at.store.all(f"anonymous:{first['id'][-24:]}")
        assert len(records) == 3
        assert sum(map(len, records.values())) < SMALL

        assert await at.get(f"/responses/{first['id']}") == first
        chain = await at.get(f"/antiphon/responses/{second['id']}/chain")
        assert images_in(chain["data"][0]["response"]["output"]) == [IMAGE]


async def test_stored_image_is_edited_by_a_later_turn(location: StoreLocation) -> None:
    async with studio(location.open(), *DRAW, ANSWER, *EDIT) as at:
        first = await at.ask()
        second = await at.ask(previous_response_id=first["id"])
        third = await at.ask(previous_response_id=second["id"])
    path, body, _ = at.images.requests[-1]
    assert path == "edits"
    assert body["image"] == [("image/png", BYTES)]
    assert third["output"][0]["action"] == "edit"


async def test_stored_image_of_a_deleted_response_is_deleted(location: StoreLocation) -> None:
    async with studio(location.open(), *DRAW, ANSWER) as at:
        first = await at.ask()
        await at.ask(previous_response_id=first["id"])
        assert left(location)
        await at.delete(f"/responses/{first['id']}")
        assert not left(location)
        assert (await at.http.get(f"/responses/{first['id']}")).status_code == 404
        assert (await at.http.delete(f"/responses/{first['id']}")).status_code == 404


async def test_stored_image_in_the_input_of_another_response_stays(location: StoreLocation) -> None:
    async with studio(location.open(), *DRAW, *EDIT) as at:
        first = await at.ask()
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        second = await at.ask(input=[reference, {"role": "user", "content": "Make it blue."}])
        assert at.images.requests[-1][1]["image"] == [("image/png", BYTES)]
        await at.delete(f"/responses/{first['id']}")
        items = (await at.get(f"/responses/{second['id']}/input_items"))["data"]
        assert images_in(items) == [IMAGE]
        records = await at.store.all(f"anonymous:{second['id'][-24:]}")
        assert sum(map(len, records.values())) < SMALL
        await at.delete(f"/responses/{second['id']}")
        assert not left(location)


async def test_stored_image_lives_as_long_as_its_conversation_is_continued(location: StoreLocation) -> None:
    async with studio(location.open(), *DRAW, ANSWER, ANSWER, ANSWER, ANSWER) as at:
        first = last = await at.ask()
        for _ in range(3):
            location.advance(TTL * 0.6)
            last = await at.ask(previous_response_id=last["id"])
        assert await at.get(f"/responses/{first['id']}") == first
        location.advance(TTL * 1.1)
        assert (await at.http.get(f"/responses/{first['id']}")).status_code == 404
        await at.store.delete_expired()
        assert not left(location)


async def test_stored_image_lives_as_long_as_another_branch_is_used(location: StoreLocation) -> None:
    async with studio(location.open(), ANSWER, *DRAW, ANSWER, ANSWER) as at:
        root = await at.ask()
        drawn = await at.ask(previous_response_id=root["id"])
        last = await at.ask(previous_response_id=root["id"])
        for use in ("continue", "get", "list"):
            location.advance(TTL * 0.6)
            if use == "continue":
                last = await at.ask(previous_response_id=last["id"])
            else:
                await at.get(f"/responses/{last['id']}{'/input_items' if use == 'list' else ''}")
        location.advance(TTL * 0.6)
        assert images_in((await at.get(f"/responses/{drawn['id']}"))["output"]) == [IMAGE]


async def test_stored_image_of_an_expired_response_is_gone(location: StoreLocation) -> None:
    async with studio(location.open(), *DRAW) as at:
        first = await at.ask()
        bucket = f"anonymous:{first['id'][-24:]}"
        location.advance(TTL * 1.1)
        assert await at.store.all(bucket) == await at.store.all(f"{bucket}:images") == {}


async def test_stored_images_of_a_conversation_are_beside_it(location: StoreLocation) -> None:
    async with studio(location.open(), *DRAW, ANSWER, *EDIT) as at:
        conversation = (await at.http.post("/conversations", json={})).json()["id"]
        first = await at.ask(conversation=conversation)
        at.store.bytes = 0
        await at.ask(conversation=conversation)
        assert at.store.bytes < SMALL
        await at.ask(conversation=conversation)
        assert at.images.requests[-1][1]["image"] == [("image/png", BYTES)]

        await at.delete(f"/responses/{first['id']}")
        items = f"/conversations/{conversation}/items"
        listed = (await at.get(f"{items}?order=asc"))["data"]
        assert images_in(listed) == [IMAGE, IMAGE]
        at.store.bytes = 0
        assert (await at.get(f"{items}?limit=1"))["has_more"]
        assert at.store.bytes < SMALL
        image = first["output"][0]["id"]
        assert (await at.get(f"{items}/{image}"))["result"] == IMAGE
        await at.delete(f"{items}/{image}")
        listed = (await at.get(f"{items}?order=asc"))["data"]
        assert images_in(listed) == [IMAGE]
        second = next(item["id"] for item in listed if item["type"] == "image_generation_call")
        other = (
            await at.http.post("/conversations", json={"items": [{"type": "item_reference", "id": second}]})
        ).json()
        copy = (await at.get(f"/conversations/{other['id']}/items"))["data"]
        assert images_in(copy) == [IMAGE]

        await at.delete(f"/conversations/{conversation}")
        await at.delete(f"/conversations/{other['id']}")
        for response in [one["id"] for one in (await at.get("/antiphon/responses"))["data"]]:
            await at.delete(f"/responses/{response}")
        assert not left(location)


async def test_stored_image_of_a_background_response_is_beside_it(location: StoreLocation) -> None:
    async with studio(location.open(), *DRAW, *EDIT) as at:
        id = (await at.ask(background=True))["id"]
        replay = await at.http.get(f"/responses/{id}", params={"stream": "true"})
        last = json.loads(replay.text.split("event: response.completed\ndata: ")[1].split("\n\n")[0])
        assert images_in(last["response"]["output"]) == [IMAGE]
        assert await at.get(f"/responses/{id}") == last["response"]
        records = await at.store.all(f"anonymous:{id[-24:]}")
        assert sum(map(len, records.values())) < SMALL
        await at.ask(previous_response_id=id)
        assert at.images.requests[-1][1]["image"] == [("image/png", BYTES)]


@pytest.mark.parametrize("status", ["completed", "in_progress"])
async def test_stored_image_of_a_run_ended_for_a_dead_worker_is_kept(tmp_path: Path, status: str) -> None:
    store = SQLiteStore(tmp_path / "antiphon.db", ttl=TTL)
    async with studio(store, *DRAW) as at:
        id = (await at.ask(background=True))["id"]
        events = (await at.http.get(f"/responses/{id}", params={"stream": "true"})).text
        run, log = RunKey(f"anonymous:{id[-24:]}", id), store.log(ttl=TTL, lease=0.001)
        # The worker died before it reported the end: as it had stored it, or before that.
        await log.delete(run)
        await log.begin(run, "a worker that died")
        written = events[: events.index("event: response.completed")]
        await log.append(
            run, "a worker that died", EventSegment(0, written.count("event: ") - 1, written.encode(), ends=False)
        )
        if status == "in_progress":
            stored = Turn.of((await store.all(run.partition))[id])
            begun = stored._replace(response={**stored.response, "status": "in_progress", "output": []}, images=None)
            await store.put(*run, begun.record())
            await store.delete_partition(f"{run.partition}:images")

        replay = (await at.http.get(f"/responses/{id}", params={"stream": "true"})).text
        last = json.loads(replay.rpartition("data: {")[2].split("\n\n")[0].join(["{", ""]))
        assert last["type"] == {"completed": "response.completed", "in_progress": "response.failed"}[status]
        assert images_in(last["response"]["output"]) == [IMAGE]
        assert await at.get(f"/responses/{id}") == last["response"]
        assert sum(map(len, (await store.all(run.partition)).values())) < SMALL
        await log.aclose()


async def test_unstored_image_is_edited_over_the_same_connection() -> None:
    store = MemoryStore(ttl=TTL)
    async with studio(store, *DRAW, *EDIT) as at, dial(at.url) as socket:
        await send(socket, tools=[TOOL], store=False)
        first = (await hear_out(socket))[-1]["response"]
        await send(socket, tools=[TOOL], store=False, previous_response_id=first["id"])
        second = (await hear_out(socket))[-1]["response"]
    assert images_in(second["output"]) == [IMAGE]
    assert at.images.requests[-1][1]["image"] == [("image/png", BYTES)]
    assert store.records == 0


async def test_stored_images_belong_to_their_key() -> None:
    async with studio(MemoryStore(ttl=TTL), *DRAW, ANSWER, api_keys="alice,bob") as at:
        at.http.headers["authorization"] = "Bearer alice"
        first = await at.ask()
        at.http.headers["authorization"] = "Bearer bob"
        assert (await at.http.get(f"/responses/{first['id']}")).status_code == 404
        assert (await at.http.delete(f"/responses/{first['id']}")).status_code == 404
        bare = {"type": "image_generation_call", "id": first["output"][0]["id"]}
        await at.ask(input=[bare, {"role": "user", "content": "Make it blue."}])
        assert [path for path, _, _ in at.images.requests] == ["generations"]
        at.http.headers["authorization"] = "Bearer alice"
        assert images_in((await at.get(f"/responses/{first['id']}"))["output"]) == [IMAGE]


async def test_stored_image_within_an_earlier_versions_record_is_read() -> None:
    async with studio(MemoryStore(ttl=TTL), *DRAW, *EDIT) as at:
        first = await at.ask()
        bucket = f"anonymous:{first['id'][-24:]}"
        turn = Turn.of((await at.store.all(bucket))[first["id"]])
        await at.store.delete_partition(f"{bucket}:images")
        await at.store.put(bucket, first["id"], turn._replace(response=first, images=None).record())  # type: ignore[arg-type]
        assert await at.get(f"/responses/{first['id']}") == first
        await at.ask(previous_response_id=first["id"])
        assert at.images.requests[-1][1]["image"] == [("image/png", BYTES)]
