"""A server with keys managed by its API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from app.core.access import hash_of
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

HELLO: list[Any] = [delta(content="Hel"), delta(content="lo")]
OPS = {"ops": {"hash": hash_of("ops"), "admin": True}, "user": {"hash": hash_of("user")}}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Keys:
    """A client of the key endpoints, with the key `ops` unless another is given."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def call(self, method: str, path: str, key: str = "ops", **options: Any) -> httpx.Response:
        headers = {**bearer(key), **options.pop("headers", {})}
        return await self.http.request(method, f"/antiphon/{path}", headers=headers, **options)

    async def create(self, name: str = "alice", **fields: Any) -> dict[str, Any]:
        answer = await self.call("POST", "keys", json={"name": name, **fields})
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = await self.call("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def ask(self, key: str, **fields: Any) -> httpx.Response:
        return await self.http.post(
            "/responses", json={"model": "qwen3", "input": "Hi.", **fields}, headers=bearer(key)
        )

    async def statuses(self, *keys: str) -> list[int]:
        return [(await self.ask(key)).status_code for key in keys]


@contextlib.asynccontextmanager
async def serving_keys(backend: Any = None, **values: Any) -> AsyncIterator[Keys]:
    values = {"keys": OPS, **values}
    backend = backend or (None if "backend_url" in values else Scripted(HELLO))
    async with antiphon(backend, **values) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            yield Keys(http)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]
