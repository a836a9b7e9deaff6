"""
Anthropic's package and a real llama.cpp with the tiny model in `tests/real/README.md`, passed through.

    ANTIPHON_TEST_LLAMA_URL=http://127.0.0.1:18080/v1 pytest tests/real/test_messages.py
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.serving import antiphon

URL = os.environ.get("ANTIPHON_TEST_LLAMA_URL")
if not URL:
    pytest.skip("ANTIPHON_TEST_LLAMA_URL is not set", allow_module_level=True)

import anthropic  # noqa: E402  # which takes a while, in each process that collects the tests

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

LOCATION = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER: Any = {"name": "get_weather", "description": "Get the weather.", "input_schema": LOCATION}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with antiphon(backend_url=URL, backend_profile="llama.cpp", api_keys="lab") as url:
        yield url


@pytest_asyncio.fixture(loop_scope="module")
async def client(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="lab", max_retries=0, timeout=60) as client:
        yield client


def asking(text: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    # The package has no `temperature` any more; the server is started with 0.
    return {"model": "tiny", "max_tokens": 200, "messages": messages, **fields}


async def streamed(client: anthropic.AsyncAnthropic, fields: Any) -> Any:
    async with client.messages.stream(**fields) as stream:
        return await stream.get_final_message()


async def used(url: str) -> Any:
    async with httpx.AsyncClient(base_url=url, headers={"x-api-key": "lab"}) as http:
        return (await http.get("/v1/antiphon/usage")).json()["total"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_message_is_answered_and_its_tokens_are_counted(
    client: anthropic.AsyncAnthropic, url: str, stream: bool
) -> None:
    before = await used(url)
    fields = asking("Say hello.")
    message = await streamed(client, fields) if stream else await client.messages.create(**fields)
    assert [block.text for block in message.content] == ["Hello there, friend!"]
    after, usage = await used(url), message.usage
    prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert after["input_tokens"] - before.get("input_tokens", 0) == prompt > 0
    assert after["output_tokens"] - before.get("output_tokens", 0) == usage.output_tokens > 0


async def test_call_and_its_result(client: anthropic.AsyncAnthropic) -> None:
    fields = asking("What is the weather in Paris?", tools=[WEATHER])
    message = await streamed(client, fields)
    (call,) = (block for block in message.content if block.type == "tool_use")
    assert (message.stop_reason, call.name, call.input) == ("tool_use", "get_weather", {"location": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21C"}
    fields["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    message = await streamed(client, fields)
    assert [block.text for block in message.content] == ["It is sunny and 21 degrees."]


async def test_tokens_of_a_prompt_are_counted(client: anthropic.AsyncAnthropic) -> None:
    few = await client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "Say hello."}])
    more = await client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "Say hello. " * 20}])
    assert 0 < few.input_tokens < more.input_tokens


async def test_prompt_that_is_too_long_is_refused(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError):
        await client.messages.create(**asking("Count to one hundred. " * 3000))
