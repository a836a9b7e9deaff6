"""Errors for disabled features name the setting to enable."""

from __future__ import annotations

import httpx
import pytest

from tests.support.serving import antiphon

OFF = {"passthrough": False, "studio": False, "metrics": "off", "docs": "off"}


@pytest.mark.parametrize(
    ("method", "path", "setting"),
    [
        ("GET", "/v1/files", "[tools.file_search]"),
        ("POST", "/v1/files", "[tools.file_search]"),
        ("GET", "/files/file_1/content", "[tools.file_search]"),
        ("POST", "/openai/v1/vector_stores/vs_1/search", "[tools.file_search]"),
        ("GET", "/v1/containers", "[tools.code_interpreter]"),
        ("POST", "/v1/embeddings", "ANTIPHON_PASSTHROUGH"),
        ("GET", "/studio", "ANTIPHON_STUDIO"),
        ("GET", "/metrics", "ANTIPHON_METRICS"),
        ("GET", "/docs", "ANTIPHON_DOCS"),
        ("GET", "/openapi.json", "ANTIPHON_DOCS"),
    ],
)
async def test_endpoint_that_is_not_configured_names_the_setting(method: str, path: str, setting: str) -> None:
    async with antiphon(**OFF) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (404, "not_found", "unknown_url")
    assert setting in error["message"]


@pytest.mark.parametrize("path", ["/v1/filesystem", "/v1/nothing", "/v2/files", "/v1/studio"])
async def test_endpoint_that_does_not_exist_is_a_404(path: str) -> None:
    async with antiphon(**OFF) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.get(path)
    assert answer.json()["error"]["message"] == f"GET {path} not found."
