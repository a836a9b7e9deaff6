"""Activity: a key sees its own requests, an `admin` key all requests, and no key their content."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.access import hash_of
from app.core.types.deltas import DONE
from app.errors import BackendError
from app.tools.files import FilesUnavailable
from tests.api.key_attacks import GLIMPSES
from tests.support import sockets
from tests.support.build import call, delta, finish, reported
from tests.support.hosted_lab import ScriptedTool
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

HELLO: list[Step] = [delta(content="Hello"), finish("stop"), {"choices": [], "usage": reported(1000, 500)}, DONE]
KEYS = {
    "alice": {"hash": hash_of("alice")},
    "bob": {"hash": hash_of("bob")},
    "boss": {"hash": hash_of("boss"), "admin": True},
}
SECRET = "the secret plan"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@contextlib.asynccontextmanager
async def served(*scripts: list[Step], **values: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Scripted]]:
    backend = Scripted(*(scripts or (HELLO,)))
    async with antiphon(backend, **{"keys": KEYS, "prices": {"qwen*": {"input": 1, "output": 4}}, **values}) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            yield http, backend


async def ask(http: httpx.AsyncClient, key: str = "alice", **fields: Any) -> httpx.Response:
    return await http.post("/responses", json={"model": "qwen3", "input": "Hi", **fields}, headers=bearer(key))


async def seen(http: httpx.AsyncClient, path: str, caller: str = "alice", **query: Any) -> Any:
    answer = await http.get(f"/antiphon/{path}", headers=bearer(caller), params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


# Durations and errors.


async def test_activity_of_the_last_hours_has_requests_errors_and_durations() -> None:
    async with served(HELLO, HELLO, [BackendError("Gone.", status=503)]) as (http, _):
        for _ in range(3):
            await ask(http)
        await ask(http, temperature=9)
        latency = await seen(http, "latency")
    assert (latency["total"]["requests"], latency["total"]["failed"], latency["total"]["refused"]) == (3, 1, 1)
    for name in ("first_token", "total"):
        assert 0 < latency["total"][name]["median"] <= latency["total"][name]["p95"]
    assert sum(slot["requests"] for slot in latency["data"]) == 3
    assert all(slot["start"] % latency["slot_seconds"] == 0 for slot in latency["data"])
    assert [entry["model"] for entry in latency["models"]] == ["qwen3"]


async def test_activity_of_a_key_is_its_own_and_of_an_admin_that_of_all() -> None:
    async with served() as (http, _):
        for key in ("alice", "alice", "bob"):
            await ask(http, key)
        assert [(entry["key"], entry["requests"]) for entry in (await seen(http, "latency"))["keys"]] == [("alice", 2)]
        everybody = await seen(http, "latency", "boss")
        assert [(entry["key"], entry["requests"]) for entry in everybody["keys"]] == [("alice", 2), ("bob", 1)]
        assert (await seen(http, "latency", "boss", key="b*"))["total"]["requests"] == 1
        assert (await seen(http, "latency", "boss", model="gpt*"))["total"]["requests"] == 0
        refused = await http.get("/antiphon/latency?key=bob", headers=bearer("alice"))
        assert refused.status_code == 403 and refused.json()["error"]["param"] == "key"


async def test_slots_have_the_length_that_is_asked_for() -> None:
    async with served() as (http, _):
        await ask(http)
        latency = await seen(http, "latency", minutes=30)
        assert latency["slot_seconds"] == 1800 and [slot["start"] % 1800 for slot in latency["data"]] == [0]
        for minutes in ("0", "7", "25", "120", "x"):
            answer = await http.get(f"/antiphon/latency?minutes={minutes}", headers=bearer("alice"))
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "minutes")


@pytest.mark.parametrize("hours", ["0", "25", "x", "-1"])
async def test_activity_of_hours_that_are_not_kept_is_refused(hours: str) -> None:
    async with served() as (http, _):
        answer = await http.get(f"/antiphon/latency?hours={hours}", headers=bearer("alice"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "hours")


# Refusals.


async def test_refused_requests_are_remembered_without_content() -> None:
    keys = {**KEYS, "alice": {**KEYS["alice"], "requests_per_minute": 2}}
    async with served(keys=keys) as (http, _):
        assert (await ask(http)).status_code == 200
        assert (await ask(http, temperature=SECRET, metadata={SECRET: 1})).status_code == 400
        assert (await ask(http, input=SECRET)).status_code == 429
        refusals = await seen(http, "refusals")
        assert [(entry["status"], entry["code"]) for entry in refusals["data"]] == [
            (429, "rate_limit_exceeded"),
            (400, refusals["data"][1]["code"]),
        ]
        assert refusals["data"][0]["endpoint"] == "POST /responses" and refusals["data"][0]["key"] == "alice"
        assert refusals["data"][1]["param"] == "metadata"
        assert SECRET not in json.dumps(refusals)
        assert (await seen(http, "refusals", status="429"))["data"] == refusals["data"][:1]
        assert await seen(http, "refusals", "bob") == {"object": "list", "data": [], "has_more": False}
        others = (await seen(http, "refusals", "boss"))["data"]
        assert [(entry["key"], entry["status"], entry["param"]) for entry in others] == [
            ("alice", 429, None),
            ("alice", 400, "metadata"),
        ]
        assert len((await seen(http, "refusals", "boss", limit=1))["data"]) == 1


async def test_refused_request_of_an_unknown_key_is_not_remembered() -> None:
    async with served() as (http, _):
        assert (await ask(http, "mallory")).status_code == 401
        assert (await seen(http, "refusals", "boss"))["data"] == []


async def test_refused_websocket_turn_is_remembered() -> None:
    async with sockets.listening(Scripted(HELLO), keys=KEYS) as url:
        async with sockets.dial(url, additional_headers=bearer("alice")) as socket:
            assert (await sockets.refusal(socket, temperature=9))[0] == 400
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
            [refusal] = (await seen(http, "refusals"))["data"]
    assert (refusal["endpoint"], refusal["status"]) == ("WebSocket /responses", 400)


# Budgets.


async def test_budgets_are_listed_with_what_is_used() -> None:
    budget = {"tokens_per_day": 10_000, "money_per_month": 5}
    keys = {**KEYS, **{name: {"hash": hash_of(name), "budget": budget} for name in ("alice", "bob")}}
    async with served(keys=keys) as (http, _):
        await ask(http)
        own = (await seen(http, "budgets"))["data"]
        assert [(entry["key"], entry["limit"], entry["amount"], entry["used"]) for entry in own] == [
            ("alice", "tokens_per_day", 10_000, 1500),
            ("alice", "money_per_month", 5, 0.003),
        ]
        assert all(entry["resets_at"] > 0 for entry in own)
        everybody = (await seen(http, "budgets", "boss"))["data"]
        assert [(entry["key"], entry["used"]) for entry in everybody] == [
            ("alice", 1500),
            ("alice", 0.003),
            ("bob", 0),
            ("bob", 0),
        ]


# Now.


async def test_running_responses_are_listed_for_their_key_and_admin() -> None:
    end = asyncio.Event()
    async with served([delta(content="He"), end, delta(content="llo")]) as (http, backend):
        queued = (await ask(http, background=True, input=SECRET)).json()
        while not backend.waiting:
            await asyncio.sleep(0.01)
        [own] = (await seen(http, "now"))["running"]
        assert {name: own[name] for name in ("id", "key", "own", "model", "delivery")} == {
            "id": queued["id"],
            "key": "alice",
            "own": True,
            "model": "qwen3",
            "delivery": "background",
        }
        assert own["first_token_seconds"] > 0 and own["backend"] == "default"
        assert (await seen(http, "now", "bob"))["running"] == []
        everybody = await seen(http, "now", "boss")
        assert everybody["running"] == [{**own, "own": False}]
        assert SECRET not in json.dumps(everybody)
        await http.post(f"/responses/{queued['id']}/cancel", headers=bearer("alice"))
        assert (await seen(http, "now", "boss"))["running"] == []
        end.set()


async def test_backend_requests_are_listed_for_admin_alone() -> None:
    async with antiphon(keys=KEYS) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
        [own] = (await seen(http, "now"))["backends"]
        assert own == {"name": "default", "replicas": [{"state": "up"}]}
        [all_of_it] = (await seen(http, "now", "boss"))["backends"]
        assert (all_of_it["queued"], all_of_it["replicas"][0]["in_flight"]) == (0, 0)


async def test_vector_stores_are_listed_with_sizes_without_names(tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with served(tools=tools) as (http, _):
        made = (await http.post("/vector_stores", json={"name": SECRET}, headers=bearer("alice"))).json()
        [own] = (await seen(http, "now"))["vector_stores"]
        assert (own["id"], own["keys"], own["own"], own["files"], own["bytes"]) == (made["id"], ["alice"], True, 0, 0)
        assert (await seen(http, "now", "bob"))["vector_stores"] == []
        everybody = await seen(http, "now", "boss")
        assert everybody["vector_stores"] == [{**own, "own": False}]
        assert SECRET not in json.dumps(everybody)


async def test_running_responses_are_listed_while_files_are_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> Any:
        raise FilesUnavailable

    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with served(tools=tools) as (http, _):
        assert (await seen(http, "now"))["complete"] is True
        monkeypatch.setattr("app.tools.files.vector_stores.VectorStores.summaries", unavailable)
        activity = await seen(http, "now")
    assert (activity["complete"], activity["vector_stores"], activity["running"]) == (False, [], [])


# Response log.


async def test_listed_responses_have_times_cost_and_tools() -> None:
    asks_for_tool: list[Step] = [call(id="c1", name="lab__echo", arguments="{}"), finish("tool_calls"), DONE]
    ScriptedTool.reset()
    tools = {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}
    async with served(asks_for_tool, HELLO, tools=tools) as (http, _):
        answer = await ask(http, tools=[{"type": "mcp", "server_label": "lab"}])
        made = answer.json()
        [entry] = (await seen(http, "responses"))["data"]
        chain = await seen(http, f"responses/{made['id']}/chain")
    assert made["status"] == "completed", made["output"]
    assert entry["seconds"] >= entry["first_token_seconds"] > 0
    assert entry["cost"] == float(answer.headers["x-antiphon-cost"]) > 0.003 and entry["tools"] == ["lab"]
    measures = chain["data"][0]["measures"]
    assert measures["seconds"] == entry["seconds"]
    kinds = [step["kind"] for step in measures["steps"]]
    assert kinds == ["tools", "model", "tool", "model"]
    _, model, tool, last = measures["steps"]
    assert 0 <= model["start"] <= model["end"] <= tool["start"] <= tool["end"] <= last["start"] <= last["end"]
    assert (tool["tool"], tool["function"], tool["status"]) == ("lab", "echo", "completed")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"status": "completed"}, [2, 1, 0]),
        ({"status": "failed"}, []),
        ({"model": "qwen*"}, [1, 0]),
        ({"text": "SECOND"}, [1]),
        ({"created_after": "1"}, [2, 1, 0]),
        ({"created_before": "1"}, []),
        ({"tool": "*"}, []),
        ({"conversation": "conv_x"}, []),
    ],
)
async def test_response_list_with_filters_is_filtered(query: dict[str, str], found: Sequence[int]) -> None:
    async with served() as (http, _):
        bodies = [{"input": "The first."}, {"input": "The second."}, {"input": "Another.", "model": "gpt-5"}]
        ids = [(await ask(http, **fields)).json()["id"] for fields in bodies]
        listed = await seen(http, "responses", **query)
    assert [entry["id"] for entry in listed["data"]] == [ids[number] for number in found]
    assert listed["has_more"] is False


async def test_response_list_with_filters_has_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.responses.inspection._SEARCHED_TOGETHER", 2)
    monkeypatch.setattr("app.responses.inspection.MAX_SEARCHED", 4)
    async with served() as (http, _):
        for number in range(9):
            await ask(http, input="this one" if number in (1, 2) else "another")
        pages: list[list[str]] = []
        query: dict[str, Any] = {"text": "this", "limit": 1}
        while query:
            page = await seen(http, "responses", **query)
            pages.append([entry["preview"] for entry in page["data"]])
            query = {**query, "after": page["last_id"]} if page["has_more"] else {}
    assert pages == [[], ["this one"], ["this one"], []]


# Attacks.


@pytest.mark.parametrize("name", GLIMPSES)
async def test_activity_without_admin_has_nothing_of_others(name: str, tmp_path: Path) -> None:
    glimpse = GLIMPSES[name]
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    keys = {
        "victim": {"hash": hash_of("victim"), "budget": {"tokens_per_day": 4321}},
        "attacker": {"hash": hash_of("attacker"), **glimpse.table},
    }
    end = asyncio.Event()
    async with served(HELLO, [delta(content="He"), end], keys=keys, tools=tools) as (http, backend):
        first = (await ask(http, "victim", model="victims-model", input=SECRET)).json()
        refused = await ask(http, "victim", model="victims-model", temperature=9)
        running = (await ask(http, "victim", model="victims-model", background=True, input=SECRET)).json()
        while not backend.waiting:
            await asyncio.sleep(0.01)
        body = {"name": SECRET, "metadata": {"note": SECRET}}
        store = (await http.post("/vector_stores", json=body, headers=bearer("victim"))).json()
        path = glimpse.path.replace("RESPONSE", first["id"]).replace("RUNNING", running["id"])
        answer = await http.request(glimpse.method, path, headers={**bearer("attacker"), **glimpse.headers})
        assert answer.status_code == glimpse.status, answer.text
        hidden = {SECRET, "victim", "victims-model", "4321"}
        ids = {first["id"], running["id"], store["id"], refused.headers["x-request-id"]}
        for text in hidden | (ids if glimpse.status == 200 else set()):
            assert text not in answer.text
        status = (await http.get(f"/responses/{running['id']}", headers=bearer("victim"))).json()["status"]
        assert status == "in_progress", "it was not cancelled"
        end.set()
