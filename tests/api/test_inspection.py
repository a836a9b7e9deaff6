"""Endpoints beyond OpenAI's: recent responses, chains, and requests to backends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.access import hash_of
from app.main import create_app
from tests.support.mcp_lab import MCPLab
from tests.support.serving import antiphon, settings
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, usage

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon() as url, httpx.AsyncClient(base_url=f"{url}/v1") as client:
        yield client


async def create(http: httpx.AsyncClient, input: Any, **more: Any) -> dict[str, Any]:
    answer = await http.post("/responses", json={"model": "demo", "input": input, **more})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def recent(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await http.get("/antiphon/responses", params=query)).json()["data"]
    return listed


async def test_responses_are_listed_newest_first(http: httpx.AsyncClient) -> None:
    first = await create(http, "Say hello.")
    second = await create(http, "And again.", previous_response_id=first["id"])
    await create(http, "Not stored.", store=False)

    listed = await recent(http)

    assert [entry["id"] for entry in listed] == [second["id"], first["id"]]
    times = {name: listed[0].pop(name) for name in ("seconds", "first_token_seconds")}
    assert times["seconds"] >= times["first_token_seconds"] > 0
    assert listed[0] == {
        "id": second["id"],
        "created_at": second["created_at"],
        "status": "completed",
        "model": "demo",
        "previous_response_id": first["id"],
        "conversation": None,
        "usage": second["usage"],
        "background": False,
        "queued_seconds": 0.0,
        "cost": None,
        "backend": "default",
        "key": "anonymous",
        "delivery": "json",
        "steps": [],
        "tools": [],
        "error": None,
        "metadata": {},
        "preview": "And again.",
        "answer": second["output"][0]["content"][0]["text"],
    }


async def test_responses_are_found_by_answer_metadata_and_delivery(http: httpx.AsyncClient) -> None:
    greeting = await create(http, "Say hello.", metadata={"team": "web", "run": "7"})
    await create(http, "My name is Ada.", metadata={"team": "web"})
    await create(http, "My name is Bob.", background=True)

    for query in ({"text": "FRIEND"}, {"metadata[team]": "web", "metadata[run]": "7"}, {"text": "say hello"}):
        assert [entry["id"] for entry in await recent(http, **query)] == [greeting["id"]], query
    assert len(await recent(http, delivery="json")) == 2
    assert await recent(http, **{"metadata[run]": "8"}) == []


async def test_facets_count_values_and_ignore_the_filter_on_themselves(http: httpx.AsyncClient) -> None:
    await create(http, "Say hello.")
    await create(http, "Say hello.", model="other")
    await create(http, "My name is Ada.")

    found = (await http.get("/antiphon/responses/facets", params={"model": "demo", "text": "hello"})).json()

    assert found["searched"] == 3 and found["complete"] is True
    assert found["data"]["model"] == [{"value": "other", "count": 1}, {"value": "demo", "count": 1}]
    assert found["data"]["status"] == [{"value": "completed", "count": 1}]
    assert found["data"]["delivery"] == [{"value": "json", "count": 1}]


async def test_response_list_has_pages(http: httpx.AsyncClient) -> None:
    ids = [(await create(http, f"Number {number}"))["id"] for number in range(3)]

    page = (await http.get("/antiphon/responses", params={"limit": 2})).json()
    rest = (await http.get("/antiphon/responses", params={"after": page["last_id"]})).json()

    assert [entry["id"] for entry in page["data"]] == [ids[2], ids[1]]
    assert page["has_more"] is True and page["first_id"] == ids[2]
    assert [entry["id"] for entry in rest["data"]] == [ids[0]] and rest["has_more"] is False


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": "0"}, "limit"), ({"limit": "101"}, "limit"), ({"limit": "x"}, "limit"), ({"after": "resp_x"}, "after")],
)
async def test_response_list_with_an_invalid_page_is_refused(
    http: httpx.AsyncClient, query: dict[str, str], param: str
) -> None:
    answer = await http.get("/antiphon/responses", params=query)

    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


async def test_response_that_was_deleted_is_not_listed(http: httpx.AsyncClient) -> None:
    made = await create(http, "Hello")
    await http.delete(f"/responses/{made['id']}")

    assert await recent(http) == []


@pytest.fixture
async def keyed() -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(api_keys="ada,bob") as url, httpx.AsyncClient(base_url=f"{url}/v1") as client:
        yield client


async def test_response_list_of_a_key_is_its_own(keyed: httpx.AsyncClient) -> None:
    ada, bob = ({"Authorization": f"Bearer {name}"} for name in ("ada", "bob"))
    made = (await keyed.post("/responses", json={"model": "demo", "input": "Mine"}, headers=ada)).json()

    assert [e["id"] for e in (await keyed.get("/antiphon/responses", headers=ada)).json()["data"]] == [made["id"]]
    assert (await keyed.get("/antiphon/responses", headers=bob)).json()["data"] == []
    for what in ("chain", "translation"):
        assert (await keyed.get(f"/antiphon/responses/{made['id']}/{what}", headers=bob)).status_code == 404


async def test_background_response_is_listed_from_the_beginning_and_once(http: httpx.AsyncClient) -> None:
    made = await create(http, "Count to 3.", background=True)
    [queued] = await recent(http)
    assert queued["id"] == made["id"] and queued["background"] is True

    async with http.stream("GET", f"/responses/{made['id']}", params={"stream": "true"}) as events:
        async for _ in events.aiter_lines():
            pass

    assert [(entry["id"], entry["status"]) for entry in await recent(http)] == [(made["id"], "completed")]


async def chains(http: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await http.get("/antiphon/chains", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_responses_are_listed_by_chain_the_last_continued_first(http: httpx.AsyncClient) -> None:
    first = await create(http, "My name is Ada.")
    other = await create(http, "Say hello.")
    await create(http, "A fork.", previous_response_id=first["id"])
    last = await create(http, "What is my name?", previous_response_id=first["id"])

    page = await chains(http)

    assert [(entry["id"], entry["title"], entry["responses"]) for entry in page["data"]] == [
        (last["id"], "My name is Ada.", 3),
        (other["id"], "Say hello.", 1),
    ]
    assert page["data"][0] == {
        "object": "antiphon.chain",
        "id": last["id"],
        "status": "completed",
        "model": "demo",
        "background": False,
        "created_at": first["created_at"],
        "updated_at": last["created_at"],
        "title": "My name is Ada.",
        "name": None,
        "pinned": False,
        "responses": 3,
    }


async def test_list_of_chains_has_pages_without_a_chain_twice(http: httpx.AsyncClient) -> None:
    made = [await create(http, f"Number {number}") for number in range(3)]
    newest = await create(http, "Again", previous_response_id=made[0]["id"])

    page = await chains(http, limit=2)
    rest = await chains(http, limit=2, after=page["last_id"])

    assert [entry["id"] for entry in page["data"]] == [newest["id"], made[2]["id"]] and page["has_more"] is True
    assert [entry["id"] for entry in rest["data"]] == [made[1]["id"]] and rest["has_more"] is False


async def test_chains_are_found_by_the_text_of_any_message(http: httpx.AsyncClient) -> None:
    first = await create(http, "Say hello.")
    found = await create(http, "And what of  the WEATHER today?", previous_response_id=first["id"])
    await create(http, "Something else.")

    page = await chains(http, text="the weather")

    assert [(entry["id"], entry["title"]) for entry in page["data"]] == [(found["id"], "Say hello.")]
    assert (await chains(http, text="snow"))["data"] == []


async def label(http: httpx.AsyncClient, response: dict[str, Any], **changes: Any) -> httpx.Response:
    return await http.patch(f"/antiphon/chains/{response['id']}", json=changes)


async def test_chain_with_a_name_and_a_pin_is_listed_first_and_found_by_its_name(http: httpx.AsyncClient) -> None:
    first = await create(http, "My name is Ada.")
    last = await create(http, "What is my name?", previous_response_id=first["id"])
    other = await create(http, "Say hello.")

    answer = await label(http, first, name=" Introductions ", pinned=True)

    assert answer.json() == {
        "object": "antiphon.chain",
        "id": first["id"],
        "name": "Introductions",
        "pinned": True,
    }
    listed = [(entry["id"], entry["name"], entry["pinned"]) for entry in (await chains(http))["data"]]
    assert listed == [(last["id"], "Introductions", True), (other["id"], None, False)]
    page = await chains(http, limit=1, after=last["id"])
    assert [entry["id"] for entry in page["data"]] == [other["id"]]
    assert [entry["id"] for entry in (await chains(http, text="introduct"))["data"]] == [last["id"]]

    assert (await label(http, last, pinned=False)).json()["name"] == "Introductions"
    assert (await label(http, last, name=None)).status_code == 200
    assert [(entry["id"], entry["name"]) for entry in (await chains(http))["data"]] == [
        (other["id"], None),
        (last["id"], None),
    ]


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"name": "x" * 101}, "name"), ({"pinned": "yes"}, "pinned"), ({"title": "A title"}, "title")],
)
async def test_label_of_a_chain_that_is_invalid_is_refused(
    http: httpx.AsyncClient, changes: dict[str, Any], param: str
) -> None:
    answer = await label(http, await create(http, "Say hello."), **changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_label_of_a_chain_belongs_to_its_owner() -> None:
    async with (
        antiphon(api_keys="mine,theirs") as url,
        httpx.AsyncClient(base_url=f"{url}/v1", headers={"Authorization": "Bearer mine"}) as mine,
        httpx.AsyncClient(base_url=f"{url}/v1", headers={"Authorization": "Bearer theirs"}) as theirs,
    ):
        made = await create(mine, "Say hello.")
        assert (await label(mine, made, name="Secret")).status_code == 200
        for response_id in (made["id"], made["id"].replace("resp_", "conv_"), "resp_nothing"):
            answer = await theirs.patch(f"/antiphon/chains/{response_id}", json={"name": "Theirs", "pinned": True})
            assert (answer.status_code, "Secret" in answer.text) == (404, False)
        assert (await chains(theirs, text="secret"))["data"] == []
        assert [entry["name"] for entry in (await chains(mine))["data"]] == ["Secret"]


async def test_labels_beyond_their_number_drop_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.responses.inspection.MAX_LABELS", 2)
    async with antiphon() as url, httpx.AsyncClient(base_url=f"{url}/v1") as http:
        for number in range(3):
            await label(http, await create(http, f"Number {number}"), name=f"Name {number}")
        assert [entry["name"] for entry in (await chains(http))["data"]] == ["Name 2", "Name 1", None]


async def test_chains_are_found_by_the_metadata_of_any_response(http: httpx.AsyncClient) -> None:
    first = await create(http, "Say hello.", metadata={"client": "studio"})
    found = await create(http, "And again.", previous_response_id=first["id"])
    await create(http, "Something else.", metadata={"client": "other"})

    page = await chains(http, **{"metadata[client]": "studio"})

    assert [(entry["id"], entry["responses"]) for entry in page["data"]] == [(found["id"], 2)]
    assert (await chains(http, **{"metadata[client]": "nobody"}))["data"] == []


async def test_key_lists_its_own_chains_only_and_a_bad_page_is_refused(keyed: httpx.AsyncClient) -> None:
    ada, bob = ({"Authorization": f"Bearer {name}"} for name in ("ada", "bob"))
    await keyed.post("/responses", json={"model": "demo", "input": "Mine"}, headers=ada)

    assert len((await keyed.get("/antiphon/chains", headers=ada)).json()["data"]) == 1
    assert (await keyed.get("/antiphon/chains", headers=bob)).json()["data"] == []
    for query, param in (({"limit": "0"}, "limit"), ({"after": "resp_x"}, "after")):
        answer = await keyed.get("/antiphon/chains", params=query, headers=ada)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


async def test_chain_has_the_turns_up_to_a_response_and_its_forks(http: httpx.AsyncClient) -> None:
    first = await create(http, "My name is Ada.")
    second = await create(http, "What is my name?", previous_response_id=first["id"])
    fork = await create(http, "Say hello.", previous_response_id=first["id"])

    chain = (await http.get(f"/antiphon/responses/{second['id']}/chain")).json()

    assert [turn["response"] for turn in chain["data"]] == [first, second]
    assert [turn["input"][0]["content"][0]["text"] for turn in chain["data"]] == ["My name is Ada.", "What is my name?"]
    assert [(entry["id"], entry["previous_response_id"]) for entry in chain["forks"]] == [(fork["id"], first["id"])]


async def test_chain_with_a_deleted_turn_is_not_found(http: httpx.AsyncClient) -> None:
    first = await create(http, "One")
    second = await create(http, "Two", previous_response_id=first["id"])
    await http.delete(f"/responses/{first['id']}")

    assert (await http.get(f"/antiphon/responses/{second['id']}/chain")).status_code == 404
    assert (await http.get(f"/antiphon/responses/{second['id']}/translation")).status_code == 404


REQUESTS: dict[str, dict[str, Any]] = {
    "a text": {"input": "Say hello."},
    "parameters": {
        "input": "Hi",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 50,
        "instructions": "Be brief.",
    },
    "parameters beside": {"input": "Hi", "seed": 7, "stop": ["END"]},
    "a tool": {"input": "What is the weather?", "tools": [WEATHER], "tool_choice": "required"},
    "a schema": {
        "input": "Invent.",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}},
    },
    "an effort": {"input": "Think.", "reasoning": {"effort": "high", "summary": "auto"}},
    "parts": {
        "input": [
            {"role": "developer", "content": "Rules."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look."},
                    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
                ],
            },
        ]
    },
    "truncation": {"input": "Hi", "truncation": "auto", "metadata": {"a": "b"}, "user": "ada", "top_logprobs": 2},
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_translation_is_what_the_backend_was_sent(name: str, tmp_path: Path) -> None:
    """On a real socket: for an unsent request, and for a response in each turn of its chain."""
    request = {"model": "m", **REQUESTS[name]}
    async with Upstream() as up:
        store = f"sqlite:///{tmp_path}/store.db"
        async with antiphon(backend_url=up.url, backend_profile="vllm", store_url=store) as url:
            async with httpx.AsyncClient(base_url=f"{url}/v1") as http:
                previous: str | None = None
                for turn in range(2):
                    body = {**request, "previous_response_id": previous}
                    preview = await http.post("/antiphon/translation", json=body)
                    assert preview.status_code == 200 and len(up.requests) == turn
                    up.say(sse(chunk("Well."), finish(usage=usage()), DONE))
                    made = await http.post("/responses", json=body)
                    previous = made.json()["id"]

                    stored = (await http.get(f"/antiphon/responses/{previous}/translation")).json()

                    assert preview.json() == stored
                    assert stored["body"] == up.requests[-1].json
                    assert stored["url"] == f"{up.url}{up.requests[-1].path.removeprefix('/v1')}"
                    assert (stored["backend"], stored["profile"]) == ("default", "vllm")
                    header = made.headers.get("x-antiphon-warning", "")
                    assert "; ".join(stored["warnings"]) == header


async def test_translation_in_a_conversation_has_its_history(http: httpx.AsyncClient) -> None:
    conversation = (await http.post("/conversations", json={})).json()["id"]
    first = await create(http, "My name is Ada.", conversation=conversation)
    await create(http, "What is my name?", conversation=conversation)

    body = (await http.get(f"/antiphon/responses/{first['id']}/translation")).json()["body"]
    assert [message["content"] for message in body["messages"]] == ["My name is Ada."]

    await http.delete(f"/conversations/{conversation}")
    gone = await http.get(f"/antiphon/responses/{first['id']}/translation")
    assert gone.status_code == 404
    assert gone.json()["error"]["message"].startswith("Conversation of response")


async def test_preview_of_an_invalid_request_is_refused(http: httpx.AsyncClient) -> None:
    body = {"model": "demo", "input": "Hi", "previous_response_id": "resp_x"}
    refused = await http.post("/antiphon/translation", json=body)

    assert refused.json() == (await http.post("/responses", json=body)).json()
    assert (await http.post("/antiphon/translation", json={"input": "Hi"})).json()["error"]["param"] == "model"


async def test_about_has_the_configuration_and_no_secret(tmp_path: Path) -> None:
    secrets = {"backend_url": "http://user:pa55@127.0.0.1:1/v1?key=hidden", "backend_api_key": "sk-hidden"}
    async with antiphon(**secrets, store_url=f"sqlite:///{tmp_path}/a.db", api_keys="k") as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1") as client:
            assert (await client.get("/antiphon/about")).status_code == 401
            answer = await client.get("/antiphon/about", headers={"Authorization": "Bearer k"})

    about = answer.json()
    assert about["backends"] == [
        {"name": "default", "profile": "default", "url": "http://127.0.0.1:1/v1", "models": ["*"]}
    ]
    assert about["store"] == {"kind": "sqlite", "ttl": 2_592_000} and about["key_required"] is True
    assert not any(secret in answer.text for secret in ("pa55", "hidden", "user", str(tmp_path)))


async def test_about_with_backends_of_named_models_lists_them() -> None:
    backends = {name: {"backend": "demo", "models": [f"{name}-*"]} for name in ("large", "small")}
    async with antiphon(backends=backends, tools={"demo": {}}) as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1") as client:
            about = (await client.get("/antiphon/about")).raise_for_status().json()

    assert [(backend["name"], backend["models"]) for backend in about["backends"]] == [
        ("large", ["large-*"]),
        ("small", ["small-*"]),
    ]
    assert about["tools"]


async def test_about_has_the_prompts_with_their_variables_and_without_their_texts(tmp_path: Path) -> None:
    (tmp_path / "greeting.toml").write_text(
        'instructions = "Greet {{name}} in {{language}}."\nvariables.language = "Latin"'
    )
    (tmp_path / "review").mkdir()
    for version in ("1", "2"):
        (tmp_path / "review" / f"{version}.md").write_text("Review it.")
    async with antiphon(prompts=tmp_path) as url, httpx.AsyncClient(base_url=f"{url}/v1") as client:
        about = (await client.get("/antiphon/about")).json()

    name, language = {"name": "name", "default": None}, {"name": "language", "default": "Latin"}
    assert about["prompts"] == [
        {"id": "greeting", "versions": [{"version": None, "variables": [name, language], "model": None}]},
        {"id": "review", "versions": [{"version": v, "variables": [], "model": None} for v in ("1", "2")]},
    ]
    assert about["file_search"] is False


async def test_tools_of_an_mcp_server_are_listed() -> None:
    async with MCPLab().serve() as lab:
        servers = {
            "lab": {
                "url": lab.url,
                "allowed_tools": ["add", "echo"],
                "require_approval": {"never": {"read_only": True}},
            }
        }
        tables = {"mcp": {"servers": {**servers, "away": {"url": "http://127.0.0.1:9/mcp"}}}}
        async with antiphon(tools=tables) as url, httpx.AsyncClient(base_url=f"{url}/v1") as client:
            listed = (await client.get("/antiphon/mcp/lab")).json()
            away = (await client.get("/antiphon/mcp/away")).json()
            unknown = await client.get("/antiphon/mcp/unknown")

    assert listed["object"] == "antiphon.mcp_server" and listed["error"] is None
    assert [(tool["name"], tool["needs_approval"]) for tool in listed["tools"]] == [("add", False), ("echo", True)]
    assert away["tools"] == [] and away["error"]
    assert unknown.status_code == 400 and lab.calls == []


async def test_key_without_the_right_to_an_mcp_server_cannot_list_its_tools() -> None:
    keys = {"none": {"hash": hash_of("none"), "tools": []}, "demo": {"hash": hash_of("demo"), "tools": ["mcp:demo"]}}
    async with antiphon(tools={"demo": {}}, keys=keys) as url, httpx.AsyncClient(base_url=f"{url}/v1") as client:
        answers = {
            key: await client.get("/antiphon/mcp/demo", headers={"Authorization": f"Bearer {key}"}) for key in keys
        }

    assert answers["none"].status_code == 403
    assert "echo" in [tool["name"] for tool in answers["demo"].json()["tools"]]


def test_openapi_has_examples_of_the_endpoints() -> None:
    paths = create_app(settings()).openapi()["paths"]
    ours = {path: methods for path, methods in paths.items() if path.startswith("/v1/antiphon/")}

    assert set(ours) == {
        "/v1/antiphon/about",
        "/v1/antiphon/audit",
        "/v1/antiphon/keys",
        "/v1/antiphon/keys/{key_id}",
        "/v1/antiphon/keys/{key_id}/rotate",
        "/v1/antiphon/budgets",
        "/v1/antiphon/latency",
        "/v1/antiphon/now",
        "/v1/antiphon/refusals",
        "/v1/antiphon/chains",
        "/v1/antiphon/chains/{response_id}",
        "/v1/antiphon/mcp/{server_label}",
        "/v1/antiphon/responses",
        "/v1/antiphon/responses/facets",
        "/v1/antiphon/responses/{response_id}/chain",
        "/v1/antiphon/responses/{response_id}/translation",
        "/v1/antiphon/translation",
        "/v1/antiphon/local-servers",
        "/v1/antiphon/usage",
    }
    for operation in (operation for methods in ours.values() for operation in methods.values()):
        assert operation["responses"]["200"]["content"]["application/json"]["example"]


async def test_translation_says_that_functions_of_hosted_tools_are_not_in_it() -> None:
    body = {"model": "demo", "input": "Please echo: hello", "tools": [{"type": "mcp", "server_label": "demo"}, WEATHER]}
    for strict in (False, True):
        async with antiphon(tools={"demo": {}}, strict=strict) as url:
            async with httpx.AsyncClient(base_url=f"{url}/v1") as client:
                preview = (await client.post("/antiphon/translation", json=body)).json()
                made = await create(client, **{name: value for name, value in body.items() if name != "model"})
                stored = (await client.get(f"/antiphon/responses/{made['id']}/translation")).json()

        assert any("hosted tools" in warning for warning in preview["warnings"])
        assert stored["warnings"] == preview["warnings"] and stored["body"] == preview["body"]
        assert [tool["function"]["name"] for tool in preview["body"]["tools"]] == ["weather"]
