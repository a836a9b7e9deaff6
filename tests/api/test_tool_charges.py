"""Hosted tools' backend requests are checked and charged like passed-through requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.access import hash_of
from app.main import create_app
from tests.support.build import call, delta, finish, reported
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings
from tests.tools.files.embedding_server import EmbeddingServer
from tests.tools.test_image_generation import PNG, ImagesServer

PAINTER = "gpt-image-1"
PRICES = {"m": {"input": 1, "output": 1}, PAINTER: {"input": 10, "output": 40}, "toy": {"input": 1000, "output": 0}}
USED = {"usage": reported(100, 50)}  # per model answer
DRAW = {"model": "m", "input": "Draw.", "tools": [{"type": "image_generation"}]}
ANSWER = [delta(content="Here."), finish("stop") | USED]


@pytest.fixture
async def images() -> AsyncIterator[ImagesServer]:
    server = ImagesServer()
    server.usage = {"input_tokens": 1000, "output_tokens": 5000, "total_tokens": 6000}
    async with serving(server.app) as url:
        server.url = f"{url}/v1"  # type: ignore[attr-defined]
        yield server


def draw(number: int) -> list[Any]:
    """A model answer with an image."""
    arguments = json.dumps({"prompt": f"A cat, number {number}"})
    return [call(0, f"c{number}", "image_generation", arguments), finish("tool_calls") | USED]


@asynccontextmanager
async def drawing_with(
    images: ImagesServer, *answers: list[Any], table: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A server with an image tool, used by `alice`."""
    key = {"hash": hash_of("alice"), **options.pop("key", {})}
    tools = {"image_generation": {"backend": "art", "model": PAINTER, **(table or {})}}
    art = {"url": images.url, "models": ["none"]}  # type: ignore[attr-defined]
    backends = {"art": art, "default": {"backend": "demo"}}
    made = settings(tools=tools, backends=backends, keys={"alice": key}, prices=PRICES, **options)
    async with serving(create_app(made, backend=Scripted(*answers))) as url, client_with_key("alice", url) as http:
        yield http


def client_with_key(key: str, url: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False)


async def usage(http: httpx.AsyncClient) -> dict[tuple[str, str], tuple[int, int, float]]:
    """Return the requests, tokens and cost of the key, by model and backend."""
    listed = (await http.get("/v1/antiphon/usage?group=model,backend")).json()["data"]
    return {
        (entry["model"], entry["backend"]): (entry["requests"], entry["total_tokens"], entry["cost"])
        for entry in listed
    }


async def test_images_are_recorded_under_their_model_and_in_the_cost(images: ImagesServer) -> None:
    async with drawing_with(images, draw(1), draw(2), ANSWER) as http:
        response = await http.post("/v1/responses", json=DRAW)
        assert [item.get("result") for item in response.json()["output"][:2]] == [PNG, PNG]
        assert await usage(http) == {("m", "default"): (1, 450, 0.00045), (PAINTER, "art"): (2, 12_000, 0.42)}
        assert response.headers["x-antiphon-cost"] == "0.42045"
        metrics = (await http.get("/metrics")).text
    assert f'antiphon_tokens_total{{kind="output",model="{PAINTER}"}} 10000.0' in metrics
    assert 'antiphon_key_tokens_total{backend="art",key="alice",kind="output"} 10000.0' in metrics
    assert 'antiphon_key_cost_total{backend="art",key="alice"} 0.42' in metrics


async def test_json_answer_that_starts_before_its_end_has_no_cost_header(images: ImagesServer) -> None:
    go = asyncio.Event()
    async with (
        drawing_with(images, draw(1), [go, *ANSWER], json_heartbeat=0.5) as http,
        http.stream("POST", "/v1/responses", json=DRAW) as answer,
    ):
        go.set()
        await answer.aread()

    assert answer.json()["status"] == "completed"
    assert answer.content[:1].isspace()
    assert "x-antiphon-cost" not in answer.headers, "its last round was not charged yet"


async def test_response_whose_image_used_up_the_budget_fails_before_the_next_round(
    images: ImagesServer,
) -> None:
    answers = [*map(draw, range(5)), ANSWER]
    async with drawing_with(images, *answers, key={"budget": {"tokens_per_day": 9000}}) as http:
        response = (await http.post("/v1/responses", json=DRAW)).json()
        refused = await http.post("/v1/responses", json=DRAW)
    assert (response["status"], response["error"]["code"]) == ("failed", "insufficient_quota")
    assert len(images.requests) == 2
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")


async def test_images_take_tokens_of_the_minute(images: ImagesServer) -> None:
    async with drawing_with(images, draw(1), ANSWER, key={"tokens_per_minute": 5000}) as http:
        response = (await http.post("/v1/responses", json=DRAW)).json()
        refused = await http.post("/v1/responses", json=DRAW)
    assert (response["status"], response["error"]["code"]) == ("failed", "rate_limit_exceeded")
    assert refused.status_code == 429


async def test_answer_without_an_image_is_charged(images: ImagesServer) -> None:
    images.image = ""
    async with drawing_with(images, draw(1), ANSWER) as http:
        response = (await http.post("/v1/responses", json=DRAW)).json()
        assert response["output"][0]["status"] == "failed"
        assert (await usage(http))[(PAINTER, "art")] == (1, 6000, 0.21)


@pytest.mark.parametrize("streams", [True, False])
async def test_partial_images_are_charged_once(images: ImagesServer, streams: bool) -> None:
    images.streams = streams
    async with drawing_with(images, draw(1), ANSWER) as http:
        await http.post("/v1/responses", json={**DRAW, "tools": [{"type": "image_generation", "partial_images": 1}]})
        assert (await usage(http))[(PAINTER, "art")] == (1, 6000, 0.21)


@pytest.mark.parametrize(
    ("tool", "param", "model"),
    [({}, "tools[0].type", PAINTER), ({"model": "dearer"}, "tools[0].model", "dearer"), ({"model": "no"}, None, None)],
)
async def test_image_model_that_the_key_may_not_use_is_refused(
    images: ImagesServer, tool: dict[str, Any], param: str | None, model: str | None
) -> None:
    models = ["m"] if model else ["m", PAINTER]
    async with drawing_with(images, draw(1), ANSWER, key={"models": models}, table={"models": ["dear*"]}) as http:
        response = await http.post("/v1/responses", json={**DRAW, "tools": [{"type": "image_generation", **tool}]})
    if model is None:  # not offered by the operator, so not used
        assert (response.status_code, len(images.requests)) == (200, 1)
        return
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (403, "model_not_allowed", param)
    assert model in error["message"] and images.requests == []


# Embeddings.


@asynccontextmanager
async def searching_with(
    server: EmbeddingServer, tmp_path: Path, *answers: list[Any], **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A server with file search, used by `alice`."""
    key = {"hash": hash_of("alice"), **options.pop("key", {})}
    table = {"store_url": f"sqlite:///{tmp_path}/files.db", "embeddings": {"backend": "local", "model": "toy"}}
    local = {"url": server.url, "models": ["none"]}
    backends = {"local": local, "default": {"backend": "demo"}}
    made = settings(
        tools={"file_search": table}, backends=backends, keys={"alice": key, "bob": BOB}, prices=PRICES, **options
    )
    async with serving(create_app(made, backend=Scripted(*answers))) as url, client_with_key("alice", url) as http:
        yield http


BOB = {"hash": hash_of("bob"), "owner": "alice", "models": ["m"]}
TEXT = "bread needs yeast"


async def stored(http: httpx.AsyncClient) -> str:
    """Return a vector store with an indexed file."""
    form = {"files": {"file": ("a.txt", TEXT)}, "data": {"purpose": "assistants"}}
    file = (await http.post("/v1/files", **form)).json()["id"]
    store = (await http.post("/v1/vector_stores", json={"file_ids": [file]})).json()["id"]
    while (await http.get(f"/v1/vector_stores/{store}")).json()["status"] != "completed":
        pass
    return str(store)


def search(store: str) -> dict[str, Any]:
    return {"model": "m", "input": "?", "tools": [{"type": "file_search", "vector_store_ids": [store]}]}


def searching(*queries: str) -> list[Any]:
    return [call(0, "c0", "file_search", json.dumps({"queries": queries})), finish("tool_calls") | USED]


async def test_embeddings_of_files_and_queries_are_charged_to_the_key(tmp_path: Path) -> None:
    answers = [searching("what needs yeast", "what is bread"), ANSWER]
    async with EmbeddingServer() as server, searching_with(server, tmp_path, *answers) as http:
        store = await stored(http)
        assert (await usage(http))[("toy", "local")] == (1, 3, 0.003)
        found = await http.post(f"/v1/vector_stores/{store}/search", json={"query": "what needs yeast"})
        assert found.headers["x-antiphon-cost"] == "0.003"
        response = await http.post("/v1/responses", json=search(store))
        assert response.headers["x-antiphon-cost"] == "0.0063"  # 300 model tokens, 6 embedding tokens
        assert (await usage(http))[("toy", "local")] == (3, 12, 0.012)
        assert len(server.requests[-1].json["input"]) == 2


async def test_embeddings_without_reported_usage_are_estimated(tmp_path: Path) -> None:
    async with EmbeddingServer() as server, searching_with(server, tmp_path) as http:
        server.counts = False
        await stored(http)
        requests, tokens, cost = (await usage(http))[("toy", "local")]
        assert (requests, tokens) == (1, 3) and cost > 0


async def test_embeddings_model_that_the_key_may_not_use_is_refused(tmp_path: Path) -> None:
    async with EmbeddingServer() as server, searching_with(server, tmp_path, ANSWER) as http:
        store = await stored(http)
        file = (await http.get(f"/v1/vector_stores/{store}/files")).json()["data"][0]["id"]
        count = len(server.requests)
        async with client_with_key("bob", str(http.base_url)) as bob:  # its owner is the same
            assert (await bob.get(f"/v1/vector_stores/{store}")).status_code == 200
            assert (await bob.post("/v1/vector_stores", json={"name": "empty"})).status_code == 200
            for path, body, param in (
                (f"/v1/vector_stores/{store}/search", {"query": "yeast"}, "query"),
                (f"/v1/vector_stores/{store}/files", {"file_id": file}, "file_id"),
                (f"/v1/vector_stores/{store}/file_batches", {"file_ids": [file]}, "file_ids"),
                (f"/v1/vector_stores/{store}/file_batches", {"files": [{"file_id": file}]}, "files"),
                ("/v1/vector_stores", {"file_ids": [file]}, "file_ids"),
                ("/v1/responses", search(store), "tools[0].type"),
            ):
                refused = await bob.post(path, json=body)
                error = refused.json()["error"]
                assert (refused.status_code, error["code"], error["param"]) == (403, "model_not_allowed", param)
        assert len(server.requests) == count


async def test_budget_that_is_used_up_ends_indexing_and_searches(tmp_path: Path) -> None:
    answers = [searching("what needs yeast"), ANSWER]
    async with (
        EmbeddingServer() as server,
        searching_with(server, tmp_path, *answers, key={"budget": {"tokens_per_day": 5}}) as http,
    ):
        store = await stored(http)  # 3 tokens
        assert (await http.post(f"/v1/vector_stores/{store}/search", json={"query": "yeast bread"})).status_code == 200
        for path, body in (
            (f"/v1/vector_stores/{store}/search", {"query": "yeast"}),
            ("/v1/vector_stores", {"file_ids": ["file-1"]}),
        ):
            refused = await http.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        assert len(server.requests) == 2
