from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

PORTS = {"Ollama": 11434, "vLLM": 8000, "llama.cpp": 8080, "LM Studio": 1234}
_OWNERS = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
_TIMEOUT = 0.7  # seconds
_MAX_MODELS = 20


async def find_local_servers(own_port: int, ports: dict[str, int] | None = None) -> list[tuple[str, str, list[str]]]:
    """Names, base URLs and models of servers at default ports on this machine, except this server."""
    import httpx  # slow import, only on first use

    candidates = [(name, port) for name, port in (ports or PORTS).items() if port != own_port]
    async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False) as http:
        found = await asyncio.gather(*(_ask(http, name, port) for name, port in candidates))
    return [server for server in found if server is not None]


async def _ask(http: httpx.AsyncClient, name: str, port: int) -> tuple[str, str, list[str]] | None:
    import httpx

    url = f"http://127.0.0.1:{port}/v1"
    try:
        answer = await http.get(f"{url}/models")
        listed = [model for model in answer.json()["data"] if isinstance(model.get("id"), str)]
    except (httpx.HTTPError, ValueError, TypeError, KeyError, AttributeError):
        return None
    owner = next((str(model.get("owned_by")) for model in listed), "")
    return _OWNERS.get(owner, name), url, [model["id"] for model in listed[:_MAX_MODELS]]
