"""The command line: every test runs `python -m app` in an empty directory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from websockets.sync.client import connect

from app import __version__
from app.cli.serve import print_banner
from app.settings.example import env_example
from tests.bench.servers import UPSTREAM, running
from tests.support import fork_server
from tests.support.fork_server import Process
from tests.support.ports import free_port
from tests.support.serving import settings
from tests.support.store_locations import StoreLocation, location_of
from tests.support.upstream import Upstream
from tests.support.usage_journal import holds_usage

ROOT = Path(__file__).parents[2]
TIMEOUT = 120  # seconds, for a busy machine


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    return inherited | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | variables


def run(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run(*arguments, cwd=directory, env=environment(**variables), timeout=TIMEOUT)


def run_anew(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a new Python process."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


@contextmanager
def served(directory: Path, *arguments: str, **variables: str) -> Iterator[tuple[Process, str]]:
    """Run `serve` on a free port; yield the process and its address, once it answers."""
    port = free_port()
    log = directory / "serve.log"
    with log.open("wb") as stderr:
        command = ("serve", "--port", str(port), *arguments)
        given = environment(**variables)
        process = fork_server.start(*command, cwd=directory, env=given, stdin=subprocess.DEVNULL, stderr=stderr)
    try:
        address = f"http://127.0.0.1:{port}"
        until = time.monotonic() + TIMEOUT
        while True:
            assert process.poll() is None and time.monotonic() < until, log_of(directory)
            try:
                assert ask(f"{address}/healthz")["status"] == "ok"
                break
            except OSError:
                time.sleep(0.1)
        yield process, address
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def log_of(directory: Path) -> str:
    return (directory / "serve.log").read_text()


def wait_for_log(process: Process, directory: Path, words: str, *, times: int = 1) -> None:
    """Wait until the log of a running server has `words` as many times, once for each worker."""
    until = time.monotonic() + TIMEOUT
    while log_of(directory).count(words) < times:
        assert process.poll() is None and time.monotonic() < until, log_of(directory)
        time.sleep(0.1)


def ask(url: str, body: object = None, *, key: str | None = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        answered: dict[str, object] = json.load(answer)
        return answered


def test_version_is_printed(tmp_path: Path) -> None:
    for command in ("version", "--version"):
        assert run_anew(tmp_path, command).stdout.startswith(f"antiphon {__version__} ")


def test_help_imports_nothing_that_only_other_commands_need(tmp_path: Path) -> None:
    program = (
        "import sys; from app.cli import cli\ntry: cli(['--help'])\nexcept SystemExit: print('imported:', *sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    text, _, imported = ran.stdout.partition("imported:")
    assert "Commands:" in text, ran.stderr
    assert "..." not in text.partition("Commands:")[2]  # descriptions fit
    needless = {"pydantic", "httpx", "fastapi", "starlette", "uvicorn", "asyncio", "orjson", "rich", "app.settings"}
    assert needless & set(imported.split()) == set()


def test_serve_imports_nothing_before_it_is_used(tmp_path: Path) -> None:
    with served(tmp_path, PYTHONPROFILEIMPORTTIME="1"):
        imported = {line.rpartition("|")[2].strip() for line in log_of(tmp_path).splitlines() if "import time:" in line}
    needless = {
        "argparse",
        "httpx",
        "httpcore",
        "rich",
        "redis",
        "sqlite3",
        "asyncpg",
        "apsw",
        "pypdf",
        "mcp",
        "opentelemetry.sdk",
    }
    needless |= {
        "cryptography",
        "app.settings.example",
        "app.tools.guard",
        "app.tools.mcp",
        "app.api.routes.files",
        "openresponses_verify",
    }
    assert "app.api.routes.responses" in imported
    assert needless & imported == set()


def test_httpx_is_imported_without_its_own_command_line() -> None:
    program = "import sys; import app; import httpx; print('rich' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
    assert ran.stdout == "False\n", ran.stderr


def test_completion_that_is_not_offered_is_no_option(tmp_path: Path) -> None:
    assert "completion" not in run_anew(tmp_path, "--help").stdout
    assert run_anew(tmp_path, "--install-completion").returncode == 2


def test_settings_prints_what_a_dotenv_file_may_hold(tmp_path: Path) -> None:
    assert run(tmp_path, "settings").stdout == env_example()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store-url", "mysql://:hush@localhost"], "ANTIPHON_STORE_URL: must begin with memory://, "),
        (["--store-url", "redis://:hush@localhost/0?hush=1"], "ANTIPHON_STORE_URL: "),
        (["--backend-url", "localhost:8000"], "ANTIPHON_BACKEND_URL: must be an http or https URL"),
        (["--host", "0.0.0.0"], "ANTIPHON_API_KEYS: must contain at least one key"),
        (["--workers", "2"], "ANTIPHON_STORE_URL: must be a store that 2 workers can share"),
        (["--config", "nowhere.toml"], "ANTIPHON_CONFIG: cannot read 'nowhere.toml'"),
        (["--port", "many"], "Invalid value for '--port'"),
        (["--mcp", "uvx mcp-server-time"], "--mcp: must be NAME=URL or NAME=COMMAND"),
        (["--mcp-approval", "sometimes"], "ANTIPHON_MCP_APPROVAL: must be 'always' or 'never'"),
        (["--mcp", "l/b=http://127.0.0.1:9000/mcp"], "tools.mcp: servers: 'l/b' must contain only letters"),
    ],
)
def test_serve_with_invalid_settings_is_refused_without_a_traceback(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    refused = run(tmp_path, "serve", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "hush@" not in refused.stderr


DAMAGED = {
    "bytes.md": (b"\xff\xfe Hello", "bytes.md must be text in UTF-8"),
    "table.toml": (b"instructions = [", "table.toml: "),
    "spoken/\u00b2.md": (b"Hello", ""),  # which is a digit, and not a number
}


@pytest.mark.parametrize("command", ["serve", "check"])
def test_prompt_file_that_is_damaged_is_named_without_a_traceback(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "prompts"
    for name, (content, _) in DAMAGED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    ran = run(tmp_path, command, ANTIPHON_PROMPTS=str(folder))
    assert ran.returncode == (2 if command == "serve" else 1)
    printed = ran.stdout + ran.stderr
    assert "Traceback" not in printed and "spoken" not in printed
    for _, message in DAMAGED.values():
        assert message in printed


@pytest.mark.parametrize("value", ["nonsense", "[1]", "5"])
def test_mcp_option_with_an_invalid_variable_reports_the_variable(tmp_path: Path, value: str) -> None:
    refused = run(tmp_path, "serve", "--mcp", "time=true", ANTIPHON_MCP=value)
    assert refused.returncode == 2
    assert refused.stderr.startswith("ANTIPHON_MCP: must be a JSON object")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LIMIT_STORE_URL": "redis://:hush@localhost/0?x=1"}, "ANTIPHON_LIMIT_STORE_URL: "),
        ({"HOST": "1.2.3.4.5", "ALLOW_OPEN": "true"}, "ANTIPHON_HOST: must be an address or a name of this machine"),
    ],
)
def test_serve_with_an_invalid_address_is_refused(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    refused = run(tmp_path, "serve", **{f"ANTIPHON_{name}": value for name, value in variables.items()})
    assert refused.returncode == 2
    assert refused.stderr.startswith(message)
    assert "hush" not in refused.stderr


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({"code_interpreter": {}}, "tools.code_interpreter: provider: is missing"),
        ({"code_interpreter": {"provider": "docker"}}, "provider: must be bubblewrap, or mcp:NAME"),
        (
            {"code_interpreter": {"provider": "bubblewrap", "python": "/opt/python"}},
            "python: must be a path under /usr",
        ),
        ({"web_search": {"provder": "searxng"}}, "provder: unknown key. Did you mean 'provider'?"),
        ({"file_search": {"embeddings": {"modle": "e"}}}, "embeddings.modle: unknown key. Did you mean 'model'?"),
    ],
)
def test_check_with_an_invalid_table_of_a_tool_says_what_would_be_valid(
    tmp_path: Path, tools: dict[str, object], message: str
) -> None:
    checked = run(tmp_path, "check", ANTIPHON_TOOLS=json.dumps(tools))
    assert checked.returncode == 1
    assert message in checked.stdout + checked.stderr


def test_serve_at_a_port_in_use_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run_anew(tmp_path, "serve", "--port", str(taken.getsockname()[1]))
        port = taken.getsockname()[1]
    assert refused.returncode == 1
    assert refused.stderr == f"ANTIPHON_PORT: cannot listen on http://127.0.0.1:{port}: address already in use\n"


def test_serve_at_a_free_port_names_it(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with log.open("wb") as stderr:
        command = [sys.executable, "-m", "app", "serve", "--port", "0", "--host", "localhost"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stderr=stderr)
    try:
        until = time.monotonic() + TIMEOUT
        while not (found := re.search(r"Antiphon \S+ on http://localhost:(\d+),", log.read_text())):
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        assert ask(f"http://127.0.0.1:{found[1]}/healthz")["status"] == "ok"
        assert "SECRET_KEY" not in log.read_text()  # nothing has been encrypted
    finally:
        process.terminate()
        process.wait(TIMEOUT)
    assert process.returncode == 0


@pytest.mark.parametrize(
    "variable", ["ANTIPHON_API_KEYS", "ANTIPHON_BACKEND_API_KEY", "ANTIPHON_BACKENDS", "ANTIPHON_TRUSTED_PROXIES"]
)
def test_key_that_no_header_can_hold_is_refused(tmp_path: Path, variable: str) -> None:
    backends = json.dumps({"one": {"url": "http://127.0.0.1:9/v1", "api_key": "schlüssel"}})
    refused = run(tmp_path, "serve", **{variable: backends if variable == "ANTIPHON_BACKENDS" else "good,schlüssel"})
    assert refused.returncode == 2
    assert refused.stderr.startswith(variable)
    assert "schl" not in refused.stderr
    assert "Traceback" not in refused.stderr


def status_with(url: str, key: str) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_reload_applies_keys_limits_and_log_level_and_names_what_needs_a_restart(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("ANTIPHON_API_KEYS=key-one,key-two\nANTIPHON_STORE_URL=sqlite:///a.db\n")
    with served(tmp_path, "--workers", "2") as (process, address):
        port = address.rpartition(":")[2]
        wait_for_log(process, tmp_path, "startup complete", times=2)
        keys, models = ("key-one", "key-two", "key-three"), f"{address}/v1/models"
        assert [status_with(models, key) for key in keys] == [200, 200, 401]
        bearer = {"Authorization": "Bearer key-one"}
        connection = connect(
            f"ws{address[4:]}/v1/responses", additional_headers=bearer, open_timeout=TIMEOUT, proxy=None
        )
        dotenv.write_text(
            "ANTIPHON_API_KEYS=key-two,key-three\nANTIPHON_STORE_URL=sqlite:///b.db\n"
            "ANTIPHON_LIMIT_REQUESTS_PER_MINUTE=70\nANTIPHON_LOG_LEVEL=debug\nANTIPHON_HEARTBEAT=7\n"
        )
        assert run(tmp_path, "reload", "--port", "1").returncode == 1  # it listens at another port
        reloaded = run(tmp_path, "reload", "--port", port)
        assert reloaded.returncode == 0, reloaded.stderr
        assert "Changed: api_keys, limit_requests_per_minute, log_level. Backends: default." in reloaded.stdout
        assert "Changed, but need a restart: ANTIPHON_HEARTBEAT, ANTIPHON_STORE_URL." in reloaded.stdout
        assert log_of(tmp_path).count("settings reloaded") == 2
        for _ in range(8):
            assert [status_with(models, key) for key in keys] == [401, 200, 200]
        with connection:  # its key was valid when it was opened
            connection.send(json.dumps({"type": "response.create", "model": "demo", "input": "Hello!"}))
            assert json.loads(connection.recv(TIMEOUT))["error"]["code"] == "invalid_api_key"
        log = log_of(tmp_path)
        assert log.count('require a restart settings="ANTIPHON_HEARTBEAT, ANTIPHON_STORE_URL"') == 2
        assert log.count('changed="api_keys, limit_requests_per_minute, log_level" backends=default') == 2
        body = json.dumps({"model": "demo", "input": "Hello!"}).encode()
        headers = {"Authorization": "Bearer key-two", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/v1/responses", body, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            assert answer.headers["x-ratelimit-limit-requests"] == "70"
        assert "key-three" not in log_of(tmp_path)
    assert run(tmp_path, "reload", "--port", port).returncode == 1


def test_reload_of_invalid_settings_changes_nothing(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("ANTIPHON_API_KEYS=key-one\n")
    with served(tmp_path) as (process, address):
        for changed, words in (
            ("ANTIPHON_API_KEYS=key-two\nANTIPHON_LOG_LEVEL=loud\n", "settings not reloaded"),
            ("", "require a restart settings=ANTIPHON_API_KEYS"),
        ):
            dotenv.write_text(changed)
            process.send_signal(signal.SIGHUP)
            wait_for_log(process, tmp_path, words)
            assert [status_with(f"{address}/v1/models", key) for key in ("key-one", "key-two", "")] == [200, 401, 401]


class _Listing(BaseHTTPRequestHandler):
    """A model server with only a model list."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "tiny-chat"}, {"id": "other"}]}).encode()
        self.send_response(200 if self.headers["Authorization"] == "Bearer sk-1" else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("key", "model"), [("sk-1", "tiny-chat"), ("sk-2", "YOUR_MODEL")])
def test_serve_suggests_a_model_that_the_backend_lists(tmp_path: Path, key: str, model: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Listing)
    threading.Thread(target=server.serve_forever).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        variables = {"ANTIPHON_BACKEND_URL": url, "ANTIPHON_BACKEND_API_KEY": key, "PYTHONPROFILEIMPORTTIME": "1"}
        with served(tmp_path, **variables) as (process, _):
            wait_for_log(process, tmp_path, f'"model": "{model}"')
        assert "httpcore" not in log_of(tmp_path)  # a second HTTP client would need 3 MB per process
    finally:
        server.shutdown()
        server.server_close()


def test_greeting_does_not_wait_for_a_backend_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        print_banner(settings(backend_url=f"http://127.0.0.1:{silent.getsockname()[1]}/v1"))
        greeting = capsys.readouterr().err
        assert greeting.startswith("Antiphon") and "Try:" not in greeting
        (suggesting,) = (thread for thread in threading.enumerate() if thread.name == "antiphon-suggest")
    suggesting.join(TIMEOUT)
    assert '"model": "YOUR_MODEL"' in capsys.readouterr().err


def test_serve_prints_its_address_and_an_example_that_works(tmp_path: Path) -> None:
    with served(tmp_path) as (_, address):
        greeting = log_of(tmp_path)
        assert f"Antiphon {__version__} on {address}, backend default (demo), store memory://.\nTry:" in greeting
        assert f"or open {address}/studio in a browser." in greeting
        command = re.search(r"curl (\S+) -H 'Content-Type: application/json' -d '(.*)'", greeting)
        assert command
        answer = ask(command[1], json.loads(command[2]))
        assert answer["status"] == "completed"


def test_option_overrides_its_variable_and_the_variable_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "ANTIPHON_PORT=1\nANTIPHON_STORE_URL=sqlite:///dotenv.db\nANTIPHON_LOG_FORMAT=json\n"
    )
    with served(tmp_path, ANTIPHON_STORE_URL="sqlite:///variable.db", ANTIPHON_PORT="2") as (_, address):
        first = json.loads(log_of(tmp_path).splitlines()[0])
    assert (first["message"], first["address"], first["store"]) == ("server started", address, "sqlite:///variable.db")


def test_two_workers_share_the_store_and_stop_at_sigterm(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2", "--store-url", "sqlite:///shared.db") as (process, address):
        first = ask(f"{address}/v1/responses", {"model": "demo", "input": "One."})
        for _ in range(4):
            request = {"model": "demo", "input": "Two.", "previous_response_id": first["id"]}
            assert ask(f"{address}/v1/responses", request)["previous_response_id"] == first["id"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) in {0, -signal.SIGTERM}


def test_workers_at_sighup_take_the_new_backends_and_refuse_removed_keys(tmp_path: Path) -> None:
    def table(backend: str, *keys: str) -> str:
        hashes = {key: hashlib.sha256(key.encode()).hexdigest() for key in keys}
        backends = f'[backends.{backend}]\nbackend = "demo"\nmodels = ["{backend}"]\n'
        return backends + "".join(f'[keys.{key}]\nhash = "sha256:{hash}"\n' for key, hash in hashes.items())

    def statuses(address: str) -> list[int]:
        return [status_with(f"{address}/v1/models", key) for key in ("alice", "bob")]

    file = tmp_path / "antiphon.toml"
    file.write_text(table("before", "alice", "bob"))
    arguments = ("--workers", "2", "--store-url", "sqlite:///shared.db", "--config", str(file))
    with served(tmp_path, *arguments) as (process, address):
        wait_for_log(process, tmp_path, "startup complete", times=2)
        for _ in range(4):
            assert statuses(address) == [200, 200]
        file.write_text(table("after", "bob"))
        process.send_signal(signal.SIGHUP)
        wait_for_log(process, tmp_path, 'settings reloaded changed="backends, keys" backends=after', times=2)
        for _ in range(8):
            assert statuses(address) == [401, 200]
            request_body = {"model": "after", "input": "Hello!"}
            assert ask(f"{address}/v1/responses", request_body, key="bob")["status"] == "completed"
        assert log_of(tmp_path).count("Started server process") == 2
        with urllib.request.urlopen(f"{address}/metrics", timeout=TIMEOUT) as answer:
            up = re.findall(r'^antiphon_backend_up\{backend="(\w+)",replica="1"\} (\S+)$', answer.read().decode(), re.M)
        assert up == [("after", "1.0")]


def test_stream_in_progress_at_sigterm_may_end(tmp_path: Path) -> None:
    with (
        running(UPSTREAM, subprocess.DEVNULL) as upstream,
        served(tmp_path, ANTIPHON_BACKEND_URL=f"http://127.0.0.1:{upstream.port}/v1") as (process, address),
    ):
        body = json.dumps({"model": "count-20-50", "input": "Count.", "stream": True}).encode()
        request = urllib.request.Request(f"{address}/v1/responses", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as stream:
            assert stream.readline() == b"event: response.created\n"
            process.send_signal(signal.SIGTERM)
            rest = stream.read()
        assert b"event: response.completed\n" in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        process.wait(TIMEOUT)


def test_check_names_what_works(tmp_path: Path) -> None:
    checked = run(tmp_path, "check", ANTIPHON_STORE_URL="sqlite:///check.db", ANTIPHON_PROT="1")
    assert checked.returncode == 0, checked.stderr
    settings, note, backend, store = checked.stdout.splitlines()
    assert settings == "ok    settings  http://127.0.0.1:8080, open, no caller keys"
    assert note == "note  settings  ANTIPHON_PROT: unknown setting, ignored; did you mean ANTIPHON_PORT?"
    assert backend.startswith("ok    backend   default demo: ")
    assert store == "ok    store     sqlite:///check.db: reads and writes"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("demo", "ok    vision    demo: describes images at the backend 'default'"),
        ("blind", "fail  vision    blind: the backend 'default' does not list the model"),
    ],
)
def test_check_looks_for_the_vision_model(tmp_path: Path, model: str, line: str) -> None:
    checked = run(tmp_path, "check", ANTIPHON_VISION=f'{{"model": "{model}"}}')
    assert line in checked.stdout.splitlines()
    assert checked.returncode == (0 if line.startswith("ok") else 1)


def test_check_reaches_every_mcp_server(tmp_path: Path) -> None:
    servers = {"time": f"{sys.executable} -m mcp_server_time", "gone": "http://127.0.0.1:9/mcp?key=hush-hush"}
    servers["typo"] = "no-such-program --fast"
    checked = run(tmp_path, "check", ANTIPHON_MCP=json.dumps(servers))
    assert checked.returncode == 1
    assert "ok    tool      mcp time: works, 2 tools: get_current_time, convert_time" in checked.stdout
    assert "fail  tool      mcp typo: program 'no-such-program' not found in the PATH" in checked.stdout
    assert "fail  tool      mcp gone: The MCP server cannot be reached." in checked.stdout
    assert "hush" not in checked.stdout + checked.stderr


def test_serve_says_that_the_program_of_an_mcp_server_does_not_exist(tmp_path: Path) -> None:
    with served(tmp_path, "--mcp", "typo=no-such-program --fast"):
        assert "tools.mcp: servers.typo: program 'no-such-program' not found in the PATH" in log_of(tmp_path)


def test_check_with_several_invalid_tools_names_each_and_checks_the_others(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text(
        """
        [tools.laboratory]
        [tools.own]
        tool = "missing_package:Tool"
        [tools.web_search]
        provider = "searxng"
        url = "http://127.0.0.1:1"
        """
    )
    checked = run(tmp_path, "check", ANTIPHON_CONFIG="antiphon.toml")
    assert checked.returncode == 1
    failed = [line for line in checked.stdout.splitlines() if line.startswith("fail")]
    assert len(failed) == 3
    assert "tools.laboratory: must be one of " in failed[0]
    assert "tools.own: No module named 'missing_package'" in failed[1]
    assert "web_search" in failed[2]


def test_check_names_what_does_not_work_and_fails(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    checked = run(
        tmp_path,
        "check",
        ANTIPHON_BACKEND_URL=f"http://{nobody}/v1",
        ANTIPHON_BACKEND_API_KEY="hush",
        ANTIPHON_BACKEND_RETRIES="0",
        ANTIPHON_STORE_URL=f"redis://:hush@{nobody}/0",
    )
    assert checked.returncode == 1
    _, backend, store = checked.stdout.splitlines()
    assert backend.startswith(f"fail  backend   default http://{nobody}/v1: ")
    assert store.startswith(f"fail  store     redis://***@{nobody}/0: ")
    assert "hush" not in checked.stdout + checked.stderr
    assert "Traceback" not in checked.stderr


async def test_check_of_names_with_control_codes_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        upstream.models = [{"id": "red\x1b[31m\u202e", "object": "model"}]
        checked = await asyncio.to_thread(run, tmp_path, "check", ANTIPHON_BACKEND_URL=upstream.url)
    assert checked.returncode == 0, checked.stdout
    assert "red\\u001b[31m\\u202e" in checked.stdout


def test_check_with_invalid_settings_fails(tmp_path: Path) -> None:
    checked = run(tmp_path, "check", ANTIPHON_PORT="many")
    assert (checked.returncode, checked.stdout) == (1, "")
    assert checked.stderr.startswith("ANTIPHON_PORT: must be an integer")


def test_key_new_prints_a_key_and_a_table_with_its_hash(tmp_path: Path) -> None:
    made = run(tmp_path, "key", "new", "alice", "--owner", "team")
    key = re.search(r"sk-antiphon-[\w-]{43}", made.stderr)
    assert made.returncode == 0
    assert key
    table = tomllib.loads(made.stdout)["keys"]["alice"]
    assert table == {"hash": f"sha256:{hashlib.sha256(key[0].encode()).hexdigest()}", "owner": "team"}
    (tmp_path / "antiphon.toml").write_text(made.stdout)
    with served(tmp_path, "--config", "antiphon.toml") as (_, address):
        statuses = [status_with(f"{address}/v1/models", one) for one in (key[0], "another")]
        assert statuses == [200, 401]
        assert key[0] not in log_of(tmp_path)
    again = run(tmp_path, "key", "new", "alice", ANTIPHON_CONFIG="antiphon.toml")
    assert "[keys.alice] already exists" in again.stderr
    assert run(tmp_path, "key", "new", "two words").returncode == 2


def test_usage_is_printed_as_a_table(tmp_path: Path) -> None:
    prices = '{"*": {"input": 1, "output": 4}}'
    with served(tmp_path, ANTIPHON_PRICES=prices) as (_, address):
        assert ask(f"{address}/v1/responses", {"model": "demo", "input": "Hello!"})["status"] == "completed"
        shown = run(tmp_path, "usage", "--group", "key, model", "--url", f"{address}/v1")
        assert re.search(r"anonymous\s+demo\s+1\s+\d+\s+0\s+\d+\s+0\s+0\.0000\d\d\s*$", shown.stdout, re.MULTILINE), (
            shown
        )
        listed = json.loads(run(tmp_path, "usage", "--json", "--url", f"{address}/v1").stdout)
        assert listed["total"]["requests"] == 1
        refused = run(tmp_path, "usage", "--group", "keys", "--url", f"{address}/v1")
        assert (refused.returncode, "Did you mean 'key'?" in refused.stderr) == (1, True)


def test_every_worker_tells_what_all_did_also_after_a_restart(tmp_path: Path) -> None:
    def seen(address: str) -> tuple[object, int]:
        latency = ask(f"{address}/v1/antiphon/latency")
        refusals = ask(f"{address}/v1/antiphon/refusals")
        return dict(latency["total"])["requests"], len(list(refusals["data"]))  # type: ignore[call-overload]

    def wait_until_all_see(address: str, total: tuple[int, int]) -> None:
        until, agreed = time.monotonic() + TIMEOUT, 0
        while agreed < 8:  # either worker may answer
            agreed = agreed + 1 if (counts := seen(address)) == total else 0
            assert time.monotonic() < until, counts
            time.sleep(0.05)

    arguments = ("--workers", "2", "--store-url", "sqlite:///shared.db")
    with served(tmp_path, *arguments) as (process, address):
        wait_for_log(process, tmp_path, "startup complete", times=2)
        for _ in range(20):
            assert ask(f"{address}/v1/responses", {"model": "demo", "input": "Hello!"})["status"] == "completed"
        for _ in range(4):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(f"{address}/v1/responses", {"model": "demo", "input": "Hello!", "temperature": 9})
            refused.value.close()
        wait_until_all_see(address, (20, 4))
    with served(tmp_path, *arguments) as (process, address):
        wait_until_all_see(address, (20, 4))


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("location", ["sqlite", "postgres", "redis"], indirect=True)
def test_usage_after_all_workers_are_killed_is_the_sum_of_all_answers(tmp_path: Path, location: StoreLocation) -> None:
    settings = {"ANTIPHON_STORE_URL": location.url, "TMPDIR": str(tmp_path)}
    tokens = 0
    with served(tmp_path, "--workers", "2", **settings) as (process, address):
        for _ in range(40):
            answer = ask(f"{address}/v1/responses", {"model": "demo", "input": "Hello!"})
            assert isinstance(answer["usage"], dict)
            tokens += answer["usage"]["total_tokens"]
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, workers)):  # first the parent, which would start replacements
            os.kill(pid, signal.SIGKILL)
        process.wait(TIMEOUT)
    with served(tmp_path, "--workers", "2", **settings) as (_, address):
        until = time.monotonic() + TIMEOUT
        while holds_usage(tmp_path):  # the last is deleted when it is in the store
            assert time.monotonic() < until, log_of(tmp_path)
            time.sleep(0.1)
        listed = ask(f"{address}/v1/antiphon/usage")
        assert isinstance(listed["total"], dict)
        assert (listed["total"]["requests"], listed["total"]["total_tokens"]) == (40, tokens)
