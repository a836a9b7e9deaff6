"""Background responses: made by themselves, followed from any point, and ended truthfully whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openresponses_types.types import ResponseResource

from app.assembly.parts import build_store
from app.core.dialects import DIALECTS
from app.core.history.resource import new_response
from app.core.history.turns import Turn
from app.core.stream import event_batch
from app.core.types.request import TERMINAL, CreateResponse, Event
from app.errors import BackendError
from app.responses import run as running
from app.responses.background import GONE, EventSubscription
from app.stores import EventLog, EventSegment, RunKey
from app.stores.memory import MemoryStore
from tests.support import laws
from tests.support.build import call, delta, finish, story, whole
from tests.support.logs import records_of
from tests.support.redis_server import RedisServer
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon, settings

ASK = {"model": "m", "input": "Hi", "background": True}
HELLO: list[Step] = [delta(content="Hel"), delta(content="lo")]

HELLO_STORY = (
    "created queued in_progress output_item.added content_part.added output_text.delta output_text.delta "
    "output_text.done content_part.done output_item.done completed"
)


@contextlib.asynccontextmanager
async def serving(
    backend: Scripted, headers: dict[str, str] | None = None, **values: Any
) -> AsyncIterator[httpx.AsyncClient]:
    values = {"shutdown_grace": 0, **values}
    async with (
        antiphon(backend, **values) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=60, trust_env=False) as http,
    ):
        yield http


async def events_of(http: httpx.AsyncClient, id: str, **query: Any) -> list[Event]:
    """Follow a response to its end."""
    answer = await http.get(f"/responses/{id}", params={"stream": "true", **query})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parsed(answer.text)


async def follow(http: httpx.AsyncClient, id: str) -> asyncio.Task[list[Event]]:
    """Begin to follow a response: the server has answered when this returns, and the task ends with the events."""
    answer = await http.send(http.build_request("GET", f"/responses/{id}", params={"stream": "true"}), stream=True)
    assert answer.status_code == 200

    async def read() -> list[Event]:
        try:
            return parsed((await answer.aread()).decode())
        finally:
            await answer.aclose()

    return asyncio.create_task(read())


def parsed(body: str) -> list[Event]:
    blocks = [block for block in body.split("\n\n") if block and not block.startswith(":")]
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.partition("\ndata: ")[2]) for block in blocks[:-1]]


async def until_ended(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """Poll, as clients do."""
    async with asyncio.timeout(60):
        while True:
            response: dict[str, Any] = (await http.get(f"/responses/{id}")).json()
            if response["status"] in TERMINAL:
                return response
            await asyncio.sleep(0.01)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


# From queued to completed.


async def test_background_response_is_queued_then_in_progress_then_completed() -> None:
    go = asyncio.Event()
    backend = Scripted([*HELLO, go])
    async with serving(backend) as http:
        queued = (await http.post("/responses", json=ASK)).json()
        assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
        await until(lambda: backend.opened)
        running = (await http.get(f"/responses/{queued['id']}")).json()
        assert (running["status"], running["output"]) == ("in_progress", [])
        go.set()
        response = await until_ended(http, queued["id"])

    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Hello"
    for each in (queued, running, response):
        ResponseResource.model_validate(each)


async def test_background_response_that_has_not_ended_tells_the_poll_interval() -> None:
    go = asyncio.Event()
    backend = Scripted([*HELLO, go])
    async with serving(backend) as http:
        queued = await http.post("/responses", json=ASK, headers={"idempotency-key": "k"})
        await until(lambda: backend.opened)
        running = await http.get(f"/responses/{queued.json()['id']}")
        replayed = await http.post("/responses", json=ASK, headers={"idempotency-key": "k"})
        go.set()
        await until_ended(http, queued.json()["id"])
        ended = await http.get(f"/responses/{queued.json()['id']}")

    poll_delays = [answer.headers.get("openai-poll-after-ms") for answer in (queued, running, replayed, ended)]
    assert poll_delays == ["1000", "1000", "1000", None]


class Appended:
    """A store that records append times, and can fail at a given append."""

    def __init__(self, failing_at: int = -1) -> None:
        self.store = MemoryStore(ttl=60)
        self.times: list[float] = []
        opened = self.store.log

        def log(**options: Any) -> Any:
            log = opened(**options)
            add = log.append

            async def append(*args: Any) -> Any:
                self.times.append(time.monotonic())
                if len(self.times) - 1 == failing_at:
                    raise ZeroDivisionError("what was said")
                return await add(*args)

            log.append = append  # type: ignore[method-assign]
            return log

        self.store.log = log  # type: ignore[method-assign]


async def test_background_events_in_quick_succession_are_written_together() -> None:
    appended = Appended()
    quick: list[Step] = [step for n in range(200) for step in (delta(content=f"{n} "), 0.001)]
    async with serving(Scripted(quick), store=appended.store) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        events = await events_of(http, id)

    laws.check(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "".join(f"{n} " for n in range(200))
    assert story(events).count("output_text.delta") == 200
    _, *times, _ = appended.times
    assert all(later - earlier >= 0.9 * running.APPEND_PAUSE for earlier, later in pairwise(times))
    assert 2 < len(appended.times) < 60


async def test_background_beginning_and_end_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "APPEND_PAUSE", 3600)
    appended = Appended()
    go = asyncio.Event()
    async with serving(Scripted([*HELLO, go, *HELLO]), store=appended.store) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        await until(lambda: len(appended.times) == 2)  # it is queued, and it is in progress
        go.set()
        async with asyncio.timeout(60):
            events = await events_of(http, id)

    laws.check(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "HelloHello"
    assert len(appended.times) == 3


async def test_background_response_goes_on_without_readers() -> None:
    go = asyncio.Event()
    async with serving(Scripted([*HELLO, go])) as http:
        async with http.stream("POST", "/responses", json={**ASK, "stream": True}) as streamed:
            id = json.loads([line async for line in _some(streamed, 2)][1].removeprefix("data: "))["response"]["id"]
        go.set()

        assert (await until_ended(http, id))["status"] == "completed"


async def _some(streamed: httpx.Response, lines: int) -> AsyncIterator[str]:
    async for line in streamed.aiter_lines():
        yield line
        lines -= 1
        if not lines:
            return


async def test_background_stream_is_that_of_any_response_but_queued_first() -> None:
    async with serving(Scripted(HELLO)) as http:
        events = parsed((await http.post("/responses", json={**ASK, "stream": True})).text)

    assert story(events) == HELLO_STORY
    assert [events[n]["response"]["status"] for n in range(3)] == ["queued", "queued", "in_progress"]
    laws.check(events)


async def test_background_records_do_not_expire_while_it_runs() -> None:
    class Renewed(MemoryStore):
        times = 0

        async def get(self, bucket: str, name: str) -> bytes | None:
            self.times += 1
            return await super().get(bucket, name)

    clock, rest = Clock(), asyncio.Event()
    store = Renewed(ttl=2, clock=clock)
    async with serving(Scripted([*HELLO, rest]), store=store, store_ttl=1) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        for number in range(3):
            await until(lambda: store.times > number)  # noqa: B023
            clock.now += 1.5
        rest.set()
        assert (await until_ended(http, id))["status"] == "completed"


async def test_background_response_can_be_continued_once_ended() -> None:
    go = asyncio.Event()
    backend = Scripted([*HELLO, go], [delta(content="again")])
    async with serving(backend) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        next_turn = {"model": "m", "input": "And?", "previous_response_id": id}
        refused = await http.post("/responses", json=next_turn)
        go.set()
        await until_ended(http, id)
        continued = await http.post("/responses", json={**next_turn, "background": True})
        await until_ended(http, continued.json()["id"])

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
    assert [message["content"] for message in backend.received[-1]["messages"]] == ["Hi", "Hello", "And?"]


async def test_background_with_store_false_is_refused() -> None:
    async with serving(Scripted(HELLO)) as http:
        refused = await http.post("/responses", json={**ASK, "store": False})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")


# Following.


async def test_background_stream_resumes_from_any_point() -> None:
    go = asyncio.Event()
    async with serving(Scripted([delta(content=str(n)) for n in range(5)] + [go, delta(content="!")])) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        points = range(-1, 16)
        following = [
            asyncio.create_task(events_of(http, id, **({"starting_after": n} if n >= 0 else {}))) for n in points
        ]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in following)
        go.set()
        whole_, *parts = [await task for task in following]
        again = [await events_of(http, id, starting_after=n) for n in points if n >= 0]

    laws.check(whole_)
    assert len(whole_) == 15
    assert parts == again == [whole_[n + 1 :] for n in points if n >= 0]


async def test_background_batches_are_cut_where_the_caller_left_off() -> None:
    # One read from the backend makes a batch, stored as one piece.
    async with serving(Scripted([[*HELLO, *whole()]])) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        events = await events_of(http, id)
        for number in range(len(events)):
            assert await events_of(http, id, starting_after=number) == events[number + 1 :]


@pytest.mark.parametrize(
    ("script", "ending", "status"),
    [
        (whole(*HELLO), "completed", "completed"),
        ([*HELLO, finish("length")], "incomplete", "incomplete"),
        ([*HELLO, finish("content_filter")], "incomplete", "incomplete"),
        ([*HELLO, BackendError("The backend fell over.")], "error failed", "failed"),
        ([BackendError("No such model.", status=404)], "created queued in_progress error failed", "failed"),
        ([0.01, BackendError("Overloaded.", status=503)], "in_progress error failed", "failed"),
    ],
)
async def test_background_stream_ends_on_every_terminal_state(script: list[Step], ending: str, status: str) -> None:
    async with serving(Scripted(script)) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        events = await events_of(http, id)
        response = (await http.get(f"/responses/{id}")).json()

    laws.check(events)
    assert story(events).endswith(ending)
    assert response == events[-1]["response"]
    assert response["status"] == status


async def test_background_end_is_stored_before_the_stream_sends_it() -> None:
    async with serving(Scripted(HELLO)) as http:
        for _ in range(20):
            id = (await http.post("/responses", json=ASK)).json()["id"]
            await events_of(http, id)
            assert (await http.get(f"/responses/{id}")).json()["status"] == "completed"


async def test_official_client_resumes_a_background_stream() -> None:
    go = asyncio.Event()
    async with antiphon(Scripted([*HELLO, go, delta(content="!")]), shutdown_grace=0) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
            stream = await client.responses.create(model="m", input="Hi", background=True, stream=True)
            seen = []
            async for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
            go.set()
            assert seen[0].type == "response.created"
            id = seen[0].response.id
            resumed = await client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
            seen += [event async for event in resumed]
            async with client.responses.stream(response_id=id, starting_after=5) as accumulating:
                final = await accumulating.get_final_response()

    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    assert final.output_text == "Hello!"


async def test_background_stream_that_is_silent_has_heartbeats() -> None:
    go = asyncio.Event()
    headers = {"user-agent": "OpenAI/Python 2"}
    async with serving(Scripted([*HELLO, go]), headers, heartbeat=0.05) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        async with http.stream("GET", f"/responses/{id}?stream=true") as following:
            body = ""
            async for text in following.aiter_text():
                body += text
                if body.count("event: keepalive") > 1:
                    go.set()
        events = parsed(body)
        again = without_heartbeats(await events_of(http, id))

    beats = [(one, other) for one, other in pairwise(events) if other["type"] == "keepalive"]
    assert len(beats) > 1
    for last, beat in beats:
        assert beat["sequence_number"] == last["sequence_number"]
    assert without_heartbeats(events) == again
    laws.check(again)


def without_heartbeats(events: list[Event]) -> list[Event]:
    return [event for event in events if event["type"] != "keepalive"]


async def test_background_stream_has_the_clients_own_dialect() -> None:
    async with serving(Scripted([delta(reasoning_content="Hm"), *HELLO])) as http:
        for creator, other in (("OpenAI/Python 2", "curl/8"), ("curl/8", "OpenAI/Python 2")):
            created = await http.post("/responses", json=ASK, headers={"user-agent": creator})
            http.headers["user-agent"] = other
            events = await events_of(http, created.json()["id"])
            laws.check(events)
            name = "reasoning_text" if other.startswith("OpenAI") else "reasoning"
            assert [event["type"] for event in events if "reasoning" in event["type"]] == [
                f"response.{name}.delta",
                f"response.{name}.done",
            ]


def test_background_text_is_not_taken_for_an_event() -> None:
    frame = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%b"}\n\n'
    trap = frame % rb"\n\nevent: response.reasoning.delta\ndata: {\"type\":\"response.reasoning.delta\""

    assert DIALECTS["openai"].translate(trap) == trap
    assert len(event_batch.decode_events(trap * 3)) == 3
    assert event_batch.events_after(trap * 3, 7, 8) == trap


@pytest.mark.parametrize("name", ["memory", "sqlite"])
async def test_background_large_texts_are_in_every_event_for_followers(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(event_batch, "LARGE", 1000)
    text = "A large answer. " * 100
    store_url = f"sqlite:///{tmp_path}/store.db" if name == "sqlite" else "memory://"
    async with serving(Scripted([delta(content=text)]), store_url=store_url) as http:
        created = (await http.post("/responses", json=ASK)).json()
        events = await events_of(http, created["id"])
        laws.check(events)
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
        for number in range(len(events)):
            assert await events_of(http, created["id"], starting_after=number) == events[number + 1 :]


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "", "\u0661"])
async def test_background_starting_after_that_is_invalid_is_refused(after: str) -> None:
    async with serving(Scripted(HELLO)) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        refused = await http.get(f"/responses/{id}", params={"stream": "true", "starting_after": after})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")


async def test_foreground_response_cannot_be_followed_or_cancelled() -> None:
    async with serving(Scripted(HELLO)) as http:
        id = (await http.post("/responses", json={"model": "m", "input": "Hi"})).json()["id"]
        followed = await http.get(f"/responses/{id}?stream=true")
        cancelled = await http.post(f"/responses/{id}/cancel")

    assert (followed.status_code, followed.json()["error"]["param"]) == (400, "stream")
    assert cancelled.status_code == 400
    assert cancelled.json()["error"]["message"].startswith("Cannot cancel a synchronous response.")


async def test_background_log_expires_and_the_response_stays() -> None:
    clock = Clock()
    store = MemoryStore(ttl=10_000, clock=clock)
    async with serving(Scripted(HELLO), store=store, background_log_ttl=60) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        await until_ended(http, id)
        await events_of(http, id)
        clock.now += 61
        gone = await http.get(f"/responses/{id}?stream=true")
        kept = await http.get(f"/responses/{id}")

    assert (gone.status_code, gone.json()["error"]["param"]) == (400, "stream")
    assert kept.json()["status"] == "completed"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# Cancelling.


async def test_background_response_that_is_cancelled_closes_the_backends_stream() -> None:
    never = asyncio.Event()
    backend = Scripted([*HELLO, call(0, "c", "f", '{"a'), never])
    async with serving(backend) as http:
        tools = [{"type": "function", "name": "f"}]
        id = (await http.post("/responses", json={**ASK, "tools": tools})).json()["id"]
        following = asyncio.create_task(events_of(http, id))
        await until(lambda: backend.waiting)
        cancelled = (await http.post(f"/responses/{id}/cancel")).json()
        assert (backend.opened, backend.left) == (0, 1)
        again = (await http.post(f"/responses/{id}/cancel")).json()
        retrieved = (await http.get(f"/responses/{id}")).json()
        events = await following

    ResponseResource.model_validate(cancelled)
    assert cancelled["status"] == "cancelled"
    assert cancelled == again == retrieved == events[-1]["response"]
    assert [item["status"] for item in cancelled["output"]] == ["completed", "incomplete"]
    assert events[-1]["type"] == "response.incomplete"  # which every client knows for an end
    laws.check(events)


async def test_background_response_is_cancelled_before_the_backend_answers() -> None:
    backend = Scripted([asyncio.Event()])
    async with serving(backend) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        cancelled = (await http.post(f"/responses/{id}/cancel")).json()
        events = await events_of(http, id)

    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    assert cancelled["incomplete_details"] is None  # the specification has no reason for a caller's cancellation
    assert story(events) == "created queued in_progress incomplete"
    laws.check(events)


async def test_background_response_that_has_ended_is_not_cancelled() -> None:
    async with serving(Scripted(HELLO)) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        ended = await until_ended(http, id)
        cancelled = (await http.post(f"/responses/{id}/cancel")).json()

    assert cancelled == ended
    assert ended["status"] == "completed"


async def test_background_response_that_is_deleted_stops() -> None:
    backend = Scripted([*HELLO, asyncio.Event()])
    async with serving(backend) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        following = await follow(http, id)
        await until(lambda: backend.opened)
        assert (await http.delete(f"/responses/{id}")).status_code == 200
        await until(lambda: not backend.opened)
        events = await following
        assert (await http.get(f"/responses/{id}")).status_code == 404

    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "not_found")


# When things go wrong.


async def test_background_response_outlives_an_outage_of_its_store() -> None:
    more, rest = asyncio.Event(), asyncio.Event()
    backend = Scripted([*HELLO, more, delta(content=", "), rest, delta(content="world")])
    with RedisServer(persistent=True) as redis:
        async with serving(backend, store_url=redis.patient_url) as http:
            id = (await http.post("/responses", json=ASK)).json()["id"]
            following = await follow(http, id)
            await until(lambda: backend.waiting)
            redis.stop()
            more.set()
            await asyncio.sleep(0.3)
            assert backend.waiting and backend.opened, "the backend is not to suffer"
            redis.start()
            rest.set()
            response = await until_ended(http, id)
            events = await following
            assert events == await events_of(http, id)

    laws.check(events)
    assert response["output"][0]["content"][0]["text"] == "Hello, world"


async def test_run_during_an_outage_is_abandoned_and_fails_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Scripted([*HELLO, asyncio.Event()])
    with RedisServer(persistent=True) as redis:
        async with serving(backend, store_url=redis.patient_url, background_lease=0.3) as http:
            id = (await http.post("/responses", json=ASK)).json()["id"]
            following = await follow(http, id)
            await until(lambda: backend.waiting)
            redis.stop()
            backend.scripts[0][2].set()  # type: ignore[union-attr]
            await until(lambda: not backend.opened)
            assert (await following)[-1]["error"]["code"] == "store_unavailable"
            assert (await http.get(f"/responses/{id}")).status_code == 503
            await until(lambda: "response abandoned" in caplog.text)
            redis.start()
            response = await until_ended(http, id)
            events = await events_of(http, id)

    assert response["status"] == "failed"
    laws.check(events)


async def test_unexpected_exception_fails_the_response_and_not_the_server() -> None:
    class Broken(Scripted):
        async def _chunks(self, script: list[Step]) -> Any:
            yield [delta(content="Hel")]
            raise ZeroDivisionError

    async with serving(Broken([])) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        events = await events_of(http, id)

    laws.check(events)
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert "ZeroDivision" not in json.dumps(events)


async def test_unexpected_exception_of_a_store_is_logged_with_the_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    appended = Appended(failing_at=1)
    async with serving(Scripted(HELLO), store=appended.store) as http:
        id = (await http.post("/responses", json=ASK)).json()["id"]
        await until(lambda: "unexpected error" in caplog.text)
        gc.collect()

    (record,) = [record for record in records_of(caplog, "app") if record.levelname == "ERROR"]
    assert (record.name, record.__dict__["response_id"]) == ("app.responses.run", id)


async def test_restart_finds_runs_left_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/antiphon.db"
    store = build_store(settings(store_url=url))
    run = RunKey(f"anonymous:{'c0ffee' * 4}", f"resp_{'0' * 16}{'c0ffee' * 4}")
    request = CreateResponse(model="m", input="Hi", background=True)
    response = new_response(request, response_id=run.id, created_at=1, model="m")
    await store.put(*run, Turn(response, [], {}).record())  # stored as queued, and nothing else
    await store.aclose()

    async with serving(Scripted(HELLO), store_url=url) as http:
        failed = (await http.get(f"/responses/{run.id}")).json()
        events = await events_of(http, run.id)

    assert failed["status"] == "failed"
    laws.check(events)
    assert story(events) == "created queued in_progress error failed"
    assert events[-1]["response"] == failed


async def test_record_that_cannot_be_read_does_not_keep_others_from_their_end(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/antiphon.db"
    store = build_store(settings(store_url=url))
    log = store.log(ttl=1000, lease=0.001)
    request = CreateResponse(model="m", input="Hi", background=True)
    runs = [RunKey(f"anonymous:{key * 4}", f"resp_{'0' * 16}{key * 4}") for key in ("abcdef", "c0ffee")]
    for run in runs:
        await log.begin(run, "a worker that died")
    await store.put(*runs[0], b"of another time")
    lost = new_response(request, response_id=runs[1].id, created_at=1, model="m")
    await store.put(*runs[1], Turn(lost, [], {}).record())
    await asyncio.sleep(0.01)
    assert await log.orphans() == runs

    async with serving(Scripted(HELLO), store_url=url, background_lease=600):  # a single sweep, at the start
        async with asyncio.timeout(60):
            while await log.state(runs[1]) != "ended":
                await asyncio.sleep(0.01)
    record = await store.get(*runs[1])
    assert record and Turn.of(record).response["status"] == "failed"
    await log.aclose()
    await store.aclose()


# Ownership and limits.


async def test_background_response_of_another_owner_is_not_found() -> None:
    mine, yours = {"authorization": "Bearer mine-key"}, {"authorization": "Bearer yours-key"}
    backend = Scripted([*HELLO, asyncio.Event()])
    async with serving(backend, api_keys="mine-key,yours-key") as http:
        id = (await http.post("/responses", json=ASK, headers=mine)).json()["id"]
        answers = [
            await http.get(f"/responses/{id}", headers=yours),
            await http.get(f"/responses/{id}?stream=true", headers=yours),
            await http.post(f"/responses/{id}/cancel", headers=yours),
            await http.delete(f"/responses/{id}", headers=yours),
        ]
        assert (await http.get(f"/responses/{id}", headers=mine)).json()["status"] in ("queued", "in_progress")

    assert [answer.status_code for answer in answers] == [404] * 4


async def test_background_responses_at_once_are_bounded() -> None:
    go = asyncio.Event()
    async with serving(Scripted([*HELLO, go]), background_runs=2) as http:
        ids = [(await http.post("/responses", json=ASK)).json()["id"] for _ in range(2)]
        refused = await http.post("/responses", json=ASK)
        foreground = asyncio.create_task(http.post("/responses", json={"model": "m", "input": "Hi"}))
        go.set()
        for id in ids:
            await until_ended(http, id)
        assert (await foreground).status_code == 200
        accepted = await http.post("/responses", json=ASK)
        await until_ended(http, accepted.json()["id"])

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


async def test_background_responses_at_once_do_not_mix() -> None:
    async with serving(Scripted([delta(content=str(n)) for n in range(10)])) as http:
        posted = await asyncio.gather(*(http.post("/responses", json=ASK) for _ in range(40)))
        streams = await asyncio.gather(*(events_of(http, answer.json()["id"]) for answer in posted))

    for answer, events in zip(posted, streams, strict=True):
        laws.check(events)
        assert {event["response"]["id"] for event in events if "response" in event} == {answer.json()["id"]}
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "0123456789"


async def test_heartbeat_before_all_events_has_a_number_that_an_event_may_have() -> None:
    following = subscription(MemoryStore(ttl=60).log(ttl=60, lease=1), RunKey("a", "resp_1"))
    assert following.keepalive() == [{"type": "keepalive", "sequence_number": 0}]


def subscription(log: EventLog, run: RunKey) -> EventSubscription:
    """Return the events of an unfinished run."""

    async def ended(run: RunKey) -> bool:
        return False

    return EventSubscription(log, run, -1, ended, 1)


async def test_events_that_version_0_2_stored_with_references_end_the_stream_with_an_error() -> None:
    log, run = MemoryStore(ttl=60).log(ttl=60, lease=60), RunKey("a", "resp_1")
    await log.begin(run, "w")
    await log.append(run, "w", EventSegment(0, 0, b'event: x\ndata: {"delta":"Hello"}\n\n'))
    await log.append(run, "w", EventSegment(1, 1, b'event: y\ndata: {"text":"\0000 0 {\0"}\n\n'))
    sent = b"".join([data async for data in subscription(log, run).batches()])
    events = event_batch.decode_events(sent)
    assert [event.get("type") for event in events] == [None, "error"]
    assert (events[1]["sequence_number"], events[1]["message"]) == (1, GONE)
