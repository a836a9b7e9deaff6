"""Several backends, from the client's request to theirs, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tomllib
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.settings import BackendSettings, load_settings
from tests.api.routes.test_responses import client, events_of
from tests.support import laws, sockets
from tests.support.routing import DOWN, HELLO, nobody, three
from tests.support.serving import antiphon, serving
from tests.support.upstream import DONE as END
from tests.support.upstream import HANG, Upstream, call, chunk, finish, sse, status

__all__ = ["three"]  # a fixture

ROOT = Path(__file__).parents[2]
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_request_goes_to_the_backend_of_its_model_in_its_terms(three: list[Upstream]) -> None:
    backends = {
        "local": {"url": three[0].url, "models": ["qwen*"], "profile": "vllm"},
        "cloud": {"url": three[1].url, "aliases": {"fast": "gpt-5-mini"}, "profile": "openai", "api_key": "sk-cloud"},
    }
    async with antiphon(backends=backends) as url, client(url) as http:
        for model in ("qwen3", "fast"):
            answer = (
                await http.post("/v1/responses", json={"model": model, "input": "Hi", "max_output_tokens": 16})
            ).json()
            assert (answer["model"], text(answer)) == (model, "Hello")
    (local,), (cloud,) = three[0].requests, three[1].requests
    assert (local.json["model"], local.json["max_tokens"]) == ("qwen3", 16)
    assert (cloud.json["model"], cloud.json["max_completion_tokens"]) == ("gpt-5-mini", 16)
    assert cloud.headers["authorization"] == "Bearer sk-cloud"


async def test_models_of_all_backends_are_listed_and_retrieved(three: list[Upstream]) -> None:
    three[0].models = [{"id": "qwen3"}, {"id": "whisper"}]
    backends = {
        "local": {"url": three[0].url, "models": ["qwen*"], "aliases": {"small": "qwen3"}},
        "dead": {"url": nobody(), "models": ["gpt-*"]},
    }
    async with antiphon(backends=backends) as url, client(url) as http:
        listed = (await http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["qwen3", "small"]
        assert (await http.get("/v1/models/small")).json()["id"] == "small"
        assert (await http.get("/readyz")).status_code == 200


async def test_model_that_nobody_serves_is_not_found(three: list[Upstream]) -> None:
    async with antiphon(backends={"local": {"url": three[0].url, "models": ["qwen*"]}}) as url, client(url) as http:
        for stream in (False, True):
            answer = await http.post("/v1/responses", json={"model": "gpt-5", "input": "Hi", "stream": stream})
            assert answer.status_code == 404
            assert answer.json() == {
                "error": {
                    "type": "not_found",
                    "code": "model_not_found",
                    "message": "No backend serves the model 'gpt-5'. Available: qwen*.",
                    "param": "model",
                }
            }


async def test_fallback_answers_for_a_backend_that_is_down(three: list[Upstream]) -> None:
    three[0].always(DOWN)
    three[1].always(sse(call(0, id="call_1", name="get_weather", arguments="{}"), finish("tool_calls"), END))
    backends = {
        "local": {"url": three[0].url, "profile": "llama.cpp"},
        "cloud": {"url": three[1].url, "profile": "openai"},
    }
    body = {
        "model": "m",
        "input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Weather?"}],
        "tools": [WEATHER, {**WEATHER, "name": "get_time"}],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "stream": True,
    }
    async with antiphon(backends=backends) as url, client(url) as http:
        events = await events_of(await http.post("/v1/responses", json=body))
    laws.check(events)
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["name"], item["call_id"]) == ("function_call", "get_weather", "call_1")
    local, cloud = three[0].requests[0].json, three[1].requests[0].json
    assert (local["messages"][0]["role"], local["tool_choice"], len(local["tools"])) == ("system", "required", 1)
    assert (cloud["messages"][0]["role"], len(cloud["tools"])) == ("developer", 2)
    assert cloud["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}


async def test_prompt_that_was_truncated_stays_so_for_the_fallback(three: list[Upstream]) -> None:
    three[0].say(status(400, {"error": {"message": "maximum context length is 50 tokens, but you asked for 100"}}))
    three[0].always(DOWN)
    backends = {"local": {"url": three[0].url}, "cloud": {"url": three[1].url, "profile": "openai"}}
    turns = [{"role": role, "content": f"{n} {'word ' * 20}"} for n in range(3) for role in ("user", "assistant")]
    body = {"model": "m", "input": [*turns, {"role": "user", "content": "And now?"}], "truncation": "auto"}
    async with antiphon(backends=backends) as url, client(url) as http:
        answer = (await http.post("/v1/responses", json=body)).json()
    assert text(answer) == "Hello"
    assert len(three[0].requests[0].json["messages"]) == 7
    shortened = three[1].requests[0].json["messages"]
    assert len(shortened) < 7 and shortened[-1]["content"] == "And now?"


async def test_backend_that_is_full_is_a_429_with_retry_after(three: list[Upstream]) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("a"), go, finish(), END))
    backends = {"local": {"url": three[0].url, "max_concurrency": 1, "max_queue": 0}}
    body = {"model": "m", "input": "Hi", "stream": True}
    async with antiphon(backends=backends) as url, client(url) as http, asyncio.TaskGroup() as running:
        first = running.create_task(http.post("/v1/responses", json=body))
        await until(lambda: three[0].requests)
        refused = await http.post("/v1/responses", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "too_many_requests"
        go.set()
        assert (await events_of(await first))[-1]["type"] == "response.completed"


async def test_background_response_with_a_long_completion_window_waits_behind_later_requests(
    three: list[Upstream],
) -> None:
    go = asyncio.Event()
    three[0].say(sse(chunk("a"), go, finish(), END))
    three[0].always(HELLO)
    late = {"model": "m", "input": "late", "background": True, "background_options": {"completion_window": "8h"}}
    backends = {"local": {"url": three[0].url, "max_concurrency": 1}}
    async with antiphon(backends=backends) as url, client(url) as http, asyncio.TaskGroup() as running:

        async def waiting(number: int) -> None:
            while (await http.get("/v1/antiphon/now")).json()["backends"][0]["queued"] != number:
                await asyncio.sleep(0.01)

        running.create_task(http.post("/v1/responses", json={"model": "m", "input": "first"}))
        await until(lambda: three[0].requests)
        assert (await http.post("/v1/responses", json=late)).json()["status"] == "queued"
        await waiting(1)
        running.create_task(http.post("/v1/responses", json={"model": "m", "input": "soon"}))
        await waiting(2)
        go.set()
        await until(lambda: len(three[0].requests) == 3)
    assert [request.json["messages"][0]["content"] for request in three[0].requests] == ["first", "soon", "late"]


@pytest.mark.parametrize("other", [{}, {"background": True, "stream": True}])
async def test_completion_window_of_a_response_that_does_not_wait_is_refused(
    three: list[Upstream], other: dict[str, bool]
) -> None:
    body = {"model": "m", "input": "Hi", "background_options": {"completion_window": "2h"}, **other}
    async with antiphon(backends={"local": {"url": three[0].url}}) as url, client(url) as http:
        refused = await http.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background_options.completion_window")


async def test_conversation_turns_go_to_one_replica(three: list[Upstream]) -> None:
    replicas = {"url": three[0].url, "replicas": [three[1].url, three[2].url]}
    async with antiphon(backends={"local": replicas}) as url, client(url) as http:
        for _ in range(8):
            previous, homes = None, []
            for n in range(3):
                before = [len(server.requests) for server in three]
                body = {"model": "m", "input": f"{n}", "previous_response_id": previous}
                previous = (await http.post("/v1/responses", json=body)).json()["id"]
                after = [len(server.requests) for server in three]
                homes.append([i for i in range(3) if after[i] > before[i]])
            assert homes == [homes[0]] * 3


async def test_prompt_cache_key_names_the_conversation(three: list[Upstream]) -> None:
    replicas = {"url": three[0].url, "replicas": [three[1].url, three[2].url]}
    async with antiphon(backends={"local": replicas}) as url, client(url) as http:
        for n in range(6):
            await http.post("/v1/responses", json={"model": "m", "input": f"{n}", "prompt_cache_key": "mine"})
    assert sorted(len(server.requests) for server in three) == [0, 0, 6]


async def test_replica_that_is_killed_loses_nothing_that_had_not_begun() -> None:
    killed = asyncio.Event()
    begins = sse(chunk("Once"), chunk(" upon"), killed, chunk(" a time"), finish(), END)
    waits = sse(killed, chunk("Once"), finish(), END)  # the status line has come, and no token yet
    async with AsyncExitStack() as stack:
        survivor = await stack.enter_async_context(Upstream())
        life = AsyncExitStack()
        victim = await life.enter_async_context(Upstream())
        for server in (survivor, victim):
            for script in (begins, waits) * 12:
                server.say(script)
            server.always(HELLO)
        replicas = {"url": victim.url, "replicas": [survivor.url], "max_failures": 2}
        url = await stack.enter_async_context(antiphon(backends={"local": replicas}))
        http = await stack.enter_async_context(client(url))
        begun: set[str] = set()
        async with asyncio.TaskGroup() as running:
            tasks = {f"{n}": running.create_task(tell(http, f"{n}", begun)) for n in range(24)}
            await until(lambda: len(survivor.requests) + len(victim.requests) == 24)
            lost = {request.json["messages"][0]["content"] for request in victim.requests[::2]}
            await until(lambda: begun == lost | {one.json["messages"][0]["content"] for one in survivor.requests[::2]})
            await life.aclose()
            killed.set()
        later = await http.post("/v1/responses", json={"model": "m", "input": "later"})
    assert lost and len(victim.requests) < 24
    ends = {name: task.result() for name, task in tasks.items()}
    assert {name for name, end in ends.items() if end["type"] == "response.failed"} == lost
    assert {end["type"] for name, end in ends.items() if name not in lost} == {"response.completed"}
    assert {text(ends[name]["response"]) for name in lost} == {"Once upon"}
    assert {ends[name]["response"]["output"][0]["status"] for name in lost} == {"incomplete"}
    assert later.json()["status"] == "completed"


async def tell(http: httpx.AsyncClient, name: str, begun: set[str]) -> dict[str, Any]:
    """Ask, note when the answer's second piece has come, and return the last event."""
    events = []
    body = {"model": "m", "input": name, "stream": True}
    async with http.stream("POST", "/v1/responses", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
                if events[-1]["type"] == "response.output_text.delta" and events[-1]["delta"] == " upon":
                    begun.add(name)
    laws.check(events)
    return events[-1]


# The settings, and how they are read anew.


def test_examples_of_the_docs_are_valid_settings(
    configure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/backends.md").read_text(encoding="utf-8")
    for key in re.findall(r'^api_key_env = "(\w+)"', page, re.MULTILINE):
        monkeypatch.setenv(key, "sk-1")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        configure(example)
        assert list(load_settings().served()) == list(tomllib.loads(example)["backends"])


def test_keys_of_a_backends_table_are_documented() -> None:
    page = (ROOT / "docs/backends.md").read_text(encoding="utf-8")
    assert [name for name in BackendSettings.model_fields if f"`{name}`" not in page] == []


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the settings file, the only source of settings."""
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CONFIG", "antiphon.toml")

    def write(text: str) -> None:
        (tmp_path / "antiphon.toml").write_text(text)

    return write


async def ask(http: httpx.AsyncClient, model: str = "m") -> str:
    answer = await http.post("/v1/responses", json={"model": model, "input": "Hi"})
    return text(answer.json()) if answer.is_success else answer.json()["error"]["message"]


async def test_reload_at_sighup_serves_new_requests_by_the_new_backends(
    configure: Callable[[str], None], three: list[Upstream], capsys: pytest.CaptureFixture[str]
) -> None:
    go = asyncio.Event()
    three[0].always(sse(chunk("old"), go, finish(), END))
    three[1].always(sse(chunk("new"), finish(), END))
    configure(f'[backends.local]\nurl = "{three[0].url}"\n')
    async with serving(create_app(load_settings(), reload=load_settings)) as url, client(url) as http:
        running = asyncio.create_task(ask(http))
        await until(lambda: three[0].requests)

        configure(f'[backends.other]\nurl = "{three[1].url}"\nmodels = ["m*"]\n')
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "changed=backends backends=other" in capsys.readouterr().err)
        assert await ask(http) == "new"
        assert await ask(http, "x") == "No backend serves the model 'x'. Available: m*."
        go.set()
        assert await running == "old"


async def test_reload_at_sighup_applies_limits_to_open_websockets(
    configure: Callable[[str], None], three: list[Upstream], capsys: pytest.CaptureFixture[str]
) -> None:
    backend = f'[backends.local]\nurl = "{three[0].url}"\n'
    configure(backend)
    app = create_app(load_settings(), reload=load_settings)
    async with serving(app, ws="app.api.uvicorn.websocket:WebSocketProtocol") as url, sockets.dial(url) as socket:
        assert (await sockets.ask(socket, input="word " * 100))[-1]["type"] == "response.completed"
        configure(f"max_input_tokens = 50\nmax_output_seconds = 0.001\n{backend}")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "settings reloaded" in capsys.readouterr().err)
        assert (await sockets.refusal(socket, input="word " * 100)) == (400, "context_length_exceeded")
        three[0].always(sse(chunk("Hel"), HANG))
        ended = (await sockets.ask(socket))[-1]["response"]
        assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "max_output_seconds"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[backends.local\n", "antiphon.toml: "),
        ('[backends.local]\nurl = "localhost"\n', "backends.local.url: must be an http or https URL"),
        ('[backends.local]\nurl = "http://a/v1"\nfallbacks = ["b"]\n', "backend 'b' not found"),
        ('[backends.local]\nbackend = "no.such:Backend"\n', "cannot import"),
    ],
)
async def test_reload_of_invalid_settings_changes_nothing_and_is_logged(
    configure: Callable[[str], None], three: list[Upstream], caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    configure(f'[backends.local]\nurl = "{three[0].url}"\n')
    async with serving(create_app(load_settings(), reload=load_settings)) as url, client(url) as http:
        configure(text)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "settings not reloaded" in caplog.text)
        assert why in "".join(record.__dict__.get("reason", "") for record in caplog.records)
        assert await ask(http) == "Hello"


async def test_reload_at_sighup_sends_a_replaced_key(
    configure: Callable[[str], None], three: list[Upstream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_text("LOCAL_KEY=sk-one")
    configure(f'[backends.local]\nurl = "{three[0].url}"\napi_key_env = "LOCAL_KEY"\n')
    async with serving(create_app(load_settings(), reload=load_settings)) as url, client(url) as http:
        assert await ask(http) == "Hello"
        (tmp_path / ".env").write_text("LOCAL_KEY=sk-two")
        assert await ask(http) == "Hello"
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "settings reloaded" in capsys.readouterr().err)
        assert await ask(http) == "Hello"
        assert (await http.get("/v1/models")).status_code == 200
    keys = [request.headers["authorization"] for request in three[0].requests]
    assert keys[:3] == ["Bearer sk-one", "Bearer sk-one", "Bearer sk-two"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens"])
async def test_model_name_is_bounded(three: list[Upstream], path: str) -> None:
    async with antiphon(backend_url=three[0].url) as url, client(url) as http:
        answers = [await http.post(path, json={"model": "m" * length, "input": "Hi"}) for length in (512, 513)]
    assert [answer.status_code for answer in answers] == [200, 400]
    error = answers[1].json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request", "model")
    assert len(error["message"]) < 200
