"""Azure deployment paths, as the official client requests them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio

from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, completion, finish, reply, sse, usage

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
EMBEDDED = b'{"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}'
SPEECH = bytes(range(256)) * 50


@pytest_asyncio.fixture
async def url(up: Upstream) -> AsyncIterator[str]:
    backends = {"one": {"url": up.url, "api_key": "sk-backend", "aliases": {"ours": "theirs"}, "models": ["org/*"]}}
    async with antiphon(backends=backends, api_keys="sk-caller") as url:
        yield url


def azure(url: str, **options: str) -> openai.AsyncAzureOpenAI:
    given = {"api_key": "sk-caller", **options}
    return openai.AsyncAzureOpenAI(azure_endpoint=url, api_version="2024-10-21", max_retries=0, timeout=60, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "sent"), [("ours", "theirs"), ("org/model", "org/model")])
async def test_azure_deployment_in_the_path_is_the_model(up: Upstream, url: str, model: str, sent: str) -> None:
    async with azure(url) as client:
        up.say(completion("hello"))
        answer = await client.chat.completions.create(model=model, messages=MESSAGES)
        assert answer.choices[0].message.content == "hello"
        up.say(sse(chunk("Hel"), chunk("lo"), finish(), usage(), DONE))
        stream = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
        assert "".join([part.choices[0].delta.content or "" async for part in stream if part.choices]) == "Hello"
        up.say(reply(EMBEDDED))
        embedded = await client.embeddings.create(model=model, input="Hi", encoding_format="float")
        assert embedded.data[0].embedding == [0.5]
        up.say(reply(SPEECH, "audio/mpeg"))
        speech = await client.audio.speech.create(model=model, input="Hi", voice="alloy")
        assert speech.content == SPEECH
    paths = ["chat/completions", "chat/completions", "embeddings", "audio/speech"]
    assert [request.path for request in up.requests] == [f"/v1/{path}?api-version=2024-10-21" for path in paths]
    for request in up.requests:
        assert request.json["model"] == sent
        assert request.headers["authorization"] == "Bearer sk-backend"
        assert "sk-caller" not in str(request.headers)


async def test_azure_deployment_with_another_model_in_the_body_wins(up: Upstream, url: str) -> None:
    async with azure(url, azure_deployment="ours") as client:
        up.say(completion("hello"))
        await client.chat.completions.create(model="gpt-x", messages=MESSAGES)
        up.say(reply(b'{"text": "hello"}'))
        transcription = await client.audio.transcriptions.create(model="gpt-x", file=("a.wav", SPEECH))
        assert transcription.text == "hello"
    assert up.requests[0].json["model"] == "theirs"
    form = up.requests[1].body
    assert SPEECH in form and b"theirs" in form and b"gpt-x" not in form


async def test_azure_body_without_a_model_gets_the_deployment(up: Upstream, url: str) -> None:
    up.always(reply(b'{"text": ""}'))
    headers = {"api-key": "sk-caller"}
    async with httpx.AsyncClient(base_url=f"{url}/openai/deployments/ours", headers=headers, timeout=60) as client:
        await client.post("/completions", content=b'{"prompt": "Hi"}')
        await client.post("/audio/translations", files={"file": ("a", SPEECH)})
        await client.post("/audio/translations", files={"file": ("a", b"\x02" * 3_000_000)})
    assert up.requests[0].body == b'{"model":"theirs","prompt": "Hi"}'
    for request, file in zip(up.requests[1:], (SPEECH, b"\x02" * 3_000_000), strict=True):
        boundary = request.headers["content-type"].partition("boundary=")[2].encode()
        first, second = request.body.split(b"--" + boundary + b"\r\n")[1:]
        assert first == b'Content-Disposition: form-data; name="model"\r\n\r\ntheirs\r\n'
        assert file in second


async def test_azure_deployment_that_does_not_exist_is_not_found(up: Upstream, url: str) -> None:
    async with azure(url) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.embeddings.create(model="other", input="Hi")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert not up.requests


async def test_azure_deployment_at_an_azure_backend_is_passed_on(up: Upstream) -> None:
    base = up.url.removesuffix("/v1")
    settings = {"profile": "azure", "overrides": {"transport.path": "/openai/deployments/{model}/chat/completions"}}
    backends = {"a": {"url": base, "api_key": "sk-azure", "aliases": {"ours": "their deployment"}, **settings}}
    up.always(completion())
    async with antiphon(backends=backends) as url, azure(url) as client:
        await client.chat.completions.create(model="ours", messages=MESSAGES)
        await client.embeddings.create(model="ours", input="Hi", encoding_format="float")
    for request, endpoint in zip(up.requests, ("chat/completions", "embeddings"), strict=True):
        path, _, query = request.path.partition("?")
        assert path == f"/openai/deployments/their%20deployment/{endpoint}"
        assert query == "api-version=2025-04-01-preview"  # from the profile
        assert request.headers["api-key"] == "sk-azure"
