"""A key's objects do not exist for any other key, in every route and every field."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.core.ids import new_id, new_key
from app.main import create_app
from tests.support import sockets
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings

OWNED = {
    "response_id",
    "conversation_id",
    "item_id",
    "file_id",
    "vector_store_id",
    "batch_id",
    "upload_id",
}  # path parts with an owner
PUBLIC = {"model", "rest", "deployment", "server_label", "key_id", "name"}  # and nobody's, or for admins only


def with_files(path: str) -> dict[str, Any]:
    return {"file_search": {"store_url": f"sqlite:///{path}/files.db"}}


APP = create_app(settings(tools=with_files("not-used")), backend=Scripted([]))
ROUTES = [
    (method.upper(), path)
    for path, methods in APP.openapi()["paths"].items()
    for method in methods
    if "{" in path and not any(f"{{{name}}}" in path for name in PUBLIC)
]

# Request fields with references to earlier objects.
FIELDS: list[dict[str, Any]] = [
    {"previous_response_id": "{response_id}"},
    {"conversation": "{conversation_id}"},
    {"conversation": {"id": "{conversation_id}"}},
    {"input": [{"type": "item_reference", "id": "{input_id}"}]},
    {"input": [{"id": "{input_id}"}]},
    {"input": [{"type": "item_reference", "id": "{output_id}"}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "{file_id}"}]}]},
]

POSTED = ["/v1/responses", "/v1/antiphon/translation", "/v1/responses/input_tokens", "/v1/responses/compact"]
PASSED_ON = ["chat/completions", "completions", "embeddings", "rerank", "moderations", "images", "images/{rest:path}"]
PASSED_ON += ["images/variations", "audio", "audio/{rest:path}", "messages", "messages/count_tokens"]
OF_DEPLOYMENTS = ["chat/completions", "completions", "embeddings", "images/generations", "images/edits", "audio/speech"]
OF_DEPLOYMENTS += ["audio/transcriptions", "audio/translations"]
PASSED_ON += [*OF_DEPLOYMENTS, *(f"deployments/{{deployment:path}}/{path}" for path in OF_DEPLOYMENTS)]
FOR_ADMINS = ["/v1/antiphon/keys", "/v1/antiphon/keys/{key_id}/rotate"]
NAMES_NOTHING = [*FOR_ADMINS, "/v1/conversations", "/v1/files", "/v1/uploads", *(f"/v1/{path}" for path in PASSED_ON)]
FILLED = ["/v1/vector_stores", "/v1/batches"]  # with ids of earlier objects

# A valid body for these paths, to have the id refused.
ITEM = {"type": "message", "role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "/items": {"items": [ITEM]},
    "/files": {"file_id": "file-none"},
    "/files/{file_id}": {"attributes": {}},
    "/file_batches": {"file_ids": ["file-none"]},
    "/search": {"query": "secret"},
    "/complete": {"part_ids": ["part-none"]},
    "_id}": {"metadata": {}},
}


def each(routes: Iterable[Any]) -> Iterator[Any]:
    """All routes, including nested routers."""
    for route in routes:
        if hasattr(route, "path"):
            yield route
        yield from each(
            getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", ())
        )


@dataclass
class Made:
    """A caller's objects by path parameter, and a client per key."""

    ids: dict[str, str]
    owner: httpx.AsyncClient
    other: httpx.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[Made]:
    """Shared by all tests, which do not change it."""
    backend = Scripted([delta(content="secret")])
    async with contextlib.AsyncExitStack() as stack:
        tools = with_files(stack.enter_context(tempfile.TemporaryDirectory()))
        app = create_app(settings(api_keys="ada,bob", tools=tools), backend=backend)
        url = await stack.enter_async_context(serving(app))
        ada, bob = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60, trust_env=False)
            )
            for key in ("ada", "bob")
        ]
        items = [{"type": "message", "role": "user", "content": "secret"}]
        conversation = (await ada.post("/v1/conversations", json={"items": items})).json()["id"]
        item = (await ada.get(f"/v1/conversations/{conversation}/items")).json()["data"][0]["id"]
        body = {"model": "m", "input": "secret", "background": True}
        response = (await ada.post("/v1/responses", json=body)).json()["id"]
        while (completed := (await ada.get(f"/v1/responses/{response}")).json())["status"] != "completed":
            pass
        inputs = (await ada.get(f"/v1/responses/{response}/input_items")).json()["data"]
        form = {"purpose": "user_data"}
        file = (await ada.post("/v1/files", data=form, files={"file": ("secret.txt", b"secret")})).json()["id"]
        store = (await ada.post("/v1/vector_stores", json={"name": "secret"})).json()["id"]
        batch = (await ada.post(f"/v1/vector_stores/{store}/file_batches", json={"file_ids": [file]})).json()["id"]
        while (await ada.get(f"/v1/vector_stores/{store}")).json()["status"] != "completed":
            pass
        begun = {"filename": "secret.txt", "bytes": 6, "mime_type": "text/plain", **form}
        form = {"purpose": "batch"}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": "secret"}}
        lines = (await ada.post("/v1/files", data=form, files={"file": ("secret.jsonl", json.dumps(line))})).json()[
            "id"
        ]
        batch_fields = {"input_file_id": lines, "endpoint": "/v1/responses", "completion_window": "24h"}
        requests = (await ada.post("/v1/batches", json=batch_fields)).json()["id"]
        while (await ada.get(f"/v1/batches/{requests}")).json()["status"] != "completed":
            await asyncio.sleep(0.01)
        ids = {
            "lines_id": lines,
            "requests_id": requests,
            "upload_id": (await ada.post("/v1/uploads", json=begun)).json()["id"],
            "vector_store_id": store,
            "batch_id": batch,
            "file_id": file,
            "response_id": response,
            "conversation_id": conversation,
            "item_id": item,
            "input_id": inputs[0]["id"],
            "output_id": completed["output"][0]["id"],
        }
        yield Made(ids, ada, bob)


def unknown(ids: dict[str, str]) -> dict[str, str]:
    """Never assigned ids, of the same kinds."""
    key = new_key()
    return {name: _like(id, key) for name, id in ids.items()}


def _like(id: str, key: str) -> str:
    prefix, sign, rest = re.fullmatch(r"([a-z]+)([_-])(.*)", id).groups()  # type: ignore[union-attr]
    return new_id(prefix, key) if sign == "_" else f"{prefix}-{secrets.token_hex(len(rest) // 2)}"


def filled(value: Any, ids: dict[str, str]) -> Any:
    """Put ids in their places."""
    match value:
        case str():
            return value.format(**ids)
        case dict():
            return {name: filled(one, ids) for name, one in value.items()}
        case list():
            return [filled(one, ids) for one in value]
        case _:
            return value


def without(text: str, ids: dict[str, str]) -> str:
    """Remove repeated request values from an answer."""
    for name, id in ids.items():
        text = text.replace(id, name)
    return text


def test_walk_takes_every_part_of_a_path() -> None:
    parts = {part.strip("{}") for _, path in ROUTES for part in path.split("/") if part.startswith("{")}
    assert parts == OWNED
    assert len(ROUTES) >= 11


def test_walk_leaves_no_route_out() -> None:
    walked = {(method, path.removeprefix("/v1")) for method, path in ROUTES}
    routes = [*each(APP.routes)]
    assert len({route.path for route in routes}) >= len({path for _, path in ROUTES}) + len(POSTED)
    for route in routes:
        path, methods = route.path.removeprefix("/v1"), getattr(route, "methods", None) or {"WEBSOCKET"}
        if "{" in path and not any(f"{{{name}" in path for name in PUBLIC):
            assert {(method, path) for method in methods} <= walked
        elif "WEBSOCKET" not in methods:
            # Posted bodies refer to callers' objects.
            assert "POST" not in methods or f"/v1{path}" in {*POSTED, *NAMES_NOTHING, *FILLED}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_route_with_a_foreign_id_is_as_with_an_unknown_one(method: str, path: str, made: Made) -> None:
    body = next((BODIES[end] for end in BODIES if path.endswith(end)), None) if method == "POST" else None
    before = {name: (await made.owner.get(where)).text for name, where in paths_of(made.ids).items()}
    answers = []
    for ids in (made.ids, unknown(made.ids)):
        if path.startswith("/v1/batches/"):  # but not a vector store's files
            ids = {**ids, "batch_id": ids["requests_id"]}
        answer = await made.other.request(method, filled(path, ids), json=body)
        answers.append((answer.status_code, without(answer.text, ids)))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    assert "secret" not in answers[0][1]
    assert {name: (await made.owner.get(where)).text for name, where in paths_of(made.ids).items()} == before


def paths_of(ids: dict[str, str]) -> dict[str, str]:
    response, conversation = f"/v1/responses/{ids['response_id']}", f"/v1/conversations/{ids['conversation_id']}"
    return {
        "response": response,
        "its input": f"{response}/input_items",
        "its events": f"{response}?stream=true",
        "conversation": conversation,
        "its items": f"{conversation}/items",
        "file": f"/v1/files/{ids['file_id']}",
        "its content": f"/v1/files/{ids['file_id']}/content",
        "batch": f"/v1/batches/{ids['requests_id']}",
        "vector store": f"/v1/vector_stores/{ids['vector_store_id']}",
        "its files": f"/v1/vector_stores/{ids['vector_store_id']}/files",
    }


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("fields", FIELDS, ids=[" ".join(fields) for fields in FIELDS])
async def test_field_with_a_foreign_id_is_as_with_an_unknown_one(path: str, fields: dict[str, Any], made: Made) -> None:
    answers = []
    for ids in (made.ids, unknown(made.ids)):
        answer = await made.other.post(path, json={"model": "m", "input": "x", **filled(fields, ids)})
        answers.append((answer.status_code, without(answer.text, ids)))
    assert answers[0] == answers[1]
    assert answers[0][0] in (400, 404)
    # The refusal is meaningful: the owner finds the object.
    own = await made.owner.post(path, json={"model": "m", "input": "x", **filled(fields, made.ids)})
    assert own.status_code == 200, own.text


@pytest.mark.asyncio(loop_scope="module")
async def test_foreign_file_is_run_as_no_batch(made: Made) -> None:
    answers = []
    for ids in (made.ids, unknown(made.ids)):
        body = {"input_file_id": ids["lines_id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        answer = await made.other.post("/v1/batches", json=body)
        answers.append((answer.status_code, without(answer.text, ids)))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"file_ids": ["{file_id}"]}),
        ("/{own}/files", {"file_id": "{file_id}"}),
        ("/{own}/file_batches", {"file_ids": ["{file_id}"]}),
        ("/{own}/file_batches", {"files": [{"file_id": "{file_id}"}]}),
    ],
)
async def test_foreign_file_gets_into_no_store(path: str, body: dict[str, Any], made: Made) -> None:
    own = (await made.other.post("/v1/vector_stores", json={})).json()["id"]
    answers = []
    for ids in (made.ids, unknown(made.ids)):
        answer = await made.other.post(f"/v1/vector_stores{path.format(own=own)}", json=filled(body, ids))
        answers.append((answer.status_code, without(answer.text, ids)))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    foreign = f"/v1/vector_stores/{own}/files/{made.ids['file_id']}"
    assert (await made.other.get(foreign)).status_code == 404


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fields", FIELDS, ids=[" ".join(fields) for fields in FIELDS])
async def test_websocket_with_a_foreign_id_is_as_with_an_unknown_one(fields: dict[str, Any], made: Made) -> None:
    url = str(made.other.base_url).rstrip("/")
    refusals = []
    for ids in (made.ids, unknown(made.ids)):
        async with sockets.dial(url, additional_headers={"authorization": "Bearer bob"}) as socket:
            (frame,) = await sockets.ask(socket, **filled(fields, ids))
            refusals.append(without(json.dumps(frame), ids))
    assert refusals[0] == refusals[1]
    assert json.loads(refusals[0])["status"] in (400, 404)
    async with sockets.dial(url, additional_headers={"authorization": "Bearer ada"}) as socket:
        assert (await sockets.response(socket, **filled(fields, made.ids)))["status"] == "completed"


@pytest.mark.asyncio(loop_scope="module")
async def test_content_encrypted_for_one_key_is_unreadable_to_another(made: Made) -> None:
    body = {"model": "m", "input": "secret"}
    sealed = (await made.owner.post("/v1/responses/compact", json=body)).json()["output"][-1]
    for client, opened in ((made.owner, True), (made.other, False)):
        answer = await client.post("/v1/responses", json={"model": "m", "input": [sealed], "store": False})
        assert (answer.status_code == 200) is opened, answer.text
