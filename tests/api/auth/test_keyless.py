"""A server without keys has a single owner, whatever key callers send."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

HELLO: list[Any] = [delta(content="Hel"), delta(content="lo")]

# Keys sent by SDKs, agents and the studio to a server without keys.
SENT: list[dict[str, str]] = [
    {},
    {"authorization": "Bearer unused"},
    {"authorization": "Bearer sk-1234"},
    {"x-api-key": "unused"},
    {"api-key": "lm-studio"},
]


@contextlib.asynccontextmanager
async def served(**values: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(Scripted(HELLO), **values) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            yield http


async def create(http: httpx.AsyncClient, headers: dict[str, str], **fields: Any) -> dict[str, Any]:
    answer = await http.post("/responses", json={"model": "m", "input": "Hi.", **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.mark.parametrize("sent", SENT, ids=repr)
async def test_response_of_any_caller_is_retrieved_continued_and_listed(sent: dict[str, str]) -> None:
    async with served() as http:
        first = await create(http, {"authorization": "Bearer codex"})
        assert (await http.get(f"/responses/{first['id']}", headers=sent)).json() == first
        second = await create(http, sent, previous_response_id=first["id"])
        for path in ("/antiphon/responses", "/antiphon/chains"):
            [newest, *_] = (await http.get(path, headers=sent)).json()["data"]
            assert newest["id"] == second["id"]


async def test_idempotency_key_is_shared_by_all_callers() -> None:
    async with served() as http:
        made = [await create(http, {**sent, "idempotency-key": "once"}) for sent in SENT]
    assert len({response["id"] for response in made}) == 1


async def test_encrypted_content_of_any_caller_is_decrypted() -> None:
    async with served(secret_key="of the test") as http:
        compacted = await http.post("/responses/compact", json={"model": "m", "input": "Hi."}, headers=SENT[1])
        assert compacted.status_code == 200, compacted.text
        for sent in SENT:
            await create(http, sent, input=[*compacted.json()["output"], {"role": "user", "content": "Hi."}])


async def test_usage_limits_and_refusals_are_counted_together() -> None:
    async with served(limit_requests_per_minute=len(SENT) + 1) as http:
        for sent in SENT:
            await create(http, sent)
        refused = await http.post("/responses", json={"model": "m", "input": [{"role": "bot"}]}, headers=SENT[1])
        assert refused.status_code == 400
        limited = await http.post("/responses", json={"model": "m", "input": "Hi."}, headers=SENT[2])
        assert limited.status_code == 429
        refusals = (await http.get("/antiphon/refusals", headers=SENT[3])).json()["data"]
        assert [entry["status"] for entry in refusals] == [429, 400]
        usage = (await http.get("/antiphon/usage?group=key", headers=SENT[4])).json()["data"]
        assert [(row["key"], row["requests"]) for row in usage] == [("anonymous", len(SENT))]


async def test_quota_counts_all_callers_together() -> None:
    async with served(max_stored_bytes=3000) as http:
        statuses = []
        for sent in SENT:
            answer = await http.post("/responses", json={"model": "m", "input": "x" * 1000}, headers=sent)
            statuses.append(answer.status_code)
    assert statuses[0] == 200 and statuses[-1] == 429


async def test_response_of_a_former_owner_is_reached_only_with_its_text_as_a_key(tmp_path: Path) -> None:
    """Earlier versions stored responses of keyless servers under the hash of the sent key."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with served(store_url=url, api_keys="unused") as http:
        old = await create(http, {"authorization": "Bearer unused"})
    async with served(store_url=url) as http:
        for sent in SENT:
            assert (await http.get(f"/responses/{old['id']}", headers=sent)).status_code == 404
            assert (await http.get("/antiphon/responses", headers=sent)).json()["data"] == []
    async with served(store_url=url, api_keys="unused") as http:
        assert (await http.get(f"/responses/{old['id']}", headers=SENT[1])).json() == old
