"""A new model server API needs a file and a row in `APIS`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.backends.apis import API, APIS
from app.backends.apis.api_decoder import BodyDecoder
from app.core.sse.decoder import EventDecoder
from tests.api.routes.test_responses import client
from tests.support import laws
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, DONE, RESET, Step, Upstream, chunk, finish, reply, sse, status, upstream

__all__ = ["upstream"]  # a fixture

OPTIONS = {"transport.api": "echo"}
ASKED = {"model": "m", "input": "Say hello."}
LONG = "word " * 1000


@pytest.fixture(autouse=True)
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(APIS, "echo", API("/echo", "tests.backends.apis.echo:ECHO_CODEC"))


@pytest_asyncio.fixture
async def http(upstream: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(backend_url=upstream.url, backend_overrides=OPTIONS) as url, client(url) as http:
        yield http


def end(reason: str = "stop", **fields: Any) -> dict[str, Any]:
    return {"done": True, "reason": reason, "tokens": {"in": 1, "out": 2}, **fields}


async def answer(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post("/v1/responses", json={**ASKED, **fields})
    document: dict[str, Any] = response.json()
    return document


async def stream(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    response = await http.post("/v1/responses", json={**ASKED, "stream": True, **fields})
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    laws.check(events)
    return events


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_stream_has_the_deltas_and_the_usage(upstream: Upstream, http: httpx.AsyncClient) -> None:
    upstream.say(sse({"text": "Hel"}, {"text": "lo"}, end()))
    events = await stream(http, max_output_tokens=50)
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["Hel", "lo"]
    response = events[-1]["response"]
    assert (response["status"], text_of(response)) == ("completed", "Hello")
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (1, 2)
    (request,) = upstream.requests
    assert (request.path, request.json) == ("/v1/echo", {"model": "m", "prompt": "Say hello.", "max": 50})


@pytest.mark.parametrize("whole", [False, True], ids=["from a stream", "from a document"])
async def test_json_answer_is_the_same(upstream: Upstream, http: httpx.AsyncClient, whole: bool) -> None:
    events = [{"text": "Hel"}, {"text": "lo"}, end()]
    upstream.say(reply(json.dumps(events).encode()) if whole else sse(*events))
    response = await answer(http)
    assert (response["status"], text_of(response)) == ("completed", "Hello")
    assert response["usage"]["total_tokens"] == 3


@pytest.mark.parametrize("body", [b'[{"n": 1}]', b'data: {"n": 1}\n\n'], ids=["document", "stream"])
@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\xef\xbb\xbf \r\n", b"\n\n"], ids=repr)
@pytest.mark.parametrize("cut", range(5))
def test_mark_and_blanks_before_a_body_are_skipped(body: bytes, before: bytes, cut: int) -> None:
    decoder, data = BodyDecoder(list, EventDecoder()), before + body
    assert [*decoder.decode(data[:cut]), *decoder.decode(data[cut:]), *decoder.end()] == [{"n": 1}]


async def test_prompt_of_a_response_that_continues_has_the_conversation(
    upstream: Upstream, http: httpx.AsyncClient
) -> None:
    upstream.always(sse({"text": "Hello."}, end()))
    first = await answer(http)
    await answer(http, previous_response_id=first["id"], input="Again.", instructions="Be kind.")
    assert upstream.requests[-1].json["prompt"] == "Be kind.\n\nSay hello.\n\nHello.\n\nAgain."


async def test_answer_at_the_limit_is_incomplete(upstream: Upstream, http: httpx.AsyncClient) -> None:
    upstream.always(sse({"text": "Hel"}, end("length")))
    response = await answer(http)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (await stream(http))[-1]["type"] == "response.incomplete"


async def test_refusal_has_its_message_and_class(upstream: Upstream, http: httpx.AsyncClient) -> None:
    upstream.say(status(400, {"problem": "The prompt is rude."}))
    upstream.say(status(400, {"problem": "This model's maximum context length is 10 tokens."}))
    response = await http.post("/v1/responses", json=ASKED)
    assert (response.status_code, response.json()["error"]["message"]) == (400, "The prompt is rude.")
    assert (await answer(http))["error"]["code"] == "context_length_exceeded"


async def test_error_within_the_stream_fails_the_response(upstream: Upstream, http: httpx.AsyncClient) -> None:
    upstream.say(sse({"text": "Hel"}, {"problem": "The voice broke."}))
    last = (await stream(http))[-1]
    assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", "The voice broke.")


@pytest.mark.parametrize("cut", [(), (CLOSE,), (RESET,)], ids=["ended", "closed", "reset"])
async def test_stream_that_is_cut_fails_the_response(
    upstream: Upstream, http: httpx.AsyncClient, cut: tuple[Step, ...]
) -> None:
    upstream.say(sse({"text": "Hel"}, *cut))
    events = await stream(http)
    assert (events[-1]["type"], text_of(events[-1]["response"])) == ("response.failed", "Hel")


async def test_usage_that_is_not_reported_is_estimated(upstream: Upstream, http: httpx.AsyncClient) -> None:
    upstream.say(sse({"text": "Hello."}, end(tokens=None)))
    assert 900 < (await answer(http, input=LONG))["usage"]["input_tokens"] < 1100
    counted = (await http.post("/v1/responses/input_tokens", json={**ASKED, "input": LONG})).json()
    assert 900 < counted["input_tokens"] < 1100


async def test_input_above_the_limit_of_the_server_is_refused(upstream: Upstream) -> None:
    settings: Any = {"backend_overrides": OPTIONS, "max_input_tokens": 500}
    async with antiphon(backend_url=upstream.url, **settings) as url, client(url) as http:
        response = await http.post("/v1/responses", json={**ASKED, "input": LONG})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert upstream.requests == []


async def test_other_apis_answer_in_its_place_and_it_in_theirs(upstream: Upstream) -> None:
    async with Upstream() as other:
        backends = {
            "a": {"url": upstream.url, "overrides": OPTIONS, "retries": 0},
            "b": {"url": other.url, "retries": 0},
        }
        async with antiphon(backends=backends) as url, client(url) as http:
            other.say(sse(chunk("By chat."), finish(), DONE))
            assert text_of(await answer(http)) == "By chat."
        async with antiphon(backends=dict(reversed(backends.items()))) as url, client(url) as http:
            upstream.say(sse({"text": "By echo."}, end()))
            assert text_of(await answer(http)) == "By echo."
