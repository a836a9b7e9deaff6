"""Backend-only tools: declared unchanged, with their items and events passed on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from app.settings.backend import BackendSettings
from tests.api.routes.test_responses import client
from tests.responses.test_background import parsed
from tests.support import laws
from tests.support.native import Native
from tests.support.openai_types import check_event, check_request
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

SEARCH = {"type": "web_search", "search_context_size": "low"}
ASK: dict[str, Any] = {"model": "m", "input": "Weather?", "tools": [SEARCH]}
FOUND = {"type": "search", "query": "weather", "queries": ["weather"]}


def searched() -> Native:
    answer = Native()
    item = {"id": "ws_up", "type": "web_search_call", "status": "in_progress", "action": FOUND}
    answer.added(item)
    for state in ("in_progress", "searching", "completed"):
        answer.event(f"response.web_search_call.{state}", item_id="ws_up", output_index=0)
    return answer.done({**item, "status": "completed"}).message("Sunny.").completed()


def settings(*servers: Upstream, **options: Any) -> dict[str, Any]:
    backends: dict[str, Any] = {
        f"b{number}": {"url": server.url, "retries": 0, "overrides": {"transport.api": api}}
        for number, (server, api) in enumerate(zip(servers, ("responses", "chat"), strict=False))
    }
    backends["b0"]["passes"] = ["web_search"]
    return {"backends": backends, **options}


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as up:
        up.native = True
        yield up
        for request in up.requests:
            check_request(request.json)


async def test_items_and_events_come_through_under_our_ids(upstream: Upstream) -> None:
    upstream.say(searched().steps())
    async with antiphon(**settings(upstream)) as url, client(url) as http:
        events = parsed((await http.post("/v1/responses", json={**ASK, "stream": True})).text)
        stored = (await http.get(f"/v1/responses/{events[-1]['response']['id']}")).json()
    assert upstream.requests[0].json["tools"] == [SEARCH]
    laws.check(events)
    for event in events:
        check_event(event)
    states = [event["type"] for event in events if "web_search_call" in event["type"]]
    assert states == [f"response.web_search_call.{state}" for state in ("in_progress", "searching", "completed")]
    search, message = stored["output"]
    assert search["id"] != "ws_up" and search["id"].startswith("ws_")
    assert (search["type"], search["status"], search["action"]) == ("web_search_call", "completed", FOUND)
    assert message["content"][0]["text"] == "Sunny."


async def test_stored_response_can_be_streamed_again(upstream: Upstream) -> None:
    upstream.say(searched().steps())
    async with antiphon(**settings(upstream)) as url, client(url) as http:
        headers = {"Idempotency-Key": "key"}
        streams = [await http.post("/v1/responses", json={**ASK, "stream": True}, headers=headers) for _ in range(2)]
    first, again = (parsed(stream.text) for stream in streams)
    laws.check(again)
    assert len(upstream.requests) == 1
    assert again[-1]["response"]["output"] == first[-1]["response"]["output"]


@pytest.mark.parametrize("stored", [True, False])
async def test_items_go_back_to_the_server_in_their_place(upstream: Upstream, stored: bool) -> None:
    upstream.say(searched().steps())
    upstream.say(Native("two").message("Still sunny.").completed().steps())
    async with antiphon(**settings(upstream)) as url, client(url) as http:
        response = (await http.post("/v1/responses", json={**ASK, "store": stored})).json()
        before = [{"role": "user", "content": "Weather?"}, *response["output"]]
        follows = {"previous_response_id": response["id"], "input": "And now?"}
        sent = follows if stored else {"input": [*before, {"role": "user", "content": "And now?"}], "store": False}
        assert (await http.post("/v1/responses", json={**ASK, **sent})).json()["status"] == "completed"
    items = upstream.requests[1].json["input"]
    assert [item["type"] for item in items] == ["message", "web_search_call", "message", "message"]
    assert items[1] == {
        "id": "ws_up" if stored else response["output"][0]["id"],
        "type": "web_search_call",
        "status": "completed",
        "action": FOUND,
    }


async def test_server_by_chat_answers_without_the_tool_and_with_a_warning(upstream: Upstream) -> None:
    async with Upstream() as other:
        other.always(sse(chunk("Look outside."), finish(), DONE))
        async with antiphon(**settings(upstream, other)) as url, client(url) as http:
            answer = await http.post("/v1/responses", json=ASK)
    assert answer.json()["output"][0]["content"][0]["text"] == "Look outside."
    assert "web_search" in answer.headers["x-antiphon-warning"]
    assert "tools" not in other.requests[0].json


@pytest.mark.parametrize("type_", ["function", "mcp"])
def test_tools_that_run_elsewhere_cannot_be_passed(type_: str) -> None:
    with pytest.raises(ValueError, match="the client or this server runs these tools"):
        BackendSettings(url="http://localhost/v1", passes=[type_])
