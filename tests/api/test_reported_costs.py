"""Backend-reported costs in the ledger and in the response."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.backends.apis.chat.usage import normal_usage, reported_cost
from app.core.access import hash_of
from app.core.types.deltas import TokenCounts
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, call, chunk, finish, reply, sse, upstream, usage

__all__ = ["upstream"]

PRICES = {"m": {"input": 1_000_000, "output": 1_000_000}}  # 1 per token
KEYS = {"ada": {"hash": hash_of("k"), "admin": True}}


@pytest.mark.parametrize(
    ("reported", "nanos"),
    [
        ({"cost": 0.00014}, 140_000),  # OpenRouter
        ({"cost": 0}, 0),
        ({"cost": "0.25"}, 250_000_000),
        ({"cost": {"input_tokens_cost": 0.1, "total_cost": 0.5}}, 500_000_000),  # Perplexity
        ({"cost_in_usd_ticks": 37756000}, 3_775_600),  # xAI
        ({"estimated_cost": 2.5e-06}, 2500),  # DeepInfra
        ({"cost": -1}, None),
        ({"cost": float("nan")}, None),
        ({"cost": float("inf")}, None),
        ({"cost": 10**400}, None),
        ({"cost": True}, None),
        ({"cost": "much"}, None),
        ({"cost": None}, None),
        ({}, None),
    ],
)
def test_reported_cost_is_read_in_the_forms_of_providers(reported: dict[str, Any], nanos: int | None) -> None:
    assert reported_cost(reported) == nanos
    counted = normal_usage({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, **reported})
    assert counted is not None
    assert counted.cost == nanos


def costing(cost: float, *chunks: Any, reason: str = "stop") -> list[Any]:
    counted = usage(10, 5)
    counted["usage"]["cost"] = cost
    return sse(*(chunks or [chunk("Hello")]), finish(reason), counted, DONE)


@asynccontextmanager
async def client_of(upstream: Upstream, **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    values = {"backend_url": upstream.url, "keys": KEYS, "prices": PRICES, **values}
    headers = {"Authorization": "Bearer k"}
    async with antiphon(**values) as url, httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as client:
        yield client


async def spent(client: httpx.AsyncClient) -> Any:
    return (await client.get("/v1/antiphon/usage")).json()["total"]["cost"]


INCLUDED = {"model": "m", "input": "Hi", "include": ["antiphon:cost"]}


async def test_reported_cost_replaces_the_price(upstream: Upstream) -> None:
    upstream.say(costing(0.25))
    upstream.say(sse(chunk("Hello"), finish(), usage(10, 5), DONE))
    async with client_of(upstream) as client:
        reported = await client.post("/v1/responses", json=INCLUDED)
        assert reported.headers["x-antiphon-cost"] == "0.25"
        assert reported.json()["antiphon:cost"] == 0.25
        assert await spent(client) == 0.25
        priced = await client.post("/v1/responses", json=INCLUDED)
        assert priced.json()["antiphon:cost"] == 15
        assert await spent(client) == 15.25


async def test_reported_cost_is_ignored_if_the_settings_say_so(upstream: Upstream) -> None:
    upstream.say(costing(0.25))
    async with client_of(upstream, reported_costs=False) as client:
        assert (await client.post("/v1/responses", json=INCLUDED)).json()["antiphon:cost"] == 15


@pytest.mark.parametrize(
    ("currency", "reported", "cost"),
    [("€", None, 15), ("CHF", None, 15), ("$", None, 0.25), ("usd", None, 0.25), ("€", True, 0.25), ("$", False, 15)],
)
async def test_reported_dollars_are_ignored_with_prices_in_another_currency(
    upstream: Upstream, currency: str, reported: bool | None, cost: float
) -> None:
    upstream.say(costing(0.25))
    async with client_of(upstream, currency=currency, reported_costs=reported) as client:
        assert (await client.post("/v1/responses", json=INCLUDED)).json()["antiphon:cost"] == cost


async def test_stream_ends_with_the_cost_only_if_it_is_included(upstream: Upstream) -> None:
    upstream.always(costing(0.25))
    async with client_of(upstream) as client:
        for include, cost in ((["antiphon:cost"], 0.25), ([], "absent")):
            body = {**INCLUDED, "include": include, "stream": True}
            lines = (await client.post("/v1/responses", json=body)).text.splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert events[-1]["type"] == "response.completed"
            assert events[-1]["response"].get("antiphon:cost", "absent") == cost
            stored = await client.get(f"/v1/responses/{events[-1]['response']['id']}")
            assert stored.json().get("antiphon:cost", "absent") == cost


async def test_cost_without_price_and_report_is_null(upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hello"), finish(), usage(10, 5), DONE))
    async with client_of(upstream, prices={}) as client:
        assert (await client.post("/v1/responses", json=INCLUDED)).json()["antiphon:cost"] is None


async def test_costs_of_all_rounds_are_added(upstream: Upstream) -> None:
    roll = call(id="c1", name="demo__add", arguments=json.dumps({"a": 1, "b": 2}))
    upstream.say(costing(0.25, roll, reason="tool_calls"))
    upstream.say(costing(0.5))
    async with client_of(upstream, tools={"demo": {}}) as client:
        tools = [{"type": "mcp", "server_label": "demo"}]
        answer = await client.post("/v1/responses", json={**INCLUDED, "tools": tools})
        assert answer.json()["status"] == "completed", answer.text
        assert len(upstream.requests) == 2
        assert answer.json()["antiphon:cost"] == 0.75
        assert await spent(client) == 0.75


@pytest.mark.parametrize("way", ["body", "header"])
async def test_passed_through_request_is_charged_the_reported_cost(upstream: Upstream, way: str) -> None:
    cost = {"cost": 0.25} if way == "body" else {}
    document = {
        **{"id": "c", "object": "chat.completion", "created": 1, "model": "m"},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **cost},
    }
    headers = {"x-litellm-response-cost": "0.25"} if way == "header" else {}
    upstream.say(reply(json.dumps(document).encode(), headers=headers))
    async with client_of(upstream) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        assert await spent(client) == 0.25


def test_messages_and_responses_servers_report_costs_too() -> None:
    reported = {"input_tokens": 1, "output_tokens": 1, "cost": 0.1}
    assert normal_usage(reported) == TokenCounts(1, 1, cost=100_000_000)
