"""Budgets between the rounds of a response with hosted tools: the model is not queried when they are used up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from app.core.access import hash_of
from tests.responses.test_background import until_ended
from tests.support import laws, sockets
from tests.support.build import reported
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Received, Upstream, chunk, finish, sse
from tests.support.upstream import upstream as upstream

USED = reported(100, 50)  # per round: 0.0003 at these prices
PRICES = {"m": {"input": 1, "output": 4}}
KEY = {"authorization": "Bearer alice"}
DEMO = {"model": "m", "input": "Hi", "tools": [{"type": "mcp", "server_label": "demo"}]}


def round_of_calls(number: int) -> list[bytes]:
    function = {"name": "demo__add", "arguments": json.dumps({"a": number, "b": 1})}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return sse(chunk(tool_calls=[call]), finish("tool_calls", usage=USED), DONE)


def hello() -> list[bytes]:
    return sse(chunk("Hello."), finish(usage=USED), DONE)


def options(**budget: Any) -> dict[str, Any]:
    return {"keys": {"alice": {"hash": hash_of("alice"), "budget": budget}}, "prices": PRICES, "tools": {"demo": {}}}


async def response_by(way: str, url: str) -> dict[str, Any]:
    """Return a response in any delivery mode."""
    async with httpx.AsyncClient(base_url=f"{url}/v1", headers=KEY, timeout=60, trust_env=False) as http:
        match way:
            case "json":
                response: dict[str, Any] = (await http.post("/responses", json=DEMO)).json()
            case "sse":
                text = (await http.post("/responses", json={**DEMO, "stream": True})).text
                events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                laws.check(events)
                response = events[-1]["response"]
            case "websocket":
                async with sockets.dial(url, additional_headers=KEY) as socket:
                    response = (await sockets.ask(socket, **DEMO))[-1]["response"]
            case _:
                queued = (await http.post("/responses", json={**DEMO, "background": True})).json()
                response = await until_ended(http, queued["id"])
    return response


@pytest.mark.parametrize("way", ["json", "sse", "websocket", "background"])
@pytest.mark.parametrize("budget", [{"tokens_per_day": 400}, {"money_per_month": 0.0009}], ids=["tokens", "money"])
async def test_response_beyond_its_budget_ends_before_the_next_round(
    upstream: Upstream, way: str, budget: dict[str, Any]
) -> None:
    for number in range(10):
        upstream.say(round_of_calls(number))
    async with antiphon(backend_url=upstream.url, **options(**budget)) as url:
        response = await response_by(way, url)
        async with httpx.AsyncClient(base_url=f"{url}/v1", headers=KEY, timeout=60, trust_env=False) as http:
            refused = await http.post("/responses", json=DEMO)
            usage = (await http.get("/antiphon/usage?group=key")).json()["total"]
    assert (response["status"], response["error"]["code"]) == ("failed", "insufficient_quota")
    assert response["error"]["message"].startswith("The key 'alice' has used its budget: ")
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", *["mcp_call"] * 3]
    assert {item["status"] for item in response["output"][1:]} == {"completed"}
    assert response["usage"]["total_tokens"] == 3 * 150
    assert len(upstream.requests) == 3, "the budget of two rounds and a part of the third"
    assert (usage["requests"], usage["total_tokens"], usage["cost"]) == (1, 3 * 150, 0.0009)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")


async def test_response_within_its_budget_is_recorded_once(upstream: Upstream) -> None:
    upstream.say(round_of_calls(0))
    upstream.say(round_of_calls(1))
    upstream.say(hello())
    async with antiphon(backend_url=upstream.url, **options(tokens_per_day=451)) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", headers=KEY, timeout=60, trust_env=False) as http:
            answer = await http.post("/responses", json=DEMO)
            usage = (await http.get("/antiphon/usage?group=key")).json()["total"]
    assert (answer.json()["status"], answer.json()["usage"]["total_tokens"]) == ("completed", 450)
    assert answer.headers["x-antiphon-cost"] == "0.0009"
    assert (usage["requests"], usage["total_tokens"], usage["cost"]) == (1, 450, 0.0009)


class Calling(Upstream):
    """A model with endless tool calls."""

    def answer_to(self, request: Received) -> list[Any]:
        super().answer_to(request)
        return round_of_calls(len(self.requests))


async def test_budget_is_exceeded_by_one_round_of_each_response_in_progress() -> None:
    """Fifty callers with endless rounds: when the budget is reached, each may be within a round."""
    callers, budget = 50, 200 * 150
    async with Calling() as upstream:
        usage = await used_up(upstream, callers, budget)
    assert usage["total_tokens"] == 150 * len(upstream.requests)
    assert budget <= usage["total_tokens"] <= budget + callers * 150


async def used_up(upstream: Upstream, callers: int, budget: int) -> Any:
    """Return the usage of a key when all its callers' responses have ended for its budget."""
    async with antiphon(backend_url=upstream.url, **options(tokens_per_day=budget)) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", headers=KEY, timeout=120, trust_env=False) as http:

            async def ask() -> Any:
                return (await http.post("/responses", json=DEMO)).json()

            answers = await asyncio.gather(*(ask() for _ in range(callers)))
            usage = (await http.get("/antiphon/usage?group=key")).json()["total"]
    assert {answer["error"]["code"] for answer in answers} == {"insufficient_quota"}
    return usage
