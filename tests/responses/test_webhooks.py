"""Webhooks of background responses: signed as OpenAI's are, sent until they are accepted, also by another process."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.assembly.parts import build_store
from app.errors import BackendError
from app.main import create_app
from app.responses.background.webhooks import PARTITION, WebhookEndpoint, Webhooks, _Delivery
from app.settings import SettingsError, load_settings
from app.stores import Change, Store
from app.stores.memory import MemoryStore
from tests.faults.servers import server
from tests.support.build import delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings
from tests.support.store_locations import StoreLocation, location_of
from tests.support.upstream import CLOSE, HANG, Received, Upstream, status

KEY = b"k" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
ASK = {"model": "m", "input": "Hi", "background": True}
ACCEPTED = status(200)


class Receiver(Upstream):
    """A webhook receiver."""

    def __init__(self) -> None:
        super().__init__()
        self.always(ACCEPTED)
        self.arrived = asyncio.Condition()

    def answer_to(self, request: Received) -> list[Any]:
        asyncio.get_running_loop().create_task(self._notify())
        return super().answer_to(request)

    async def _notify(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()

    async def received(self, count: int) -> list[Received]:
        """Wait until so many requests have come."""
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as server:
        yield server


def webhook_settings(receiver: Receiver, **options: Any) -> dict[str, Any]:
    return {"webhooks": {"one": {"url": f"{receiver.url}/hook?a=b", "secret": SECRET, **options}}}


def unwrapped(request: Received) -> Any:
    """Return the event, as the official client reads it and verifies its signature."""
    client = openai.OpenAI(api_key="x", webhook_secret=SECRET)
    return client.webhooks.unwrap(request.body, request.headers)


async def test_official_client_verifies_the_webhook(receiver: Receiver) -> None:
    backend = Scripted([delta(content="Hi"), finish("stop")])
    async with antiphon(backend, **webhook_settings(receiver)) as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        response = (await http.post("/responses", json=ASK)).json()
        (request,) = await receiver.received(1)
        event = unwrapped(request)
        assert (event.type, event.object, event.data.id) == ("response.completed", "event", response["id"])
        assert event.id == request.headers["webhook-id"]
        # The response is complete and can be retrieved.
        assert (await http.get(f"/responses/{event.data.id}")).json()["status"] == "completed"
        assert request.path == "/v1/hook?a=b"
    with pytest.raises(openai.InvalidWebhookSignatureError):
        openai.OpenAI(api_key="x", webhook_secret=SECRET).webhooks.unwrap(
            request.body.replace(b"completed", b"cancelled"), request.headers
        )


@pytest.mark.parametrize("ending", ["incomplete", "failed", "cancelled"])
async def test_webhook_of_every_ending_is_sent(receiver: Receiver, ending: str) -> None:
    last: dict[str, Any] = {
        "incomplete": finish("length"),
        "failed": BackendError("The backend failed."),
        "cancelled": asyncio.Event(),
    }
    backend = Scripted([delta(content="Hi"), last[ending]])
    async with antiphon(backend, **webhook_settings(receiver)) as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        response = (await http.post("/responses", json=ASK)).json()
        if ending == "cancelled":
            await http.post(f"/responses/{response['id']}/cancel")
        event = unwrapped((await receiver.received(1))[0])
    assert (event.type, event.data.id) == (f"response.{ending}", response["id"])


async def test_webhooks_of_named_events_alone_are_sent(receiver: Receiver) -> None:
    backend = Scripted([delta(content="Hi"), finish("stop")], [delta(content="Hi"), finish("length")])
    options = webhook_settings(receiver, events=["response.incomplete"])
    async with antiphon(backend, **options) as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        await http.post("/responses", json={"model": "m", "input": "Hi"})
        incomplete = (await http.post("/responses", json=ASK)).json()
        (request,) = await receiver.received(1)
        assert unwrapped(request).data.id == incomplete["id"]


# Delivery, with a fake clock.


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def sender(store: Store, receiver: Receiver, clock: Clock, name: str = "one", **options: Any) -> Webhooks:
    endpoint = WebhookEndpoint(name, f"{receiver.url}/hook", KEY, frozenset({"response.completed"}))
    return Webhooks({name: endpoint}, store, httpx.AsyncHTTPTransport(), clock=clock, **options)


async def settled(webhooks: Webhooks) -> None:
    """Start due deliveries, and wait for their end."""
    await webhooks._begin_due()
    while webhooks._attempts:
        await asyncio.wait(webhooks._attempts)
        await asyncio.sleep(0)


RESPONSE: Any = {"id": "resp_1", "status": "completed", "output": [], "completed_at": 999_999}


@pytest.mark.parametrize(
    "failure",
    [status(500), status(302, None, {"Location": "http://127.0.0.1:9/"}), [CLOSE]],
    ids=["fails", "redirects", "breaks off"],
)
async def test_webhook_that_is_not_accepted_is_sent_again(receiver: Receiver, failure: Any) -> None:
    store, clock = MemoryStore(ttl=3600), Clock()
    webhooks = sender(store, receiver, clock)
    await webhooks.announce(RESPONSE)
    receiver.say(failure)
    await settled(webhooks)
    assert len(receiver.requests) == 1
    await settled(webhooks)
    assert len(receiver.requests) == 1  # not yet
    clock.now += 10
    await settled(webhooks)
    first, second = receiver.requests
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) == int(first.headers["webhook-timestamp"]) + 10
    assert await store.all(PARTITION) == {}
    await webhooks.aclose()


async def test_webhook_that_is_never_accepted_ends(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(ttl=3600), Clock()
    webhooks = sender(store, receiver, clock)
    await webhooks.announce(RESPONSE)
    receiver.always(status(500))
    for _ in range(20):
        await settled(webhooks)
        clock.now += 30 * 3600
    assert len(receiver.requests) == 11
    assert await store.all(PARTITION) == {}
    assert "webhook delivery abandoned" in caplog.text
    await webhooks.aclose()


async def test_webhook_for_a_removed_endpoint_is_deleted_after_the_last_attempt(receiver: Receiver) -> None:
    store, clock = MemoryStore(ttl=3600), Clock()
    before, after = sender(store, receiver, clock), sender(store, receiver, clock, "two", delays=(5, 30))
    await before.announce({**RESPONSE, "completed_at": clock.now})
    for seconds, left in ((35, 1), (1, 0)):
        clock.now += seconds
        await settled(after)
        assert len(await store.all(PARTITION)) == left
    assert receiver.requests == []
    for webhooks in (before, after):
        await webhooks.aclose()


async def test_webhook_server_that_stalls_does_not_hold_up_others(receiver: Receiver) -> None:
    store, clock, go = MemoryStore(ttl=3600), Clock(), asyncio.Event()
    receiver.say(go, ACCEPTED)
    webhooks = sender(store, receiver, clock)
    for number in range(2):
        await webhooks.announce({**RESPONSE, "id": f"resp_{number}"})
    sending = asyncio.create_task(settled(webhooks))
    async with asyncio.timeout(60):
        while len(await store.all(PARTITION)) == 2:
            await asyncio.sleep(0.01)
    assert len(receiver.requests) == 2
    assert not sending.done()
    go.set()
    await sending
    assert await store.all(PARTITION) == {}
    await webhooks.aclose()


async def test_webhook_that_is_not_answered_in_time_is_sent_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = MemoryStore(ttl=3600), Clock()
    webhooks = sender(store, receiver, clock)
    await webhooks.announce(RESPONSE)
    receiver.say(HANG)
    with monkeypatch.context() as patched:
        patched.setattr("app.responses.background.webhooks.TIMEOUT", 0.2)
        await settled(webhooks)
    assert len(await store.all(PARTITION)) == 1
    clock.now += 10
    await settled(webhooks)
    assert await store.all(PARTITION) == {}
    await webhooks.aclose()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


@pytest.fixture
async def opened(location: StoreLocation) -> AsyncIterator[Callable[[], Store]]:
    """Open a shared store, once per process."""
    stores: list[Store] = []

    def open() -> Store:
        stores.append(location.open())
        return stores[-1]

    yield open
    for store in stores:
        await store.aclose()


async def test_webhook_is_sent_by_one_of_several_processes(receiver: Receiver, opened: Callable[[], Store]) -> None:
    clock = Clock()
    processes = [sender(opened(), receiver, clock) for _ in range(4)]
    for number in range(10):
        await processes[0].announce({**RESPONSE, "id": f"resp_{number}"})
    await asyncio.gather(*map(settled, processes))
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(ids) == len(set(ids)) == 10
    for process in processes:
        await process.aclose()


async def test_webhook_of_a_dead_process_is_sent_by_another(receiver: Receiver, opened: Callable[[], Store]) -> None:
    clock = Clock()
    dead, alive = sender(opened(), receiver, clock), sender(opened(), receiver, clock)
    await dead.announce(RESPONSE)
    receiver.say(HANG)
    await dead._begin_due()
    await receiver.received(1)
    for attempt in dead._attempts:
        attempt.cancel()
    await settled(alive)
    assert len(receiver.requests) == 1
    clock.now += 61
    await settled(alive)
    assert len(receiver.requests) == 2
    await dead.aclose()
    await alive.aclose()


async def test_webhook_survives_a_restart(receiver: Receiver, tmp_path: Path) -> None:
    values = {**webhook_settings(receiver), "store_url": f"sqlite:///{tmp_path}/store.db"}
    receiver.say(HANG)
    async with antiphon(Scripted([delta(content="Hi"), finish("stop")]), **values) as url, httpx.AsyncClient() as http:
        response = (await http.post(f"{url}/v1/responses", json=ASK)).json()
        await receiver.received(1)
    store = build_store(settings(**values))
    ((name, record),) = (await store.all(PARTITION)).items()  # claimed by a stopped process: due in a minute
    due = _Delivery.of(record)._replace(due=0.0)
    await store.apply(Change(PARTITION, {due.name: due.record()}, delete=[name]))
    async with serving(create_app(settings(**values), backend=Scripted([]), store=store)):
        *_, request = await receiver.received(2)
    assert unwrapped(request).data.id == response["id"]


async def test_webhook_survives_kill_9(receiver: Receiver, location: StoreLocation) -> None:
    values = {"store_url": location.url, "webhooks": json.dumps(webhook_settings(receiver)["webhooks"])}
    receiver.say(HANG)
    with server(**values) as antiphon:
        async with httpx.AsyncClient(timeout=60) as http:
            response = (await http.post(f"{antiphon.url}/v1/responses", json=ASK)).json()
            (first,) = await receiver.received(1)
        antiphon.process.kill()
        antiphon.process.wait()
    store = build_store(settings(store_url=location.url))
    ((name, record),) = (await store.all(PARTITION)).items()  # claimed by the killed process: due in a minute
    due = _Delivery.of(record)._replace(due=0.0)
    await store.apply(Change(PARTITION, {due.name: due.record()}, delete=[name]))
    await store.aclose()
    with server(**values):
        _, second = await receiver.received(2)
    assert unwrapped(second).data.id == response["id"]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


# Settings.


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"url": "ftp://x", "secret": SECRET}, "http or https"),
        ({"url": "https://me:pw@x/", "secret": SECRET}, "must not contain a user or a password"),
        ({"url": "https://x", "secret": "whsec_short"}, "whsec_"),
        ({"url": "https://x", "secret": "k" * 32}, "whsec_"),
        ({"url": "https://x"}, "either `secret` or `secret_env`"),
        ({"url": "https://x", "secret": SECRET, "event": []}, "unknown key; did you mean events?"),
        ({"url": "https://x", "secret": SECRET, "events": ["response.done"]}, "response.completed"),
    ],
)
def test_webhook_table_that_is_invalid_is_refused(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(webhooks={"one": table})
    assert problem in str(raised.value)
    assert "whsec_short" not in str(raised.value).replace("`whsec_`", "")
