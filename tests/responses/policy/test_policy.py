"""A policy service on every way into the server: nothing reaches a model, a caller or the store unreviewed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.check import check_connectivity
from app.main import create_app
from tests.support.build import call, delta, finish
from tests.support.laws import check as check_laws
from tests.support.policy import ALLOW, PolicyServer, message, policy_server, refuse, refuses, replace, texts
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings
from tests.support.settings_file import refusal_of
from tests.support.sockets import dial, hear_out, send
from tests.support.upstream import HANG, reply, status

HELLO: list[Any] = [delta(content="Hel"), delta(content="lo")]
SECRET: list[Any] = [delta(content="The sec"), delta(content="ret")]
THINKS: list[Any] = [delta(reasoning_content="Hmm."), delta(content="Hello"), delta(content=" you")]
CALLS: list[Any] = [call(0, "call_1", "look", '{"at": "the secret"}'), finish("tool_calls")]


@contextlib.asynccontextmanager
async def served(backend: Scripted, hooks: dict[str, Any] | None, **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings(hooks=hooks, **values), backend=backend)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        yield http


async def ask(http: httpx.AsyncClient, prompt: Any = "Hi", **fields: Any) -> Any:
    answer = await http.post("/v1/responses", json={"model": "m", "input": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(http: httpx.AsyncClient, path: str = "/v1/responses", **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "m", "input": "Hi", "stream": True, **fields}
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# Input.


async def test_input_is_sent_to_the_service_without_secrets_before_the_model_sees_it() -> None:
    backend = Scripted(HELLO)
    async with policy_server() as policy:
        keys = {"alice": {"hash": "sha256:" + "0" * 64}}
        async with served(backend, policy.table("input"), api_keys="sk-caller", keys=keys) as http:
            http.headers["authorization"] = "Bearer sk-caller"
            tools = [
                {"type": "function", "name": "look", "parameters": {}, "description": "Looks."},
                {"type": "mcp", "server_label": "lab", "server_url": "https://x.test/p?t=1", "authorization": "tok-1"},
            ]
            await ask(http, instructions="Be brief.", tools=tools, text={"verbosity": "low"})
        (request,) = policy.received
        assert (request["direction"], request["model"]) == ("input", "m")
        assert request["key"].startswith("key_")
        assert [(item["role"], *texts([item])) for item in request["items"]] == [
            ("system", "Be brief."),
            ("user", "Hi"),
        ]
        assert request["items"][0]["id"] == "instructions"
        assert request["request"]["tools"][0]["description"] == "Looks."
        everything = json.dumps(request) + json.dumps(policy.requests[0].headers)
        assert not any(secret in everything for secret in ("sk-caller", "tok-1", "t=1"))
        assert len(backend.received) == 1


async def test_configuration_update_is_sent_to_the_service_with_its_own_type() -> None:
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    async with policy_server() as policy, served(Scripted(HELLO), policy.table("input")) as http:
        await ask(http, [update, message("Hi")])
    assert [item["type"] for item in policy.received[0]["items"]] == ["configuration_update", "message"]


async def test_input_that_is_refused_reaches_no_model_and_no_store() -> None:
    backend = Scripted(HELLO)
    async with policy_server(refuses("bomb")) as policy, served(backend, policy.table()) as http:
        for fields in (
            {"input": "A bomb"},
            {"input": "Hi", "instructions": "bomb"},
            {"input": "Hi", "stream": True, "instructions": "bomb"},
            {"input": "A bomb", "stream": True},
            {"input": "A bomb", "background": True},
            {"input": [message("A bomb", "assistant"), message("Hi")]},
            {"input": "Hi", "tools": [{"type": "function", "name": "f", "description": "bomb", "parameters": {}}]},
            {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"title": "bomb"}}}},
            {"input": "Hi", "documents": ["bomb"]},
        ):
            answer = await http.post("/v1/responses", json={"model": "m", **fields})
            assert code_of(answer) == (400, "policy_violation"), fields
            assert answer.json()["error"]["message"] == "Not here."
        for path in ("/v1/responses/compact", "/responses"):
            answer = await http.post(path, json={"model": "m", "input": "A bomb"})
            assert code_of(answer) == (400, "policy_violation")
        body = {"model": "m", "messages": [{"role": "user", "content": "A bomb"}]}
        assert code_of(await http.post("/v1/chat/completions", json=body)) == (400, "policy_violation")
        assert (await http.get("/v1/antiphon/responses")).json()["data"] == []
        assert backend.received == []


async def test_input_that_is_replaced_is_what_the_model_and_the_store_get() -> None:
    backend = Scripted(HELLO)
    instructions = {"type": "message", "id": "instructions", "role": "system", "content": "Be kind."}

    def decide(request: dict[str, Any]) -> Any:
        items = request["items"]
        return replace(*([instructions] if items[0].get("id") else []), message("My name is ***."))

    async with policy_server(decide) as policy, served(backend, policy.table("input")) as http:
        first = await ask(http, "My name is Bond.", instructions="Be rude.")
        assert first["instructions"] == "Be kind."
        await ask(http, "Again Bond.", previous_response_id=first["id"])
        listed = (await http.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    assert texts(listed) == ["My name is ***."]
    assert "Bond" not in json.dumps(backend.received) and "rude" not in json.dumps(backend.received)
    assert [entry["content"] for entry in backend.received[0]["messages"]] == ["Be kind.", "My name is ***."]
    assert len(backend.received[1]["messages"]) == 3


async def test_items_of_conversations_and_references_are_reviewed() -> None:
    backend = Scripted(HELLO)
    async with policy_server(refuses("bomb")) as policy, served(backend, policy.table("input")) as http:
        bad, good = message("A bomb"), message("Hello")
        assert code_of(await http.post("/v1/conversations", json={"items": [bad]})) == (400, "policy_violation")
        conversation = (await http.post("/v1/conversations", json={"items": [good]})).json()["id"]
        added = await http.post(f"/v1/conversations/{conversation}/items", json={"items": [bad]})
        assert code_of(added) == (400, "policy_violation")
        first = (await ask(http, "Hello"))["id"]
        item = (await http.get(f"/v1/responses/{first}/input_items")).json()["data"][0]
        await ask(http, [{"type": "item_reference", "id": item["id"]}])
        assert texts(policy.received[-1]["items"]) == ["Hello"]
        policy.decide = lambda request: replace(message("Better"))
        await http.post(f"/v1/conversations/{conversation}/items", json={"items": [good]})
        stored = (await http.get(f"/v1/conversations/{conversation}/items?order=asc")).json()["data"]
        assert texts(stored) == ["Hello", "Better"]


async def test_turns_without_a_model_and_on_sockets_are_reviewed() -> None:
    backend = Scripted(HELLO)
    async with policy_server(refuses("bomb")) as policy, served(backend, policy.table()) as http:
        async with dial(str(http.base_url)) as socket:
            for fields in ({"input": "A bomb"}, {"input": "A bomb", "generate": False}, {"instructions": "bomb"}):
                await send(socket, **fields)
                (refusal,) = await hear_out_error(socket)
                assert refusal["error"]["code"] == "policy_violation"
            await send(socket)
            assert (await hear_out(socket))[-1]["response"]["status"] == "completed"
    assert len(backend.received) == 1


async def hear_out_error(socket: Any) -> list[dict[str, Any]]:
    return [json.loads(await socket.recv())]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/images/generations", "/v1/rerank"])
async def test_endpoint_that_cannot_be_reviewed_is_refused_in_mode_block_only(path: str) -> None:
    from tests.support.upstream import Upstream

    async with policy_server() as policy, Upstream() as upstream:
        upstream.always(reply(b"{}"))
        for mode, expected in (("block", 403), ("observe", 200)):
            hooks = policy.table(mode=mode)
            async with serving(create_app(settings(hooks=hooks, backend_url=upstream.url))) as url:
                async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                    answer = await http.post(path, json={"model": "m", "input": "Hi", "prompt": "Hi"})
                    assert answer.status_code == expected, answer.text
        assert len(upstream.requests) == 1


# Output.


async def test_allowed_output_has_the_same_events_as_without_a_service() -> None:
    async with policy_server() as policy:
        for script in (HELLO, THINKS, CALLS):
            async with served(Scripted(script), policy.table("output")) as http:
                events = await streamed(http)
                answer = await ask(http)
            check_laws(events)
            assert events[-1]["response"]["status"] == answer["status"] == "completed"
            output = events[-1]["response"]["output"]
            assert [item["type"] for item in output] == [item["type"] for item in answer["output"]]
            assert texts(output) == texts(answer["output"])
            assert answer["usage"]["output_tokens"] > 0
    assert {request["direction"] for request in policy.received} == {"output"}
    assert all(len(request["items"]) == 1 for request in policy.received)


async def test_events_of_an_item_wait_for_its_review() -> None:
    may_decide = asyncio.Event()
    text = [event async for event in _events_before(may_decide)]
    assert text == ["response.created", "response.in_progress"]


async def _events_before(may_decide: asyncio.Event) -> AsyncIterator[str]:
    def decide(request: dict[str, Any]) -> Any:
        return [may_decide, *reply(json.dumps(ALLOW).encode())]

    async with policy_server(decide) as policy, served(Scripted(HELLO), policy.table("output")) as http:
        body = {"model": "m", "input": "Hi", "stream": True}
        async with http.stream("POST", "/v1/responses", json=body) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if line.startswith("event: "):
                    if may_decide.is_set():
                        continue
                    yield line.removeprefix("event: ")
                    if "in_progress" in line:
                        while not policy.requests:
                            await asyncio.sleep(0.01)
                        may_decide.set()


@pytest.mark.parametrize("stream", [True, False])
async def test_output_that_is_refused_ends_with_a_refusal_and_is_not_stored(stream: bool) -> None:
    backend = Scripted([delta(reasoning_content="Fine."), *SECRET, delta(content="s")])
    async with policy_server(refuses("secret")) as policy, served(backend, policy.table("output")) as http:
        if stream:
            events = await streamed(http)
            check_laws(events)
            response = events[-1]["response"]
            assert "secret" not in json.dumps(events)
        else:
            response = await ask(http)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "content_filter"}
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
        assert response["output"][1]["content"] == [{"type": "refusal", "refusal": "Not here."}]
        assert response["usage"]["total_tokens"] > 0
        stored = await http.get(f"/v1/responses/{response['id']}")
        assert "secret" not in stored.text
        assert "secret" not in (await http.get("/v1/antiphon/responses")).text
        await ask(http, previous_response_id=response["id"])
        assert "secret" not in json.dumps(backend.received[-1])


async def test_refusal_stops_the_backend() -> None:
    never = asyncio.Event()
    backend = Scripted([delta(reasoning_content="The secret."), delta(content="Hello"), never])
    async with policy_server(refuses("secret")) as policy, served(backend, policy.table("output")) as http:
        response = await ask(http)
        assert response["status"] == "incomplete"
        assert backend.opened == 0 and backend.left == 1


async def test_output_that_is_replaced_is_what_the_caller_and_the_store_get() -> None:
    backend = Scripted(SECRET)

    def decide(request: dict[str, Any]) -> Any:
        return replace(message("***", "assistant"), message("Ask me something else.", "assistant"))

    async with policy_server(decide) as policy, served(backend, policy.table("output")) as http:
        events = await streamed(http)
        check_laws(events)
        response = events[-1]["response"]
        assert texts(response["output"]) == ["***", "Ask me something else."]
        await ask(http, previous_response_id=response["id"])
    assert "secret" not in json.dumps(events) and "secret" not in json.dumps(backend.received[1])


async def test_call_that_is_replaced_has_other_arguments() -> None:
    def decide(request: dict[str, Any]) -> Any:
        (item,) = request["items"]
        return replace({**item, "id": "fc_other", "call_id": "other", "arguments": '{"at": "the sea"}'})

    async with policy_server(decide) as policy, served(Scripted(CALLS), policy.table("output")) as http:
        events = await streamed(http)
        check_laws(events)
        (item,) = events[-1]["response"]["output"]
        assert (item["call_id"], item["arguments"]) == ("call_1", '{"at": "the sea"}')
        assert "secret" not in json.dumps(events)


async def test_output_in_the_background_and_on_sockets_is_reviewed() -> None:
    async with policy_server(refuses("secret")) as policy, served(Scripted(SECRET), policy.table("output")) as http:
        run = await ask(http, background=True)
        while (found := (await http.get(f"/v1/responses/{run['id']}")).json())["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
        assert texts(found["output"]) == ["Not here."]
        async with dial(str(http.base_url)) as socket:
            await send(socket)
            frames = await hear_out(socket)
        assert frames[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}
        assert "secret" not in json.dumps([found, frames])


async def test_chat_completion_is_translated_and_its_output_reviewed() -> None:
    async with policy_server(refuses("secret")) as policy, served(Scripted(SECRET), policy.table("output")) as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        choice = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert choice["finish_reason"] == "content_filter"
        assert "secret" not in json.dumps(choice)
        streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
        assert "secret" not in streamed.text and "content_filter" in streamed.text


async def test_client_that_leaves_stops_the_backend() -> None:
    backend = Scripted([delta(reasoning_content="Hmm."), delta(content="Hello"), asyncio.Event()])
    async with policy_server() as policy, served(backend, policy.table("output")) as http:
        body = {"model": "m", "input": "Hi", "stream": True}
        async with http.stream("POST", "/v1/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if line == "event: response.output_item.done":
                    break
        async with asyncio.timeout(60):
            while backend.opened:
                await asyncio.sleep(0.01)
    assert backend.left == 1


async def test_cancelled_response_has_the_reviewed_items_only() -> None:
    backend = Scripted([delta(reasoning_content="Hmm."), delta(content="Hello"), asyncio.Event()])
    async with policy_server() as policy, served(backend, policy.table("output")) as http:
        async with dial(str(http.base_url)) as socket:
            await send(socket)
            while json.loads(await socket.recv())["type"] != "response.output_item.done":
                pass
            await socket.send(json.dumps({"type": "response.cancel"}))
            response = (await hear_out(socket))[-1]["response"]
    assert response["status"] in ("cancelled", "incomplete")
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert response["usage"]["total_tokens"] > 0


# Service failures.

NO_DECISION = {
    "error": lambda request: status(500, {}),
    "redirect": lambda request: reply(b"", status=302, headers={"location": "/allow"}),
    "no JSON": lambda request: reply(b"<html>"),
    "list": lambda request: [],
    "unknown action": lambda request: {"action": "perhaps"},
    "no action": lambda request: {},
    "replacement without items": lambda request: {"action": "replace"},
    "replacement with texts": lambda request: {"action": "replace", "items": ["text"]},
    "no answer": lambda request: [HANG],
}


@pytest.mark.parametrize("decide", NO_DECISION.values(), ids=NO_DECISION.keys())
@pytest.mark.parametrize("direction", ["input", "output"])
async def test_service_without_a_decision_fails_closed_or_open(direction: str, decide: Any) -> None:
    backend = Scripted(HELLO)
    policy = PolicyServer(lambda request: decide(request) or reply(b"[]"))
    async with policy:
        async with served(backend, policy.table(direction, timeout=0.3)) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi"})
            assert code_of(answer) == (503, "policy_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            if direction == "output":
                events = await streamed(http)
                check_laws(events)
                assert events[-1]["response"]["error"]["code"] == "policy_unavailable"
                assert "Hel" not in json.dumps(events)
        async with served(backend, policy.table(direction, timeout=0.3, fail="open")) as http:
            assert texts((await ask(http))["output"]) == ["Hello"]


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "unknown_item"}],
        [message("a", "assistant"), {"type": "function_call", "name": "f", "arguments": "{}"}],
        [{"type": "message", "content": [{"type": "output_text"}]}],
        [{"type": "message", "content": 1}],
    ],
)
async def test_output_replacement_that_is_invalid_counts_as_a_failure(items: list[Any]) -> None:
    async with policy_server(lambda request: replace(*items)) as policy:
        async with served(Scripted(HELLO), policy.table("output")) as http:
            events = await streamed(http)
            assert events[-1]["response"]["error"]["code"] == "policy_unavailable"
            assert "Hel" not in json.dumps(events)


async def test_mode_observe_changes_nothing_and_logs_decisions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with policy_server(lambda request: refuse()) as policy:
        async with served(Scripted(HELLO), policy.table(mode="observe")) as http:
            events = await streamed(http)
            assert [event["delta"] for event in events if event["type"].endswith("text.delta")] == ["Hel", "lo"]
            while len(policy.requests) < 2 or not all(request.answered.is_set() for request in policy.requests):
                await asyncio.sleep(0.01)
            while len([record for record in caplog.records if record.message == "policy decision"]) < 2:
                await asyncio.sleep(0.01)
    # In any order: nobody waits for a decision.
    by_direction = {request["direction"]: request for request in policy.received}
    assert by_direction.keys() == {"input", "output"}
    assert texts(by_direction["output"]["items"]) == ["Hello"]
    assert "Hello" not in caplog.text


async def test_service_that_is_down_does_not_matter_in_mode_observe() -> None:
    async with policy_server() as policy:
        hooks = policy.table(mode="observe")
    async with served(Scripted(HELLO), hooks) as http:
        assert texts((await ask(http))["output"]) == ["Hello"]


# Settings.


async def test_check_reports_the_policy_service(capsys: pytest.CaptureFixture[str]) -> None:
    async with policy_server() as policy:
        assert await check_connectivity(settings(hooks=policy.table()))
        assert capsys.readouterr().out.count("answers 'allow' to a greeting") == 2
        policy.decide = lambda request: status(500, {})
        assert not await check_connectivity(settings(hooks=policy.table("input")))
        assert "HTTP 500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("[hooks]", "must have `input_url` or `output_url`"),
        ("[hooks]\ninput_url = 'ftp://x'", "hooks.input_url: must be an http"),
        ("[hooks]\ninput_url = 'http://u:p@x/'", "must not contain a user"),
        ("[hooks]\ninput_url = 'http://x/'\nmode = 'maybe'", "hooks.mode: "),
        ("[hooks]\ninput_url = 'http://x/'\ntimeout = 0", "hooks.timeout: "),
        ("[hooks]\ninputurl = 'http://x/'", "unknown key; did you mean input_url?"),
    ],
)
def test_hook_table_that_is_invalid_is_named(
    toml: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem in refusal_of(toml, tmp_path, monkeypatch)
