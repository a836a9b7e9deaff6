"""
Real llama.cpp with the tiny model in `tests/real/README.md` behind Antiphon: all scenarios, streamed and not.

    ANTIPHON_TEST_LLAMA_URL=http://127.0.0.1:18080/v1 pytest tests/real/test_llama_cpp.py
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.api.routes.test_responses import client, events_of
from tests.real.scenarios import SCENARIOS, SPEAK, SPOKEN, agrees, seen
from tests.support import laws
from tests.support.serving import antiphon

URL = os.environ.get("ANTIPHON_TEST_LLAMA_URL")
if not URL:
    pytest.skip("ANTIPHON_TEST_LLAMA_URL is not set", allow_module_level=True)

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

# Different results on this server, also with Messages.
OTHERWISE = {
    "unknown model": ["completed", "text: Hello there, friend!"],  # accepts any name
}
BY_MESSAGES = {
    "no result": ["completed", "text: ..."],  # the model was not taught its prompt
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["chat", "messages"])
async def http(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    overrides = {"transport.api": request.param}
    backend = {"backend_url": URL, "backend_profile": "llama.cpp", "backend_overrides": overrides}
    backend["default_model"] = "tiny"
    weather = {"command": [sys.executable, "-m", "tests.support.mcp_weather"], "require_approval": "never"}
    tools = {"mcp": {"servers": {"weather": weather}}}
    async with antiphon(**backend, tools=tools) as url, client(url) as http:
        http.timeout = httpx.Timeout(60)
        http.headers["x-api"] = request.param
        yield http


async def ask(http: httpx.AsyncClient, request: dict[str, Any], *, stream: bool) -> tuple[int, dict[str, Any]]:
    body = {"model": "tiny", "temperature": 0, **request, "stream": stream}
    answer = await http.post("/v1/responses", json=body)
    if not stream or answer.status_code != 200:
        return answer.status_code, answer.json()
    events = await events_of(answer)
    laws.check(events)
    return 200, events[-1]["response"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_llama_cpp_answers_as_the_model_was_taught(http: httpx.AsyncClient, name: str, stream: bool) -> None:
    scenario = SCENARIOS[name]
    responses: list[dict[str, Any]] = []
    for turn in scenario.turns:
        status, response = await ask(http, turn if isinstance(turn, dict) else turn(responses), stream=stream)
        responses.append(response)
    lines = seen(status, response)
    otherwise = OTHERWISE | (BY_MESSAGES if http.headers["x-api"] == "messages" else {})
    assert agrees(lines, otherwise.get(name, scenario.want)), lines


async def test_llama_cpp_conversation_of_many_turns_is_remembered(http: httpx.AsyncClient) -> None:
    previous = None
    for text in ("My name is Alice.", "Count from 1 to 3.", "What is my name?"):
        _, response = await ask(http, {"input": text, "previous_response_id": previous}, stream=True)
        previous = response["id"]
    assert seen(200, response) == ["completed", "text: Your name is Alice."]


async def test_llama_cpp_tokens_are_counted_by_the_server(http: httpx.AsyncClient) -> None:
    _, response = await ask(http, {"input": "Say hello."}, stream=False)
    counted = (await http.post("/v1/responses/input_tokens", json={"model": "tiny", "input": "Say hello."})).json()
    assert counted["input_tokens"] == response["usage"]["input_tokens"]


async def test_llama_cpp_custom_tool_gets_input_of_its_grammar(http: httpx.AsyncClient) -> None:
    request = {"input": "What is the weather in Paris?", "tools": [SPEAK], "tool_choice": "required"}
    status, response = await ask(http, {**request, "max_output_tokens": 300}, stream=False)
    assert (status, response["status"]) == (200, "completed")
    assert re.fullmatch(SPOKEN, response["output"][-1]["input"])


WEATHER_SERVER = {"type": "mcp", "server_label": "weather"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("prompt", "before"),
    [
        ("What is the weather in Paris?", []),
        ("Tell me first, then check the weather in Rome.", ["message"]),
        ("Think, talk, then check the weather in Lima.", ["reasoning", "message"]),
    ],
)
async def test_llama_cpp_calls_a_tool_of_an_mcp_server(
    http: httpx.AsyncClient, prompt: str, before: list[str], stream: bool
) -> None:
    """In one response, the model calls a tool, an MCP program answers, and the model repeats the result."""
    _, response = await ask(http, {"input": prompt, "tools": [WEATHER_SERVER]}, stream=stream)
    assert response["status"] == "completed", response
    listed, *thoughts, call, message = response["output"]
    assert [tool["name"] for tool in listed["tools"]] == ["get_weather"]
    assert [item["type"] for item in thoughts] == before
    assert (call["type"], call["name"], call["status"]) == ("mcp_call", "get_weather", "completed")
    assert set(json.loads(call["arguments"])) == {"location"}
    assert call["output"] == "Sunny, 21C"
    assert message["content"][0]["text"].strip() == "It is sunny and 21 degrees."


async def test_llama_cpp_approved_call_is_run_and_answered(http: httpx.AsyncClient) -> None:
    asking = {"tools": [{**WEATHER_SERVER, "require_approval": "always"}]}
    _, first = await ask(http, {"input": "What is the weather in Paris?", **asking}, stream=False)
    request = first["output"][-1]
    assert request["type"] == "mcp_approval_request"
    approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    _, second = await ask(http, {"input": [approval], "previous_response_id": first["id"], **asking}, stream=True)
    call, message = second["output"]
    assert (call["approval_request_id"], call["output"]) == (request["id"], "Sunny, 21C")
    assert message["content"][0]["text"].strip() == "It is sunny and 21 degrees."
