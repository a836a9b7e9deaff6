"""Requests of clients without an installable package, as captured on the wire."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import zstandard
from openai import AsyncOpenAI

from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

HELLO: list[Step] = [{"choices": [{"index": 0, "delta": {"content": "Hello."}, "finish_reason": None}]}]
PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def test_vs_code_input_of_the_models_words_is_accepted() -> None:
    backend = Scripted(HELLO)
    items = [
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, _image(PIXEL)]},
        {"role": "assistant", "content": [{"type": "input_text", "text": "A pixel."}]},
        {"type": "function_call_output", "call_id": "call_gone", "output": "It is red."},
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]
    headers = {"user-agent": "GitHubCopilotChat/0.30.0", "originator": "vscode"}
    async with (
        antiphon(backend) as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client,
    ):
        answer = await client.post("/v1/responses", json={"model": "m", "input": items, "store": False})
    assert answer.status_code == 200
    assert "call_gone" in answer.headers["x-antiphon-warning"]
    system, question, assistant, stray, again = backend.received[0]["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert question["content"][1]["image_url"]["url"] == PIXEL
    assert assistant == {"role": "assistant", "content": "A pixel."}
    assert stray["role"] == "user" and "It is red." in stray["content"]
    assert again == {"role": "user", "content": "And now?"}


async def test_body_compressed_as_by_codex_is_read() -> None:
    backend = Scripted(HELLO)
    body = zstandard.compress(b'{"model": "m", "input": "Hi.", "stream": false}')
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        answer = await client.post("/v1/responses", content=body, headers=headers)
    assert answer.json()["output"][0]["content"][0]["text"] == "Hello."
    assert backend.received[0]["messages"] == [{"role": "user", "content": "Hi."}]


async def test_prompt_template_of_openai_is_refused() -> None:
    """Without the template, the model would silently lack its instructions."""
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": "Hi.", "prompt": {"id": "pmpt_1", "variables": {"city": "Paris"}}}
        error = (await client.post("/v1/responses", json=body)).json()["error"]
        assert (await client.post("/v1/responses", json={**body, "prompt": None})).status_code == 200
    assert (error["param"], error["code"]) == ("prompt.id", "prompt_not_found")
    assert len(backend.received) == 1


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"])
async def test_service_tier_of_openai_is_accepted(tier: str) -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": "Hi.", "service_tier": tier, "safety_identifier": "a" * 128}
        assert (await client.post("/v1/responses", json=body)).status_code == 200


async def test_items_of_a_response_can_be_referenced_by_their_owner_alone() -> None:
    backend = Scripted(HELLO)
    keys = {"alice": {"authorization": "Bearer alice"}, "bob": {"authorization": "Bearer bob"}}
    async with (
        antiphon(backend, api_keys=[*keys]) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        first = await client.post("/v1/responses", json={"model": "m", "input": "Hi."}, headers=keys["alice"])
        reference = {"type": "item_reference", "id": first.json()["output"][0]["id"]}
        user = [{"role": "user", "content": text} for text in ("Hi.", "And now?")]
        body = {"model": "m", "input": [user[0], reference, user[1]]}
        answers = {name: await client.post("/v1/responses", json=body, headers=key) for name, key in keys.items()}
    assert [answer.status_code for answer in answers.values()] == [200, 404]
    assert [message["content"] for message in backend.received[-1]["messages"]] == ["Hi.", "Hello.", "And now?"]
    assert answers["bob"].json()["error"]["param"] == "input[1].id"


def _image(url: str) -> dict[str, str]:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


@pytest.mark.parametrize(
    ("sent", "image_url"),
    [
        ({"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}, {"url": PIXEL, "detail": "low"}),
        ({"type": "image_url", "image_url": PIXEL}, {"url": PIXEL}),
        ({"type": "input_image", "image_url": {"url": PIXEL}, "detail": "high"}, {"url": PIXEL, "detail": "high"}),
    ],
)
async def test_image_in_the_form_of_chat_is_accepted(sent: dict[str, Any], image_url: dict[str, str]) -> None:
    """LangChain for Node does so where an image is in its newer form; the model would see nothing."""
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": [{"role": "user", "content": [sent]}]}
        response = (await client.post("/v1/responses", json=body)).json()
        (listed,) = (await client.get(f"/v1/responses/{response['id']}/input_items")).json()["data"]
    assert backend.received[0]["messages"][0]["content"] == [{"type": "image_url", "image_url": image_url}]
    assert listed["content"][0]["type"] == "input_image"
    assert listed["content"][0]["image_url"] == PIXEL


async def test_file_in_the_form_of_chat_is_accepted() -> None:
    backend = Scripted(HELLO)
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": [{"role": "user", "content": [{"type": "file", "file": file}]}]}
        await client.post("/v1/responses", json=body)
    assert backend.received[0]["messages"][0]["content"] == [{"type": "file", "file": file}]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": 5}}, "image_url"),
        ({"type": "image_url", "image_url": {"url": PIXEL, "detail": "some"}}, "detail"),
        ({"type": "file", "file": {"file_data": 5}}, "file_data"),
    ],
)
async def test_part_that_is_invalid_is_refused_with_its_field(part: dict[str, Any], param: str) -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": [{"role": "user", "content": [part]}]}
        error = (await client.post("/v1/responses", json=body)).json()["error"]
    assert error["param"] == f"input[0].content[0].{param}"


@pytest.mark.parametrize(
    ("head", "format"),
    [
        ("data:audio/wav;base64", "wav"),
        ("data:audio/x-wav;base64", "wav"),
        ("data:audio/mpeg;base64", "mp3"),
        ("data:audio/ogg;codecs=opus;base64", "ogg"),
    ],
)
async def test_audio_as_a_data_url_is_accepted(head: str, format: str) -> None:
    """Codex sends audio this way if its catalog declares audio input, also in tool outputs."""
    sound = {"type": "input_audio", "audio_url": f"{head},UklGRg=="}
    call = {"type": "function_call", "call_id": "call_1", "name": "record", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": [sound]}
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        body = {"model": "m", "input": [{"role": "user", "content": [sound]}, call, result]}
        assert (await client.post("/v1/responses", json=body)).status_code == 200
    question, _, _, tool_message = backend.received[0]["messages"]
    audio_part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": format}}
    assert question["content"] == [audio_part]
    assert tool_message["content"][1:] == [audio_part]


@pytest.mark.parametrize(
    "audio_url", ["https://example.com/a.wav", "data:audio/wav,RIFF", "data:image/png;base64,AA==", 5]
)
async def test_audio_at_another_url_is_refused(audio_url: object) -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        content = [{"type": "input_audio", "audio_url": audio_url}]
        answer = await client.post(
            "/v1/responses", json={"model": "m", "input": [{"role": "user", "content": content}]}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[0].content[0].input_audio"


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_sent_ahead_is_accepted(stream: bool) -> None:
    """ "Prepares the prompt cache without generating output": it is kept, to be continued from."""
    backend = Scripted(HELLO)
    async with antiphon(backend) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        options: Any = {"ttl": "30m", "prewarm": True}
        if stream:
            *_, last = [
                event
                async for event in await client.responses.create(
                    model="m", input="Be brief.", prompt_cache_options=options, stream=True
                )
            ]
            ahead = last.response  # type: ignore[union-attr]
        else:
            ahead = await client.responses.create(model="m", input="Be brief.", prompt_cache_options=options)
        assert (ahead.status, ahead.output, backend.received) == ("completed", [], [])
        again = await client.responses.create(
            model="m", input="Hi.", previous_response_id=ahead.id, prompt_cache_options={"ttl": "30m"}
        )
    assert again.output_text == "Hello."
    assert [message["content"] for message in backend.received[0]["messages"]] == ["Be brief.", "Hi."]
