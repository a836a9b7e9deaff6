"""Two workers while keys change: a rotated key reads the old key's data, and a revoked key reaches nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

from app.core.access import hash_of
from app.settings.keys import key_table
from tests.cli.test_cli import TIMEOUT, served, wait_for_log

KEYS = {"alice": "old", "bob": "bobs"}
CONNECTIONS = 6  # new connections, to reach both workers
HTTP = httpx.Client(timeout=TIMEOUT, trust_env=False)


def write(directory: Path, keys: dict[str, str]) -> None:
    tables = "\n".join(key_table(name, hash_of(key)) for name, key in keys.items())
    (directory / "antiphon.toml").write_text(f"{tables}\n[tools.file_search]\nstore_url = 'sqlite:///files.db'\n")


def request(address: str, key: str, method: str, path: str, **body: Any) -> httpx.Response:
    """Send a request on a new connection."""
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    return HTTP.request(method, address + path, headers=headers, **({"json": body} if method == "POST" else {}))  # type: ignore[arg-type]


def stored_by(address: str, key: str) -> list[tuple[str, str]]:
    """Store an object per kind; return the requests to read them."""
    item = {"role": "user", "content": "Hello!"}
    conversation = request(address, key, "POST", "/v1/conversations", items=[item]).json()["id"]
    made = request(address, key, "POST", "/v1/responses", model="demo", input="Hi", conversation=conversation).json()
    files = request(address, key, "POST", "/v1/vector_stores", name="mine").json()["id"]
    paths = [
        f"/v1/responses/{made['id']}",
        f"/v1/responses/{made['id']}/input_items",
        f"/v1/conversations/{conversation}",
        f"/v1/conversations/{conversation}/items",
        f"/v1/vector_stores/{files}",
    ]
    return [("GET", path) for path in paths]


def statuses(address: str, key: str, requests: list[tuple[str, str]]) -> set[int]:
    body = {"model": "demo", "input": "Hi", "messages": [{"role": "user", "content": "Hi"}]}
    return {request(address, key, method, path, **body).status_code for method, path in requests * CONNECTIONS}


def test_rotated_key_reads_its_old_conversations_and_a_revoked_one_nothing(tmp_path: Path) -> None:
    write(tmp_path, KEYS)
    settings = {
        "ANTIPHON_CONFIG": "antiphon.toml",
        "ANTIPHON_STORE_URL": "sqlite:///antiphon.db",
        "ANTIPHON_USAGE_JOURNAL": "off",
    }
    with served(tmp_path, "--workers", "2", **settings) as (process, address):
        wait_for_log(process, tmp_path, "startup complete", times=2)
        of_alice, of_bob = stored_by(address, "old"), stored_by(address, "bobs")
        assert statuses(address, "old", of_alice) == statuses(address, "bobs", of_bob) == {200}
        assert statuses(address, "bobs", of_alice) == {404}
        sockets = [
            connect(f"ws{address[4:]}/v1/responses", additional_headers={"Authorization": "Bearer bobs"}, proxy=None)
            for _ in range(CONNECTIONS)
        ]
        write(tmp_path, {"alice": "new"})
        process.send_signal(signal.SIGHUP)
        wait_for_log(process, tmp_path, "settings reloaded", times=2)
        everything = [*of_bob, ("GET", "/v1/models"), ("GET", "/v1/antiphon/usage"), ("GET", "/v1/files")]
        everything += [
            ("POST", f"/v1/{path}") for path in ("responses", "conversations", "chat/completions", "vector_stores")
        ]
        for revoked in ("bobs", "old"):
            assert statuses(address, revoked, everything) == {401}
        for socket in sockets:
            with socket:
                socket.send('{"type": "response.create", "model": "demo", "input": "Hi"}')
                assert '"invalid_api_key"' in str(socket.recv(TIMEOUT))
        assert statuses(address, "new", of_alice) == {200}
        conversation = of_alice[2][1].rpartition("/")[2]
        more = request(address, "new", "POST", "/v1/responses", model="demo", input="More", conversation=conversation)
        assert more.json()["status"] == "completed"
        used: list[tuple[str, int]] = []
        until = time.monotonic() + TIMEOUT
        # The usage includes the old key's. The other worker flushes within a quarter of a second.
        while used != [("alice", 2)]:
            assert time.monotonic() < until, used
            rows = request(address, "new", "GET", "/v1/antiphon/usage?group=key").json()["data"]
            used = [(row["key"], row["requests"]) for row in rows]
            assert {name for name, _ in used} <= {"alice"}
