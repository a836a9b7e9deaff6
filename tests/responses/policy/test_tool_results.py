"""MCP tools and hosted tools' results, reviewed before they reach the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.responses.policy.test_policy import served
from tests.responses.test_tool_loop import TABLES, hello, made
from tests.responses.test_tool_loop import lab as lab
from tests.support import laws
from tests.support.hosted_lab import ScriptedTool
from tests.support.policy import ALLOW, policy_server, refuse, refuses, replace, texts
from tests.support.scripted import Scripted
from tests.support.upstream import status

LAB = {"type": "mcp", "server_label": "lab"}


def echoing() -> Scripted:
    return Scripted(made(("lab__echo", {"text": "the kryptos"})), hello())


async def ask(backend: Scripted, hooks: dict[str, Any] | None) -> dict[str, Any]:
    async with served(backend, hooks, tools=TABLES) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi", "tools": [LAB]})
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = answer.json()
        return response


def result_of(request: dict[str, Any]) -> Any:
    return next((item for item in request["items"] if item["type"] == "function_call_output"), None)


async def test_result_is_sent_as_input_before_the_next_round(lab: ScriptedTool) -> None:
    backend = echoing()
    async with policy_server() as policy:
        await ask(backend, policy.table("input"))
    (result,) = filter(None, map(result_of, policy.received))
    assert (result["call_id"], result["name"], result["output"]) == ("c0", "echo", "the kryptos")
    assert len(backend.received) == 2


@pytest.mark.parametrize("action", ["refuse", "replace"])
async def test_result_that_is_not_allowed_is_seen_by_nobody(lab: ScriptedTool, action: str) -> None:
    backend = echoing()

    def decide(request: dict[str, Any]) -> Any:
        if (result := result_of(request)) is None:
            return ALLOW
        return refuse() if action == "refuse" else replace({**result, "output": "***"})

    async with policy_server(decide) as policy:
        response = await ask(backend, policy.table("input"))
    call = next(item for item in response["output"] if item["type"] == "mcp_call")
    content = backend.received[1]["messages"][-1]["content"]
    assert content == ("The result was blocked by a policy: Not here." if action == "refuse" else "***")
    assert (call["status"], call["output"]) == (("failed", None) if action == "refuse" else ("completed", "***"))
    assert response["status"] == "completed"


async def test_hosted_call_that_is_refused_as_output_ends_the_response(lab: ScriptedTool) -> None:
    backend = echoing()
    async with (
        policy_server(refuses("kryptos")) as policy,
        served(backend, policy.table("output"), tools=TABLES) as http,
    ):
        body = {"model": "m", "input": "Hi", "tools": [LAB], "stream": True}
        answer = await http.post("/v1/responses", json=body)
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    laws.check(events)
    assert "kryptos" not in json.dumps(events)
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert texts(response["output"]) == ["Not here."]


async def test_rounds_with_a_service_that_allows_have_the_same_output(lab: ScriptedTool) -> None:
    async with policy_server() as policy:
        reviewed = await ask(echoing(), policy.table())
    plain = await ask(echoing(), None)
    kinds = [[item["type"] for item in response["output"]] for response in (reviewed, plain)]
    assert kinds[0] == kinds[1] and "mcp_call" in kinds[0]
    assert reviewed["usage"] == plain["usage"]


def listing_of(request: dict[str, Any]) -> Any:
    return next((item for item in request["items"] if item["type"] == "mcp_list_tools"), None)


async def test_tools_of_an_mcp_server_are_sent_as_input_in_every_turn(lab: ScriptedTool) -> None:
    async with policy_server() as policy:
        async with served(Scripted(hello(), hello()), policy.table("input"), tools=TABLES) as http:
            body = {"model": "m", "input": "Hi", "tools": [LAB]}
            first = (await http.post("/v1/responses", json=body)).json()
            await http.post("/v1/responses", json={**body, "previous_response_id": first["id"]})
    listings = [*filter(None, map(listing_of, policy.received))]
    assert len(listings) == 2 and listings[0] == listings[1]
    assert listings[0]["server_label"] == "lab"
    assert "echo" in [tool["name"] for tool in listings[0]["tools"]]
    assert all(tool.keys() == {"name", "description", "input_schema"} for tool in listings[0]["tools"])


async def test_tools_that_are_refused_are_not_offered_in_any_turn(lab: ScriptedTool) -> None:
    backend = Scripted(hello(), hello())
    async with policy_server(lambda request: refuse() if listing_of(request) else ALLOW) as policy:
        async with served(backend, policy.table("input"), tools=TABLES) as http:
            body = {"model": "m", "input": "Hi", "tools": [LAB]}
            first = await http.post("/v1/responses", json=body)
            assert "MCP server 'lab' were blocked by a policy: Not here." in first.headers["x-antiphon-warning"]
            second = await http.post("/v1/responses", json={**body, "previous_response_id": first.json()["id"]})
            assert second.json()["status"] == "completed"
    assert len(backend.received) == 2
    assert not any(request.get("tools") for request in backend.received)


async def test_tools_without_a_decision_fail_the_response(lab: ScriptedTool) -> None:
    backend = Scripted(hello())
    async with policy_server(lambda request: status(500, {}) if listing_of(request) else ALLOW) as policy:
        async with served(backend, policy.table("input"), tools=TABLES) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi", "tools": [LAB]})
    assert answer.json()["error"]["code"] == "policy_unavailable"
    assert backend.received == []
