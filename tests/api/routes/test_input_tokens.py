"""Input token counts: from the backend if it counts, otherwise an estimate marked as such."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import InputTokenCountResponse

from app.backends.profiles import load_profile
from app.backends.server.client import ModelServer
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.upstream import Upstream, completion, reply, status

HELLO = {"model": "m", "input": "Say hello to the world."}


async def ask(url: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        return await http.post(f"{url}/v1/responses/input_tokens", json=body)


def document(value: Any) -> list[Any]:
    return reply(json.dumps(value).encode())


async def test_input_tokens_of_the_demo_equal_its_usage() -> None:
    async with antiphon() as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        count = await client.responses.input_tokens.count(model="demo", input="Say hello to the world.")
        response = await client.responses.create(model="demo", input="Say hello to the world.")

    assert InputTokenCountResponse.model_validate(count.model_dump(), strict=True)
    assert response.usage
    assert count.input_tokens == response.usage.input_tokens


async def test_input_tokens_include_history_and_instructions() -> None:
    async with antiphon() as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        before = await client.responses.create(model="demo", input="One two three four five.")
        alone = await client.responses.input_tokens.count(model="demo", input="Six.")
        after = await client.responses.input_tokens.count(
            model="demo", input="Six.", previous_response_id=before.id, instructions="Be brief."
        )

    assert after.input_tokens > alone.input_tokens + 5


async def test_input_tokens_without_a_tokenizer_are_estimated_and_marked() -> None:
    async with antiphon(Scripted([delta(content="never asked")])) as url:
        short = await ask(url, HELLO)
        long = await ask(url, {**HELLO, "input": "Say hello to the world. " * 100})

    assert short.headers["x-antiphon-estimated"] == long.headers["x-antiphon-estimated"] == "true"
    assert short.json()["object"] == "response.input_tokens"
    assert 5 <= short.json()["input_tokens"] <= 15
    assert 500 <= long.json()["input_tokens"] <= 1000


async def test_input_tokens_of_an_invalid_request_are_refused() -> None:
    async with antiphon() as url:
        unknown = await ask(url, {**HELLO, "previous_response_id": "resp_unknown"})
        wrong = await ask(url, {**HELLO, "temperature": 3})

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")


# Counting servers.


@pytest.mark.parametrize(
    ("profile", "answers", "paths"),
    [
        ("vllm", [document({"count": 17, "max_model_len": 4096, "tokens": []})], ["/tokenize"]),
        (
            "llama.cpp",
            [document({"input_tokens": 17, "object": "response.input_tokens"})],
            ["/v1/chat/completions/input_tokens"],
        ),
        (
            "llama.cpp",  # an older version
            [
                status(404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}),
                document({"prompt": "<|user|>Say hello to the world."}),
                document({"tokens": [*range(17)]}),
            ],
            ["/v1/chat/completions/input_tokens", "/apply-template", "/tokenize"],
        ),
        (
            "default",
            [status(404, {"detail": "Not Found"}), document({"count": 17})],
            ["/v1/chat/completions/input_tokens", "/tokenize"],
        ),
    ],
)
async def test_input_tokens_are_counted_by_each_servers_own_endpoint(
    profile: str, answers: list[Any], paths: list[str]
) -> None:
    async with Upstream() as up:
        for answer in answers:
            up.say(answer)
        backend = ModelServer(up.url, "sk-test", load_profile(profile))
        async with antiphon(backend) as url:
            counted = await ask(url, {**HELLO, "tools": [{"type": "function", "name": "look"}]})

    assert (counted.json()["input_tokens"], counted.headers.get("x-antiphon-estimated")) == (17, None)
    assert [request.path for request in up.requests] == paths
    first = up.requests[0]
    assert first.json["messages"] == [{"role": "user", "content": "Say hello to the world."}]
    assert [tool["function"]["name"] for tool in first.json["tools"]] == ["look"]
    assert "stream" not in first.json
    assert first.headers["authorization"] == "Bearer sk-test"


async def test_tokenizer_that_works_is_remembered() -> None:
    async with Upstream() as up:
        up.say(status(404))
        up.always(document({"count": 17}))
        async with antiphon(ModelServer(up.url)) as url:
            for _ in range(2):
                assert (await ask(url, HELLO)).json()["input_tokens"] == 17

    assert [request.path for request in up.requests] == ["/v1/chat/completions/input_tokens", "/tokenize", "/tokenize"]


async def test_tokenizer_that_does_not_exist_is_not_asked_again() -> None:
    async with Upstream() as up:
        up.always(status(404))
        async with antiphon(ModelServer(up.url)) as url:
            answers = [await ask(url, HELLO) for _ in range(3)]

    assert [answer.headers["x-antiphon-estimated"] for answer in answers] == ["true"] * 3
    assert len(up.requests) == 3


async def test_tokenizer_that_fails_is_asked_again() -> None:
    async with Upstream() as up:
        up.say(status(503))
        up.always(document({"count": 17}))
        async with antiphon(ModelServer(up.url, None, load_profile("vllm"))) as url:
            first, second = await ask(url, HELLO), await ask(url, HELLO)

    assert first.headers["x-antiphon-estimated"] == "true"
    assert second.json()["input_tokens"] == 17


async def test_tokenizer_answer_without_a_number_is_an_estimate() -> None:
    async with Upstream() as up:
        up.always(completion("I am a model, and not a tokenizer."))
        async with antiphon(ModelServer(up.url)) as url:
            answer = await ask(url, HELLO)

    assert answer.headers["x-antiphon-estimated"] == "true"


async def test_tokenizer_of_a_hosted_service_without_one_is_not_asked() -> None:
    async with Upstream() as up:
        async with antiphon(ModelServer(up.url, "sk-test", load_profile("groq"))) as url:
            answer = await ask(url, HELLO)

    assert answer.headers["x-antiphon-estimated"] == "true"
    assert up.requests == []


async def test_server_of_the_responses_api_counts_the_items() -> None:
    async with Upstream() as up:
        up.say(document({"object": "response.input_tokens", "input_tokens": 11}))
        up.always(status(404))
        async with antiphon(ModelServer(up.url, "sk-test", load_profile("openai"))) as url:
            answers = [await ask(url, HELLO) for _ in range(3)]

    assert answers[0].json()["input_tokens"] == 11
    assert [answer.headers.get("x-antiphon-estimated") for answer in answers] == [None, "true", "true"]
    assert [request.path for request in up.requests] == ["/v1/responses/input_tokens"] * 2
    assert {"store", "stream", "include"}.isdisjoint(up.requests[0].json)
    assert up.requests[0].json["input"][-1]["role"] == "user"
