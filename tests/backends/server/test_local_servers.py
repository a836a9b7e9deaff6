"""Local model servers are found by the models listed at their ports."""

from __future__ import annotations

import httpx
from httpx import ASGITransport

from app.backends.server.local_servers import find_local_servers
from app.main import create_app
from app.settings import Settings
from tests.support.upstream import Upstream


async def test_server_at_a_default_port_is_found_with_its_models() -> None:
    async with Upstream() as up:
        up.models = [{"id": "qwen3", "object": "model", "owned_by": "vllm"}]
        port = int(up.url.partition("127.0.0.1:")[2].partition("/")[0])
        found = await find_local_servers(8080, {"Ollama": port, "LM Studio": 1})

    assert found == [("vLLM", f"http://127.0.0.1:{port}/v1", ["qwen3"])]


async def test_server_itself_is_not_asked() -> None:
    async with Upstream() as up:
        port = int(up.url.partition("127.0.0.1:")[2].partition("/")[0])
        assert await find_local_servers(port, {"Ollama": port}) == []


async def test_server_with_keys_or_other_addresses_looks_for_none() -> None:
    for settings in (Settings(api_keys="a"), Settings(host="0.0.0.0", allow_open=True)):
        app = create_app(settings)
        async with httpx.AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1:8080") as http:
            headers = {"Authorization": "Bearer a"}
            answer = await http.get("/v1/antiphon/local-servers", headers=headers)
        assert answer.json() == {"object": "list", "looked": False, "data": []}
