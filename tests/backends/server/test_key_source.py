"""Expiring backend keys, from files and commands."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from app.backends.server.key_source import KeySource, key_from_command, key_from_file
from app.errors import BackendError
from app.settings import BackendSettings
from tests.api.routes.test_responses import client
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, status, upstream

__all__ = ["upstream"]  # a fixture

ASKED = {"model": "m", "input": "Hi"}
HELLO = sse(chunk("Hello."), finish(), DONE)


class Keys:
    """A key source that counts its calls."""

    def __init__(self, *keys: str) -> None:
        self.keys = [*keys]
        self.read = 0

    async def __call__(self) -> str:
        self.read += 1
        await asyncio.sleep(0)
        if not self.keys:
            raise BackendError("No key.")
        return self.keys.pop(0) if len(self.keys) > 1 else self.keys[0]


async def test_key_is_read_once_for_concurrent_requests_and_again_after_its_lifetime() -> None:
    now = 0.0
    keys = Keys("one\n", "two\n")
    source = KeySource(keys, 60, lambda: now)
    assert await asyncio.gather(*(source.current() for _ in range(5))) == ["one"] * 5
    now = 59
    assert await source.current() == "one"
    now = 60
    assert await source.current() == "two"
    assert keys.read == 2


async def test_failed_read_is_an_error_for_all_waiting_requests() -> None:
    keys = Keys()
    source = KeySource(keys, 60)
    failed = await asyncio.gather(*(source.current() for _ in range(5)), return_exceptions=True)
    assert [type(error) for error in failed] == [BackendError] * 5 and keys.read == 1
    keys.keys = ["one"]
    assert await source.current() == "one"


async def test_refused_key_is_read_again_once_for_concurrent_requests() -> None:
    keys = Keys("one", "two")
    source = KeySource(keys, 60)
    await source.current()
    assert await asyncio.gather(*(source.renew("one") for _ in range(5))) == [True] * 5
    assert await source.current() == "two" and keys.read == 2
    assert await source.renew("two") is False  # the reader has no other


async def test_key_that_cannot_be_renewed_stays_in_use(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    keys = Keys("one")
    source = KeySource(keys, 60, lambda: now)
    await source.current()
    keys.keys, now = [], 60
    assert await source.current() == "one"
    (record,) = caplog.records
    assert record.getMessage() == "backend key not renewed" and "one" not in vars(record)["reason"]
    assert await source.current() == "one" and keys.read == 2


@pytest.mark.parametrize("text", ["", " \n", "a\nb", "schlüssel", "x" * 20_000])
async def test_key_that_no_header_can_hold_is_an_error(text: str) -> None:
    with pytest.raises(BackendError) as failed:
        await KeySource(Keys(text), 60).current()
    assert failed.value.code == "backend_auth"


async def test_file_and_output_of_a_command_are_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n")
    assert await key_from_file(path) == "secret\n"
    assert (await key_from_command([sys.executable, "-c", "print('secret')"])).strip() == "secret"


FAILING: dict[str, list[str]] = {
    "exit status 3": [sys.executable, "-c", "import sys; print('secret'); sys.exit(3)"],
    "No such file": ["no-such-command-anywhere"],
    "no output within": [sys.executable, "-c", "import time; time.sleep(60)"],
}


@pytest.mark.parametrize("reason", FAILING)
async def test_command_that_fails_is_an_error_without_its_output(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(BackendError) as failed:
        await key_from_command(FAILING[reason], seconds=5 if "no output" not in reason else 0.2)
    assert reason in failed.value.__notes__[0]
    assert "secret" not in str(failed.value) + str(failed.value.__notes__) + caplog.text


async def test_command_is_ended_with_its_children() -> None:
    async with asyncio.timeout(20):
        with pytest.raises(BackendError):
            await key_from_command(["sh", "-c", "sleep 60; true"], seconds=0.2)  # `sleep` holds the output open


async def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as failed:
        await key_from_file(tmp_path / "none")
    assert failed.value.__notes__ == ["api_key_file: No such file or directory"]


def rotating(directory: Path) -> list[str]:
    """Return a command with a new key for each call."""
    path = directory / "count"
    path.write_text("")
    code = (
        "import pathlib, sys; path = pathlib.Path(sys.argv[1]);"
        "path.write_text(path.read_text() + 'x'); print('key-' + path.read_text())"
    )
    return [sys.executable, "-c", code, str(path)]


async def test_request_that_the_server_refuses_with_an_expired_key_is_sent_again(
    upstream: Upstream, tmp_path: Path
) -> None:
    backends: dict[str, Any] = {"b": {"url": upstream.url, "api_key_command": rotating(tmp_path)}}
    expired = status(401, {"error": {"message": "Token expired."}})
    async with antiphon(backends=backends) as url, client(url) as http:
        upstream.say(HELLO)
        upstream.say(expired)
        upstream.say(HELLO)
        for _ in range(2):
            assert (await http.post("/v1/responses", json=ASKED)).json()["status"] == "completed"
        upstream.say(expired)
        upstream.say(status(200, {"data": []}))
        assert (await http.post("/v1/embeddings", json={"model": "m", "input": "Hi"})).status_code == 200
        upstream.always(expired)
        refused = await http.post("/v1/responses", json=ASKED)
    keys = [request.headers["authorization"].removeprefix("Bearer ") for request in upstream.requests]
    assert keys[:5] == ["key-x", "key-x", "key-xx", "key-xx", "key-xxx"]
    assert refused.status_code == 502 and len(keys) == 7  # sent again once


async def test_key_that_cannot_be_read_is_an_error_of_the_server(upstream: Upstream, tmp_path: Path) -> None:
    backends: dict[str, Any] = {"b": {"url": upstream.url, "api_key_file": str(tmp_path / "key")}}
    async with antiphon(backends=backends) as url, client(url) as http:
        refused = await http.post("/v1/responses", json=ASKED)
        assert refused.status_code == 502
        assert refused.json()["error"]["message"] == "This server's API key for the backend cannot be read."
        (tmp_path / "key").write_text("secret\n")
        upstream.say(HELLO)
        assert (await http.post("/v1/responses", json=ASKED)).json()["status"] == "completed"
    assert upstream.requests[0].headers["authorization"] == "Bearer secret"


def test_command_of_the_settings_may_be_a_string_and_there_is_one_key_at_most() -> None:
    settings = BackendSettings(url="http://a.test/v1", api_key_command="gcloud auth 'print access'")  # type: ignore[arg-type]
    assert settings.api_key_command == ["gcloud", "auth", "print access"]
    with pytest.raises(ValueError, match="api_key_command must be left out if there is an api_key_file"):
        BackendSettings(url="http://a.test/v1", api_key_file="key", api_key_command=["x"])  # type: ignore[arg-type]
