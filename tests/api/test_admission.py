"""Every route counts against a key's limits, or is listed here with the reason why it does not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.core.access import hash_of
from app.main import create_app
from app.responses.inspection import MCP_LISTINGS
from tests.support.build import delta, finish, reported
from tests.support.hosted_lab import ScriptedTool
from tests.support.routes import routes_of
from tests.support.scripted import Scripted
from tests.support.serving import settings

LAB = {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}
CROSS_SITE = {"sec-fetch-site": "cross-site"}

READS = "reads stored objects"
FREES = "ends work or frees space, which must be possible at a limit"
CHANGES = "replaces fields of bounded size in one stored object"
REPORTS = "reports the server's own state"
MANAGES = "an admin manages keys, also when the admin key is at a limit"
PAGE = "a page or a probe outside the API"

EXEMPT = {
    **dict.fromkeys(["/", "/docs", "/docs/", "/openapi.json", "/studio", "/studio/"], PAGE),
    **dict.fromkeys(["/studio/preview", "/studio/v/x/x", "/studio/x", "/docs/page/x", "/docs/swagger-ui/x"], PAGE),
    **dict.fromkeys(["/health", "/healthz", "/readyz", "/metrics"], PAGE),
    "GET /v1/antiphon/about": REPORTS,
    "GET /v1/antiphon/audit": MANAGES,
    "GET /v1/antiphon/keys": MANAGES,
    "POST /v1/antiphon/keys": MANAGES,
    "GET /v1/antiphon/keys/x": MANAGES,
    "PATCH /v1/antiphon/keys/x": MANAGES,
    "DELETE /v1/antiphon/keys/x": MANAGES,
    "POST /v1/antiphon/keys/x/rotate": MANAGES,
    "GET /v1/antiphon/budgets": REPORTS,
    "GET /v1/antiphon/latency": REPORTS,
    "GET /v1/antiphon/now": REPORTS,
    "GET /v1/antiphon/refusals": REPORTS,
    "GET /v1/antiphon/usage": REPORTS,
    "GET /v1/antiphon/chains": READS,
    "GET /v1/antiphon/responses": READS,
    "GET /v1/antiphon/responses/facets": READS,
    "GET /v1/antiphon/responses/x/chain": READS,
    "GET /v1/antiphon/responses/x/translation": READS,
    "GET /v1/batches": READS,
    "GET /v1/batches/x": READS,
    "POST /v1/batches/x/cancel": FREES,
    "GET /v1/containers": READS,
    "GET /v1/containers/x": READS,
    "DELETE /v1/containers/x": FREES,
    "GET /v1/containers/x/files": READS,
    "GET /v1/containers/x/files/x": READS,
    "GET /v1/containers/x/files/x/content": READS,
    "DELETE /v1/containers/x/files/x": FREES,
    "GET /v1/conversations/x": READS,
    "DELETE /v1/conversations/x": FREES,
    "GET /v1/conversations/x/items": READS,
    "GET /v1/conversations/x/items/x": READS,
    "DELETE /v1/conversations/x/items/x": FREES,
    "GET /v1/files": READS,
    "GET /v1/files/x": READS,
    "GET /v1/files/x/content": READS,
    "DELETE /v1/files/x": FREES,
    "GET /v1/responses/x": READS,
    "DELETE /v1/responses/x": FREES,
    "POST /v1/responses/x/cancel": FREES,
    "GET /v1/responses/x/input_items": READS,
    "POST /v1/uploads/x/cancel": FREES,
    "POST /v1/uploads/x/complete": "the upload was admitted when it was created, with its size",
    "POST /v1/uploads/x/parts": "the upload was admitted when it was created, with its size",
    "GET /v1/vector_stores": READS,
    "GET /v1/vector_stores/x": READS,
    "POST /v1/vector_stores/x": CHANGES,
    "DELETE /v1/vector_stores/x": FREES,
    "GET /v1/vector_stores/x/file_batches/x": READS,
    "POST /v1/vector_stores/x/file_batches/x/cancel": FREES,
    "GET /v1/vector_stores/x/file_batches/x/files": READS,
    "GET /v1/vector_stores/x/files": READS,
    "GET /v1/vector_stores/x/files/x": READS,
    "POST /v1/vector_stores/x/files/x": CHANGES,
    "DELETE /v1/vector_stores/x/files/x": FREES,
    "GET /v1/vector_stores/x/files/x/content": READS,
}


@asynccontextmanager
async def client(tmp_path: Path, **values: Any) -> AsyncIterator[tuple[httpx.AsyncClient, set[tuple[str, str]]]]:
    """A client, with all resources on the server, and the methods and paths of the routes."""
    tools: dict[str, Any] = {
        **LAB,
        "file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"},
        "web_search": {"url": "http://127.0.0.1:9"},
    }
    if shutil.which("bwrap"):
        tools["code_interpreter"] = {"provider": "bubblewrap"}
    used = {"choices": [], "usage": reported(100, 50)}
    app = create_app(settings(tools=tools, **values), backend=Scripted([delta(content="Hi."), finish("stop"), used]))
    walked = {(method, path) for method, path in routes_of(app.router.routes) if method not in ("HEAD", "OPTIONS")}
    walked = {
        (method, path) for method, path in walked if path.startswith("/v1/") or f"/v1{path}" not in paths_of(walked)
    }
    async with httpx.AsyncClient(base_url="http://localhost", transport=httpx.ASGITransport(app), timeout=60) as http:
        yield http, walked


def paths_of(walked: set[tuple[str, str]]) -> set[str]:
    return {path for _, path in walked}


async def test_route_is_refused_beyond_a_limit_or_exempt_with_a_reason(tmp_path: Path) -> None:
    keys = {"alice": {"hash": hash_of("alice"), "budget": {"tokens_per_month": 1}, "admin": True}}
    async with client(tmp_path, keys=keys) as (http, walked):
        http.headers["authorization"] = "Bearer alice"
        assert (await http.post("/v1/responses", json={"model": "m", "input": "Hi."})).status_code == 200
        admitted, exempt = set(), set()
        for method, path in sorted(walked):
            answer = await http.request(method, path, json={})
            (admitted if answer.status_code == 429 else exempt).add(f"{method} {path}")
    assert {"POST /v1/responses", "GET /v1/models", "POST /v1/conversations", "POST /v1/messages"} <= admitted
    assert "GET /v1/containers" in exempt or not shutil.which("bwrap")
    assert exempt - {*EXEMPT, *(f"GET {path}" for path in EXEMPT)} == set(), "are neither admitted nor exempt"
    assert admitted & EXEMPT.keys() == set(), "are admitted, but listed as exempt"


async def test_get_that_acts_is_refused_for_pages_of_other_sites(tmp_path: Path) -> None:
    """Any page can send such a GET by an image or a link. GETs with effects count against limits."""
    ScriptedTool.reset()
    async with client(tmp_path) as (http, walked):
        acting = {path for method, path in walked if method == "GET" and path not in EXEMPT}
        acting = {path for path in acting if f"GET {path}" not in EXEMPT}
        assert acting == {"/v1/models", "/v1/models/x", "/v1/antiphon/mcp/x", "/v1/antiphon/local-servers"}
        for path in (*acting, "/v1/antiphon/mcp/lab"):
            refused = await http.get(path, headers=CROSS_SITE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert not ScriptedTool.current.declarations
        for headers in ({}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
            assert (await http.get("/v1/antiphon/mcp/lab", headers=headers)).status_code == 200
        page = {**CROSS_SITE, "origin": "app://obsidian.md"}  # an application, which CORS lets read the answer
        assert (await http.get("/v1/models", headers=page)).status_code == 200


async def test_concurrent_listings_of_mcp_servers_are_bounded(tmp_path: Path) -> None:
    lab, gate, full, open_at_once = ScriptedTool.reset(), asyncio.Event(), asyncio.Event(), []

    async def listing(call: Any, report: Any) -> Any:
        open_at_once.append(lab.opened)
        if lab.opened == MCP_LISTINGS:
            full.set()
        await gate.wait()

    lab.listing = listing
    async with client(tmp_path) as (http, _):
        answers = [asyncio.create_task(http.get("/v1/antiphon/mcp/lab")) for _ in range(3 * MCP_LISTINGS)]
        await full.wait()
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*answers)} == {200}
    assert len(open_at_once) == 3 * MCP_LISTINGS
    assert max(open_at_once) == MCP_LISTINGS
