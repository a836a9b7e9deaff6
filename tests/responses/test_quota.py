"""Storage quotas: counted bytes, refused requests, and freeing space."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.access import UNRESTRICTED, KeyAccess, hash_of
from app.errors import TooManyRequests
from app.main import create_app
from app.responses.quota import FRESH, StorageQuota
from app.settings import SettingsError, load_settings
from app.stores import Change
from app.stores.memory import MemoryStore
from tests.support import sockets
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings

LIMIT = 100_000
LARGE = {"model": "m", "input": "x" * 60_000}
MESSAGE = {"type": "message", "role": "user", "content": "x" * 60_000}
HELLO: list[Any] = [delta(content="Hello.")]


@asynccontextmanager
async def client(
    backend: Scripted | None = None, key: str = "", store: Any = None, **values: Any
) -> AsyncIterator[httpx.AsyncClient]:
    values = {"max_stored_bytes": LIMIT, **values}
    app = create_app(settings(**values), backend=backend or Scripted(HELLO), store=store)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=60, trust_env=False) as http,
    ):
        yield http


def assert_full(refused: httpx.Response) -> None:
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("60", "false")
    for named in (f"your limit of {LIMIT} bytes", "DELETE /v1/responses/ID", "`store: false`"):
        assert named in refused.json()["error"]["message"]


async def test_response_beyond_the_quota_is_refused_until_another_is_deleted() -> None:
    backend = Scripted(HELLO)
    async with client(backend) as http:
        first = (await http.post("/responses", json=LARGE)).json()
        for way in ({}, {"stream": True}, {"background": True}, {"previous_response_id": first["id"]}):
            assert_full(await http.post("/responses", json={**LARGE, **way}))
        assert len(backend.received) == 1
        assert (await http.post("/responses", json={**LARGE, "store": False})).status_code == 200
        assert (await http.delete(f"/responses/{first['id']}")).status_code == 200
        assert (await http.post("/responses", json=LARGE)).status_code == 200


async def test_conversation_beyond_the_quota_is_refused_until_another_is_deleted() -> None:
    async with client() as http:
        first = (await http.post("/conversations", json={"items": [MESSAGE]})).json()
        assert_full(await http.post("/conversations", json={"items": [MESSAGE]}))
        assert_full(await http.post(f"/conversations/{first['id']}/items", json={"items": [MESSAGE]}))
        assert len((await http.get(f"/conversations/{first['id']}/items")).json()["data"]) == 1
        small = (await http.post("/conversations", json={})).json()
        assert (await http.delete(f"/conversations/{first['id']}")).status_code == 200
        assert (await http.post(f"/conversations/{small['id']}/items", json={"items": [MESSAGE]})).status_code == 200


async def test_turn_of_a_websocket_beyond_the_quota_is_refused() -> None:
    async with sockets.talking(Scripted(HELLO), max_stored_bytes=LIMIT) as socket:
        assert (await sockets.response(socket, input=LARGE["input"], store=True))["status"] == "completed"
        (frame,) = await sockets.ask(socket, input=LARGE["input"], store=True)
        assert (frame["status"], frame["error"]["code"]) == (429, "insufficient_quota")
        assert (await sockets.response(socket, input=LARGE["input"], store=False))["status"] == "completed"


@pytest.mark.parametrize(
    ("key", "second"), [("own", 429), ("none", 200), ("default", 429), ("shared", 429), ("larger", 200)]
)
async def test_key_has_its_own_quota_for_all_of_its_owner(key: str, second: int) -> None:
    """The first response is stored by a key of the same owner without a quota."""
    own: dict[str, dict[str, Any]] = {
        "own": {"max_stored_bytes": LIMIT},
        "none": {"max_stored_bytes": 0},
        "default": {},
        "shared": {"max_stored_bytes": LIMIT, "owner": "team"},
        "larger": {"max_stored_bytes": "1MiB"},
    }
    owner = own[key].get("owner", key)
    keys = {name: {"hash": hash_of(name), **table} for name, table in own.items()}
    keys["first"] = {"hash": hash_of("first"), "owner": owner, "max_stored_bytes": 0}
    async with client(keys=keys) as http:
        for name, status in (("first", 200), (key, second)):
            answer = await http.post("/responses", json=LARGE, headers={"authorization": f"Bearer {name}"})
            assert answer.status_code == status


async def test_responses_in_progress_count() -> None:
    gate = asyncio.Event()
    backend = Scripted([gate, *HELLO])
    async with client(backend) as http:
        running = asyncio.create_task(http.post("/responses", json=LARGE))
        while not backend.waiting:
            await asyncio.sleep(0.01)
        assert_full(await http.post("/responses", json=LARGE))
        assert_full(await http.post("/conversations", json={"items": [MESSAGE]}))
        gate.set()
        assert (await running).status_code == 200
        assert_full(await http.post("/responses", json=LARGE))


async def test_concurrent_conversations_stay_within_the_quota() -> None:
    async with client() as http:
        answers = await asyncio.gather(*(http.post("/conversations", json={"items": [MESSAGE]}) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200, *[429] * 9]


class Counted(MemoryStore):
    """A store that counts measurements of its size."""

    measured = 0

    async def stored_bytes(self, owner: str) -> int:
        self.measured += 1
        return await super().stored_bytes(owner)


def change(size: int) -> Change:
    return Change("anonymous:chain", {"resp_1": bytes(size)})


async def test_store_is_measured_seldom_and_before_a_refusal() -> None:
    now = 0.0
    store = Counted(ttl=1000)
    quota = StorageQuota(store, LIMIT, clock=lambda: now)
    for _ in range(3):
        await quota.apply(UNRESTRICTED, change(20_000))
    assert store.measured == 1
    now += FRESH
    await quota.apply(UNRESTRICTED, change(20_000))
    assert store.measured == 2
    await quota.apply(UNRESTRICTED, change(70_000))  # more than is left by the sum of both, but not by a measurement
    assert store.measured == 3
    with pytest.raises(TooManyRequests, match="Delete some"):
        await quota.apply(UNRESTRICTED, change(40_000))
    await store.delete_partition("anonymous:chain")
    await quota.apply(UNRESTRICTED, change(90_000))


class Unmeasured:
    """A store without `stored_bytes`."""

    @classmethod
    def from_url(cls, url: str, *, ttl: float) -> Unmeasured:
        return cls()


def test_custom_store_without_a_method_is_refused() -> None:
    with pytest.raises(SettingsError, match="ServerStore"):
        create_app(settings(store_url="tests.responses.test_quota:Unmeasured"))


async def test_store_is_not_measured_without_a_quota() -> None:
    store = Counted(ttl=1000)
    for quota, access in (
        (StorageQuota(store), UNRESTRICTED),
        (StorageQuota(store, LIMIT), KeyAccess(max_stored_bytes=0)),
    ):
        await quota.apply(access, change(10 * LIMIT))
    assert store.measured == 0


async def test_quota_changed_at_sighup_applies_to_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CONFIG", "antiphon.toml")
    toml = tmp_path / "antiphon.toml"
    toml.write_text("")
    async with serving(create_app(load_settings(), backend=Scripted(HELLO), reload=load_settings)) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            assert (await http.post("/responses", json=LARGE)).status_code == 200
            toml.write_text(f"max_stored_bytes = {LIMIT}")
            os.kill(os.getpid(), signal.SIGHUP)
            while "settings reloaded changed=max_stored_bytes" not in capsys.readouterr().err:
                await asyncio.sleep(0.005)
            assert_full(await http.post("/responses", json=LARGE))
