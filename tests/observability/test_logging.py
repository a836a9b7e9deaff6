"""One line for each event, and no secret in any of them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import io
import json
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from app.main import create_app
from app.observability import log_context
from app.observability import logging as logs
from app.settings import Settings
from tests.support import sockets
from tests.support.build import delta
from tests.support.ports import free_port
from tests.support.raw_server import CERTIFICATE
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving
from tests.support.serving import settings as given
from tests.support.upstream import CLOSE, DONE, HANG, Upstream, chunk, finish, reply, sse, status

Logged = Callable[[], str]


def configured(**settings: Any) -> logging.Logger:
    logs.configure(Settings(**settings))
    return logging.getLogger("app.test")


def test_text_log_is_a_line_with_its_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"response": "resp_1", "seconds": 1.5, "reason": "too long", "usage": {"input_tokens": 1}}
    configured().info("response %s", "completed", extra=extra)
    time, _, line = capsys.readouterr().err.partition(" ")
    assert line == (
        'info app.test response completed response=resp_1 seconds=1.5 reason="too long" usage={"input_tokens": 1}\n'
    )
    assert time.endswith("Z")


def test_json_log_is_an_object_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_log_message_with_a_line_break_is_one_event(capsys: pytest.CaptureFixture[str]) -> None:
    configured().info("model %s", "x\n2026-01-01T00:00:00Z info app.test forged", extra={"user": "a\r\nb"})
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "character",
    ["\x00", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\ufeff", "\U000e0041", "\ud800"],
)
def test_log_message_that_is_not_printable_is_escaped(
    character: str, log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"before{character}after é 中 🦉"
    try:
        raise ValueError(text)
    except ValueError:
        configured(log_format=log_format).error("of %s", text, extra={"model": text, "of": [text]}, exc_info=True)
    logged = capsys.readouterr().err
    assert character not in logged
    assert logged.count("after é 中 🦉") == logged.count("before") >= 4
    assert logged.replace("\n", "").isprintable()
    if log_format == "json":
        assert json.loads(logged)["model"].encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_log_traceback_is_kept_without_its_secrets(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    key = 'odd"hush\\key'
    logger = configured(log_format=log_format, backend_url="http://localhost/v1", backend_api_key=key)
    try:
        raise RuntimeError(f"refused {key}")
    except RuntimeError:
        logger.exception("backend failed")
    log = capsys.readouterr().err
    assert "RuntimeError: refused ***" in log
    assert "hush" not in log


def test_log_below_the_level_and_of_libraries_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    logger = configured(log_level="info")
    logger.debug("below")
    logging.getLogger("httpx").info("chatter")
    logging.getLogger("uvicorn.error").info("Application startup complete.")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "info uvicorn.error Application startup complete."
    ]


def test_log_redacts_every_secret_of_the_settings() -> None:
    settings = Settings(
        _env_file=None,
        api_keys=["caller"],
        secret_key=["encryption"],
        store_url="redis://:store-password@localhost",
        backend_api_key="passthrough",
        backends={"local": {"url": "http://user:url-password@localhost/v1", "api_key": "upstream"}},
        tools={"mcp": {"servers": {"lab": {"url": "http://lab", "headers": {"X-Key": "header"}, "env": {"A": "env"}}}}},
    )
    known = {"caller", "encryption", "store-password", "url-password", "upstream", "header", "env"}
    assert set(logs.secrets_of(settings)) == known


@pytest.mark.parametrize("format", ["text", "json"])
def test_log_line_has_the_ids_of_its_request(capsys: pytest.CaptureFixture[str], format: str) -> None:
    log = configured(log_format=format)

    def work() -> None:
        log_context.reset(request_id="req_1")
        log_context.bind(response_id="resp_1")
        log.info("done", extra={"status": "completed"})
        log_context.reset(request_id="req_2")
        log.info("next")

    contextvars.copy_context().run(work)
    first, second = capsys.readouterr().err.splitlines()
    for id in ("req_1", "resp_1", "completed"):
        assert id in first
    assert "req_2" in second
    assert "resp_1" not in second


async def test_log_lines_of_one_request_do_not_name_another() -> None:
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(logs.Formatter(as_json=True).format(record)))

    access = logging.getLogger("app.access")
    handler, level = Lines(), access.level
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    try:
        async with antiphon(Scripted([delta(content="Hi")])) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                made = (await http.post("/v1/responses", json={"model": "m", "input": "Hi", "stream": True})).text
                await http.get("/v1/models")
                await http.get("/healthz")
    finally:
        access.removeHandler(handler)
        access.setLevel(level)
    created, listed = lines
    assert created["response_id"] in made
    assert "response_id" not in listed
    assert created["request_id"] != listed["request_id"]


async def test_log_of_a_long_path_has_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app.access")
    async with antiphon(Scripted([delta(content="Hi")])) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await http.get("/" + "x" * 30_000)).status_code == 404
    (path,) = (record.path for record in caplog.records if record.name == "app.access")  # type: ignore[attr-defined]
    assert path == "/" + "x" * 999


# Callers' and models' texts, and keys of both sides.

CALLER, BACKEND, PASSWORD, WRONG = "caller-key-7f", "backend-key-3c", "url-password-9d", "sk-wrong-key-1a2b"
ASKED, ANSWERED = "the password is xyzzy", "and the answer is plugh"
KEYED = {"authorization": f"Bearer {CALLER}"}

# Backend errors quoting the request, and invalid answers.
QUOTING: list[Any] = [
    sse(chunk(ANSWERED), finish(), DONE),
    status(400, {"error": {"message": f"{ASKED}? {BACKEND}"}}),
    status(401, {"error": {"message": f"Incorrect API key provided: {BACKEND}"}}),
    status(503, {"error": {"message": f"{ASKED}? Authorization: Bearer {BACKEND}", "code": "x"}}),
    reply(f"<html>{ASKED}</html>".encode(), "text/html"),
    sse(f"no JSON: {ASKED}", chunk(ANSWERED), finish(), DONE),
    sse({"error": {"message": f"{ASKED}? {BACKEND}"}}),
    sse(chunk(ANSWERED), CLOSE),
]
# Invalid input, quoted by validation errors.
WRONGS: list[dict[str, Any]] = [
    {"temperature": ASKED},
    {"input": [{"type": "message", "role": ASKED, "content": ASKED}]},
    {"text": {"format": {"type": ASKED}}},
    {"previous_response_id": f"resp_{ASKED}"},
]


@pytest.fixture
def lines() -> io.StringIO:
    """The log after configuration."""
    return io.StringIO()


def listen(lines: io.StringIO, configured: Settings) -> None:
    logs.configure(configured)
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(lines)


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_log_has_no_content_and_no_key(log_format: str, lines: io.StringIO) -> None:
    async with Upstream() as upstream:
        url = upstream.url.replace("://", f"://user:{PASSWORD}@")
        keys = {"api_keys": CALLER, "backend_api_key": BACKEND, "secret_key": "x" * 20}
        configured = given(log_format=log_format, log_level="debug", backend_url=url, backend_retries=1, **keys)
        listen(lines, configured)
        async with serving(create_app(configured), ws="app.api.uvicorn.websocket:WebSocketProtocol") as served:
            async with httpx.AsyncClient(base_url=served, headers=KEYED, timeout=60, trust_env=False) as http:
                body = {"model": "m", "input": ASKED}
                async with sockets.dial(
                    served, subprotocols=["realtime", f"openai-insecure-api-key.{CALLER}"]
                ) as socket:
                    upstream.always(QUOTING[-1])
                    await sockets.ask(socket, **body)
                with pytest.raises(InvalidStatus):
                    await sockets.dial(served, subprotocols=[f"openai-insecure-api-key.{WRONG}"])
                for answer in QUOTING:
                    for stream in (False, True):
                        upstream.always(answer)
                        await http.post("/v1/responses", json={**body, "stream": stream})
                for wrong in WRONGS:
                    assert (await http.post("/v1/responses", json={**body, **wrong})).status_code == 400
                await http.post("/v1/responses", content=f'{{"input": "{ASKED}')
                await http.post("/v1/responses", json=body, headers={"authorization": f"Bearer {WRONG}"})
                await http.get(f"/v1/responses/{WRONG}?api_key={CALLER}", headers={"x-request-id": CALLER})
                await http.get(f"/v1/nowhere/{CALLER}")
                upstream.always(QUOTING[0])
                await http.post("/v1/responses/compact", json=body)
                id = (await http.post("/v1/responses", json={**body, "background": True})).json()["id"]
                while (await http.get(f"/v1/responses/{id}")).json()["status"] != "completed":
                    pass
        logged = lines.getvalue()
    assert logged.count("response ended") >= 2 * len(QUOTING)
    for secret in (CALLER, BACKEND, PASSWORD, WRONG, "xyzzy", "plugh"):
        assert secret not in logged


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_log_of_an_error_that_quotes_a_prompt_has_its_type_and_location(
    log_format: str, content: bool, lines: io.StringIO
) -> None:
    class Careless(Scripted):
        def profile(self, model: str) -> Any:
            try:
                int(ASKED)
            except ValueError as error:
                raise RuntimeError(f"What is {ASKED}?") from error

    listen(lines, given(log_format=log_format, log_content=content))
    async with sockets.listening(Careless([]), log_content=content) as url, sockets.dial(url) as socket:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await http.post("/v1/responses", json={"model": "m", "input": ASKED})).status_code == 500
        assert await sockets.refusal(socket, input=ASKED) == (500, "server_error")
    logged = lines.getvalue()
    assert logged.count("Traceback (most recent call last)") == 4
    assert all(word in logged for word in ("ValueError", "RuntimeError", "in profile"))
    assert ("xyzzy" in logged) is content


async def test_log_content_is_written_where_configured_and_stored(lines: io.StringIO) -> None:
    for log_level, log_content, store, wanted in (
        ("debug", True, True, True),
        ("debug", True, False, False),
        ("info", True, True, False),
        ("debug", False, True, False),
    ):
        lines.truncate(0)
        listen(lines, given(log_level=log_level, log_content=log_content))
        async with antiphon(Scripted([delta(content=ANSWERED)])) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                await http.post("/v1/responses", json={"model": "m", "input": ASKED, "store": store})
        assert [word in lines.getvalue() for word in ("xyzzy", "plugh")] == [wanted] * 2


# Unreachable backends: the caller's message, and the system's.
UNREACHABLE = {
    "refused": ("it refuses connections", "Connect call failed"),
    "unknown host": ("its host name is unknown", "Name or service not known"),
    "tls": ("TLS failed", "CERTIFICATE_VERIFY_FAILED"),
}


@contextlib.asynccontextmanager
async def unreachable(why: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Yield the URL, with a password, of an unreachable backend."""
    if why == "refused":
        yield f"http://user:{PASSWORD}@127.0.0.1:{free_port()}/v1"
    elif why == "unknown host":
        known = socket.getaddrinfo

        def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
            if host == "nowhere.invalid":
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return known(host, *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield f"http://user:{PASSWORD}@nowhere.invalid/v1"
    else:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
        async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            yield f"https://user:{PASSWORD}@localhost:{port}/v1"


async def ask_and_fail(url: str, way: str) -> str:
    """Request a failing response in a delivery mode; return everything the caller receives."""
    body: dict[str, Any] = {"model": "m", "input": "Hi"}
    if way == "websocket":
        async with sockets.dial(url) as socket:
            return str(await sockets.ask(socket, **body))
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        if way != "background":
            return (await http.post("/v1/responses", json={**body, "stream": way == "sse"})).text
        streamed = await http.post("/v1/responses", json={**body, "stream": True, "background": True})
        id = re.search(r"resp_\w+", streamed.text)
        assert id
        return streamed.text + (await http.get(f"/v1/responses/{id[0]}")).text


@pytest.mark.parametrize("way", ["json", "sse", "websocket", "background"])
@pytest.mark.parametrize("why", UNREACHABLE)
async def test_log_of_an_unreachable_backend_is_a_warning_with_url_and_cause(
    why: str, way: str, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, system = UNREACHABLE[why]
    async with unreachable(why, monkeypatch) as backend:
        shown = backend.replace(f"user:{PASSWORD}@", "***@")
        configured = given(log_format="json", log_level="warning", backend_url=backend, backend_retries=0)
        app = create_app(configured)
        async with serving(app, ws="app.api.uvicorn.websocket:WebSocketProtocol") as url:
            listen(lines, configured)
            answer = await ask_and_fail(url, way)
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                ready = [(await http.get("/readyz")).text for _ in range(3)]
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    ended, unready = logged  # a line for the response, and a line for all three checks
    for line in (ended, unready):
        assert (line["level"], line["server"]) == ("warning", f"default {shown}")
        assert system in line["detail"]
        assert words in line["reason"]
    assert (ended["message"], ended["status"]) == ("response ended", "failed")
    for text in (answer, *ready):
        assert words in text
        assert not [word for word in (PASSWORD, system, backend.rpartition("@")[2]) if word in text]


async def test_log_of_a_servers_fault_is_a_warning_and_of_a_callers_none(lines: io.StringIO) -> None:
    async with Upstream() as upstream:
        upstream.models = None
        configured = given(log_format="json", log_level="warning", backend_url=upstream.url, backend_retries=0)
        async with serving(create_app(configured)) as url:
            listen(lines, configured)
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                for code in (503, 400, 429):
                    upstream.always(status(code, {"error": {"message": ASKED}}))
                    await http.post("/v1/responses", json={"model": "m", "input": "Hi"})
                upstream.always(status(500, {"error": {"message": ASKED}}))
                await http.get("/v1/models")
    answered, listed = (json.loads(line) for line in lines.getvalue().splitlines())
    assert (answered["message"], answered["code"], answered["detail"]) == (
        *("response ended", "server_is_overloaded"),
        "HTTP 503",
    )
    assert (listed["message"], listed["status"], listed["server"]) == ("request failed", 502, f"default {upstream.url}")
    assert ASKED not in lines.getvalue()


@pytest.mark.parametrize("way", ["json", "sse", "websocket", "background"])
@pytest.mark.parametrize("works", [True, False])
async def test_log_of_a_response_is_one_line(way: str, works: bool, lines: io.StringIO) -> None:
    async with Upstream() as upstream:
        upstream.always(sse(chunk("Hi"), finish(), DONE) if works else status(503))
        configured = given(log_format="json", backend_url=upstream.url, backend_retries=0)
        async with serving(create_app(configured), ws="app.api.uvicorn.websocket:WebSocketProtocol") as url:
            listen(lines, configured)
            await ask_and_fail(url, way)
    logged = [line for line in map(json.loads, lines.getvalue().splitlines()) if line["logger"].startswith("app.")]
    (ended,) = (line for line in logged if line["message"] == "response ended")
    assert ended["model"] == "m"
    assert ended["status"] == ("completed" if works else "failed")
    assert ended["level"] == ("info" if works else "warning")
    assert ended.get("code") == (None if works else "server_is_overloaded")
    assert bool(ended["usage"]) or not works
    if way in ("json", "sse"):
        assert logged == [ended]
        assert (ended["logger"], ended["method"], ended["path"]) == ("app.access", "POST", "/v1/responses")
        assert ended["http_status"] == (200 if works else 503)
        assert ended["ms"] >= 0
    else:
        assert ended["logger"] == "app.responses.run"
        assert "http_status" not in ended
        assert {line["message"] for line in logged if line["logger"] == "app.access"} == {"request"}


async def test_log_of_a_slow_response_tells_first_token_queue_and_attempts(lines: io.StringIO) -> None:
    busy = asyncio.Event()
    async with Upstream() as upstream:
        upstream.say(sse(chunk("Hi"), busy, finish(), DONE))
        upstream.say(status(503))
        upstream.always(sse(chunk("Hi"), finish(), DONE))
        local = {"url": upstream.url, "max_concurrency": 1, "retries": 1}
        configured = given(log_format="json", backends={"local": local})
        async with serving(create_app(configured)) as url:
            listen(lines, configured)
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                ask = partial(http.post, "/v1/responses", json={"model": "m", "input": "Hi"})
                first = asyncio.create_task(ask())
                while not upstream.requests:
                    await asyncio.sleep(0.01)
                second = asyncio.create_task(ask())
                while 'antiphon_backend_queue{backend="local"} 1.0' not in (await http.get("/metrics")).text:
                    pass
                busy.set()
                await asyncio.gather(first, second)
    ended = [line for line in map(json.loads, lines.getvalue().splitlines()) if line["message"] == "response ended"]
    assert [line["status"] for line in ended] == ["completed", "completed"]
    assert "attempts" not in ended[0]
    assert 0 <= ended[0]["first_token_ms"] <= ended[0]["ms"]
    assert 0 < ended[1]["queued_ms"] <= ended[1]["first_token_ms"] <= ended[1]["ms"]
    assert ended[1]["attempts"] == 2


async def test_log_and_metrics_agree_on_how_a_response_ended(lines: io.StringIO) -> None:
    async with Upstream() as upstream:
        configured = given(log_format="json", backend_url=upstream.url, backend_retries=0)
        async with serving(create_app(configured)) as url:
            listen(lines, configured)
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                for steps in (
                    sse(chunk("Hi"), finish(), DONE),
                    status(503),
                    sse(chunk("Hi"), CLOSE),
                    sse(chunk("Hi"), finish("length"), DONE),
                ):
                    upstream.always(steps)
                    for stream in (False, True):
                        await http.post("/v1/responses", json={"model": "m", "input": "Hi", "stream": stream})
                upstream.always(HANG)
                with pytest.raises(httpx.ReadTimeout):
                    await http.post("/v1/responses", json={"model": "m", "input": "Hi"}, timeout=0.5)
                while (metrics := (await http.get("/metrics")).text).count('"interrupted"') != 1:
                    pass
    entries = map(json.loads, lines.getvalue().splitlines())
    logged = Counter(entry["status"] for entry in entries if entry["message"] == "response ended")
    counted: Counter[str] = Counter()
    for found in re.finditer(r'^antiphon_responses_total\{.*status="(\w+)".*\} (\S+)$', metrics, re.MULTILINE):
        counted[found[1]] += round(float(found[2]))
    assert logged == counted == {"completed": 2, "failed": 4, "incomplete": 2, "interrupted": 1}


async def test_log_of_a_fallback_is_a_warning(lines: io.StringIO) -> None:
    async with Upstream() as upstream:
        upstream.always(sse(chunk("Hi"), finish(), DONE))
        dead = f"127.0.0.1:{free_port()}/v1"
        served = {
            "one": {"url": f"http://user:{PASSWORD}@{dead}", "max_failures": 2, "check_interval": 0},
            "two": {"url": upstream.url},
        }
        configured = given(log_level="warning", backends=served)
        async with serving(create_app(configured)) as url:
            listen(lines, configured)
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                for _ in range(3):
                    answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi"})
                    assert answer.json()["status"] == "completed"
    logged = lines.getvalue()
    refused = f'server="one http://***@{dead}" reason="The backend \'one\' cannot be reached: it refuses connections ('
    assert logged.count("backend request failed; trying another server") == logged.count(refused) == 2
    assert logged.count(f'next_server="two {upstream.url}"') == 2
    assert logged.count("backend server paused after failures") == 1
    assert logged.count(f"backend=one server=http://***@{dead} reason=") == 1
    assert logged.count("\n") == 3
    assert PASSWORD not in logged


@pytest.mark.parametrize(("trusted", "shown"), [(["127.0.0.0/8"], "203.0.113.7"), (["10.0.0.0/8"], "127.0.0.1")])
async def test_access_log_has_the_client_and_an_alias_of_its_key(
    trusted: list[str], shown: str, lines: io.StringIO
) -> None:
    configured = given(log_format="json", api_keys=f"{CALLER},another-key-8", trusted_proxies=trusted)
    alias = f"key_{hashlib.sha256(CALLER.encode()).hexdigest()[:8]}"
    async with serving(create_app(configured), ws="app.api.uvicorn.websocket:WebSocketProtocol") as url:
        listen(lines, configured)
        headers = {"x-forwarded-for": "203.0.113.7"}
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            await http.post("/v1/responses", json={"model": "demo", "input": "Hi"}, headers={**KEYED, **headers})
            await http.get("/v1/models", headers={"authorization": f"Bearer {WRONG}", **headers})
        async with sockets.dial(url, additional_headers={**KEYED, **headers}) as socket:
            await sockets.ask(socket)
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    access = [line for line in logged if line["logger"] == "app.access"]
    answered = [line.get("http_status", line["status"]) for line in access]
    assert [(line["method"], answered.pop(0), line["client"], line.get("caller")) for line in access] == [
        ("POST", 200, shown, alias),
        ("GET", 401, shown, None),
        ("WEBSOCKET", 101, shown, alias),
    ]
    ended = [line["caller"] for line in logged if line["message"] == "response ended"]
    assert ended == [alias, alias]
    assert CALLER not in lines.getvalue()
