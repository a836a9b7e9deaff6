"""Several workers: shared state, and warnings about the rest."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.cli.test_cli import run, served

ENCRYPTED = {"model": "demo", "include": ["reasoning.encrypted_content"], "store": False}


@pytest.mark.parametrize("store", ["memory://", ""])
def test_workers_that_cannot_share_their_store_do_not_start(tmp_path: Path, store: str) -> None:
    refused = run(tmp_path, "serve", "--workers", "3", ANTIPHON_STORE_URL=store)

    assert refused.returncode == 2
    assert refused.stderr.strip() == (
        "ANTIPHON_STORE_URL: must be a store that 3 workers can share, such as "
        "sqlite:///antiphon.db or redis://localhost:6379/0; or set ANTIPHON_WORKERS=1"
    )


def test_sqlite_in_memory_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path, "serve", "--workers", "2", ANTIPHON_STORE_URL="sqlite:///:memory:")

    assert refused.returncode == 2
    assert refused.stderr.startswith("ANTIPHON_STORE_URL: ")
    assert "Traceback" not in refused.stderr


def test_secret_key_that_is_generated_is_logged_once(tmp_path: Path) -> None:
    with served(tmp_path, "--store-url", "sqlite:///shared.db") as (_, address):
        for _ in range(2):  # encryption uses the key
            _post(f"{address}/v1/responses/compact", {"model": "demo", "input": "My name is Ada."})

    assert_logged_once(tmp_path)


def test_secret_key_that_is_configured_is_not_logged(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2", "--store-url", "sqlite:///shared.db", ANTIPHON_SECRET_KEY="of the tests"):
        pass

    assert "SECRET_KEY" not in (tmp_path / "serve.log").read_text()


def test_content_encrypted_by_one_worker_is_read_by_others_with_a_key_that_is_logged_once(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2", "--store-url", "sqlite:///shared.db") as (_, address):
        for _ in range(2):
            sealed = _post(f"{address}/v1/responses/compact", {"model": "demo", "input": "My name is Ada."})
        for _ in range(12):  # each on a new connection, which either worker may accept
            answer = _post(f"{address}/v1/responses", {"model": "demo", "store": False, "input": sealed["output"]})
            assert answer["status"] == "completed"

    assert_logged_once(tmp_path)


def assert_logged_once(directory: Path) -> None:
    """The generated key for all workers."""
    warnings = [line for line in (directory / "serve.log").read_text().splitlines() if "ANTIPHON_SECRET_KEY" in line]
    assert len(warnings) == 1
    assert "ANTIPHON_SECRET_KEY not set" in warnings[0]


def _post(url: str, body: object) -> dict[str, object]:
    headers = {"Content-Type": "application/json", "Connection": "close"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        answered: dict[str, object] = json.load(answer)
        return answered
