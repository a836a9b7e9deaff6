"""OpenAI's client at each passthrough endpoint: the same bytes as from the backend itself."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from tests.support.serving import antiphon
from tests.support.upstream import DONE, Step, Upstream, chunk, completion, finish, reply, sse, usage

SOUND = bytes(range(256)) * 500
CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "Grüße, 世界"}], "temperature": 1.0}
EMBEDDED = b'{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":"AACAPw=="}],"usage":{}}'
TEXT = b'{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"hi"}]}'
MODERATED = b'{"id":"m","model":"m","results":[]}'
IMAGES = b'{ "created": 1, "data": [{"b64_json": "aGk="}] }\n'
IMAGE_EVENTS = [
    b'event: image_generation.completed\ndata: {"type": "image_generation.completed", "b64_json": "aGk="}\n\n'
]
TRANSCRIPTION = b'{"text": "hello"}'
TRANSCRIPTION_EVENTS = [b'data: {"type": "transcript.text.delta", "delta": "hi"}\n\n']

Call = Callable[[openai.AsyncOpenAI], Awaitable[Any]]
CALLS: dict[str, tuple[Call, list[Step]]] = {
    "chat": (lambda c: c.chat.completions.create(**CHAT), completion("hello")),
    "chat stream": (
        lambda c: c.chat.completions.create(**CHAT, stream=True),
        sse(chunk("Hel"), b": comment\n\n", chunk("lo"), finish(), usage(), DONE),
    ),
    "completions": (lambda c: c.completions.create(model="m", prompt="Hi"), reply(TEXT)),
    "embeddings": (lambda c: c.embeddings.create(model="m", input=["Hi", "ü"]), reply(EMBEDDED)),
    "moderations": (lambda c: c.moderations.create(model="m", input="Hi"), reply(MODERATED)),
    "images": (lambda c: c.images.generate(model="m", prompt="A cat"), reply(IMAGES)),
    "images stream": (
        lambda c: c.images.generate(model="m", prompt="A cat", stream=True, partial_images=1),
        sse(*IMAGE_EVENTS),
    ),
    "image edits": (
        lambda c: c.images.edit(model="m", image=[("a.png", SOUND), ("b.png", SOUND)], prompt="A hat"),
        reply(IMAGES),
    ),
    "image variations": (
        lambda c: c.images.create_variation(model="m", image=("a.png", SOUND)),  # type: ignore[arg-type]
        reply(IMAGES),
    ),
    "speech": (
        lambda c: c.audio.speech.create(model="m", input="Hi", voice="alloy"),
        reply(SOUND, "audio/mpeg"),
    ),
    "transcriptions": (
        lambda c: c.audio.transcriptions.create(model="m", file=("a.wav", io.BytesIO(SOUND))),
        reply(TRANSCRIPTION),
    ),
    "transcriptions stream": (
        lambda c: c.audio.transcriptions.create(model="m", file=("a", SOUND), stream=True),
        sse(*TRANSCRIPTION_EVENTS),
    ),
    "translations": (
        lambda c: c.audio.translations.create(model="m", file=("a.wav", SOUND)),
        reply(TRANSCRIPTION),
    ),
    "a compressed answer": (
        lambda c: c.moderations.create(model="m", input="Hi"),
        reply(gzip.compress(MODERATED), headers={"Content-Encoding": "gzip"}),
    ),
    "another endpoint": (
        lambda c: c.post("/rerank", body={"model": "m", "query": "q", "documents": ["d"]}, cast_to=openai.BaseModel),
        reply(b'{"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 7}}'),
    ),
}


@pytest.mark.filterwarnings("ignore:deprecated")
@pytest.mark.parametrize("name", CALLS)
async def test_official_client_through_the_server_sends_and_receives_the_same_bytes(up: Upstream, name: str) -> None:
    call, answer = CALLS[name]
    up.always(*answer)
    answers: list[tuple[bytes, str, str | None]] = []

    async def keep(response: Any) -> None:
        headers = response.headers
        answers.append((await response.aread(), headers["content-type"], headers.get("content-encoding")))

    async with antiphon(backend_url=up.url, backend_api_key="sk-backend") as url:
        for base in (up.url, f"{url}/v1"):
            http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [keep]})
            async with openai.AsyncOpenAI(
                base_url=base, api_key="sk-caller", max_retries=0, http_client=http
            ) as client:
                await call(client)
    direct, passed = answers
    assert passed == direct
    sent, forwarded = up.requests
    assert forwarded.path == sent.path
    assert without_boundary(forwarded.body, forwarded.headers) == without_boundary(sent.body, sent.headers)
    assert forwarded.headers["authorization"] == "Bearer sk-backend"
    assert "sk-caller" not in str(forwarded.headers)


def without_boundary(body: bytes, headers: dict[str, str]) -> bytes:
    """A body with boundary `x`, because the client chooses a new boundary per request."""
    boundary = re.search("boundary=(.*)", headers["content-type"])
    return body.replace(boundary[1].encode(), b"x") if boundary else body
