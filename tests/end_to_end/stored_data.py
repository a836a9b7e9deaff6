"""
Data of all kinds, stored by one version for the tests of later versions.

`python -m tests.end_to_end.stored_data FOLDER`, run in a checkout of the old version with this module, writes
compressed SQLite databases, a PostgreSQL dump, and `answers.json`: answers to `GET` requests, which must not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import apsw
import httpx

from app.core.access import hash_of
from tests.support.postgres_server import PostgresServer, find_executables
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Received, Step, chunk, finish, sse, usage
from tests.tools.files.embedding_server import EmbeddingServer

LATER = 4_000_000_000  # a Unix time in the year 2096
INDEX = "files.db.indexes"
SEARCH = {"query": "Who sings a response?"}


class Model(EmbeddingServer):
    """A model server with one answer, and embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Event()  # the question "Wait." is answered then

    def answer_to(self, request: Received) -> list[Step]:
        if request.path.endswith("/embeddings") or request.method == "GET":
            return super().answer_to(request)
        answer = sse(chunk("Two choirs "), chunk("sing in turn."), finish(), usage(10, 5), DONE)
        if b"Wait." in request.body:
            return [self.release, *answer]
        self.requests.append(request)
        return answer


def options(store_url: str, files_url: str, model: Model) -> dict[str, Any]:
    """Return server settings for this data."""
    embeddings = {"backend": "default", "model": "toy"}
    return {
        "store_url": store_url,
        "backend_url": model.url,
        "keys": {"ada": {"hash": hash_of("ada")}},
        "secret_key": "of the tests",
        "idempotency_ttl": 10**9,  # the data are older than the default
        "tools": {"file_search": {"store_url": files_url, "embeddings": embeddings}},
    }


def client(url: str) -> httpx.AsyncClient:
    headers = {"authorization": "Bearer ada"}
    return httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=60, trust_env=False)


async def _post(http: httpx.AsyncClient, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> Any:
    answer = await http.post(path, json=body, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def until_status(http: httpx.AsyncClient, path: str, status: str) -> Any:
    async with asyncio.timeout(60):
        while (found := (await http.get(path)).json())["status"] != status:
            await asyncio.sleep(0.05)
    return found


async def _respond(http: httpx.AsyncClient, ids: dict[str, str]) -> None:
    """Store responses, a conversation, and a background response with its events."""
    ask = {"model": "m", "metadata": {"team": "music"}}
    ids["first"] = (await _post(http, "/responses", {**ask, "input": "What is an antiphon?"}))["id"]
    ids["second"] = (await _post(http, "/responses", {**ask, "input": "Who?", "previous_response_id": ids["first"]}))[
        "id"
    ]
    ids["large"] = (await _post(http, "/responses", {**ask, "input": "Amen. " * 400_000}))["id"]
    items = [{"type": "message", "role": "user", "content": "Hello."}]
    ids["conversation"] = (await _post(http, "/conversations", {"items": items, "metadata": {"topic": "song"}}))["id"]
    body = {**ask, "input": "Sing.", "conversation": ids["conversation"]}
    ids["sung"] = (await _post(http, "/responses", body))["id"]
    key = {"idempotency-key": "one"}
    ids["idempotent"] = (await _post(http, "/responses", {**ask, "input": "Once."}, headers=key))["id"]
    background = {**ask, "input": "Later.", "background": True, "stream": True}
    async with http.stream("POST", "/responses", json=background) as events:
        async for line in events.aiter_lines():
            if line.startswith("data: {") and "response" in (event := json.loads(line.removeprefix("data: "))):
                ids["background"] = event["response"]["id"]


async def _upload(http: httpx.AsyncClient, ids: dict[str, str]) -> None:
    """Store files, uploads, a vector store, and batches."""
    texts = {"note": b"The antiphon is sung as call and response.", "bread": b"Bread needs yeast."}
    for name, text in texts.items():
        files = {"file": (f"{name}.txt", text)}
        ids[name] = (await _post(http, "/files", data={"purpose": "assistants"}, files=files))["id"]
    for name in ("uploaded", "uploading"):
        upload = {"filename": f"{name}.txt", "purpose": "assistants", "bytes": 11, "mime_type": "text/plain"}
        ids[name] = (await _post(http, "/uploads", upload))["id"]
        parts = [
            (await _post(http, f"/uploads/{ids[name]}/parts", files={"data": ("part", data)}))["id"]
            for data in (b"Hello ", b"world")
        ]
        ids[f"{name} parts"] = ",".join(parts)
    completed = await _post(
        http, f"/uploads/{ids['uploaded']}/complete", {"part_ids": ids["uploaded parts"].split(",")}
    )
    ids["file of parts"] = completed["file"]["id"]
    ids["store"] = (await _post(http, "/vector_stores", {"name": "notes", "metadata": {"team": "a"}}))["id"]
    for name in texts:
        attributes = {"name": name}
        await _post(http, f"/vector_stores/{ids['store']}/files", {"file_id": ids[name], "attributes": attributes})
        await until_status(http, f"/vector_stores/{ids['store']}/files/{ids[name]}", "completed")
    ids["ended"] = await _batch(http, "Hi.", "Ho.")
    ids["output"] = (await until_status(http, f"/batches/{ids['ended']}", "completed"))["output_file_id"]
    ids["waiting"] = await _batch(http, "Wait.")
    await until_status(http, f"/batches/{ids['waiting']}", "in_progress")


async def _batch(http: httpx.AsyncClient, *questions: str) -> str:
    lines = [
        {"custom_id": text, "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": text}}
        for text in questions
    ]
    files = {"file": ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())}
    file = await _post(http, "/files", data={"purpose": "batch"}, files=files)
    body = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    return str((await _post(http, "/batches", body))["id"])


def _paths(ids: Mapping[str, str]) -> list[str]:
    responses = [ids[name] for name in ("first", "second", "large", "sung", "idempotent", "background")]
    store = f"/vector_stores/{ids['store']}"
    return [
        *(f"/responses/{response}" for response in responses),
        *(f"/responses/{ids[name]}/input_items?order=asc" for name in ("second", "sung")),
        f"/responses/{ids['background']}?stream=true",
        f"/conversations/{ids['conversation']}",
        f"/conversations/{ids['conversation']}/items?order=asc",
        "/antiphon/usage?from=2026-01-01&to=2026-12-31",
        "/files?order=asc",
        *(f"/files/{ids[name]}/content" for name in ("note", "file of parts", "output")),
        store,
        f"{store}/files?order=asc",
        f"{store}/files/{ids['note']}/content",
        f"/batches/{ids['ended']}",
    ]


async def _write(store_url: str, files_url: str, change: Callable[[str], object]) -> dict[str, Any]:
    """Store data of all kinds; return the ids, and the answers to `GET` requests."""
    ids: dict[str, str] = {}
    async with Model() as model:
        settings = options(store_url, files_url, model)
        async with antiphon(**settings) as url, client(url) as http:
            await _respond(http, ids)
            await _upload(http, ids)
            found = await _post(http, f"/vector_stores/{ids['store']}/search", SEARCH)
        change(f"{LATER}")
        async with antiphon(**settings) as url, client(url) as http:
            answers = {path: (await http.get(path)).text for path in _paths(ids)}
        change("0")  # again, since reading renews
    return {"ids": ids, "answers": answers, "found": found}


# Nothing may expire before the tests run. Batch requests can be claimed at the given time.
_SQLITE_RESPONSES = f"UPDATE buckets SET expires = {LATER}; UPDATE runs SET expires = {LATER}"
_SQLITE_FILES = f"""
UPDATE files SET expires_at = {LATER} WHERE expires_at IS NOT NULL;
UPDATE multipart_uploads SET expires_at = {LATER}; UPDATE uploads SET touched = {LATER};
UPDATE request_batches SET expires_at = {LATER}; UPDATE batch_requests SET claim = NULL, claimed_until =
"""
_POSTGRES = f"""
UPDATE antiphon_buckets SET expires = to_timestamp({LATER}); UPDATE antiphon_runs SET expires = to_timestamp({LATER});
UPDATE antiphon_files SET expires_at = {LATER} WHERE expires_at IS NOT NULL;
UPDATE antiphon_multipart_uploads SET expires_at = {LATER};
UPDATE antiphon_uploads SET touched = to_timestamp({LATER});
UPDATE antiphon_request_batches SET expires_at = {LATER};
UPDATE antiphon_batch_requests SET claim = NULL, claimed_until =
"""


def _compress(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def main(folder: Path) -> None:
    """Write this version's data into a folder."""
    folder.mkdir(parents=True)
    written = {}
    with tempfile.TemporaryDirectory() as work:
        responses, files = Path(work) / "responses.db", Path(work) / "files.db"

        def change(claimable: str) -> None:
            for path, statements in ((responses, _SQLITE_RESPONSES), (files, _SQLITE_FILES + claimable)):
                with contextlib.closing(apsw.Connection(str(path))) as db:
                    db.execute(statements).fetchall()

        written["sqlite"] = asyncio.run(_write(f"sqlite:///{responses}", f"sqlite:///{files}", change))
        for path in (responses, files, *Path(work).glob(f"{INDEX}/*.db")):
            with contextlib.closing(apsw.Connection(str(path))) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            _compress(folder / f"{path.relative_to(work)}.gz", path.read_bytes())
    with PostgresServer() as server:
        url = server.patient_url
        written["postgres"] = asyncio.run(_write(url, url, lambda at: server.sql(_POSTGRES + at)))
        options = ["--inserts", "--no-owner", "--no-acl", "-h", "127.0.0.1", "-p", str(server.port), "-U", "antiphon"]
        lines = subprocess.check_output([find_executables() / "pg_dump", *options, "antiphon"]).splitlines()
    _compress(folder / "postgres.sql.gz", b"\n".join(line for line in lines if not line.startswith((b"\\", b"--"))))
    (folder / "answers.json").write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
