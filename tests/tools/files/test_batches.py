"""Batches of requests are run in the background, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import apsw
import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from app.api.uvicorn.http import HTTPProtocol
from app.core.access import hash_of
from app.main import create_app
from app.storage.tables import Tables, Transaction
from app.tools.files.batches import WINDOW, Batches, BatchJob, BatchRequest
from tests.faults.servers import server, until_refused
from tests.responses.test_webhooks import SECRET, Receiver, unwrapped
from tests.support.file_databases import FileDatabase, SQLiteFiles
from tests.support.serving import antiphon, serving
from tests.support.serving import settings as served_settings
from tests.support.upstream import DONE, Received, Step, Upstream, chunk, finish, reply, sse, status, usage
from tests.tools.files.conftest import openai_client

ENDED = ("completed", "failed", "expired", "cancelled")
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Model(Upstream):
    """A scripted model server; prompts with `wait` are answered after `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Event()
        self.prompts: list[str] = []
        self.waiting = asyncio.Condition()

    def answer_to(self, request: Received) -> list[Step]:
        if request.method == "GET":
            return super().answer_to(request)
        self.requests.append(request)
        body = request.json
        prompt = json.dumps(body.get("messages") or body.get("input"))
        self.prompts.append(prompt)
        asyncio.get_running_loop().create_task(self._notify())
        pause: list[Step] = [self.release] if "wait" in prompt else []
        if "refuse" in prompt:
            return status(400, {"error": {"message": "No.", "type": "invalid_request_error"}})
        if request.path.endswith("/embeddings"):
            answer = {"object": "list", "model": "e", "data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
        elif body.get("stream"):
            return [*pause, *sse(chunk("Hello."), finish(), usage(10, 5), DONE)]
        else:
            message = {"role": "assistant", "content": "Hello."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE}
        return [*pause, *reply(json.dumps(answer).encode())]

    async def _notify(self) -> None:
        async with self.waiting:
            self.waiting.notify_all()

    async def were_asked(self, count: int) -> None:
        async with asyncio.timeout(60), self.waiting:
            await self.waiting.wait_for(lambda: len(self.prompts) >= count)


class FailsFirst(Model):
    """A model that fails at first; a 429 does not count as an attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = [503, 429, 429, 500]

    def answer_to(self, request: Received) -> list[Step]:
        if request.method == "POST" and self.failures:
            return status(self.failures.pop(0), {"error": {"message": "Later."}})
        return super().answer_to(request)


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as running:
        yield running
        running.release.set()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.batches.BATCH_POLL_INTERVAL", 0.2)
    monkeypatch.setattr("app.api.batches.LINE_RETRY", 0.05)
    monkeypatch.setattr("app.api.batches.BUSY", 0.05)


def options(database: FileDatabase, model: Upstream, **more: Any) -> dict[str, Any]:
    tools = {"file_search": database.settings}
    return {"backend_url": model.url, "tools": tools, "background_lease": 4.0, **more}


def line(custom_id: str, body: Mapping[str, Any], url: str = "/v1/responses") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def asks(*prompts: str) -> list[dict[str, Any]]:
    return [line(f"ask-{n}", {"model": "m", "input": prompt}) for n, prompt in enumerate(prompts)]


async def submit(client: AsyncOpenAI, lines: Iterable[Any], endpoint: Any = "/v1/responses", **more: Any) -> Batch:
    content = "\n".join(text if isinstance(text, str) else json.dumps(text) for text in lines).encode()
    file = await client.files.create(file=("in.jsonl", content or b"\n"), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


async def ended(client: AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(60):
        while batch.status not in ENDED:
            await asyncio.sleep(0.05)
            with contextlib.suppress(openai.InternalServerError, openai.APIConnectionError):
                batch = await client.batches.retrieve(batch.id)
    return batch


async def results(client: AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    assert file_id
    lines = (await client.files.content(file_id)).text.splitlines()
    read = [json.loads(text) for text in lines]
    assert len({result["custom_id"] for result in read}) == len(read)
    return {result["custom_id"]: result for result in read}


def tokens(batch: Batch) -> tuple[int, int]:
    assert batch.usage
    return batch.usage.input_tokens, batch.usage.output_tokens


async def test_batch_of_responses_is_completed_with_its_results(database: FileDatabase, model: Model) -> None:
    async with antiphon(**options(database, model)) as url, openai_client(url) as client:
        batch = await submit(client, asks("One", "Two", "Three"), metadata={"night": "1"})
        assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", "/v1/responses")
        assert batch.expires_at == batch.created_at + WINDOW
        batch = await ended(client, batch)
        assert batch.status == "completed"
        assert batch.request_counts
        assert batch.request_counts.model_dump() == {"total": 3, "completed": 3, "failed": 0}
        assert (batch.model, batch.metadata, batch.error_file_id) == ("m", {"night": "1"}, None)
        assert tokens(batch) == (30, 15)
        times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
        assert times == sorted(time for time in times if time)
        answers = await results(client, batch.output_file_id)
        assert sorted(answers) == ["ask-0", "ask-1", "ask-2"]
        for answer in answers.values():
            assert answer["error"] is None and answer["response"]["status_code"] == 200
            response = answer["response"]["body"]
            assert response["output"][0]["content"][0]["text"] == "Hello."
            assert (await client.responses.retrieve(response["id"])).status == "completed"
        file = await client.files.retrieve(batch.output_file_id or "")
        assert file.purpose == "batch_output"
        assert [one.id async for one in await client.batches.list()] == [batch.id]
    assert len(model.prompts) == 3


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/embeddings"])
async def test_requests_that_are_passed_through_are_answered(
    database: FileDatabase, model: Model, endpoint: str
) -> None:
    chat = endpoint == "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"input": ["a"]}
    async with antiphon(**options(database, model)) as url, openai_client(url) as client:
        lines = [line(f"{name}", {"model": name, **body}, endpoint) for name in ("m", "n")]
        batch = await ended(client, await submit(client, lines, endpoint))
        assert (batch.status, batch.model) == ("completed", None)
        answers = await results(client, batch.output_file_id)
        for answer in answers.values():
            assert answer["response"]["body"]["object"] == ("chat.completion" if chat else "list")
        assert tokens(batch) == ((20, 10) if chat else (6, 0))


async def test_chat_requests_that_are_translated_are_answered(database: FileDatabase, model: Model) -> None:
    endpoint, translated = "/v1/chat/completions", {"transport.passthrough": "never"}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    async with antiphon(**{**options(database, model), "backend_overrides": translated}) as url:
        async with openai_client(url) as client:
            batch = await ended(client, await submit(client, [line("a", body, endpoint)], endpoint))
            (answer,) = (await results(client, batch.output_file_id)).values()
    assert answer["response"]["body"]["object"] == "chat.completion"
    assert model.requests[-1].json["stream"] is True


async def test_requests_that_fail_are_in_the_file_of_errors(database: FileDatabase, model: Model) -> None:
    async with antiphon(**options(database, model)) as url, openai_client(url) as client:
        lines = [*asks("One", "refuse"), line("wrong", {"model": "m", "input": "Hi", "temperature": "hot"})]
        batch = await ended(client, await submit(client, lines))
        assert batch.status == "completed" and batch.request_counts
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)
        assert [*await results(client, batch.output_file_id)] == ["ask-0"]
        errors = await results(client, batch.error_file_id)
        assert {name: error["response"]["status_code"] for name, error in errors.items()} == {
            "ask-1": 400,
            "wrong": 400,
        }
        assert errors["wrong"]["response"]["body"]["error"]["param"] == "temperature"


async def test_request_whose_backend_fails_is_tried_again(database: FileDatabase) -> None:
    async with FailsFirst() as first, antiphon(**options(database, first)) as url, openai_client(url) as client:
        batch = await ended(client, await submit(client, asks("One")))
        assert batch.request_counts and batch.request_counts.completed == 1
        assert first.failures == []


async def test_claim_that_its_process_does_not_know_of_expires(database: FileDatabase) -> None:
    store = database.open()
    batches = Batches(store)
    now = int(database.now())
    batch = BatchJob("batch_1", "ada", "ada", "/v1/responses", "file-1", now, now + WINDOW)
    await batches.add(batch)
    assert await batches.claim_batch("one", 60)
    await batches.add_requests(batch, "one", [BatchRequest(1, "a", b"{}")])
    await batches.begin(batch, "one", 1, "m")
    assert await batches.claim_requests("one", 60, 4)
    assert await batches.renew("one", 60, None, []) == set()
    assert not await batches.claim_requests("two", 60, 4)
    database.advance(61)
    (claimed,) = await batches.claim_requests("two", 60, 4)
    assert claimed.attempt == 2
    assert not await batches.finish(claimed, "one", b"{}", succeeded=True)
    assert await batches.finish(claimed, "two", b"{}", succeeded=True)
    assert not await batches.finish(claimed, "two", b"{}", succeeded=True)
    await store.aclose()


class CountedTables:
    """Tables with a statement counter per transaction."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.count = 0
        self.fetch, self.advisory_lock = tables.fetch, tables.advisory_lock

    async def run(self, steps: Callable[[], Transaction[Any]]) -> Any:
        def counted() -> Transaction[Any]:
            running = steps()
            try:
                statement = next(running)
                while True:
                    self.count += 1
                    statement = running.send((yield statement))
            except StopIteration as end:
                return end.value

        return await self._tables.run(counted)


async def test_requests_of_a_batch_are_added_claimed_and_renewed_in_few_statements(database: FileDatabase) -> None:
    store = database.open()
    batches = Batches(store)
    batches._tables = tables = CountedTables(store.tables)
    now = int(database.now())
    batch = BatchJob("batch_1", "ada", "ada", "/v1/responses", "file-1", now, now + WINDOW)
    await batches.add(batch)
    assert await batches.claim_batch("one", 60)
    tables.count = 0
    lines = [BatchRequest(number, f"{number}", b"{}") for number in range(1, 2001)]
    assert await batches.add_requests(batch, "one", lines)
    assert tables.count <= 2
    await batches.begin(batch, "one", len(lines), "m")
    tables.count = 0
    claimed = await batches.claim_requests("one", 60, 5)
    assert [one.request for one in claimed] == lines[:5]
    assert tables.count <= 6
    tables.count = 0
    held = {("batch_1", number) for number in range(1, 6)}
    assert await batches.renew("one", 60, None, [*held, ("batch_1", 6)]) == held
    assert tables.count <= 3
    await store.aclose()


async def test_requests_of_owners_are_claimed_in_turn(database: FileDatabase) -> None:
    store = database.open()
    batches = Batches(store)
    now = int(database.now())
    for owner, number in (("ada", 1), ("ada", 2), ("bob", 3)):
        batch = BatchJob(f"batch_{number}", owner, owner, "/v1/responses", "file-1", now, now + WINDOW)
        await batches.add(batch)
        assert await batches.claim_batch("one", 60)
        await batches.add_requests(batch, "one", [BatchRequest(line, f"{line}", b"{}") for line in range(1, 10)])
        await batches.begin(batch, "one", 9, "m")
    claimed = await batches.claim_requests("one", 60, 6)
    assert Counter(one.batch.owner for one in claimed) == {"ada": 3, "bob": 3}
    assert await batches.claim_requests("two", 60, 6) == []
    assert Counter(one.batch.owner for one in await batches.claim_requests("two", 60, 8)) == {"ada": 1, "bob": 1}
    await store.aclose()


async def test_request_that_the_server_cannot_answer_is_an_error_in_the_end(
    database: FileDatabase, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.batches.read_data", None)  # a mistake of ours
    async with antiphon(**options(database, model)) as url, openai_client(url) as client:
        batch = await ended(client, await submit(client, asks("One")))
        errors = await results(client, batch.error_file_id)
        assert errors["ask-0"]["response"]["status_code"] == 500


INVALID: list[tuple[list[Any], str, int | None]] = [
    ([], "empty_file", None),
    (["{"], "invalid_json_line", 1),
    (["[]"], "invalid_json_line", 1),
    ([*asks("a"), line("ask-0", {})], "duplicate_custom_id", 2),
    ([{**asks("a")[0], "method": "GET"}], "invalid_method", 1),
    ([line("a", {}, "/v1/embeddings")], "invalid_url", 1),
    ([{**asks("a")[0], "body": None}], "missing_required_parameter", 1),
    ([{**asks("a")[0], "custom_id": None}], "missing_required_parameter", 1),
    ([line("a", {"model": "m", "input": "a", "stream": True})], "invalid_value", 1),
]


async def test_invalid_file_fails_before_anything_is_asked(database: FileDatabase, model: Model) -> None:
    async with antiphon(**options(database, model)) as url, openai_client(url) as client:
        batches = [await submit(client, lines) for lines, _, _ in INVALID]
        for submitted, (_, code, number) in zip(batches, INVALID, strict=True):
            batch = await ended(client, submitted)
            assert batch.status == "failed" and batch.failed_at and batch.errors and batch.errors.data
            assert [(error.code, error.line) for error in batch.errors.data] == [(code, number)]
    assert model.prompts == []


async def test_last_request_above_the_size_limit_fails_the_batch(database: FileDatabase, model: Model) -> None:
    """The last line has no line end, which must not hide its size."""
    served = antiphon(**options(database, model, max_body_bytes=2000))
    async with served as url, openai_client(url) as client:
        batch = await ended(client, await submit(client, asks("a", "b" * 3000)))
        assert batch.status == "failed" and batch.errors and batch.errors.data
        assert [(error.code, error.line) for error in batch.errors.data] == [("request_too_large", 2)]
    assert model.prompts == []


async def test_file_that_is_no_batch_is_refused(database: FileDatabase, model: Model) -> None:
    async with antiphon(**options(database, model)) as url, openai_client(url) as client:
        file = await client.files.create(file=("a.jsonl", b"{}"), purpose="user_data")
        window: Any = {"completion_window": "24h", "endpoint": "/v1/responses"}
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await client.batches.create(input_file_id=file.id, **window)
        with pytest.raises(openai.NotFoundError):
            await client.batches.create(input_file_id="file-1", **window)
        for change in ({"completion_window": "1h"}, {"endpoint": "/v1/files"}):
            with pytest.raises(openai.BadRequestError):
                await client.batches.create(input_file_id=file.id, **{**window, **change})


async def test_cancelled_batch_has_the_answers_so_far(database: FileDatabase, model: Model) -> None:
    async with antiphon(**options(database, model, batch_concurrency=1)) as url, openai_client(url) as client:
        batch = await submit(client, asks("One", "wait", "Three"))
        await model.were_asked(2)
        cancelling = await client.batches.cancel(batch.id)
        assert cancelling.status == "cancelling" and cancelling.cancelling_at
        batch = await ended(client, batch)
        assert batch.status == "cancelled" and batch.cancelled_at
        assert [*await results(client, batch.output_file_id)] == ["ask-0"]
        errors = await results(client, batch.error_file_id)
        assert {error["error"]["code"] for error in errors.values()} == {"batch_cancelled"}
        assert sorted(errors) == ["ask-1", "ask-2"]
        await model.requests[1].gone.wait()  # unwanted answers are not paid for
        assert (await client.batches.cancel(batch.id)).status == "cancelled"


async def test_batch_expires_with_the_answers_so_far(database: FileDatabase, model: Model) -> None:
    async with antiphon(**options(database, model, batch_concurrency=1)) as url, openai_client(url) as client:
        batch = await submit(client, asks("One", "wait", "Three"))
        await model.were_asked(2)
        if isinstance(database, SQLiteFiles):
            with contextlib.closing(apsw.Connection(str(database.path))) as db:
                db.set_busy_timeout(60_000)
                db.execute(f"UPDATE request_batches SET expires_at = expires_at - {WINDOW}")
        else:
            database.advance(WINDOW)
        batch = await ended(client, batch)
        assert batch.status == "expired" and batch.expired_at
        errors = await results(client, batch.error_file_id)
        assert [error["error"]["code"] for error in errors.values()] == ["batch_expired"] * 2
        with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
            await client.batches.cancel(batch.id)


async def test_requests_of_batches_in_all_processes_are_bounded(database: FileDatabase, model: Model) -> None:
    settings = options(database, model, batch_concurrency=2)
    async with antiphon(**settings) as one, antiphon(**settings), openai_client(one) as client:
        batch = await submit(client, asks(*["wait"] * 6))
        await model.were_asked(2)
        await asyncio.sleep(0.6)  # in which both processes look again
        assert len(model.prompts) == 2
        model.release.set()
        batch = await ended(client, batch)
        assert batch.request_counts and batch.request_counts.completed == 6
        assert len(await results(client, batch.output_file_id)) == 6
        assert len(model.prompts) == 6


async def test_batch_survives_the_death_of_its_process_and_has_each_answer_once(
    database: FileDatabase, model: Model
) -> None:
    tools = json.dumps({"file_search": database.settings})
    settings = {"backend_url": model.url, "tools": tools, "background_lease": 1, "batch_concurrency": 2}
    with server(**settings) as served:
        async with openai_client(served.url) as client:
            batch = await submit(client, asks("One", "Two", "wait", "wait", "Five"))
            await model.were_asked(4)
        served.process.kill()
        served.process.wait()
    model.release.set()
    with server(**settings) as served:
        async with openai_client(served.url) as client:
            batch = await ended(client, batch)
            assert batch.status == "completed" and batch.request_counts
            assert (batch.request_counts.completed, batch.request_counts.failed) == (5, 0)
            assert len(await results(client, batch.output_file_id)) == 5
    assert sum("One" in prompt for prompt in model.prompts) == 1


async def test_requests_running_at_shutdown_finish_within_the_grace_period(
    database: FileDatabase, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = options(database, model, batch_concurrency=2)
    async with contextlib.AsyncExitStack() as stack:
        # Only the end of a request leads to a claim, not a poll that can be under way when the shutdown begins.
        polls = stack.enter_context(monkeypatch.context())
        polls.setattr("app.api.batches.BATCH_POLL_INTERVAL", 600.0)
        app = create_app(served_settings(**settings, shutdown_grace=60))
        # With the server's own protocol, the client's open connection reports the shutdown at once.
        url = await stack.enter_async_context(serving(app, http=HTTPProtocol))
        async with openai_client(url) as client:
            batch = await submit(client, asks("wait 1", "wait 2", "Three"))
            await model.were_asked(2)
            stopping = asyncio.create_task(stack.aclose())
            await until_refused(url)
            model.release.set()
            await stopping
    assert len(model.prompts) == 2
    async with antiphon(**settings) as url, openai_client(url) as client:
        batch = await ended(client, batch)
        assert batch.request_counts and batch.request_counts.completed == 3
    assert len(model.prompts) == 3


async def test_requests_that_do_not_finish_in_the_grace_period_run_again(database: FileDatabase, model: Model) -> None:
    settings = options(database, model)
    async with antiphon(**settings, shutdown_grace=0.1) as url, openai_client(url) as client:
        batch = await submit(client, asks("wait"))
        await model.were_asked(1)
    await model.requests[0].gone.wait()
    model.release.set()
    async with antiphon(**settings) as url, openai_client(url) as client:
        assert (await ended(client, batch)).status == "completed"
    assert len(model.prompts) == 2


async def test_batch_of_another_key_does_not_exist(database: FileDatabase, model: Model) -> None:
    async with antiphon(**options(database, model, api_keys="ada,bob")) as url:
        async with openai_client(url) as ada, openai_client(url, "bob") as bob:
            batch = await submit(ada, asks("wait"))
            for ask in (bob.batches.retrieve, bob.batches.cancel):
                with pytest.raises(openai.NotFoundError, match=f"Batch with id '{batch.id}' not found"):
                    await ask(batch.id)
            assert (await bob.batches.list()).data == []
            with pytest.raises(openai.NotFoundError):
                await bob.batches.create(
                    input_file_id=batch.input_file_id, endpoint="/v1/responses", completion_window="24h"
                )
            model.release.set()


async def test_requests_have_the_rights_the_budget_and_the_price_of_their_key(
    database: FileDatabase, model: Model
) -> None:
    keys = {"ada": {"hash": hash_of("ada"), "models": ["m"], "tools": ["web_search"]}}
    prices = {"m": {"input": 1000, "output": 1000, "batch": 0.5}}
    more = {"keys": keys, "prices": prices, "limit_requests_per_minute": 10}
    async with antiphon(**options(database, model, **more)) as url, openai_client(url, "ada") as client:
        search = {"type": "file_search", "vector_store_ids": ["vs_1"]}
        lines = [
            *asks(*["One"] * 12),
            line("model", {"model": "secret", "input": "Hi"}),
            line("tool", {"model": "m", "input": "Hi", "tools": [search]}),
        ]
        batch = await ended(client, await submit(client, lines))
        assert batch.request_counts and batch.request_counts.completed == 12  # limits per minute are for callers
        errors = await results(client, batch.error_file_id)
        codes = {name: error["response"]["body"]["error"]["code"] for name, error in errors.items()}
        assert codes == {"model": "model_not_allowed", "tool": "tool_not_allowed"}
        async with httpx.AsyncClient(headers={"authorization": "Bearer ada"}) as http:
            async with asyncio.timeout(60):
                while not (used := (await http.get(f"{url}/v1/antiphon/usage")).json()["total"]).get("requests"):
                    await asyncio.sleep(0.05)
        assert (used["requests"], used["input_tokens"], used["output_tokens"]) == (12, 120, 60)
        assert used["cost"] == pytest.approx(180 * 1000 / 1e6 / 2)


async def test_requests_of_a_key_that_has_expired_are_not_run(database: FileDatabase, model: Model) -> None:
    tables = {"ada": {"hash": hash_of("ada"), "owner": "team"}, "eve": {"hash": hash_of("eve"), "owner": "team"}}
    async with antiphon(**options(database, model, keys=tables, batch_concurrency=1)) as url:
        async with openai_client(url, "ada") as client:
            batch = await submit(client, asks("wait", "wait"))
            await model.were_asked(1)
    del tables["ada"]
    model.release.set()
    async with antiphon(**options(database, model, keys=tables)) as url, openai_client(url, "eve") as client:
        batch = await ended(client, batch)
        errors = await results(client, batch.error_file_id)
        assert {error["response"]["status_code"] for error in errors.values()} == {401}
    assert len(model.prompts) == 1


async def test_end_of_a_batch_is_announced_by_a_webhook(database: FileDatabase, model: Model) -> None:
    async with Receiver() as receiver:
        webhooks = {"one": {"url": receiver.url, "secret": SECRET}}
        async with antiphon(**options(database, model, webhooks=webhooks)) as url, openai_client(url) as client:
            batch = await submit(client, asks("One"))
            (request,) = await receiver.received(1)
            event = unwrapped(request)
            assert (event.type, event.data.id) == ("batch.completed", batch.id)
            assert (await client.batches.retrieve(batch.id)).status == "completed"
