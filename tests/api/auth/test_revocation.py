"""A revoked key's responses in progress finish, or end as failed with `ANTIPHON_REVOKED_RESPONSES=cancel`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx
import pytest
import websockets

from app.api.auth import Auth, cancel_revoked_responses
from app.core.access import hash_of
from app.errors import Unauthorized
from app.observability.lifecycle import ResponseLifecycle
from app.settings.keys import KeySettings
from tests.api.keys.served import Keys, bearer, serving_keys
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.upstream import DONE, Upstream, chunk, finish, sse
from tests.support.upstream import upstream as upstream

REVOKED = "This API key was revoked."


@contextlib.asynccontextmanager
async def answering(release: asyncio.Event, **values: Any) -> AsyncIterator[tuple[Keys, Scripted, dict[str, Any]]]:
    """A server with a key created by the API; the second half of its answer waits for `release`."""
    backend = Scripted([delta(content="Hel"), release, delta(content="lo")])
    async with serving_keys(backend, **{"revoked_responses": "cancel", **values}) as keys:
        yield keys, backend, await keys.create("alice", requests_per_minute=0)


async def until_paused(backend: Scripted) -> None:
    async with asyncio.timeout(30):
        while not backend.waiting:
            await asyncio.sleep(0.01)


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def revoked(keys: Keys, made: dict[str, Any], backend: Scripted, asking: Awaitable[Any]) -> Any:
    """Revoke a key when a request has half of its answer, and return the rest."""
    task = asyncio.ensure_future(asking)
    await until_paused(backend)
    assert (await keys.call("DELETE", f"keys/{made['id']}")).status_code == 200
    return await task


async def test_stream_of_a_revoked_key_ends_as_failed_and_its_backend_is_left() -> None:
    async with answering(asyncio.Event()) as (keys, backend, made):
        answer = await revoked(keys, made, backend, keys.ask(made["secret"], stream=True))
        events = events_of(answer.text)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        failed = events[-1]["response"]
        assert (failed["error"]["code"], failed["error"]["message"]) == ("revoked_api_key", REVOKED)
        assert failed["output"][0]["content"][0]["text"] == "Hel"
        assert answer.text.endswith("data: [DONE]\n\n")
        assert backend.opened == 0


async def test_json_response_of_a_revoked_key_is_a_401_or_has_its_output() -> None:
    async with answering(asyncio.Event()) as (keys, backend, made):
        answer = await revoked(keys, made, backend, keys.ask(made["secret"]))
        assert answer.status_code == 200 and answer.json()["status"] == "failed"
    backend = Scripted([asyncio.Event()])
    async with serving_keys(backend, revoked_responses="cancel") as keys:
        made = await keys.create("alice")
        answer = await revoked(keys, made, backend, keys.ask(made["secret"]))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "revoked_api_key")


async def test_background_response_of_a_revoked_key_fails() -> None:
    async with answering(asyncio.Event()) as (keys, backend, made):
        queued = (await keys.ask(made["secret"], background=True)).json()
        await until_paused(backend)
        await keys.call("DELETE", f"keys/{made['id']}")
        again = await keys.create("alice")  # the same owner
        async with asyncio.timeout(30):
            while (found := (await get(keys, queued["id"], again["secret"])).json())["status"] != "failed":
                await asyncio.sleep(0.01)
        assert found["error"]["message"] == REVOKED


async def get(keys: Keys, response_id: str, key: str) -> httpx.Response:
    return await keys.http.get(f"/responses/{response_id}", headers=bearer(key))


async def test_websocket_turn_of_a_revoked_key_fails_and_the_next_is_refused() -> None:
    async with answering(asyncio.Event()) as (keys, backend, made):
        url = f"{str(keys.http.base_url).replace('http', 'ws', 1)}responses"
        async with websockets.connect(url, additional_headers=bearer(made["secret"])) as socket:
            create = json.dumps({"type": "response.create", "model": "m", "input": "Hi."})
            await socket.send(create)
            await until_paused(backend)
            await keys.call("DELETE", f"keys/{made['id']}")
            while (event := json.loads(await socket.recv()))["type"] != "response.failed":
                pass
            assert event["response"]["error"]["message"] == REVOKED
            await socket.send(create)
            refused = json.loads(await socket.recv())
            assert (refused["type"], refused["error"]["code"]) == ("error", "invalid_api_key")


@pytest.mark.parametrize("passed", ["always", "never"])
async def test_chat_stream_of_a_revoked_key_ends_with_an_error(upstream: Upstream, passed: str) -> None:
    release = asyncio.Event()
    upstream.always(sse(chunk("Hel"), release, chunk("lo"), finish(), DONE))
    backend = {"local": {"url": upstream.url, "passthrough": passed}}
    async with serving_keys(backend_url=upstream.url, backends=backend, revoked_responses="cancel") as keys:
        made = await keys.create("alice")
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}
        streamed = keys.http.stream("POST", "/chat/completions", json=body, headers=bearer(made["secret"]))
        async with streamed as answer:
            lines = answer.aiter_lines()
            while "Hel" not in await anext(lines):
                pass
            await keys.call("DELETE", f"keys/{made['id']}")
            rest = [line async for line in lines]
        assert REVOKED in "".join(rest) and '"stop"' not in "".join(rest)
        release.set()


@pytest.mark.parametrize("values", [{"revoked_responses": "finish"}, {}], ids=["finish", "expired"])
async def test_response_in_progress_finishes(values: dict[str, Any]) -> None:
    """A revoked key's response by default, and another key's always."""
    release = asyncio.Event()
    async with answering(release, **values) as (keys, backend, made):
        asker = made["secret"] if values else "user"
        task = asyncio.ensure_future(keys.ask(asker, stream=True))
        await until_paused(backend)
        await keys.call("DELETE", f"keys/{made['id']}")
        release.set()
        assert events_of((await task).text)[-1]["type"] == "response.completed"


async def test_removed_key_of_the_settings_ends_its_responses() -> None:

    auth = Auth(named={name: KeySettings(hash=[hash_of(name)]) for name in ("a", "b")})
    running = {name: lifecycle(name) for name in ("a", "b")}
    cancel_revoked_responses(auth, running.values)
    auth.replace_keys([], {"b": KeySettings(hash=[hash_of("new")])})
    assert isinstance(running["a"].stopped, Unauthorized) and running["b"].stopped is None


def lifecycle(key: str) -> ResponseLifecycle:
    response: Any = {"id": "resp_1", "status": "in_progress"}
    return ResponseLifecycle(response, "json", owner=key, key=key)


async def test_stop_and_cancellation_at_once_are_a_cancellation() -> None:
    made, ready = lifecycle("a"), asyncio.Event()

    async def generate() -> None:
        with made:
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(generate())
    await ready.wait()
    made.stop(Unauthorized(REVOKED))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_stop_before_the_generation_prevents_it() -> None:
    made = lifecycle("a")
    made.stop(Unauthorized(REVOKED))
    with pytest.raises(Unauthorized), made:
        raise AssertionError
