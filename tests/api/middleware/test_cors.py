"""Pages of this machine may read the answers; a browser asks beforehand."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}


async def preflight_and_answer(origin: str, **settings: Any) -> tuple[httpx.Response, httpx.Response]:
    """The answers to a preflight, and to the request for which it asks."""
    async with antiphon(Scripted([delta(content="Hi")]), **settings) as url:
        async with httpx.AsyncClient(base_url=url, headers={"origin": origin}, trust_env=False) as http:
            before = await http.options("/v1/responses", headers=PREFLIGHT)
            return before, await http.post("/v1/responses", json={"model": "m", "input": "Hi"})


@pytest.mark.parametrize(
    "origin", ["http://localhost:5173", "http://chat.localhost", "http://127.0.0.1:3000", "http://[::1]", "app://chat"]
)
@pytest.mark.parametrize("settings", [{}, {"api_keys": "k"}, {"cors_origins": "https://mine.example"}])
async def test_cors_page_of_this_machine_is_allowed(origin: str, settings: dict[str, Any]) -> None:
    before, answer = await preflight_and_answer(origin, **settings)
    assert before.status_code == 200
    assert answer.status_code == (401 if "api_keys" in settings else 200)
    for one in (before, answer):
        assert one.headers["access-control-allow-origin"] == origin
    assert "authorization" in before.headers["access-control-allow-headers"]


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost.evil.example", "null"])
@pytest.mark.parametrize("settings", [{}, {"api_keys": "k"}])
async def test_cors_page_of_another_origin_is_not_allowed(origin: str, settings: dict[str, Any]) -> None:
    before, answer = await preflight_and_answer(origin, **settings)
    assert (before.status_code, before.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert answer.status_code == (401 if settings else 403)
    for one in (before, answer):
        assert "access-control-allow-origin" not in one.headers
