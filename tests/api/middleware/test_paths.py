"""Endpoint addresses and keys, as clients derive them from a base URL."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from openai import AsyncAzureOpenAI
from websockets.asyncio.client import connect

from app.main import create_app
from tests.support.routes import routes_of
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon, settings

HELLO: list[Step] = [{"choices": [{"index": 0, "delta": {"content": "Hello."}, "finish_reason": None}]}]
HI = {"model": "m", "input": "Hi."}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses",
        "/responses",
        "/v1/responses/",
        "/responses/",
        "//responses",
        "/v1//responses",
        "//v1///responses//",
        "/v1/v1/responses",
        "/openai/responses",
        "/openai/v1/responses",
        "/openai/v1/v1/responses/",
    ],
)
async def test_response_at_each_spelling_of_the_path_is_created(path: str) -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"{url}{path}?api-version=preview", json=HI)
    assert answer.status_code == 200  # not a redirect: behind many proxies, redirects lose the body or the key


async def test_endpoints_at_each_spelling_of_the_path_are_found() -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        response = (await client.post("/v1/responses", json=HI)).json()
        for path in ("/openai/v1/models/", "/v1/v1/models", f"/v1//responses/{response['id']}/"):
            assert (await client.get(f"{url}{path}")).status_code == 200, path
        assert (await client.get(f"{url}/openai/responses/{response['id']}/input_items/")).json()["data"]


@pytest.mark.parametrize("path", ["/v1/files/", "/openai/v1/files", "/v1/v1/vector_stores/", "//v1//files"])
async def test_files_at_each_spelling_of_the_path_are_found_without_a_redirect(path: str, tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(tools=tools) as url, httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.get(f"{url}{path}")
    assert (answer.status_code, answer.json()["object"]) == (200, "list")


async def test_websocket_at_each_spelling_of_the_path_is_opened() -> None:
    async with antiphon(Scripted(HELLO)) as url, connect(f"{url.replace('http', 'ws')}/v1//responses/") as socket:
        await socket.send('{"type": "response.create", "model": "m", "input": "Hi."}')
        assert '"response.created"' in str(await socket.recv())


@pytest.mark.parametrize("prefix", ["/v1/v1", "/openai", "/openai/v1", "/openai/v1/v1", "//v1/", "/v1"])
async def test_every_route_is_found_at_each_spelling_of_its_path(prefix: str, tmp_path: Path) -> None:
    """A request with an unknown method is a 405 for known paths, otherwise a 404."""
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    app = create_app(settings(tools=tools), backend=Scripted(HELLO))
    paths = {path.removeprefix("/v1") for _, path in routes_of(app.router.routes) if path.startswith("/v1/")}
    assert {"/messages", "/batches", "/uploads", "/conversations", "/deployments/x/embeddings"} <= paths
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        for path in sorted(paths):
            assert (await client.request("TRACE", f"http://localhost{prefix}{path}/")).status_code == 405, path


async def test_path_of_an_endpoint_that_is_off_names_the_setting_at_each_spelling() -> None:
    async with antiphon(Scripted(HELLO), passthrough=False) as url, httpx.AsyncClient(trust_env=False) as client:
        for path, setting in (
            ("/openai/v1/files/", "tools.file_search"),
            ("/v1/v1/embeddings", "ANTIPHON_PASSTHROUGH"),
        ):
            assert setting in (await client.post(f"{url}{path}")).json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["//", "/v1", "//metrics", "/metrics/", "/openai/metrics", "/v1/v1/healthz", "/responsesx/", "/v1x//a"]
)
async def test_pages_at_other_prefixes_are_not_found(path: str) -> None:
    """A proxy that hides a page by its path hides every spelling. A redirect would contain the request's `Host`."""
    transport = httpx.ASGITransport(create_app(settings(), backend=Scripted(HELLO)))
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        assert (await client.get(f"http://localhost{path}")).status_code == 404


async def test_pages_with_a_trailing_slash_are_redirected_within_the_server() -> None:
    transport = httpx.ASGITransport(create_app(settings(), backend=Scripted(HELLO)))
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
        for page in ("studio", "docs"):
            answer = await client.get(f"/{page}/")
            assert (answer.status_code, answer.headers["location"]) == (307, f"../{page}")


async def test_path_that_is_unknown_is_quoted_as_requested() -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(timeout=60, trust_env=False) as client:
        error = (await client.post(f"{url}/v2//responses", json=HI)).json()["error"]
    assert error["message"] == "POST /v2//responses not found."


@pytest.mark.parametrize("paths", [{"azure_endpoint": ""}, {"base_url": "/v1"}, {"base_url": "/openai/v1/"}])
async def test_azure_client_key_header_is_accepted(paths: dict[str, str]) -> None:
    async with antiphon(Scripted(HELLO), api_keys=["alice"]) as url:
        urls = {name: f"{url}{path}" for name, path in paths.items()}
        async with AsyncAzureOpenAI(api_key="alice", api_version="preview", **urls) as client:
            response = await client.responses.create(model="m", input="Hi.")
            assert response.output_text == "Hello."
            assert (await client.responses.retrieve(response.id)).id == response.id


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"api-key": "alice"}, 200),
        ({"api-key": "bob"}, 401),
        ({"api-key": ""}, 401),
        ({"authorization": "Bearer bob", "api-key": "alice"}, 401),
        ({"authorization": "Bearer alice", "api-key": "bob"}, 200),
    ],
)
async def test_azure_key_header_with_a_wrong_key_is_refused(headers: dict[str, str], status: int) -> None:
    async with (
        antiphon(Scripted(HELLO), api_keys=["alice"]) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        assert (await client.post("/v1/responses", json=HI, headers=headers)).status_code == status


async def test_response_owner_with_either_key_header_is_the_same() -> None:
    served = antiphon(Scripted(HELLO), api_keys="alice,bob")
    async with served as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        response = (await client.post("/v1/responses", json=HI, headers={"api-key": "alice"})).json()
        path = f"/v1/responses/{response['id']}"
        keys = [{"authorization": "Bearer alice"}, {"api-key": "alice"}, {"api-key": "bob"}, {}]
        found = [(await client.get(path, headers=key)).status_code for key in keys]
    assert found == [200, 200, 404, 401]
