"""Databases written by earlier versions open, are migrated, and answer as before."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import httpx
import pytest

from tests.end_to_end.stored_data import LATER, SEARCH, Model, client, options, until_status
from tests.support.file_databases import need_pgvector
from tests.support.postgres_server import PostgresServer
from tests.support.serving import antiphon

DATA = Path(__file__).with_name("data")
VERSIONS = sorted(path.name for path in DATA.iterdir())

# Uploads older than a few days are deleted, even if they have not expired.
_RECENT = f"SET created_at = {LATER}"


class Upgraded(NamedTuple):
    """This version's server on an earlier version's data: the ids, and the earlier version's answers."""

    http: httpx.AsyncClient
    model: Model
    ids: dict[str, str]
    answers: dict[str, str]
    found: dict[str, Any]


@contextlib.contextmanager
def restored(kind: str, version: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Restore a version's databases; yield the store URLs for responses and files."""
    if kind == "postgres":
        need_pgvector()
        with PostgresServer() as server:
            dump = gzip.decompress((DATA / version / "postgres.sql.gz").read_bytes()).decode()
            server.sql(f"{dump}; RESET ALL; UPDATE antiphon_multipart_uploads {_RECENT}")
            yield server.patient_url, server.patient_url
    else:
        for path in (DATA / version).rglob("*.db.gz"):
            target = folder / path.relative_to(DATA / version).with_suffix("")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(gzip.decompress(path.read_bytes()))
        with contextlib.closing(apsw.Connection(f"{folder}/files.db")) as db:
            db.execute(f"UPDATE multipart_uploads {_RECENT}")
        yield f"sqlite:///{folder}/responses.db", f"sqlite:///{folder}/files.db"


@pytest.fixture(params=[(kind, version) for kind in ("sqlite", "postgres") for version in VERSIONS], ids="-".join)
async def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Upgraded]:
    kind, version = request.param
    written = json.loads((DATA / version / "answers.json").read_text())[kind]
    with restored(kind, version, tmp_path) as (store_url, files_url):
        async with Model() as model:
            async with antiphon(**options(store_url, files_url, model)) as url, client(url) as http:
                yield Upgraded(http, model, **written)
                model.release.set()  # or the stopping server would wait for the batch


async def test_stored_data_are_retrieved_as_before(upgraded: Upgraded) -> None:
    assert len(upgraded.answers) > 15
    for path, answer in upgraded.answers.items():
        assert (await upgraded.http.get(path)).text == answer, path


async def test_stored_responses_and_conversations_are_continued(upgraded: Upgraded) -> None:
    http, model, ids, *_ = upgraded
    for past, texts in (
        ({"previous_response_id": ids["second"]}, ["What is an antiphon?", "Who?", "When?"]),
        ({"previous_response_id": ids["large"]}, ["Amen. " * 400_000, "When?"]),
        ({"conversation": ids["conversation"]}, ["Hello.", "Sing.", "When?"]),
    ):
        answer = await http.post("/responses", json={"model": "m", "input": "When?", **past})
        assert answer.json()["status"] == "completed"
        questions = [message for message in model.requests[-1].json["messages"] if message["role"] == "user"]
        assert [question["content"] for question in questions] == texts


async def test_stored_idempotency_key_returns_the_response_of_the_earlier_request(upgraded: Upgraded) -> None:
    body = {"model": "m", "metadata": {"team": "music"}, "input": "Once."}
    repeated = await upgraded.http.post("/responses", json=body, headers={"idempotency-key": "one"})
    assert repeated.json()["id"] == upgraded.ids["idempotent"]
    assert not [request for request in upgraded.model.requests if b"Once." in request.body]


async def test_stored_vector_store_is_searched_and_extended(upgraded: Upgraded) -> None:
    http, _, ids, _, found = upgraded
    path = f"/vector_stores/{ids['store']}"
    assert (await http.post(f"{path}/search", json=SEARCH)).json() == found
    await http.post(f"{path}/files", json={"file_id": ids["file of parts"]})
    await until_status(http, f"{path}/files/{ids['file of parts']}", "completed")
    best, *_ = (await http.post(f"{path}/search", json={"query": "hello world"})).json()["data"]
    assert best["file_id"] == ids["file of parts"]
    for name in ("note", "bread"):
        assert (await http.delete(f"/files/{ids[name]}")).json()["deleted"]
    found = (await http.post(f"{path}/search", json=SEARCH)).json()
    assert [result["file_id"] for result in found["data"]] == [ids["file of parts"]]


async def test_stored_upload_is_completed(upgraded: Upgraded) -> None:
    http, _, ids, *_ = upgraded
    parts = {"part_ids": ids["uploading parts"].split(",")}
    completed = (await http.post(f"/uploads/{ids['uploading']}/complete", json=parts)).json()
    content = await http.get(f"/files/{completed['file']['id']}/content")
    assert content.text == "Hello world"


async def test_stored_batch_is_run_to_its_end(upgraded: Upgraded) -> None:
    http, model, ids, *_ = upgraded
    model.release.set()
    batch = await until_status(http, f"/batches/{ids['waiting']}", "completed")
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


async def test_stored_data_are_deleted(upgraded: Upgraded) -> None:
    http, _, ids, *_ = upgraded
    paths = [
        *(f"/responses/{ids[name]}" for name in ("first", "large", "background")),
        f"/conversations/{ids['conversation']}",
        f"/files/{ids['file of parts']}",
        f"/vector_stores/{ids['store']}",
    ]
    for path in paths:
        assert (await http.delete(path)).status_code == 200
        assert (await http.get(path)).status_code == 404
