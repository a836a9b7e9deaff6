"""
Real servers with the tiny model in `tests/real/README.md` behind Antiphon, each with the default profile and its own.

    export ANTIPHON_TEST_SERVERS="vllm=http://127.0.0.1:18081/v1 transformers=http://127.0.0.1:18082/v1#/models/tiny"
    pytest tests/real/test_servers.py

Entries are separated by blanks: the profile, the URL and, after a `#`, the model's name if it is not `tiny`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.cli.test_cli import served
from tests.real.scenarios import CALL_PARIS, HELLO, SCENARIOS, SPEAK, SPOKEN, Json, agrees, seen
from tests.support import laws


class Server(NamedTuple):
    """A real server, and the profile to use it with."""

    kind: str
    profile: str
    url: str
    model: str

    def __str__(self) -> str:
        return self.kind if self.profile == self.kind else f"{self.kind} as {self.profile}"


def _servers(named: str) -> Iterator[Server]:
    for one in named.split():
        kind, _, address = one.partition("=")
        url, _, model = address.partition("#")
        for profile in ("default", kind):
            yield Server(kind, profile, url, model or "tiny")


SERVERS = list(_servers(os.environ.get("ANTIPHON_TEST_SERVERS", "")))
if not SERVERS:
    pytest.skip("ANTIPHON_TEST_SERVERS is not set", allow_module_level=True)

pytestmark = pytest.mark.real


def _marked(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


_PARIS = "text: " + _marked("get_weather", '{"location": "Paris"}')
_BOTH = _PARIS + "\n" + _marked("get_weather", '{"location": "Tokyo"}')
_OSLO = _marked("get_weather", '{"location": "Oslo"}')
_LIMA = "Checking Lima now.\n" + _marked("get_weather", '{"location": "Lima"}')
_NO_CALL = ["400 invalid_value"]  # no call matches this result

# Different results by server, with both profiles. None: not requested.
OTHERWISE: dict[str, dict[str, list[str] | None]] = {
    "llama.cpp": {
        "unknown model": HELLO,  # accepts any name
    },
    "llama-cpp-python": {
        # It knows nothing of the model's way to call, so the calls stay in the text.
        "call": ["completed", _PARIS],
        "call with a comma": ["completed", "text: " + _marked("get_weather", '{"location": "San Francisco, CA"}')],
        "call without arguments": ["completed", "text: " + _marked("get_time", "{}")],
        "call with nested arguments": ["completed", 'text: <tool_call>\n{"name": "calculate", ...'],
        "two calls": ["completed", _BOTH],
        "one call at a time": ["completed", _BOTH],
        "text and call": [
            "completed",
            "text: Let me check the weather in Rome.\n" + _marked("get_weather", '{"location": "Rome"}'),
        ],
        "two tools": ["completed", _PARIS],
        "tool choice required": ["completed", _PARIS],
        "tool choice named": ["completed", "call: get_weather ..."],  # it enforces a named choice
        "tool choice allowed": ["completed", _PARIS],
        "thought and call": ["completed", "thought: I need the weather tool for Oslo.", "text: " + _OSLO],
        "thought, text and call": ["completed", "thought: The user wants Lima.", "text: " + _LIMA],
        "call cut": ["incomplete: max_output_tokens", 'text (cut): <tool_call>\n{"name": "calculate", ...'],
        "result": _NO_CALL,
        "result as JSON": _NO_CALL,
        "result in parts": _NO_CALL,
        "result without tools": _NO_CALL,
        "two results": _NO_CALL,
        "thought, call and result": _NO_CALL,
        "image from a tool": _NO_CALL,
        "unknown model": HELLO,
    },
    "llama-cpp-python as default": {
        "thought": ["completed", "text: <think>\nThe user wants 2+2. That is 4.\n</think>\n\nThe answer is 4."],
        "thought and call": ["completed", "text: <think>\nI need the weather tool for Oslo.\n</think>\n\n" + _OSLO],
        "thought, text and call": ["completed", "text: <think>\nThe user wants Lima.\n</think>\n\n" + _LIMA],
        "thought cut": ["incomplete: max_output_tokens", "text (cut): <think>\nStep 1: ..."],
        "logprobs": ["completed", "text: Hello there friend friend!"],  # a token lost, and another twice
        "JSON schema": ["400 invalid_request"],
        "image": ["completed", "text: ..."],  # it does not see the message
        "too long": ["502 server_error"],  # an empty stream
    },
    "transformers": {
        # It is asked for a call in words, which this model was not taught.
        "tool choice required": HELLO,
        "tool choice named": HELLO,
        "tool choice none": ["completed"],  # the model calls without a declared tool
        "call cut": ["incomplete: max_output_tokens"],  # half a call is none
        "image": HELLO,  # a text model receives only texts
        "image from a tool": ["completed", "text: ..."],
        "file": HELLO,
        "too long": None,  # it computes on
    },
    "transformers as default": {
        "tool choice required": ["completed", CALL_PARIS],
        "tool choice named": ["completed", CALL_PARIS],
    },
    "vllm as default": {
        "thought and call": [
            "completed",
            "thought: I need the weather tool for Oslo.",
            "text: ",  # the blanks between the two
            'call: get_weather {"location": "Oslo"}',
        ],
    },
    "vllm": {},
}

# Servers that enforce schemas and grammars after the reasoning.
_FORCING = frozenset({"llama.cpp", "vllm", "sglang"})
# A server that breaks off a stream for the next request, and the result with its own profile.
_INTERRUPTING = frozenset({"llama-cpp-python"})

# vLLM's Qwen3 parser reads an answer without tags as reasoning, and this model has no tags.
_UNTAGGED = frozenset(
    name
    for name, scenario in SCENARIOS.items()
    if scenario.want[1:] and scenario.want[1].startswith("text") and name != "tool choice none"
)


def wanted(server: Server, name: str) -> list[str] | None:
    tables = (OTHERWISE.get(str(server), {}), OTHERWISE.get(server.kind, {}))
    want = next((table[name] for table in tables if name in table), SCENARIOS[name].want)
    if want and server.kind == "vllm" and name in _UNTAGGED:
        return [line.replace("text", "thought", 1) if line.startswith("text") else line for line in want]
    return want


@pytest.fixture(scope="module", params=SERVERS, ids=str)
def server(request: pytest.FixtureRequest) -> Server:
    chosen: Server = request.param
    return chosen


@pytest.fixture(scope="module")
def http(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    options = ("--backend-url", server.url, "--backend-profile", server.profile)
    with served(Path(tmp_path_factory.mktemp("real")), *options) as (_, address):
        with httpx.Client(base_url=address, timeout=180, trust_env=False) as http:
            yield http


def ask(http: httpx.Client, server: Server, request: Json, *, stream: bool) -> tuple[int, Json]:
    body = {"model": server.model, "temperature": 0, **request, "stream": stream}
    answer = http.post("/v1/responses", json=body)
    if not stream or answer.status_code != 200:
        return answer.status_code, answer.json()
    frames = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert frames.pop() == "[DONE]"
    events: list[Any] = [json.loads(frame) for frame in frames]
    laws.check(events)
    return 200, events[-1]["response"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_real_server_answers_as_the_model_was_taught(
    http: httpx.Client, server: Server, name: str, stream: bool
) -> None:
    want = wanted(server, name)
    if want is None:
        pytest.skip("not to be asked of this server")
    responses: list[Json] = []
    for turn in SCENARIOS[name].turns:
        status, response = ask(http, server, turn if isinstance(turn, dict) else turn(responses), stream=stream)
        responses.append(response)
    lines = seen(status, response)
    assert agrees(lines, want), lines


def test_real_server_after_a_client_disconnects_answers_the_next(http: httpx.Client, server: Server) -> None:
    long = {"model": server.model, "temperature": 0, "input": "Count to one hundred.", "stream": True}
    with http.stream("POST", "/v1/responses", json=long) as answer:
        assert any(".delta" in line for line in answer.iter_lines())
    assert agrees(seen(*ask(http, server, {"input": "Say hello."}, stream=False)), wanted(server, "hello") or [])


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_real_server_custom_tool_gets_input_of_its_grammar(http: httpx.Client, server: Server, choice: str) -> None:
    if server.profile not in _FORCING:
        pytest.skip("this server does not hold arguments to a pattern")
    for prompt in ("What is the weather in Paris?", "Think, then check the weather in Oslo."):
        request = {"input": prompt, "tools": [SPEAK], "tool_choice": choice, "max_output_tokens": 300}
        status, response = ask(http, server, request, stream=False)
        assert (status, response["status"]) == (200, "completed")
        call = response["output"][-1]
        assert call["type"] == "custom_tool_call"
        assert re.fullmatch(SPOKEN, call["input"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_real_server_answer_after_reasoning_fits_its_schema(http: httpx.Client, server: Server, stream: bool) -> None:
    if server.kind not in _FORCING:
        pytest.skip("this server does not hold answers to a schema")
    color = {"type": "object", "properties": {"color": {"enum": ["red"]}}, "required": ["color"]}
    schema = {"type": "json_schema", "name": "color", "schema": {**color, "additionalProperties": False}}
    request = {"input": "Think, then answer: what is 2+2?", "text": {"format": schema}}
    _, response = ask(http, server, request, stream=stream)
    assert json.loads(response["output"][-1]["content"][0]["text"]) == {"color": "red"}


def test_real_server_concurrent_streams_are_complete_or_fail(http: httpx.Client, server: Server) -> None:
    if server.kind in _INTERRUPTING and server.profile != server.kind:
        pytest.skip("nobody can know that the server has broken a stream off")
    names = ["long", "hello", "count", "poem"] * 3
    with ThreadPoolExecutor(len(names)) as pool:
        answers = pool.map(
            lambda name: ask(http, server, {**SCENARIOS[name].turns[0], "stream": True}, stream=True), names
        )
        for name, (status, response) in zip(names, answers, strict=True):
            lines = seen(status, response)
            broken = server.kind in _INTERRUPTING and lines[:2] == ["failed", "error: server_error"]
            assert broken or agrees(lines, wanted(server, name) or []), lines
