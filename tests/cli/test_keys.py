"""`antiphon key`: a running server's keys, from the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli.keys.managed import changed_fields
from app.core.access import hash_of
from tests.cli.test_cli import ask, run, served

SECRET = re.compile(r"sk-antiphon-[\w-]{43}")
CONFIG = f'[keys.ops]\nhash = "{hash_of("ops")}"\nadmin = true\n\n[keys.user]\nhash = "{hash_of("user")}"\n'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("server")
    (directory / "antiphon.toml").write_text(CONFIG)
    with served(directory, "--config", "antiphon.toml") as (_, address):
        yield f"{address}/v1"


def key(url: str, directory: Path, *arguments: str, admin: str = "ops") -> Any:
    return run(directory, "key", *arguments, "--url", url, CODEX_ANTIPHON_KEY=admin)


def listed(url: str, directory: Path, *options: str) -> dict[str, dict[str, Any]]:
    found = json.loads(key(url, directory, "list", "--json", *options).stdout)
    return {each["name"]: each for each in found}


def test_key_is_created_updated_rotated_and_revoked(url: str, tmp_path: Path) -> None:
    options = ["--owner", "research", "--model", "demo", "--model", "qwen*", "--requests-per-minute", "100"]
    options += ["--budget", "tokens_per_day=100000", "--expires", "2099-01-31", "--tool", "web_search"]
    created = key(url, tmp_path, "create", "alice", *options)
    assert created.returncode == 0, created.stderr
    secret = created.stdout.strip()
    assert SECRET.fullmatch(secret) and "not shown again" in created.stderr
    alice = listed(url, tmp_path)["alice"]
    assert (alice["owner"], alice["models"], alice["tools"]) == ("research", ["demo", "qwen*"], ["web_search"])
    assert (alice["requests_per_minute"], alice["budgets"]) == (100, {"tokens_per_day": 100000})
    assert alice["expires_at"] == 4073500800
    assert ask(f"{url}/responses", {"model": "demo", "input": "Hi."}, key=secret)["status"] == "completed"

    updated = key(url, tmp_path, "update", "alice", "--requests-per-minute", "0", "--reset", "models", "--json")
    [fields] = json.loads(updated.stdout)
    assert (fields["requests_per_minute"], fields["models"], fields["owner"]) == (0, ["*"], "research")

    rotated = key(url, tmp_path, "rotate", alice["id"], "--grace-period", "0")
    assert SECRET.fullmatch(rotated.stdout.strip()) and rotated.stdout != created.stdout

    table = key(url, tmp_path, "list").stdout
    assert re.search(r"alice\s+research\s+\*\s+0 requests/min\s+tokens_per_day=100000\s+2099-01-31 00:00", table)
    assert re.search(r"ops\s+ops .*admin, in the settings", table)

    revoked = key(url, tmp_path, "revoke", "alice")
    assert revoked.returncode == 0 and "revoked" in revoked.stdout
    assert "alice" not in listed(url, tmp_path) and listed(url, tmp_path, "--revoked")["alice"]["revoked"] is True


def test_created_key_is_printed_as_json(url: str, tmp_path: Path) -> None:
    made = json.loads(key(url, tmp_path, "create", "json", "--admin", "--json").stdout)
    assert made["admin"] is True and SECRET.fullmatch(made["secret"])


@pytest.mark.parametrize(
    ("arguments", "admin", "words"),
    [
        (["list"], "user", "This endpoint requires an admin key"),
        (["list"], "unknown", "Incorrect API key provided"),
        (["revoke", "nobody"], "ops", "The server has no key named 'nobody'"),
        (["create", "ops"], "ops", "a key named 'ops' exists already"),
        (["create", "a b"], "ops", "Invalid 'name': must be up to 64 letters"),
        (["update", "user", "--no-admin"], "ops", "is in the settings file"),
    ],
)
def test_refusal_of_the_server_is_printed(
    url: str, tmp_path: Path, arguments: list[str], admin: str, words: str
) -> None:
    refused = key(url, tmp_path, *arguments, admin=admin)
    assert (refused.returncode, words in refused.stderr) == (1, True), refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--expires", "soon"], "--expires: must be a day or a time, such as 2027-01-31, not 'soon'"),
        (["--budget", "tokens_per_day"], "--budget: must be NAME=AMOUNT"),
    ],
)
def test_option_that_cannot_be_read_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    refused = key("http://127.0.0.1:9/v1", tmp_path, "create", "alice", *arguments)
    assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr


def test_times_are_read_in_utc() -> None:
    names = ("owner", "models", "tools", "requests_per_minute", "tokens_per_minute", "max_concurrent")
    none = dict.fromkeys((*names, "max_stored_bytes", "admin", "budgets"))
    for text, time in (
        ("1800000000", 1800000000),
        ("2027-01-15T08:00", 1800000000),
        ("2027-01-15T09:00+01:00", 1800000000),
    ):
        assert changed_fields({**none, "expires": text}) == {"expires_at": time}
    budgets = changed_fields({**none, "expires": None, "budgets": ["tokens_per_day=5", "money_per_day=1.5"]})
    assert budgets == {"budgets": {"tokens_per_day": 5, "money_per_day": 1.5}}
