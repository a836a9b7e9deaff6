"""Rate limits over HTTP and WebSocket, in one process and in several."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.api.rate_limits import Admission, Limits, format_duration
from app.core.access import KeyAccess
from app.core.types.deltas import DONE
from app.errors import BackendError, StoreBusy, StoreUnavailable
from app.stores import Change, TokenCharge, TokenResult
from app.stores import redis as stores_redis
from app.stores.memory import MemoryCounters, MemoryStore
from tests.support import laws, sockets
from tests.support.build import delta, finish
from tests.support.redis_server import RedisServer
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, settings

ROOT = Path(__file__).parents[2]
# `antiphon` with patience for a slow Redis.
PATIENT = "from app.stores import redis; redis.FAST_TIMEOUT = 60.0; from app.cli import main; main()"
HELLO: list[Any] = [delta(content="Hel"), delta(content="lo")]
USED = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
LONG = [*HELLO, finish("stop"), {"choices": [], "usage": USED}, DONE]  # a hundred tokens


@contextlib.asynccontextmanager
async def served(*scripts: list[Any], **values: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Scripted]]:
    backend = Scripted(*scripts)
    async with antiphon(backend, **values) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield http, backend


async def ask(http: httpx.AsyncClient, key: str = "", **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await http.post("/v1/responses", json={"model": "m", "input": "Hi", **fields}, headers=headers)


async def admitted(limits: Limits, access: KeyAccess) -> Admission:
    admission = Admission(limits, access)
    if admission.key_limits.charges:
        await limits.admit(admission)
    return admission


def limit_headers(answer: httpx.Response) -> dict[str, str]:
    """Rate limit headers of an answer."""
    return {
        name.removeprefix("x-ratelimit-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-ratelimit-")
    }


# Requests and tokens.


async def test_answers_without_limits_have_no_limit_headers() -> None:
    async with served(HELLO) as (http, _):
        assert limit_headers(await ask(http)) == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_request_beyond_the_limit_is_a_429_with_retry_after(stream: bool) -> None:
    async with served(HELLO, limit_requests_per_minute=2) as (http, backend):
        answers = [await ask(http, stream=stream) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [limit_headers(answer)["remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert {limit_headers(answer)["limit-requests"] for answer in answers} == {"2"}
    assert len(backend.received) == 2
    # One flows in every half minute.
    refused = answers[2]
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert re.fullmatch(r"(\d+m)?[\d.]+s", limit_headers(refused)["reset-requests"])
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("too_many_requests", "rate_limit_exceeded")
    assert error["message"].startswith("Rate limit reached: 2 requests per minute. Please try again in ")


async def test_keys_have_limits_of_their_own() -> None:
    async with served(HELLO, api_keys="one,two", limit_requests_per_minute=1) as (http, _):
        keys = ("one", "two", "one", "two")
        assert [(await ask(http, key)).status_code for key in keys] == [200, 200, 429, 429]
        assert (await ask(http, "three")).status_code == 401


async def test_made_up_key_where_none_is_needed_has_the_common_limit() -> None:
    async with served(HELLO, limit_requests_per_minute=1) as (http, _):
        assert [(await ask(http, key)).status_code for key in ("", "made", "up")] == [200, 429, 429]


async def test_tokens_are_charged_when_known_and_debts_paid_first() -> None:
    async with served(LONG, limit_tokens_per_minute=150) as (http, _):
        answers = [await ask(http) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [limit_headers(answer)["remaining-tokens"] for answer in answers[:1]] == ["150"]
        assert limit_headers(answers[2])["remaining-tokens"] == "0"
        # 200 of 150 were used, so 51 are missing for a request; 150 are refilled per minute.
        assert 15 <= int(answers[2].headers["retry-after"]) <= 21


async def test_tokens_of_a_client_that_disconnected_are_charged() -> None:
    async with served([*HELLO, 60.0], limit_tokens_per_minute=1) as (http, backend):
        asking = asyncio.ensure_future(ask(http, stream=True))
        while not backend.opened:
            await asyncio.sleep(0.01)
        asking.cancel()
        while backend.opened:
            await asyncio.sleep(0.01)
        assert (await ask(http)).status_code == 429


async def test_failures_have_the_remaining_amounts() -> None:
    refusal = BackendError("Busy.", status=503)
    async with served([refusal], limit_requests_per_minute=5, limit_tokens_per_minute=100) as (http, _):
        for answer, status in ((await ask(http, temperature=9), 400), (await ask(http), 503)):
            assert answer.status_code == status
            names = {f"{word}-{what}" for word in ("limit", "remaining", "reset") for what in ("requests", "tokens")}
            assert limit_headers(answer).keys() == names


async def test_compaction_counts_as_a_request_and_reading_does_not() -> None:
    async with served(HELLO, limit_requests_per_minute=1) as (http, _):
        compacted = await http.post("/v1/responses/compact", json={"model": "m", "input": "Hi"})
        assert (compacted.status_code, limit_headers(compacted)["remaining-requests"]) == (200, "0")
        assert (await ask(http)).status_code == 429
        assert (await http.get("/v1/models")).status_code == 429
        assert (await http.get("/v1/responses/resp_x")).status_code == 404


async def test_websocket_turn_counts_as_a_request() -> None:
    async with sockets.talking(Scripted(HELLO), limit_requests_per_minute=1) as socket:
        assert (await sockets.response(socket))["status"] == "completed"
        (frame,) = await sockets.ask(socket)
        assert (frame["status"], frame["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(frame["headers"]["Retry-After"]) <= 60
        assert frame["headers"]["x-ratelimit-remaining-requests"] == "0"


# Responses in progress.


async def until_open(backend: Scripted, streams: int) -> None:
    while backend.opened != streams:
        await asyncio.sleep(0.01)


async def test_key_has_a_limit_of_responses_in_progress() -> None:
    go = asyncio.Event()
    async with served([*HELLO, go], api_keys="one,two", limit_streams_per_key=1) as (http, backend):
        first = asyncio.ensure_future(ask(http, "one", stream=True))
        await until_open(backend, 1)
        refused = await ask(http, "one")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["message"].startswith("Your key has reached the limit of 1 concurrent responses")
        second = asyncio.ensure_future(ask(http, "two"))
        await until_open(backend, 2)
        go.set()
        assert [answer.status_code for answer in await asyncio.gather(first, second)] == [200, 200]
        assert (await ask(http, "one")).status_code == 200


async def test_server_has_a_limit_of_responses_in_progress() -> None:
    go = asyncio.Event()
    async with served([*HELLO, go], api_keys="one,two", limit_streams=1, limit_streams_per_key=5) as (http, backend):
        first = asyncio.ensure_future(ask(http, "one"))
        await until_open(backend, 1)
        assert (await ask(http, "two")).status_code == 429
        go.set()
        assert (await first).status_code == 200
        assert (await ask(http, "two")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_slot_of_a_client_that_disconnected_is_free(stream: bool) -> None:
    async with served([*HELLO, 60.0], HELLO, limit_streams=1) as (http, backend):
        asking = asyncio.ensure_future(ask(http, stream=stream))
        await until_open(backend, 1)
        asking.cancel()
        await until_open(backend, 0)
        assert (await ask(http)).status_code == 200


@pytest.mark.parametrize("path", ["", "/compact"])
async def test_request_with_an_incomplete_body_takes_no_slot(path: str) -> None:
    body = b'{"model": "m", "input": "Hi"}'
    head = f"POST /v1/responses{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with served(HELLO, limit_streams=1) as (http, _):
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(head + body[:1])
        await writer.drain()
        await asyncio.sleep(0.2)
        assert (await ask(http)).status_code == 200
        writer.write(body[1:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_requests_beyond_the_slots_are_refused_unread() -> None:
    async with served(HELLO, limit_requests_per_minute=1) as (http, _):
        assert (await ask(http)).status_code == 200
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n{")
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 429")
        writer.close()


async def test_slot_of_a_refused_request_is_free() -> None:
    refusal = BackendError("Busy.", status=503)
    async with served([refusal], HELLO, limit_streams=1) as (http, _):
        statuses = [(await ask(http, **fields)).status_code for fields in ({"temperature": 9}, {"stream": True}, {})]
        assert statuses == [400, 503, 200]


async def test_background_responses_hold_slots_while_they_run() -> None:
    go = asyncio.Event()
    async with served([go, *HELLO], limit_streams=1) as (http, _):
        id = (await ask(http, background=True)).json()["id"]
        assert (await ask(http)).status_code == 429
        go.set()
        while (await http.get(f"/v1/responses/{id}")).json()["status"] != "completed":
            await asyncio.sleep(0.01)
        assert (await ask(http)).status_code == 200


async def test_slot_of_a_background_response_cancelled_before_it_begins_is_free() -> None:
    async with served([60.0], HELLO, limit_streams=1) as (http, _):
        id = (await ask(http, background=True)).json()["id"]
        assert (await http.post(f"/v1/responses/{id}/cancel")).json()["status"] == "cancelled"
        assert (await ask(http)).status_code == 200


async def test_slot_of_a_background_response_that_cannot_be_stored_is_free() -> None:
    class Full(MemoryStore):
        async def apply(self, *changes: Change) -> bool:
            if await self.all(changes[0].partition):  # there was room for the queued response
                raise StoreUnavailable
            return await super().apply(*changes)

    values = {"limit_streams": 1, "background_lease": 0.05}
    async with antiphon(Scripted(HELLO), Full(ttl=60), **values) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await ask(http, background=True)).status_code == 200
            while (await ask(http, store=False)).status_code == 429:
                await asyncio.sleep(0.01)


async def test_official_client_retries_after_the_wait() -> None:
    # Sixty at once, then one per second.
    async with antiphon(Scripted(HELLO), limit_requests_per_minute=60) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            while (await ask(http)).status_code == 200:
                pass
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=3) as client:
            retries = 0
            while not retries:  # unless a refill occurs just before the request
                whole = await client.responses.with_raw_response.create(model="m", input="Hi")
                assert whole.parse().output_text == "Hello"
                retries = whole.retries_taken
            async with client.responses.stream(model="m", input="Hi") as stream:
                assert (await stream.get_final_response()).output_text == "Hello"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                while True:
                    await client.responses.create(model="m", input="Hi")
            assert (refused.value.code, refused.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "1")


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_passed_through_are_charged(stream: bool) -> None:
    async with sockets.listening(Scripted(LONG), limit_tokens_per_minute=150) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            async with sockets.dial(url) as socket:
                assert (await sockets.response(socket))["status"] == "completed"
            id = (await ask(http, background=True)).json()["id"]
            while (await http.get(f"/v1/responses/{id}")).json()["status"] != "completed":
                await asyncio.sleep(0.01)
            assert (await ask(http, stream=stream)).status_code == 429
            refused = await http.post("/v1/responses/compact", json={"model": "m", "input": "Hi"})
            assert refused.status_code == 429


async def test_refusals_are_counted_by_limit() -> None:
    async with served(LONG, limit_requests_per_minute=2, limit_tokens_per_minute=50) as (http, _):
        assert [(await ask(http)).status_code for _ in range(3)] == [200, 429, 429]
        metrics = (await http.get("/metrics")).text
    assert 'antiphon_limited_total{limit="tokens"} 2.0' in metrics


# How much, and for how long.


async def test_backend_beyond_max_output_seconds_is_cut_off() -> None:
    for stream in (False, True):
        async with served([HELLO, 60.0], max_output_seconds=0.1) as (http, backend):
            answer = await ask(http, stream=stream)
            assert answer.status_code == 200
            await until_open(backend, 0)
            if stream:
                events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
                laws.check(events)
                response = events[-1]["response"]
            else:
                response = answer.json()
            assert response["status"] == "incomplete"
            assert response["incomplete_details"] == {"reason": "max_output_seconds"}
            assert response["output"][0]["content"][0]["text"] == "Hello"
            assert response["output"][0]["status"] == "incomplete"
            assert response["usage"]["output_tokens"] > 0


async def test_max_output_seconds_begins_with_the_first_chunk() -> None:
    async with served([1.5, *HELLO], max_output_seconds=1) as (http, _):
        assert (await ask(http)).json()["status"] == "completed"


async def test_input_beyond_max_input_tokens_is_refused() -> None:
    async with served(HELLO, max_input_tokens=50) as (http, backend):
        first = (await ask(http)).json()["id"]
        for fields in ({"input": "word " * 60}, {"input": "word " * 45, "previous_response_id": first}):
            answer = await ask(http, **fields)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert len(backend.received) == 1


# Several processes, and the Redis between them.


@contextlib.contextmanager
def process(folder: Path, **variables: str) -> Iterator[str]:
    """`antiphon serve`, as a user starts it; gives its base URL."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", PATIENT, "serve", "--port", "0"],
            cwd=folder,
            env=inherited | {"PYTHONPATH": str(ROOT)} | variables,
            stdout=out,
            stderr=out,
        )
    try:
        while not (found := re.search(r" on (http://[^,\s]+), backend", log.read_text())):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


async def test_two_servers_on_one_redis_share_limits(tmp_path: Path) -> None:
    with RedisServer() as redis, contextlib.ExitStack() as stack:
        urls = []
        for name in ("one", "two"):
            (folder := tmp_path / name).mkdir()
            variables = {
                "ANTIPHON_STORE_URL": f"{redis.url}/0",
                "ANTIPHON_API_KEYS": "ada,bob",
                "ANTIPHON_LIMIT_REQUESTS_PER_MINUTE": "3",
                "ANTIPHON_LIMIT_TOKENS_PER_MINUTE": "1000000",
            }
            urls.append(stack.enter_context(process(folder, **variables)))
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            seen = []
            for url in (*urls, *urls):
                for key in ("ada", "bob"):
                    body, headers = {"model": "demo", "input": "Hi"}, {"authorization": f"Bearer {key}"}
                    answer = await http.post(f"{url}/v1/responses", json=body, headers=headers)
                    seen.append((key, answer.status_code, limit_headers(answer)["remaining-requests"]))
    for key in ("ada", "bob"):
        assert [one[1:] for one in seen if one[0] == key] == [(200, "2"), (200, "1"), (200, "0"), (429, "0")]


async def test_two_servers_on_one_redis_share_slots(redis_url: str) -> None:
    go = asyncio.Event()
    values = {"limit_store_url": f"{redis_url}/9", "limit_streams": 1}
    async with served([*HELLO, go], **values) as (http, backend), served(HELLO, **values) as (other, _):
        asking = asyncio.ensure_future(ask(http, stream=True))
        await until_open(backend, 1)
        assert (await ask(other)).status_code == 429
        go.set()
        await asking
        while (await ask(other)).status_code != 200:
            await asyncio.sleep(0.01)


async def test_server_without_its_redis_limits_nobody_and_logs_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "app.api.rate_limits")
    monkeypatch.setattr(stores_redis, "FAST_TIMEOUT", 3.0)
    with RedisServer() as redis:
        values = {"limit_store_url": redis.url, "limit_requests_per_minute": 1, "limit_streams": 1}
        async with served(HELLO, **values) as (http, _):
            assert [(await ask(http)).status_code for _ in range(2)] == [200, 429]
            redis.pause()  # it accepts connections, and does not answer
            answers = [await ask(http) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200] * 3
            assert limit_headers(answers[0]) == {}
    warnings = [record.message for record in caplog.records if record.name == "app.api.rate_limits"]
    assert warnings == ["rate limits not enforced: counters unavailable"]


async def test_slot_released_while_it_is_renewed_is_free(redis_url: str) -> None:
    counters = stores_redis.RedisStore.from_url(f"{redis_url}/9", ttl=60).counters()
    limits = Limits(counters, streams=1)
    grant = await admitted(limits, KeyAccess(counted_as="ada"))
    await limits.acquire_slots(grant)
    renewing = asyncio.create_task(limits.renew())
    await asyncio.sleep(0)  # it has begun
    grant.close()
    await renewing
    await until_left(limits)
    assert await counters.acquire("all", "other", 1)
    await counters.release("all", "other")
    await limits.aclose()


class SlowCounters(MemoryCounters):
    """Counters that change slots at once, but answer only when `answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()
        self.waiting = 0

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        acquired = await super().acquire(pool, holder, limit)
        await self._later()
        return acquired

    async def release(self, pool: str, holder: str) -> None:
        await super().release(pool, holder)
        await self._later()

    async def _later(self) -> None:
        self.waiting += 1
        await self.answer.wait()
        self.waiting -= 1


async def test_slot_releases_do_not_wait_for_each_other() -> None:
    counters = SlowCounters()
    limits = Limits(counters, streams=3)
    counters.answer.set()
    grants = [await admitted(limits, KeyAccess()) for _ in range(3)]
    for grant in grants:
        await limits.acquire_slots(grant)
    counters.answer.clear()
    for grant in grants:
        grant.close()
    await asyncio.sleep(0)
    assert counters.waiting == 3
    counters.answer.set()
    await limits.aclose()


class FailingCounters(MemoryCounters):
    """Counters that fail while `fails` is set; `acquire` then takes the slot without confirmation."""

    fails = False

    async def consume(self, owner: str, takes: Sequence[TokenCharge]) -> TokenResult:
        self._answer()
        return await super().consume(owner, takes)

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        acquired = await super().acquire(pool, holder, limit)
        self._answer()
        return acquired

    async def release(self, pool: str, holder: str) -> None:
        self._answer()
        await super().release(pool, holder)

    def _answer(self) -> None:
        if self.fails:
            raise StoreUnavailable


async def test_outage_of_the_counters_and_its_end_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "app.api.rate_limits")
    monkeypatch.setattr("app.api.rate_limits.BACKOFF", 0.0)
    counters = FailingCounters()
    limits = Limits(counters, requests=10)
    for counters.fails in (True, True, False, False, True, False):
        await admitted(limits, KeyAccess())
    messages = [record.message for record in caplog.records if record.name == "app.api.rate_limits"]
    outage = ["rate limits not enforced: counters unavailable", "rate limits enforced again"]
    assert messages == outage * 2


class BusyCounters(MemoryCounters):
    """Counters to which no connection is free."""

    async def consume(self, owner: str, takes: Sequence[TokenCharge]) -> TokenResult:
        raise StoreBusy

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        raise StoreBusy


async def test_busy_counters_refuse_requests_and_do_not_lift_the_limits() -> None:
    limits = Limits(BusyCounters(), requests=10, tokens=10)
    for _ in range(2):
        with pytest.raises(StoreBusy):
            await admitted(limits, KeyAccess())
    with pytest.raises(StoreBusy):
        await limits.check_tokens(KeyAccess(), 10)
    assert await limits.charge(KeyAccess(), 10, 5) is None
    streams = Limits(BusyCounters(), streams=1)
    admission = await admitted(streams, KeyAccess())
    with pytest.raises(StoreBusy):
        await streams.acquire_slots(admission)
    admission.close()
    await asyncio.gather(limits.aclose(), streams.aclose())


@pytest.mark.parametrize("waits", [False, True], ids=["at the next request", "after a while"])
async def test_slots_not_released_during_an_outage_are_released_after_it(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr("app.api.rate_limits.BACKOFF", 0.05)
    counters = FailingCounters()
    limits = Limits(counters, streams=3)
    grants = [await admitted(limits, KeyAccess()) for _ in range(4)]
    for grant in grants[:2]:
        await limits.acquire_slots(grant)
    counters.fails = True
    await limits.acquire_slots(grants[2])  # which is not known to hold a slot
    for grant in grants:
        grant.close()
    await until_left(limits)
    counters.fails = False
    if waits:
        async with asyncio.timeout(60):
            while counters._pools:
                await asyncio.sleep(0.01)
    else:
        await asyncio.sleep(0.05)
        await limits.acquire_slots(grants[3])
        assert len(grants[3].slots) == 1
    await limits.aclose()


async def test_slot_of_a_request_cancelled_while_acquiring_is_released() -> None:
    counters = SlowCounters()
    limits = Limits(counters, streams=1)
    grant = await admitted(limits, KeyAccess())

    async def acquire() -> None:
        with grant:
            await grant.acquire_slots()

    entering = asyncio.create_task(acquire())
    await asyncio.sleep(0)
    assert counters.waiting == 1  # acquired, and the answer is under way
    entering.cancel()
    counters.answer.set()
    await asyncio.wait({entering})
    await until_left(limits)
    assert await counters.acquire("all", "other", 1)
    await limits.aclose()


async def test_slot_that_expired_and_is_released_while_acquired_again_is_free() -> None:
    counters = SlowCounters()
    counters.answer.set()
    limits = Limits(counters, streams=1)
    grant = await admitted(limits, KeyAccess())
    await limits.acquire_slots(grant)
    [slot] = grant.slots
    await counters.release(*slot)  # its lease expires
    counters.answer.clear()
    renewing = asyncio.create_task(limits.renew())
    await asyncio.sleep(0)
    assert counters.waiting == 1  # acquired again, and the answer is under way
    grant.close()
    await asyncio.sleep(0)
    await MemoryCounters.acquire(counters, *slot, 1)  # the release overtook the acquisition
    counters.answer.set()
    await renewing
    await until_left(limits)
    assert await counters.acquire("all", "other", 1)
    await limits.aclose()


async def test_slots_in_use_are_counted_again_after_a_restart_of_redis() -> None:
    with RedisServer() as redis:
        counters = stores_redis.RedisStore.from_url(redis.url, ttl=60).counters()
        limits = Limits(counters, streams=1)
        grant = await admitted(limits, KeyAccess(counted_as="ada"))
        await limits.acquire_slots(grant)
        redis.restart()  # loses everything
        await limits.renew()
        assert not await counters.acquire("all", "other", 1)
        grant.close()
        await until_left(limits)
        assert await counters.acquire("all", "other", 1)
        await limits.aclose()


async def until_left(limits: Limits) -> None:
    """Wait until the returned permits are counted."""
    await asyncio.gather(*limits._tasks)


def test_limit_store_of_sqlite_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a Redis"):
        settings(limit_store_url="sqlite:///counts.db")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (8.64, "8.64s"), (28.8, "28.8s"), (60, "1m0s"), (432, "7m12s"),
     (3600, "1h0m0s"), (3723.5, "1h2m3.5s")],
)  # fmt: skip
def test_durations_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert format_duration(seconds) == written
