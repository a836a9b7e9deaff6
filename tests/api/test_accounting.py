"""Usage, costs and limits per key."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.api.accounting import Accounting
from app.api.accounting.journal import UsageJournal
from app.core.access import BudgetLimit, KeyAccess, hash_of
from app.core.prices import NANO, Price, PriceList, format_money
from app.core.types import Usage
from app.core.types.deltas import DONE, TokenCounts
from app.core.usage import usage_of
from app.errors import StoreUnavailable, TooManyRequests, UnstorableValue
from app.stores import Spending, UsageRow
from app.stores.memory import MemoryUsage
from tests.support import sockets
from tests.support.build import delta, finish, reported
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, settings
from tests.support.upstream import DONE as END
from tests.support.upstream import Upstream, chunk, sse
from tests.support.upstream import finish as chunk_finish

USED = reported(1000, 500, cached=400, reasoning=100)
LONG: list[Any] = [delta(content="Hello"), finish("stop"), {"choices": [], "usage": USED}, DONE]
PRICES = {"qwen*": {"input": 1, "cached_input": 0.1, "output": 4}}  # LONG costs 0.00264
TABLES = {name: {"hash": hash_of(name)} for name in ("alice", "bob")}
ADMIN = {"boss": {"hash": hash_of("boss"), "admin": True, "models": []}}


TODAY = f"{datetime.now(UTC):%Y-%m-%d}"  # usage older than a year is deleted


def with_budget(**amounts: Any) -> dict[str, Any]:
    return {"alice": {"hash": hash_of("alice"), "budget": amounts}}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@contextlib.asynccontextmanager
async def served(keys: dict[str, Any], **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(Scripted(LONG), keys=keys, **{"prices": PRICES, **values}) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield http


async def ask(http: httpx.AsyncClient, key: str = "alice", **fields: Any) -> httpx.Response:
    return await http.post("/v1/responses", json={"model": "qwen3", "input": "Hi", **fields}, headers=bearer(key))


async def usage(http: httpx.AsyncClient, key: str, query: str = "group=key,model") -> Any:
    answer = await http.get(f"/v1/antiphon/usage?{query}", headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return answer.json()


# Prices.


def test_price_is_of_the_first_glob_that_matches() -> None:
    prices = PriceList({"gpt-5-mini": Price(1, 1, 1, 1), "gpt-5*": Price(2, 2, 2, 2)})
    assert [prices.price(model) for model in ("gpt-5-mini", "gpt-5", "qwen")] == [
        Price(1, 1, 1, 1),
        Price(2, 2, 2, 2),
        None,
    ]


def test_price_of_a_backend_comes_before_that_of_all_backends() -> None:
    cheap, dear = Price(1, 1, 1, 1), Price(2, 2, 2, 2)
    prices = PriceList({"qwen*": cheap}, {"cloud": {"qwen-large*": dear}})
    pairs = [("qwen-large-1", "cloud"), ("qwen-large-1", "local"), ("qwen-small", "cloud"), ("gpt", "cloud")]
    assert [prices.price(model, backend) for model, backend in pairs] == [dear, cheap, cheap, None]


async def test_response_costs_the_price_of_the_backend_that_answered() -> None:
    own = {"input": 0, "output": 1_000_000}
    prices = {"qwen*": {"input": 0, "output": 1, "backends": {"default": own}}}
    async with served({"alice": {"hash": hash_of("alice")}}, prices=prices) as http:
        answer = await ask(http)
        assert float(answer.headers["x-antiphon-cost"]) == answer.json()["usage"]["output_tokens"] > 0


def test_price_of_an_unknown_backend_is_refused() -> None:
    prices = {"qwen*": {"input": 0, "output": 1, "backends": {"cloud": {"input": 0, "output": 2}}}}
    with pytest.raises(ValidationError, match="backends: backend 'cloud' not found"):
        settings(prices=prices)


def test_cached_input_has_its_own_price_or_that_of_input() -> None:
    million = 10**6
    price = Price.per_million(Decimal("1.25"), Decimal(10), Decimal("0.125"))
    assert price.cost(million, 0, 0) == 1_250_000_000
    assert price.cost(million, million, 0) == 125_000_000
    assert price.cost(0, 0, million) == 10 * NANO
    assert Price.per_million(Decimal("1.25"), Decimal(10)).cost(million, million, 0) == 1_250_000_000


def test_cache_write_has_its_own_price_or_that_of_input() -> None:
    price = Price.per_million(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"))
    assert price.cost(1000, 600, 0, 300) == 100 * 3000 + 600 * 300 + 300 * 3750
    assert price.cost(1000, 1000, 0, 300) == 1000 * 300, "no more is written than was not read"
    assert Price.per_million(Decimal(3), Decimal(15)).cost(1000, 0, 0, 300) == 1000 * 3000


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300}},
        {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 600}, "cache_creation_input_tokens": 300},
        {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 600, "cache_creation_tokens": 300}},
        {"input_tokens": 100, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 300, "output_tokens": 100},
    ],
    ids=["OpenRouter", "gateway to Claude", "LiteLLM", "Claude"],
)
async def test_response_cost_includes_cache_writes(counts: dict[str, Any]) -> None:
    answer: list[Any] = [
        delta(content="Hello"),
        finish("stop"),
        {"choices": [], "usage": {"completion_tokens": 100, **counts}},
    ]
    prices = {"qwen*": {"input": 3, "cached_input": 0.3, "cache_write": 3.75, "output": 15}}
    async with antiphon(Scripted(answer), prices=prices) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            made = await ask(http, "")
    details = {"cached_tokens": 600, "cache_write_tokens": 300}
    assert (made.json()["usage"]["input_tokens"], made.json()["usage"]["input_tokens_details"]) == (1000, details)
    assert made.headers["x-antiphon-cost"] == format_money(100 * 3000 + 600 * 300 + 300 * 3750 + 100 * 15000)


MONEY = st.decimals(0, 1000, places=6)
TOKENS = st.integers(0, 10**7)


@given(input=MONEY, cached=MONEY, output=MONEY, fresh=TOKENS, hits=TOKENS, written=TOKENS)
def test_cost_is_exact_to_a_billionth(
    input: Decimal, cached: Decimal, output: Decimal, fresh: int, hits: int, written: int
) -> None:
    exact = (input * fresh + cached * hits + output * written) / 10**6
    cost = Price.per_million(input, output, cached).cost(fresh + hits, hits, written)
    assert abs(Decimal(cost) / NANO - exact) <= Decimal("0.5e-9")
    assert Decimal(format_money(cost)) == Decimal(cost) / NANO


# Recording.


async def test_usage_is_listed_by_key_and_model_with_the_cost_in_a_header() -> None:
    async with served(TABLES | ADMIN) as http:
        answers = [await ask(http, "alice"), await ask(http, "alice"), await ask(http, "bob", model="other")]
        assert [answer.headers.get("x-antiphon-cost") for answer in answers] == ["0.00264", "0.00264", None]
        listed = await usage(http, "boss")
        counted = {
            "requests": 2,
            "input_tokens": 2000,
            "cached_input_tokens": 800,
            "output_tokens": 1000,
            "reasoning_tokens": 200,
            "total_tokens": 3000,
            "cost": 0.00528,
        }
        assert listed["data"][0] == {"object": "antiphon.usage", "key": "alice", "model": "qwen3", **counted}
        assert [(entry["key"], entry["model"], entry["cost"]) for entry in listed["data"]] == [
            ("alice", "qwen3", 0.00528),
            ("bob", "other", 0),
        ]
        assert (listed["total"]["requests"], listed["total"]["cost"]) == (3, 0.00528)


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}, {"store": False}])
async def test_response_by_every_way_is_recorded_once(fields: dict[str, Any]) -> None:
    async with served(TABLES) as http:
        made = await ask(http, **fields)
        if "background" in fields:
            id = made.json()["id"]
            while (await http.get(f"/v1/responses/{id}", headers=bearer("alice"))).json()["status"] != "completed":
                await asyncio.sleep(0.01)
        assert (await usage(http, "alice"))["total"]["total_tokens"] == 1500


async def test_websocket_turn_is_recorded() -> None:
    async with antiphon(Scripted(LONG), keys=TABLES) as url:
        async with sockets.dial(url, additional_headers=bearer("alice")) as socket:
            await sockets.response(socket)
            await sockets.response(socket)
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await usage(http, "alice"))["total"]["requests"] == 2


async def test_usage_of_a_key_is_its_own_and_of_an_admin_that_of_all() -> None:
    async with served(TABLES | ADMIN, api_keys="plain") as http:
        made = (await ask(http, "alice")).json()["id"]
        await ask(http, "bob")
        await ask(http, "plain")
        assert {entry["key"] for entry in (await usage(http, "alice"))["data"]} == {"alice"}
        (own,) = (await usage(http, "plain"))["data"]
        assert own["key"] == f"key_{hash_of('plain')[7:15]}"
        assert {entry["key"] for entry in (await usage(http, "boss"))["data"]} == {"alice", "bob", own["key"]}
        assert {entry["key"] for entry in (await usage(http, "boss", "key=a*&group=key"))["data"]} == {"alice"}
        for key in ("alice", "plain"):
            refused = await http.get("/v1/antiphon/usage?key=bob", headers=bearer(key))
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "key")
        assert (await http.get(f"/v1/responses/{made}", headers=bearer("boss"))).status_code == 404
        assert (await http.get("/v1/antiphon/responses", headers=bearer("boss"))).json()["data"] == []


async def test_usage_without_keys_is_anonymous_and_open() -> None:
    async with served({}) as http:
        await ask(http, "made-up")
        assert [entry["key"] for entry in (await usage(http, ""))["data"]] == ["anonymous"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("from=yesterday", "from"),
        ("to=2026-13-01", "to"),
        ("from=2026-02-01&to=2026-01-01", "from"),
        ("group=keys", "group"),
    ],
)
async def test_usage_query_that_is_invalid_is_named(query: str, param: str) -> None:
    async with served(TABLES) as http:
        refused = await http.get(f"/v1/antiphon/usage?{query}", headers=bearer("alice"))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_usage_names_the_backend_and_counts_passed_through_requests(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        upstream.always(sse(chunk("Hello"), chunk_finish(usage=USED), END))
        backends = {"local": {"url": upstream.url, "models": ["qwen*"]}}
        async with antiphon(backends=backends, keys=TABLES, prices=PRICES) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                await ask(http)
                listed = await usage(http, "alice", "group=backend,model")
                assert [(entry["backend"], entry["model"]) for entry in listed["data"]] == [("local", "qwen3")]
                assert listed["total"]["total_tokens"] == 1500
                body = {"model": "qwen3", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
                passed = await http.post("/v1/chat/completions", json=body, headers=bearer("alice"))
                assert passed.status_code == 200
                while (await usage(http, "alice"))["total"]["requests"] < 2:  # it is recorded after its last byte
                    await asyncio.sleep(0.01)
                assert (await usage(http, "alice"))["total"]["total_tokens"] == 3000
                text = (await http.get("/metrics")).text
                assert 'antiphon_key_responses_total{backend="local",key="alice"} 2.0' in text


async def test_passed_through_model_that_a_key_may_not_use_is_refused() -> None:
    async with Upstream() as upstream:
        backends = {"local": {"url": upstream.url}}
        keys = {"alice": {"hash": hash_of("alice"), "models": ["qwen*"]}}
        async with antiphon(backends=backends, keys=keys) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/moderations"):
                    body = {"model": "gpt-5", "input": "Hi", "messages": []}
                    refused = await http.post(path, json=body, headers=bearer("alice"))
                    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert upstream.requests == []


# Budgets.


@pytest.mark.parametrize(
    ("budget", "remaining"),
    [
        ({"tokens_per_day": 2000}, {"tokens-per-day": "500"}),
        ({"tokens_per_month": 2000}, {"tokens-per-month": "500"}),
        ({"money_per_day": 0.005}, {"money-per-day": "0.00236"}),
        (
            {"money_per_month": "0.003", "tokens_per_day": 9999},
            {"money-per-month": "0.00036", "tokens-per-day": "8499"},
        ),
    ],
)
async def test_budget_that_is_used_up_is_refused_with_its_reset(
    budget: dict[str, Any], remaining: dict[str, str]
) -> None:
    async with served(with_budget(**budget)) as http:
        answers = [await ask(http) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        for name, amount in remaining.items():
            assert answers[1].headers[f"x-antiphon-budget-remaining-{name}"] == amount
        refused = answers[2]
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("too_many_requests", "insufficient_quota")
        assert error["message"].startswith("The key 'alice' has used its budget: ")
        resets = datetime.fromisoformat(refused.headers["x-antiphon-budget-reset"])
        assert resets.time() == datetime.min.time()
        assert refused.headers["x-should-retry"] == "false"
        assert 0 < int(refused.headers["retry-after"]) <= 31 * 86_400


async def test_official_client_with_a_used_up_budget_does_not_retry() -> None:
    async with antiphon(Scripted(LONG), keys=with_budget(tokens_per_day=1)) as url:
        async with openai.AsyncOpenAI(api_key="alice", base_url=f"{url}/v1", max_retries=5) as client:
            await client.responses.create(model="qwen3", input="Hi")
            with pytest.raises(openai.RateLimitError) as refused:
                await client.responses.create(model="qwen3", input="Hi")
            assert refused.value.code == "insufficient_quota"


async def test_budget_is_shared_by_all_servers_of_a_store(tmp_path: Path) -> None:
    config: dict[str, Any] = {"keys": with_budget(tokens_per_day=10 * 1500), "store_url": f"sqlite:///{tmp_path}/a.db"}
    async with served(**config) as one, served(**config) as other:
        statuses = []
        for http in [one, other] * 10:
            statuses.append((await ask(http)).status_code)
            await usage(http, "alice")  # this key's usage is in the store now
        assert statuses == [200] * 10 + [429] * 10


async def test_budget_with_fifty_callers_is_exceeded_by_what_was_in_progress(tmp_path: Path) -> None:
    config: dict[str, Any] = {"keys": with_budget(tokens_per_day=60 * 1500), "store_url": f"sqlite:///{tmp_path}/a.db"}
    async with served(**config) as one, served(**config) as other:

        async def calls(number: int) -> list[int]:
            return [(await ask((one, other)[number % 2])).status_code for _ in range(4)]

        statuses = [status for caller in await asyncio.gather(*map(calls, range(50))) for status in caller]
        made = statuses.count(200)
        assert statuses.count(429) == 200 - made
        assert 60 <= made <= 60 + 50
        assert (await usage(one, "alice"))["total"]["requests"] == made


# The store.


class Away(MemoryUsage):
    """A ledger that is unavailable on demand, or loses the confirmation of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.tried = asyncio.Event()

    async def add(self, batch: str, rows: Any) -> None:
        if self.away:
            await super().add(batch, rows)  # the write succeeded without confirmation
            self.tried.set()
            raise StoreUnavailable
        await super().add(batch, rows)

    async def spending(self, key: str, day: str) -> Spending:
        if self.away:
            raise StoreUnavailable
        return await super().spending(key, day)


def ended(input: int = 10, output: int = 5, model: str = "m") -> tuple[str, str, Usage]:
    """A response's model, backend and usage."""
    return model, "", usage_of(TokenCounts(input, output), {}, [])


ALICE = KeyAccess(name="alice", budget=(BudgetLimit("tokens_per_day", 40),), configured=True)


async def test_usage_while_the_store_is_unavailable_is_kept_and_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.api.accounting.RETRY_INTERVAL", 0.01)
    ledger = Away()
    accounting = Accounting(ledger)
    ledger.away = True
    for _ in range(3):
        await accounting.check(ALICE)
        accounting.record(ALICE, *ended())
    await ledger.tried.wait()
    with pytest.raises(TooManyRequests):
        await accounting.check(ALICE)
    ledger.away = False
    await accounting.wait_until_stored()
    await accounting.aclose()
    (row,) = await ledger.rows("", "9")
    assert (row.requests, row.input_tokens, row.output_tokens) == (3, 30, 15)


async def test_usage_is_stored_when_the_server_has_stopped() -> None:
    ledger = MemoryUsage()
    accounting = Accounting(ledger)
    accounting.record(KeyAccess(name="bob"), *ended())
    await accounting.aclose()
    (row,) = await ledger.rows("", "9")
    assert row[1:6] == ("bob", "m", "default", 1, 10)


async def test_budget_of_a_new_day_or_month_begins_anew() -> None:
    now = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    accounting = Accounting(MemoryUsage(), clock=lambda: now.timestamp())
    monthly = KeyAccess(name="monthly", budget=(BudgetLimit("tokens_per_month", 15),))
    for access in (ALICE, monthly):
        for _ in range(3):
            accounting.record(access, *ended())
        with pytest.raises(TooManyRequests, match="resets at 2026-12-01T00:00:00Z") as refused:
            await accounting.check(access)
        assert refused.value.retry_after == 60
    now += timedelta(minutes=1)
    for access in (ALICE, monthly):
        assert [state.used for state in await accounting.check(access)] == [0]
    await accounting.aclose()


async def test_models_made_up_by_a_caller_do_not_fill_the_store() -> None:
    ledger = MemoryUsage()
    accounting = Accounting(ledger)
    for number in range(500):
        accounting.record(ALICE, *ended(model=f"made-up-{number}"))
    await accounting.aclose()
    rows = await ledger.rows("", "9")
    assert len(rows) <= 201
    assert sum(row.requests for row in rows) == 500


RECORDS = st.lists(st.tuples(st.sampled_from(["alice", "bob"]), st.sampled_from("mn"), st.integers(0, 99)), max_size=30)


@given(records=RECORDS, pauses=st.lists(st.booleans(), min_size=30, max_size=30))
async def test_usage_is_the_sum_of_what_was_recorded(records: list[tuple[str, str, int]], pauses: list[bool]) -> None:
    ledger = MemoryUsage()
    accounting = Accounting(ledger, PriceList({"m": Price(1000, 1000, 2000, 1000)}))
    costs = 0
    for (key, model, input), pause in zip(records, pauses, strict=False):
        costs += accounting.record(KeyAccess(name=key), *ended(input, 1, model)) or 0
        if pause:
            await accounting.wait_until_stored()
    await accounting.aclose()
    rows: list[UsageRow] = await ledger.rows("", "9")
    assert sum(row.requests for row in rows) == len(records)
    assert sum(row.input_tokens for row in rows) == sum(input for _, _, input in records)
    assert sum(row.cost for row in rows) == costs == sum(input + 2 for _, model, input in records if model == "m")


# Killed processes.


async def test_journal_of_a_process_that_died_is_stored_once(tmp_path: Path) -> None:
    ledger = Away()
    ledger.away = True  # it adds, but does not say so
    dead = Accounting(ledger, journal=(journal := UsageJournal(tmp_path)))
    for number in range(3):
        dead.record(KeyAccess(name="bob"), *ended(input=number))
        if number == 1:
            await ledger.tried.wait()  # the first batch may be in the store, the second is not
    assert [*UsageJournal(tmp_path).abandoned()] == [], "it lives"
    assert dead._writing
    dead._writing.cancel()
    journal.close()
    ledger.away = False
    for _ in range(2):
        heir = Accounting(ledger, journal=UsageJournal(tmp_path))
        heir.start()
        assert heir._recovery
        await heir._recovery
        await heir.aclose()
        (row,) = await ledger.rows("", "9")
        assert (row.requests, row.input_tokens) == (3, 0 + 1 + 2)
    assert [*UsageJournal(tmp_path).abandoned()] == []


class Refusing(MemoryUsage):
    """A ledger that refuses batches with rows for a given model, like PostgreSQL with NUL in a name."""

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        if any(row.model == "refused" for row in rows):
            raise UnstorableValue
        await super().add(batch, rows)


async def test_usage_row_that_the_store_refuses_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    accounting = Accounting(ledger := Refusing())
    for model in ("m", "refused", "other"):
        accounting.record(KeyAccess(name="bob"), *ended(input=1000, model=model))
    await accounting.wait_until_stored()
    accounting.record(KeyAccess(name="bob"), *ended(model="m"))
    await accounting.aclose()
    assert {row.model: row.requests for row in await ledger.rows("", "9")} == {"m": 2, "other": 1}
    (refusal,) = [record for record in caplog.records if record.getMessage().startswith("usage not stored")]
    assert (refusal.__dict__["model"], refusal.__dict__["input_tokens"]) == ("refused", 1000)


async def test_journal_with_a_row_that_the_store_refuses_is_stored_without_it(tmp_path: Path) -> None:
    dead = UsageJournal(tmp_path)
    for model in ("m", "refused", "m", "other"):
        dead.append("one", (TODAY, "bob", model, "default"), (1, 2, 0, 3, 0, 4))
    dead.append("two", ("no day", "bob", "m", "default"), (1, 2, 0, 3, 0, 4))
    dead.close()
    ledger = Refusing()
    for _ in range(2):
        heir = Accounting(ledger, journal=UsageJournal(tmp_path))
        heir.start()
        assert heir._recovery
        await heir._recovery
        await heir.aclose()
        assert {row.model: row.requests for row in await ledger.rows("", "9")} == {"m": 2, "other": 1}
    assert [*UsageJournal(tmp_path).abandoned()] == []


async def test_journal_files_are_locked_and_deleted_in_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk each of these calls holds up the event loop."""
    dead = UsageJournal(tmp_path)
    dead.append("one", (TODAY, "bob", "m", "default"), (1, 2, 0, 3, 0, 4))
    dead.close()
    threads: dict[str, set[int]] = {"flock": set(), "open": set(), "unlink": set()}

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            if name == "flock" or str(args[0]).startswith(str(tmp_path)):
                threads[name].add(threading.get_ident())
            return call(*args, **options)

        return noted

    monkeypatch.setattr(fcntl, "flock", noting("flock", fcntl.flock))
    for name in ("open", "unlink"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    accounting = Accounting(ledger := MemoryUsage(), journal=UsageJournal(tmp_path))
    accounting.start()
    assert accounting._recovery
    await accounting._recovery
    for _ in range(3):
        accounting.record(KeyAccess(name="bob"), *ended())
        await accounting.wait_until_stored()
    await accounting.aclose()
    assert sum(row.requests for row in await ledger.rows("", "9")) == 1 + 3
    assert all(threads.values())
    assert threading.get_ident() not in set().union(*threads.values())
    assert os.listdir(tmp_path) == []


async def test_journal_holds_usage_recorded_before_its_file_is_prepared(tmp_path: Path) -> None:
    ledger = Away()
    ledger.away = True
    dead = Accounting(ledger, journal=(journal := UsageJournal(tmp_path)))
    dead.start()
    dead.record(KeyAccess(name="bob"), *ended())
    assert dead._writing and dead._recovery
    dead._writing.cancel()
    await dead._recovery
    journal.close()
    rows = [row for _, rows in UsageJournal(tmp_path).abandoned() for row in rows]
    assert sum(row.requests for row in rows) == 1


def test_journal_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path)
    journal.append("one", ("2026-11-22", "bob", "m", "default"), (1, 2, 0, 3, 0, 4))
    journal.close()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b'["2026-11-22","bob",')
    heir = UsageJournal(tmp_path)
    assert [*heir.abandoned()] == [("one", [UsageRow("2026-11-22", "bob", "m", "default", 1, 2, 0, 3, 0, 4)])]
    heir.close()


async def test_journal_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    accounting = Accounting(ledger := MemoryUsage(), journal=UsageJournal(tmp_path / "file"))
    for _ in range(2):
        accounting.record(KeyAccess(name="bob"), *ended())
    await accounting.aclose()
    assert sum(row.requests for row in await ledger.rows("", "9")) == 2
    assert caplog.text.count("usage journal not written") == 1
