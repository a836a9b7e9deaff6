"""Anthropic's endpoints, passed through: keys, headers, errors, usage, and the replica of a conversation."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.message_events import (
    MessagesUpstream,
    counts,
    message,
    message_start,
    message_stream,
    text_block,
)
from tests.support.messages_server import frame
from tests.support.metrics import counted
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, HANG, Upstream, completion, reply, sse, status

KEY = "sk-backend-secret-0123456789"
HI: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi, żółw"}]}
STREAMED = {**HI, "stream": True}
SDK = {"x-api-key": "sk-caller", "anthropic-version": "2023-06-01"}
OVERRIDES = {"transport.messages": True}


def digest(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


@pytest_asyncio.fixture
async def up() -> AsyncIterator[MessagesUpstream]:
    async with MessagesUpstream() as upstream:
        yield upstream


def server_of(up: Upstream, **settings: Any) -> Any:
    """Antiphon in front of a server with Anthropic's endpoints."""
    options = {"backend_url": up.url, "backend_retries": 0, "backend_overrides": OVERRIDES}
    return antiphon(**{**options, **settings})


@pytest_asyncio.fixture
async def http(up: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    async with server_of(up, backend_api_key=KEY, api_keys="sk-caller") as url:
        async with httpx.AsyncClient(base_url=url, headers=SDK, timeout=60) as client:
            yield client


def failed(response: httpx.Response) -> tuple[int, str]:
    """Return an error's status and type; the error must have Anthropic's shape."""
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and set(body["error"]) == {"type", "message"}
    assert body["type"] == "error" and body["request_id"] == response.headers["x-request-id"]
    assert response.headers["request-id"] == body["request_id"]
    return response.status_code, body["error"]["type"]


# Byte for byte.


async def test_request_and_its_stream_are_passed_on_byte_for_byte(up: Upstream, http: httpx.AsyncClient) -> None:
    up.always(message_stream(*text_block(0, "Hel", "lo")))
    async with httpx.AsyncClient() as direct:
        expected = await direct.post(f"{up.url}/messages", json=STREAMED)
    up.requests.clear()
    body = b'{"max_tokens":1e2, "model" :"m","stream":true, "messages":[],"unknown":1.50}'
    sent = {"anthropic-beta": "one-2025-01-01,two-2025-01-01", "x-claude-code-session-id": "s", "x-app": "cli"}
    response = await http.post("/v1/messages?beta=true", content=body, headers=sent)
    assert response.content == expected.content
    assert response.headers["request-id"] == response.headers["x-request-id"]
    (received,) = up.requests
    assert (received.path, received.body) == ("/v1/messages?beta=true", body)
    assert {name: received.headers[name] for name in sent} == sent
    assert received.headers["anthropic-version"] == "2023-06-01"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert "x-api-key" not in received.headers


async def test_count_of_tokens_is_passed_on(up: Upstream, http: httpx.AsyncClient) -> None:
    for path in ("/v1/messages/count_tokens", "/messages/count_tokens"):
        assert (await http.post(path, json=HI)).json() == {"input_tokens": 14}
    assert [request.path for request in up.requests] == ["/v1/messages/count_tokens"] * 2


async def test_refusal_of_a_backend_is_passed_on(up: Upstream, http: httpx.AsyncClient) -> None:
    refusal = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "messages: bad"}}'
    up.say(reply(refusal, status=400, headers={"request-id": "req_theirs"}))
    response = await http.post("/v1/messages", json=HI)
    assert (response.status_code, response.content) == (400, refusal)
    assert response.headers["request-id"] == "req_theirs"


async def test_default_model_is_added(up: Upstream) -> None:
    up.say(message("Hi."))
    async with server_of(up, default_model="d") as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/v1/messages", json={"messages": []})
        await client.post(f"{url}/v1/messages/count_tokens", json={"messages": []})
    assert [request.json for request in up.requests] == [{"model": "d", "messages": []}] * 2


async def test_headers_of_a_profile_are_defaults_for_the_callers(up: Upstream) -> None:
    up.always(message("Hi."))
    own = {"anthropic-version": "2020-01-01", "anthropic-beta": "own-1", "x-own": "1"}
    overrides = {
        **OVERRIDES,
        "transport.headers": own,
        "transport.auth_header": "x-api-key",
        "transport.auth_scheme": "",
    }
    async with server_of(up, backend_overrides=overrides, backend_api_key=KEY) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/v1/messages", json=HI)
        given = {"anthropic-version": "2023-06-01", "anthropic-beta": "theirs-1", "x-own": "2", "x-api-key": "mine"}
        await client.post(f"{url}/v1/messages", json=HI, headers={**given, "anthropic-workspace-id": "w"})
    defaults, caller_headers = (request.headers for request in up.requests)
    assert {name: defaults[name] for name in own} == own
    assert (caller_headers["anthropic-version"], caller_headers["x-own"], caller_headers["x-api-key"]) == (
        "2023-06-01",
        "1",
        KEY,
    )
    assert "anthropic-workspace-id" not in caller_headers and "authorization" not in caller_headers


@pytest.mark.parametrize("profile", ["anthropic", "vllm", "openrouter"])
async def test_key_is_sent_as_the_profile_says(up: Upstream, profile: str) -> None:
    up.always(message("Hi."))
    options = {"backend_profile": profile, "backend_overrides": {}, "backend_api_key": KEY}
    async with server_of(up, **options) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/v1/messages", json=HI, headers={"x-api-key": "sk-caller"})
    (received,) = up.requests
    sent = {"x-api-key": KEY} if profile == "anthropic" else {"authorization": f"Bearer {KEY}"}
    names = ("x-api-key", "authorization")
    assert {name: received.headers[name] for name in names if name in received.headers} == sent
    assert (received.path, received.headers["anthropic-version"]) == ("/v1/messages", "2023-06-01")


async def test_betas_of_the_profile_are_added_to_the_callers(up: Upstream) -> None:
    up.always(message("Hi."))
    overrides = {**OVERRIDES, "transport.headers": {"anthropic-beta": "own-1"}}
    async with server_of(up, backend_overrides=overrides) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/v1/messages", json=HI, headers={"anthropic-beta": "theirs-1"})
    assert up.requests[0].headers["anthropic-beta"] == "theirs-1,own-1"
    assert up.requests[0].headers["anthropic-version"] == "2023-06-01"  # which the API needs


# Keys and rights.


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "sk-caller"},
        {"authorization": "Bearer sk-caller"},
        {"authorization": "Bearer sk-caller", "x-api-key": "another"},
    ],
)
async def test_key_is_taken_from_either_header(up: Upstream, headers: dict[str, str]) -> None:
    up.say(message("Hi."))
    async with server_of(up, api_keys="sk-caller") as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.post("/v1/messages", json=HI, headers=headers)).status_code == 200


async def test_message_without_a_key_asks_no_backend(up: Upstream, http: httpx.AsyncClient) -> None:
    refused = await http.post("/v1/messages", json=HI, headers={"x-api-key": ""})
    assert failed(refused) == (401, "authentication_error") and "x-api-key" in refused.json()["error"]["message"]
    assert failed(await http.post("/v1/messages", json=HI, headers={"x-api-key": "no"})) == (
        401,
        "authentication_error",
    )
    assert not up.requests


async def test_key_reaches_its_own_models_alone(up: Upstream) -> None:
    up.always(message("Hi."))
    keys = {"team": {"hash": digest("sk-team"), "models": ["small-*"]}}
    advisor = {"type": "advisor_20260301", "name": "advisor", "model": "large"}
    async with server_of(up, keys=keys) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", headers={"x-api-key": "sk-team"}) as client:
            for path in ("/messages", "/messages/count_tokens"):
                small = {**HI, "model": "small-1", "tools": [{**advisor, "model": "small-2"}]}
                assert (await client.post(path, json=small)).status_code == 200
                others = [{**HI, "model": "large"}, {**small, "tools": [advisor]}, {**small, "fallbacks": ["large"]}]
                for body in others:
                    assert failed(await client.post(path, json=body)) == (403, "permission_error")
    assert len(up.requests) == 2


async def test_form_is_no_message(up: Upstream, http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/messages", files={"model": (None, "m"), "messages": (None, "[]")})
    assert failed(response) == (400, "invalid_request_error")
    assert not up.requests


# This server's errors.


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            status(401, {"type": "error", "error": {"type": "authentication_error", "message": "No."}}),
            (502, "api_error"),
        ),
        (status(500, {"type": "error", "error": {"type": "api_error", "message": "Oh."}}), (502, "api_error")),
        (
            status(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Full."}}),
            (503, "overloaded_error"),
        ),
        (
            status(429, {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow."}}),
            (429, "rate_limit_error"),
        ),
        (status(404, {"detail": "Not Found"}), (404, "not_found_error")),
        ([CLOSE], (502, "api_error")),
    ],
    ids=["key", "failure", "overloaded", "rate", "no endpoint", "closed"],
)
async def test_failures_of_the_backend_are_errors_in_its_shape(
    up: Upstream, http: httpx.AsyncClient, answer: Any, expected: tuple[int, str]
) -> None:
    up.say(answer)
    response = await http.post("/v1/messages", json=HI)
    assert failed(response) == expected
    assert KEY not in response.text


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/messages", b"{", (400, "invalid_request_error")),
        ("POST", "/v1/messages", b"{}", (400, "invalid_request_error")),
        ("POST", "/v1/messages", b'{"model": "a", "model": "b"}', (400, "invalid_request_error")),
        ("POST", "/v1/messages", b'{"model": "m", "x": "%s"}' % (b"y" * 2_000_000), (413, "request_too_large")),
        ("GET", "/v1/messages", b"", (405, "invalid_request_error")),
        ("POST", "/v1/messages/batches", b"{}", (404, "not_found_error")),
        ("GET", "/v1/models/none", b"", (404, "not_found_error")),
        ("POST", "/v1/unknown", b"{}", (404, "not_found_error")),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_refusals_are_errors_in_its_shape(
    up: Upstream, method: str, path: str, body: bytes, expected: tuple[int, str]
) -> None:
    async with server_of(up, max_body_bytes="1MiB") as url, httpx.AsyncClient(base_url=url, headers=SDK) as client:
        assert failed(await client.request(method, path, content=body)) == expected
    assert not up.requests


async def test_error_needs_no_header_of_the_clients(up: Upstream) -> None:
    async with server_of(up, backend_overrides={}) as url, httpx.AsyncClient(base_url=url) as client:
        refused = await client.post("/messages", json={})
        assert failed(refused) == (400, "invalid_request_error")
        assert "'model'" in refused.json()["error"]["message"]
        from_a_page = await client.post("/v1/messages", json=HI, headers={"origin": "https://elsewhere.example"})
        assert failed(from_a_page) == (403, "permission_error")
    assert not up.requests


async def test_limit_is_an_error_in_its_shape(up: Upstream) -> None:
    up.always(message("Hi."))
    async with server_of(up, limit_requests_per_minute=1) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.post("/v1/messages", json=HI)).status_code == 200
        refused = await client.post("/v1/messages", json=HI)
    assert failed(refused) == (429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) > 0


async def test_prompt_that_is_too_long_is_refused_in_words_that_clients_know(up: Upstream) -> None:
    async with server_of(up, max_input_tokens=50) as url, httpx.AsyncClient(base_url=url) as client:
        system = [{"type": "text", "text": "word " * 100}]
        for body in ({**HI, "system": system}, {**HI, "system": "word " * 100}):
            refused = await client.post("/v1/messages", json=body)
            assert failed(refused) == (400, "invalid_request_error")
            assert refused.json()["error"]["message"].startswith("prompt is too long: ")
    assert not up.requests


@pytest.mark.parametrize(
    "half", [b"", b'event: content_block_delta\ndata: {"type": "content_bl'], ids=["whole", "half"]
)
async def test_stream_that_breaks_off_ends_with_an_error_event(
    up: Upstream, http: httpx.AsyncClient, half: bytes
) -> None:
    blocks = text_block(0, "Hel")[:-1]
    up.say(sse(message_start(), *blocks, *([half] if half else []), CLOSE))
    text = (await http.post("/v1/messages", json=STREAMED)).text
    *_, last, end = text.split("\n\n")
    name, _, data = last.partition("\n")
    error = json.loads(data.removeprefix("data: "))
    assert (name, end) == ("event: error", "")
    assert (error["type"], error["error"]["type"]) == ("error", "api_error") and error["request_id"]


async def test_error_within_a_stream_is_passed_on_and_counts_as_a_failure(
    up: Upstream, http: httpx.AsyncClient
) -> None:
    error = frame({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    up.say(sse(message_start(counts(10)), *text_block(0, *["word"] * 20), error))
    response = await http.post("/v1/messages", json=STREAMED)
    assert response.content.endswith(error)
    await counted(http, 'antiphon_responses_total{delivery="passthrough",model="m",status="failed"} 1.0')
    used = (await http.get("/v1/antiphon/usage")).json()["total"]
    assert used["input_tokens"] == 10 and 20 <= used["output_tokens"] <= 30


async def test_error_that_a_text_quotes_is_none(up: Upstream, http: httpx.AsyncClient) -> None:
    up.say(message_stream(*text_block(0, "It says:\n", 'event: error\ndata: {"error": {}}\n\n')))
    await http.post("/v1/messages", json=STREAMED)
    await counted(http, 'antiphon_responses_total{delivery="passthrough",model="m",status="completed"} 1.0')


# Backends.


async def test_first_backend_of_the_model_is_asked(up: Upstream) -> None:
    """Also if it does not have the endpoint: then the request is translated."""
    up.always(message("Hi."))
    async with Upstream() as chat:
        chat.always(completion("Hello."))
        by_chat, by_messages = {"url": chat.url}, {"url": up.url, "overrides": OVERRIDES}
        for backends, text in (
            ({"chat": by_chat, "messages": by_messages}, "Hello."),
            ({"messages": by_messages, "chat": by_chat}, "Hi."),
        ):
            async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=f"{url}/v1") as client:
                assert (await client.post("/messages", json=HI)).json()["content"][0]["text"] == text
        assert (len(up.requests), len(chat.requests)) == (1, 1)


async def test_alias_is_replaced_and_another_backend_answers_where_one_fails(up: Upstream) -> None:
    up.always(status(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Full."}}))
    async with MessagesUpstream() as second:
        second.always(message_stream(*text_block(0, "second")))
        common = {"retries": 0, "profile": "anthropic"}
        backends = {
            "a": {"url": up.url, "aliases": {"claude": "claude-9"}, **common},
            "b": {"url": second.url, "models": ["claude"], **common},
        }
        async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            response = await client.post("/v1/messages", json={**STREAMED, "model": "claude"})
            assert "second" in response.text
        assert [up.requests[0].json["model"], second.requests[0].json["model"]] == ["claude-9", "claude"]


async def test_models_are_listed_in_the_shape_of_the_client(up: Upstream, http: httpx.AsyncClient) -> None:
    up.models = [
        {"id": "one", "object": "model", "created": 1700000000, "owned_by": "x", "max_model_len": 4096},
        {"id": "two", "type": "model", "display_name": "Two", "created_at": "2025-01-01T00:00:00Z"},
    ]
    listed = (await http.get("/v1/models?limit=1000")).json()
    model = {"type": "model", "lifecycle": "active"}
    one = {**model, "id": "one", "display_name": "one", "created_at": "2023-11-14T22:13:20Z"}
    two = {**model, "id": "two", "display_name": "Two", "created_at": "2025-01-01T00:00:00Z"}
    assert listed == {
        "data": [{**one, "max_model_len": 4096, "max_input_tokens": 4096}, two],
        "has_more": False,
        "first_id": "one",
        "last_id": "two",
    }
    assert (await http.get("/v1/models/two")).json() == two
    plain = (await http.get("/v1/models", headers={"anthropic-version": ""})).json()
    async with httpx.AsyncClient(base_url=http.base_url, headers={"x-api-key": "sk-caller"}) as openai:
        plain = (await openai.get("/v1/models")).json()
    assert plain["object"] == "list" and plain["data"][0]["object"] == "model"


# Usage.

PRICES = {"m": {"input": 10, "cached_input": 1, "cache_write": 12.5, "output": 50}}
COUNTED = counts(10, 7, cached=100, written=5)
SPENT = {"input_tokens": 115, "cached_input_tokens": 100, "output_tokens": 7}


@pytest.mark.parametrize(
    "answer",
    [
        message("Hi.", usage=COUNTED),
        message_stream(*text_block(0, "Hi."), usage=COUNTED),
        message_stream(*text_block(0, *["x" * 1000] * 200), usage=COUNTED),
        message_stream(*text_block(0, *['{"usage": {"input_tokens": 9}}'] * 5), usage=COUNTED),
    ],
    ids=["JSON", "stream", "long stream", "quoted"],
)
async def test_tokens_of_prompt_cache_and_output_are_counted_and_priced(up: Upstream, answer: Any) -> None:
    up.say(answer)
    async with server_of(up, prices=PRICES) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/v1/messages", json=STREAMED)
        (used,) = (await client.get("/v1/antiphon/usage")).json()["data"]
        await counted(client, 'antiphon_responses_total{delivery="passthrough",model="m",status="completed"} 1.0')
    assert {name: used[name] for name in SPENT} == SPENT
    # 10 at 10, 100 at 1, 5 at 12.5 and 7 at 50, for a million each
    assert used["cost"] == pytest.approx(0.0006125)


async def test_budget_that_is_used_up_refuses_messages(up: Upstream) -> None:
    up.always(message_stream(*text_block(0, "Hi."), usage=COUNTED))
    keys = {"team": {"hash": digest("sk-team"), "budget": {"tokens_per_day": 100}}}
    async with server_of(up, keys=keys) as url:
        async with httpx.AsyncClient(base_url=url, headers={"x-api-key": "sk-team"}) as client:
            assert (await client.post("/v1/messages", json=STREAMED)).status_code == 200
            assert failed(await client.post("/v1/messages", json=STREAMED)) == (429, "rate_limit_error")
    assert len(up.requests) == 1


async def test_count_of_tokens_costs_nothing(up: Upstream) -> None:
    async with server_of(up) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post("/v1/messages/count_tokens", json=HI)
        assert (await client.get("/v1/antiphon/usage")).json()["data"] == []


@pytest.mark.parametrize("fallen", ["client", "backend"])
async def test_stream_that_ends_early_is_charged_for_its_prompt_and_what_came(up: Upstream, fallen: str) -> None:
    deltas = text_block(0, *["word"] * 50)[:-1]
    up.say(sse(message_start(COUNTED), *deltas, HANG if fallen == "client" else CLOSE))
    async with server_of(up) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        async with client.stream("POST", "/v1/messages", json=STREAMED) as response:
            received = ""
            async for text in response.aiter_text():
                received += text
                if received.count('"word"') == 50 and fallen == "client":
                    break
        async with asyncio.timeout(60):
            while not (listed := (await client.get("/v1/antiphon/usage")).json()["data"]):
                await asyncio.sleep(0.01)
    assert listed[0]["input_tokens"] == 115
    assert 50 <= listed[0]["output_tokens"] <= 60


# Replicas.


def turn_of_claude_code(agent: int, turn: int) -> dict[str, Any]:
    """A turn in a Claude Code session: a line in the system prompt changes each time, and the cache marker moves."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.330.57{turn}; cc_entrypoint=cli; cch={agent:03}{turn:02x};"
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>Rules</system-reminder>"}]},
    ]
    messages[0]["content"].append({"type": "text", "text": f"Mend the test {agent}."})
    for number in range(turn):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": "ls"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "a.py"}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    system = [{"type": "text", "text": billing}, {"type": "text", "text": "You are Claude Code."}]
    later = [{"name": f"mcp__late__{number}", "defer_loading": True} for number in range(turn)]
    return {"model": "m", "system": system, "tools": [{"name": "Bash"}, *later], "messages": messages}


async def test_turns_of_a_session_go_to_one_replica_whatever_its_billing_line() -> None:
    async with MessagesUpstream() as one, MessagesUpstream() as two:
        for server in (one, two):
            server.always(message("Hi."))
        backends = {"pool": {"url": one.url, "replicas": [two.url], "overrides": OVERRIDES}}
        async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=url) as client:
            for agent in range(16):
                before = len(one.requests), len(two.requests)
                for turn in range(4):
                    await client.post("/v1/messages", json=turn_of_claude_code(agent, turn))
                    await client.post("/v1/messages/count_tokens", json=turn_of_claude_code(agent, turn))
                assert sorted((len(one.requests) - before[0], len(two.requests) - before[1])) == [0, 8]
        assert one.requests and two.requests


async def test_session_has_one_id_for_routers_behind(up: Upstream) -> None:
    up.always(message("Hi."))
    overrides = {**OVERRIDES, "request.session_header": "x-session-id"}
    async with server_of(up, backend_overrides=overrides) as url, httpx.AsyncClient(base_url=url) as client:
        for agent, turn in ((1, 0), (1, 5), (2, 0)):
            own = {"x-session-id": "the caller's"}
            await client.post("/v1/messages", json=turn_of_claude_code(agent, turn), headers=own)
        await client.post("/v1/embeddings", json={"model": "m", "input": "Hi"}, headers={"x-session-id": "mine"})
    first, second, other, embedding = (request.headers["x-session-id"] for request in up.requests)
    assert first == second != other
    assert {len(first), len(other)} == {32} and embedding == "mine"
