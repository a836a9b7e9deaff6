"""Image descriptions for text-only models: creation, reuse, charges and failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.core.access import hash_of
from tests.support.policy import ALLOW, message, policy_server, refuse, replace, texts
from tests.support.serving import antiphon, settings
from tests.support.store_locations import STORES, StoreLocation, location_of
from tests.support.upstream import DONE, Step, Upstream, chunk, finish, sse, status, usage

RED, BLUE = "data:image/png;base64,cmVk", "data:image/png;base64,Ymx1ZQ=="
REFUSED = status(400, {"error": {"message": "Model does not support images."}})
ANSWER = sse(chunk("Hello"), finish(), usage(10, 1), DONE)
VISION = {"backend": "eyes", "model": "qwen-vl"}
DESCRIBED = "This backend does not support images; they were replaced by descriptions from the model 'qwen-vl'."


def seen(text: str) -> list[Step]:
    return sse(chunk(text), finish(), usage(100, 7), DONE)


def about(*urls: str) -> list[dict[str, Any]]:
    images = [{"type": "input_image", "image_url": url} for url in urls]
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, *images]}]


class Servers:
    """A text-only server, a vision server, and their settings."""

    def __init__(self, text: Upstream, eyes: Upstream) -> None:
        self.text, self.eyes = text, eyes
        text.always(ANSWER)
        eyes.always(seen("A red square."))

    def settings(self, **values: Any) -> dict[str, Any]:
        backends = {
            "text": {"url": self.text.url, "models": ["m"], "retries": 0},
            "eyes": {"url": self.eyes.url, "models": ["qwen-vl"], "retries": 0},
        }
        return {"backends": backends, "vision": VISION, **values}

    @asynccontextmanager
    async def client(self, *, key: str = "k", **values: Any) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            antiphon(**self.settings(**values)) as url,
            httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=60) as client,
        ):
            yield client

    def contents(self) -> list[Any]:
        """The first message's content in each request to the text-only server."""
        return [request.json["messages"][0]["content"] for request in self.text.requests]


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    async with Upstream() as text, Upstream() as eyes:
        yield Servers(text, eyes)


async def create(client: httpx.AsyncClient, body: Mapping[str, Any], **headers: str) -> httpx.Response:
    answer = await client.post("/responses", json={"model": "m", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "completed"
    return answer


SENT = "What is this?\n(Image description by another model: A red square.)"


async def test_refused_image_is_described_and_the_next_turn_sends_the_same_text(servers: Servers) -> None:
    servers.text.say(REFUSED)
    servers.text.say(REFUSED)
    async with servers.client() as client:
        first = await create(client, {"input": about(RED)})
        assert first.headers["x-antiphon-warning"] == DESCRIBED
        servers.eyes.always(seen("Something else."))
        await create(client, {"input": "And now?", "previous_response_id": first.json()["id"]})
    assert servers.contents()[2:] == [SENT, SENT]
    first_body, second_body = (request.json["messages"] for request in servers.text.requests[2:])
    assert second_body[: len(first_body)] == first_body
    (model_request,) = servers.eyes.requests
    assert model_request.json["model"] == "qwen-vl"
    assert model_request.json["messages"][1]["content"] == [{"type": "image_url", "image_url": {"url": RED}}]


async def test_profile_without_images_describes_them_without_a_refusal(servers: Servers) -> None:
    values = servers.settings()
    values["backends"]["text"]["overrides"] = {"request.content.images": "drop"}
    async with servers.client(**values) as client:
        await create(client, {"input": about(RED)})
    assert servers.contents() == [SENT]


async def test_images_of_tool_results_are_described(servers: Servers) -> None:
    values = servers.settings()
    values["backends"]["text"]["overrides"] = {"request.content.images": "error"}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": about(RED)[0]["content"][1:]}
    async with servers.client(**values) as client:
        await create(client, {"input": [{"role": "user", "content": "Look."}, call, output]})
    assert "A red square." in str(servers.text.requests[0].json["messages"][2:])
    assert RED not in servers.text.requests[0].body.decode()


async def test_description_is_charged_to_the_key(servers: Servers) -> None:
    keys = {"ada": {"hash": hash_of("k"), "admin": True}}
    prices = {"qwen-vl": {"input": 1_000_000, "output": 0}}
    servers.text.say(REFUSED)
    servers.text.say(REFUSED)
    async with servers.client(keys=keys, prices=prices) as client:
        answer = await create(client, {"input": about(RED)})
        rows = (await client.get("/antiphon/usage")).json()["data"]
    assert answer.json()["usage"]["input_tokens"] == 10
    assert answer.headers["x-antiphon-cost"] == "100"
    described = [row for row in rows if row["model"] == "qwen-vl"]
    assert [(row["requests"], row["input_tokens"], row["output_tokens"]) for row in described] == [(1, 100, 7)]


@pytest.mark.parametrize("action", ["refuse", "replace"])
async def test_description_is_reviewed_before_the_model_sees_it(servers: Servers, action: str) -> None:
    servers.text.say(REFUSED)
    servers.text.say(REFUSED)
    decision = refuse() if action == "refuse" else replace(message("A shape."))

    def decide(request: dict[str, Any]) -> Any:
        return decision if texts(request["items"]) == ["A red square."] else ALLOW

    async with policy_server(decide) as policy, servers.client(hooks=policy.table("input")) as client:
        answer = await create(client, {"input": about(RED)})
    assert [texts(request["items"]) for request in policy.received][1:] == [["A red square."]]
    if action == "refuse":
        assert "Not here." in answer.headers["x-antiphon-warning"]
        assert servers.contents()[2:] == ["What is this?\n(An image was omitted: this model cannot see it.)"]
    else:
        assert servers.contents()[2:] == [SENT.replace("A red square.", "A shape.")]


async def test_key_without_the_vision_model_gets_a_note(servers: Servers) -> None:
    servers.text.say(REFUSED)
    servers.text.say(REFUSED)
    async with servers.client(keys={"ada": {"hash": hash_of("k"), "models": ["m"]}}) as client:
        answer = await create(client, {"input": about(RED)})
    assert "the key may not use the model 'qwen-vl'" in answer.headers["x-antiphon-warning"]
    assert servers.contents()[-1] == "What is this?\n(An image was omitted: this model cannot see it.)"
    assert servers.eyes.requests == []


@pytest.mark.parametrize(
    "failure", [status(500, {"error": {"message": "secret words"}}), REFUSED, seen("")], ids=["error", "blind", "empty"]
)
async def test_failed_description_is_a_note_and_is_tried_again(servers: Servers, failure: list[Step]) -> None:
    servers.text.say(REFUSED)
    servers.text.say(REFUSED)
    servers.eyes.say(failure)
    async with servers.client() as client:
        first = await create(client, {"input": about(RED)})
        assert "some were replaced by a note: the model 'qwen-vl' failed" in first.headers["x-antiphon-warning"]
        assert "secret" not in first.headers["x-antiphon-warning"]
        await create(client, {"input": about(RED)})
    assert servers.contents()[2:] == ["What is this?\n(An image was omitted: this model cannot see it.)", SENT]


@pytest.fixture(params=STORES[1:])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


async def test_description_outlives_a_restart_only_if_the_response_is_stored(
    servers: Servers, location: StoreLocation
) -> None:
    values = servers.settings(store_url=location.url)
    values["backends"]["text"]["overrides"] = {"request.content.images": "drop"}
    for _ in range(2):
        async with servers.client(**values) as client:
            await create(client, {"input": about(RED)})
            for _ in range(2):
                await create(client, {"input": about(BLUE), "store": False})
    urls = [request.json["messages"][1]["content"][0]["image_url"]["url"] for request in servers.eyes.requests]
    assert urls == [RED, BLUE, BLUE]


async def test_description_of_an_unstored_response_is_stored_when_a_stored_one_needs_it(
    servers: Servers, tmp_path: Path
) -> None:
    values = servers.settings(store_url=f"sqlite:///{tmp_path / 'a.db'}")
    values["backends"]["text"]["overrides"] = {"request.content.images": "drop"}
    async with servers.client(**values) as client:
        await create(client, {"input": about(RED), "store": False})
        await create(client, {"input": about(RED)})
    async with servers.client(**values) as client:
        await create(client, {"input": about(RED)})
    assert len(servers.eyes.requests) == 1


async def test_owners_do_not_share_descriptions(servers: Servers) -> None:
    values = servers.settings(api_keys=["k", "other"])
    values["backends"]["text"]["overrides"] = {"request.content.images": "drop"}
    async with servers.client(**values) as client:
        await create(client, {"input": about(RED)})
        await create(client, {"input": about(RED)}, Authorization="Bearer other")
    assert len(servers.eyes.requests) == 2


async def test_images_beyond_the_limit_of_a_response_become_notes(servers: Servers) -> None:
    values = servers.settings(vision={**VISION, "max_images": 1})
    values["backends"]["text"]["overrides"] = {"request.content.images": "drop"}
    async with servers.client(**values) as client:
        answer = await create(client, {"input": about(RED, BLUE)})
    assert servers.contents() == [f"{SENT}\n(An image was omitted: this model cannot see it.)"]
    assert "at most 1 images of a response are described" in answer.headers["x-antiphon-warning"]


async def test_descriptions_end_when_the_budget_is_used_up(servers: Servers) -> None:
    keys = {"ada": {"hash": hash_of("k"), "budget": {"tokens_per_day": 50}}}
    values = servers.settings(keys=keys)
    values["backends"]["text"]["overrides"] = {"request.content.images": "drop"}
    images = [f"data:image/png;base64,{number:04}" for number in range(8)]
    async with servers.client(**values) as client:
        answer = await create(client, {"input": about(*images)})
    assert len(servers.eyes.requests) == 4  # concurrent requests
    assert "has used its budget" in answer.headers["x-antiphon-warning"]
    assert servers.contents()[0].count("(An image was omitted: this model cannot see it.)") == 4


async def test_fallback_that_accepts_no_images_gets_the_description(servers: Servers) -> None:
    async with Upstream() as broken:
        broken.always(status(503))
        values = servers.settings()
        values["backends"] = {"broken": {"url": broken.url, "models": ["m"], "retries": 0}, **values["backends"]}
        servers.text.say(REFUSED)
        servers.text.say(REFUSED)
        async with servers.client(**values) as client:
            await create(client, {"input": about(RED)})
    assert servers.contents()[-1] == SENT


async def test_one_slot_at_a_server_suffices_for_model_and_description(servers: Servers) -> None:
    servers.text.say(REFUSED)
    servers.text.say(seen("A red square."))
    servers.text.say(REFUSED)
    servers.text.say(seen("A red square."))
    backend = {"url": servers.text.url, "models": ["*"], "max_concurrency": 1, "queue_timeout": 1, "retries": 0}
    values = {"backends": {"one": backend}, "vision": {"backend": "one", "model": "qwen-vl"}}
    async with servers.client(**values) as client:
        await create(client, {"input": about(RED)})
    assert [request.json["model"] for request in servers.text.requests] == ["m", "qwen-vl", "m", "m"]


@pytest.mark.parametrize("api", ["messages", "responses", "gemini"])
async def test_every_server_api_gets_the_description(servers: Servers, api: str) -> None:
    servers.text.native = True
    servers.text.always(status(500))
    values = servers.settings()
    values["backends"]["text"]["overrides"] = {"transport.api": api, "request.content.images": "drop"}
    async with servers.client(**values) as client:
        await client.post("/responses", json={"model": "m", "input": about(RED)})
    (sent,) = servers.text.requests
    assert "A red square." in sent.body.decode()
    assert RED.partition(",")[2] not in sent.body.decode()


async def test_listed_models_have_the_modalities_that_are_known(servers: Servers) -> None:
    servers.text.models = [{"id": "m"}]
    servers.eyes.models = [{"id": "qwen-vl", "capabilities": {"vision": True}}]
    servers.text.say(REFUSED)
    async with servers.client(vision=None) as client:

        async def listed() -> dict[str, Any]:
            models = (await client.get("/models")).json()["data"]
            return {model["id"]: model.get("input_modalities") for model in models}

        assert await listed() == {"m": None, "qwen-vl": ["text", "image"]}
        await create(client, {"input": about(RED)})
        assert await listed() == {"m": ["text"], "qwen-vl": ["text", "image"]}


def test_vision_with_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vision\.backend"):
        settings(vision={"backend": "none", "model": "x"})
