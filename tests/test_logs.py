"""One line for each event, and no secret in any of them."""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app import about, logs
from app.settings import Settings
from tests.core.build import delta
from tests.scripted import Scripted
from tests.serving import antiphon

Logged = Callable[[], str]


@pytest.fixture
def root() -> Iterator[None]:
    """Put the standard library's logging back as it was."""
    loggers = [logging.getLogger(name) for name in (None, "app", "uvicorn")]
    before = [(one, one.level, one.propagate, list(one.handlers)) for one in loggers]
    yield
    for one, level, propagate, handlers in before:
        one.setLevel(level)
        one.propagate = propagate
        one.handlers[:] = handlers


def configured(**settings: Any) -> logging.Logger:
    logs.configure(Settings(_env_file=None, **settings))
    return logging.getLogger("app.test")


@pytest.mark.usefixtures("root")
def test_text_is_a_line_with_the_extra_fields_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"response": "resp_1", "seconds": 1.5, "reason": "too long", "usage": {"input_tokens": 1}}
    configured().info("response %s", "completed", extra=extra)
    time, _, line = capsys.readouterr().err.partition(" ")
    assert line == (
        'info app.test response completed response=resp_1 seconds=1.5 reason="too long" usage={"input_tokens": 1}\n'
    )
    assert time.endswith("Z")


@pytest.mark.usefixtures("root")
def test_json_is_an_object_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configured(log_format="json").warning("two\nlines", extra={"response": "resp_1", "of": {"many": 1}, "at": object})
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "warning",
        "logger": "app.test",
        "message": "two\nlines",
        "response": "resp_1",
        "of": {"many": 1},
        "at": "<class 'object'>",
    }


@pytest.mark.usefixtures("root")
def test_a_line_break_in_a_message_does_not_pass_for_another_event(capsys: pytest.CaptureFixture[str]) -> None:
    configured().info("model %s", "x\n2026-01-01T00:00:00Z info app.test forged", extra={"user": "a\r\nb"})
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_is_kept_and_its_secrets_are_not(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    key = 'odd"hush\\key'
    logger = configured(log_format=log_format, backend_url="http://localhost/v1", backend_api_key=key)
    try:
        raise RuntimeError(f"refused {key}")
    except RuntimeError:
        logger.exception("backend failed")
    said = capsys.readouterr().err
    assert "RuntimeError: refused ***" in said
    assert "hush" not in said


@pytest.mark.usefixtures("root")
def test_what_is_below_the_level_is_not_logged_and_libraries_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    logger = configured(log_level="info")
    logger.debug("below")
    logging.getLogger("httpx").info("chatter")
    logging.getLogger("uvicorn.error").info("Application startup complete.")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "info uvicorn.error Application startup complete."
    ]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Authorization: Bearer abc.DEF-123", "Authorization: Bearer ***"),
        ("{'authorization': 'Bearer abc'}", "{'authorization': 'Bearer ***'}"),
        ('{"message": "\\"Bearer abc\\""}', '{"message": "\\"Bearer ***\\""}'),
        ("key sk-proj-Abc_123 is wrong", "key *** is wrong"),
        ("api_key=hush&model=x", "api_key=***"),
        ('{"api-key": "hush"}', '{"api-key": "***"}'),
        ("redis://user:hush@localhost:6379/0", "redis://user:***@localhost:6379/0"),
        ("redis://:hush@localhost:6379/0", "redis://:***@localhost:6379/0"),
        ("a caller-key-1 here", "a *** here"),
        ("http://localhost:8080/v1 and max_tokens: 5", "http://localhost:8080/v1 and max_tokens: 5"),
        ("the bearer", "the bearer"),
    ],
)
def test_what_looks_like_a_secret_is_struck_out(text: str, redacted: str) -> None:
    assert logs.Redaction(["caller-key-1", "x"])(text) == redacted


def test_every_secret_of_the_settings_is_known() -> None:
    settings = Settings(
        _env_file=None,
        api_keys=["caller"],
        secret_key=["encryption"],
        store_url="redis://:store-password@localhost",
        backend_api_key="passthrough",
        backends={"local": {"url": "http://user:url-password@localhost/v1", "api_key": "upstream"}},
    )
    assert set(logs.secrets_of(settings)) == {"caller", "encryption", "store-password", "url-password", "upstream"}


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_line_has_the_ids_of_what_it_is_about(capsys: pytest.CaptureFixture[str], format: str) -> None:
    log = configured(log_format=format)

    def work() -> None:
        about.begin(request_id="req_1")
        about.add(response_id="resp_1")
        log.info("done", extra={"status": "completed"})
        about.begin(request_id="req_2")
        log.info("next")

    contextvars.copy_context().run(work)
    first, second = capsys.readouterr().err.splitlines()
    for id in ("req_1", "resp_1", "completed"):
        assert id in first
    assert "req_2" in second
    assert "resp_1" not in second


async def test_lines_of_one_request_do_not_speak_of_another_on_the_same_connection() -> None:
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(logs.JSONFormatter().format(record)))

    access = logging.getLogger("app.access")
    handler, level = Lines(), access.level
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    try:
        async with antiphon(Scripted([delta(content="Hi")])) as url:
            async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                made = (await http.post("/v1/responses", json={"model": "m", "input": "Hi", "stream": True})).text
                await http.get("/v1/models")
                await http.get("/healthz")
    finally:
        access.removeHandler(handler)
        access.setLevel(level)
    asked, listed = lines
    assert asked["response_id"] in made
    assert "response_id" not in listed
    assert asked["request_id"] != listed["request_id"]
