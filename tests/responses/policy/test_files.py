"""Files, batches and compactions with a policy service: further ways on which content reaches a model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.responses.policy.test_policy import HELLO, ask, code_of, message, served
from tests.support.policy import policy_server, refuses
from tests.support.scripted import Scripted


def options(directory: Path) -> dict[str, Any]:
    return {"tools": {"file_search": {"store_url": f"sqlite:///{directory}/files.db"}}}


async def upload(http: httpx.AsyncClient, content: bytes, purpose: str = "user_data") -> str:
    files = {"file": ("notes.txt", content)}
    answer = await http.post("/v1/files", data={"purpose": purpose}, files=files)
    file_id: str = answer.json()["id"]
    return file_id


async def test_files_in_requests_and_conversations_are_reviewed_with_their_content(tmp_path: Path) -> None:
    backend = Scripted(HELLO)

    def decide(request: dict[str, Any]) -> Any:
        shown = json.dumps(request)
        return refuses("Ym9tYg==")(request) if "file_data" in shown else refuses("never")(request)

    async with policy_server(decide) as policy:
        async with served(backend, policy.table("input"), **options(tmp_path)) as http:
            bad, good = await upload(http, b"bomb"), await upload(http, b"rose")
            for file_id, expected in ((bad, 400), (good, 200)):
                item = message("Read this.")
                item["content"].append({"type": "input_file", "file_id": file_id})
                answer = await http.post("/v1/responses", json={"model": "m", "input": [item]})
                assert answer.status_code == expected, answer.text
                answer = await http.post("/v1/conversations", json={"items": [item]})
                assert answer.status_code == expected, answer.text
    assert len(backend.received) == 1


@pytest.mark.parametrize("endpoint", ["/v1/responses", "/v1/chat/completions", "/v1/embeddings"])
async def test_requests_of_batches_are_reviewed(tmp_path: Path, endpoint: str) -> None:
    backend = Scripted(HELLO)
    body = {"model": "m", "input": "A bomb", "messages": [{"role": "user", "content": "A bomb"}]}
    del body["messages" if "chat" not in endpoint else "input"]
    line = {"custom_id": "one", "method": "POST", "url": endpoint, "body": body}
    async with policy_server(refuses("bomb")) as policy:
        async with served(backend, policy.table(), **options(tmp_path)) as http:
            file_id = await upload(http, json.dumps(line).encode(), "batch")
            wanted = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
            batch = (await http.post("/v1/batches", json=wanted)).json()
            async with asyncio.timeout(60):
                while (batch := (await http.get(f"/v1/batches/{batch['id']}")).json())["status"] != "completed":
                    await asyncio.sleep(0.05)
            result = json.loads((await http.get(f"/v1/files/{batch['error_file_id']}/content")).text)
    assert result["response"]["body"]["error"]["code"] == "policy_violation"
    assert backend.received == []


async def test_compaction_is_reviewed_and_works() -> None:
    async with policy_server(refuses("bomb")) as policy, served(Scripted(HELLO), policy.table()) as http:
        for prompt, status in (("A bomb", 400), ("A rose", 200)):
            answer = await http.post("/v1/responses/compact", json={"model": "m", "input": prompt})
            assert answer.status_code == status, answer.text
        output = answer.json()["output"]
        assert [item["type"] for item in output] == ["message", "compaction"]
        await ask(http, [*output, message("Go on.")])
        refused = await http.post("/v1/responses", json={"model": "m", "input": [*output, message("A bomb")]})
        assert code_of(refused) == (400, "policy_violation")


async def test_replaced_input_of_a_compaction_is_still_compacted() -> None:
    backend = Scripted(HELLO)

    def decide(request: dict[str, Any]) -> Any:
        return {"action": "replace", "items": [message("***")]}

    async with policy_server(decide) as policy, served(backend, policy.table("input")) as http:
        answer = (await http.post("/v1/responses/compact", json={"model": "m", "input": "A bomb"})).json()
    assert answer["object"] == "response.compaction"
    assert "bomb" not in json.dumps(backend.received) + json.dumps(answer)
