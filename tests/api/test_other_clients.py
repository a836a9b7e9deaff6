"""What clients send that have no package to run: each request as it was seen on the wire."""

from __future__ import annotations

import httpx
import zstandard

from tests.scripted import Scripted, Step
from tests.serving import antiphon

HELLO: list[Step] = [{"choices": [{"index": 0, "delta": {"content": "Hello."}, "finish_reason": None}]}]
PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def test_vs_code_writes_the_models_words_as_input_and_may_forget_a_call() -> None:
    backend = Scripted(HELLO)
    said = [
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, _image(PIXEL)]},
        {"role": "assistant", "content": [{"type": "input_text", "text": "A pixel."}]},
        {"type": "function_call_output", "call_id": "call_gone", "output": "It is red."},
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]
    headers = {"user-agent": "GitHubCopilotChat/0.30.0", "originator": "vscode"}
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url, headers=headers) as client:
        answer = await client.post("/v1/responses", json={"model": "m", "input": said, "store": False})
    assert answer.status_code == 200
    assert "call_gone" in answer.headers["x-antiphon-warning"]
    system, asked, told, stray, again = backend.asked[0]["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert asked["content"][1]["image_url"]["url"] == PIXEL
    assert told == {"role": "assistant", "content": "A pixel."}
    assert stray["role"] == "user" and "It is red." in stray["content"]
    assert again == {"role": "user", "content": "And now?"}


async def test_a_body_may_be_packed_as_codex_packs_it() -> None:
    backend = Scripted(HELLO)
    body = zstandard.compress(b'{"model": "m", "input": "Hi.", "stream": false}')
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    async with antiphon(backend) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/v1/responses", content=body, headers=headers)
    assert answer.json()["output"][0]["content"][0]["text"] == "Hello."
    assert backend.asked[0]["messages"] == [{"role": "user", "content": "Hi."}]


async def test_what_was_said_may_be_named_item_by_item_and_by_nobody_else() -> None:
    backend = Scripted(HELLO)
    keys = {"alice": {"authorization": "Bearer alice"}, "bob": {"authorization": "Bearer bob"}}
    async with antiphon(backend, api_keys=[*keys]) as url, httpx.AsyncClient(base_url=url) as client:
        first = await client.post("/v1/responses", json={"model": "m", "input": "Hi."}, headers=keys["alice"])
        reference = {"type": "item_reference", "id": first.json()["output"][0]["id"]}
        user = [{"role": "user", "content": text} for text in ("Hi.", "And now?")]
        asked = {"model": "m", "input": [user[0], reference, user[1]]}
        answers = {name: await client.post("/v1/responses", json=asked, headers=key) for name, key in keys.items()}
    assert [answer.status_code for answer in answers.values()] == [200, 404]
    assert [message["content"] for message in backend.asked[-1]["messages"]] == ["Hi.", "Hello.", "And now?"]
    assert answers["bob"].json()["error"]["param"] == "input[1].id"


def _image(url: str) -> dict[str, str]:
    return {"type": "input_image", "image_url": url, "detail": "auto"}
