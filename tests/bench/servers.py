"""The table of measured servers, and how to run them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv" / "peers"  # `make bench-peers`
CHAT_PATH = "/v1/chat/completions"
READY = 120  # seconds to start

# A developer's own settings must not turn up in the measurement.
FOREIGN = ("ANTIPHON_", "LITELLM_", "OPENAI_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclass(frozen=True, eq=False)
class Server:
    """
    A server, and how to run it. `{port}`, `{upstream}` (a port) and `{here}` (a directory of its own) are filled in
    in its command, its environment and its files.
    """

    name: str
    about: str
    command: tuple[str, ...]
    api: Literal["responses", "chat"] = "responses"
    path: str = "/v1/responses"
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    version: tuple[str, ...] = ()  # a command to print it
    peer: bool = False  # another project's server: fewer rounds, and skipped after wrong answers
    share: float = 1.0  # its share in a scenario's load
    scenarios: frozenset[str] = frozenset()  # supported scenarios; empty: all

    def endpoint(self, *, chat: bool) -> tuple[Literal["responses", "chat"], str]:
        """Return the API for requests to the server, and its path; `chat`: always Chat Completions."""
        return ("chat", CHAT_PATH) if chat else (self.api, self.path)

    def answers(self, scenario: str) -> bool:
        """Return whether the server can answer a scenario, by its name."""
        return not self.scenarios or scenario in self.scenarios

    @property
    def installed(self) -> bool:
        return shutil.which(self.command[0]) is not None


@dataclass(frozen=True)
class Target:
    """A running server."""

    server: Server
    port: int
    pid: int

    @property
    def name(self) -> str:
        return self.server.name


def peer_version(peer: str, package: str = "") -> tuple[str, ...]:
    """Return the command that prints a peer package's version."""
    printed = f"from importlib.metadata import version as v; print(v('{package or peer}'))"
    return (f"{PEERS}/{peer}/bin/python", "-c", printed)


def _floor(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"tests.bench.floors.{name}", "--port", "{port}", "--upstream", "{upstream}")


# Scenarios for a translation without storage.
TRANSLATED = frozenset({"S1", "S2", "S3", "S3/50", "S5", "S6", "S7", "first", "memory"})

NGINX = """
daemon off; worker_processes 1; pid {here}/nginx.pid; error_log stderr;
events {{ worker_connections 8192; }}
http {{
    access_log off; client_max_body_size 64m; client_body_buffer_size 4m;
    client_body_temp_path {here}/body; proxy_temp_path {here}/proxy; fastcgi_temp_path {here}/fastcgi;
    uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
    upstream model {{ server 127.0.0.1:{upstream}; keepalive 256; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
        }}
    }}
}}
"""

# `use_chat_completions_api` makes it translate; otherwise it would request `/v1/responses` of the upstream.
LITELLM = """
model_list:
  - model_name: "*"
    litellm_params:
      model: openai/*
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: none
      use_chat_completions_api: true
"""

UPSTREAM = Server(
    "direct",
    "the upstream itself, by Chat Completions",
    (sys.executable, "-m", "tests.bench.upstream", "--port", "{port}"),
    api="chat",
    path=CHAT_PATH,
)
SERVERS = (
    Server(
        "antiphon",
        "this server, one process",
        (sys.executable, "-m", "app", "serve", "--port", "{port}"),
        environment={
            "ANTIPHON_BACKEND_URL": "http://127.0.0.1:{upstream}/v1",
            "ANTIPHON_LOG_LEVEL": "warning",
            "ANTIPHON_CONFIG": "{here}/antiphon.toml",
        },
        files={"antiphon.toml": "[tools.demo]\n"},
        version=(sys.executable, "-c", "from app import __version__; print(__version__)"),
    ),
    Server(
        "byte proxy",
        "passes bytes on and understands none: `tests/bench/floors/byte_proxy.py`, on the event loop of Antiphon",
        _floor("byte_proxy"),
        api="chat",
        path=CHAT_PATH,
    ),
    Server(
        "translator",
        "the translation and nothing else, on bare asyncio protocols: `tests/bench/floors/translator.py`",
        _floor("translator"),
        scenarios=TRANSLATED,
    ),
    Server(
        "framework",
        "the same translation in FastAPI with httpx, on Antiphon's transport: `tests/bench/floors/framework.py`",
        _floor("framework"),
        scenarios=TRANSLATED,
    ),
    Server(
        "nginx",
        "passes HTTP on, unbuffered, one worker",
        ("nginx", "-p", "{here}", "-e", "stderr", "-c", "{here}/nginx.conf"),
        api="chat",
        path=CHAT_PATH,
        files={"nginx.conf": NGINX},
        version=("nginx", "-v"),
    ),
    Server(
        "litellm",
        "LiteLLM's proxy, one worker, no database, translating to Chat Completions",
        (
            f"{PEERS}/litellm/bin/litellm",
            "--config",
            "{here}/config.yaml",
            "--host",
            "127.0.0.1",
            "--port",
            "{port}",
            "--telemetry",
            "False",
        ),
        environment={
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
        },
        files={"config.yaml": LITELLM},
        version=peer_version("litellm"),
        peer=True,
        share=0.05,
    ),
    Server(
        "open-responses-server",
        "open-responses-server, one process",
        (f"{PEERS}/open-responses-server/bin/otc", "start"),
        path="/responses",
        environment={
            "OPENAI_BASE_URL_INTERNAL": "http://127.0.0.1:{upstream}",
            "API_ADAPTER_HOST": "127.0.0.1",
            "API_ADAPTER_PORT": "{port}",
        },
        version=peer_version("open-responses-server"),
        peer=True,
        share=0.2,
    ),
)

# The same server with another backend API; measured only if named.
BY_API = tuple(
    replace(
        SERVERS[0],
        name=f"antiphon by {api}",
        about=f"this server, which asks its backend by `/{api}`",
        environment={**SERVERS[0].environment, "ANTIPHON_BACKEND_OVERRIDES": f'{{{{"transport.api": "{api}"}}}}'},
        scenarios=frozenset(
            {"first", "S1", "S2", "S3", "S3/50", "S4", "S4-2", "S4-50", "S5", "S6", "S7", "A-2", "A-50"}
        ),
    )
    for api in ("responses", "messages")
)


def version(server: Server) -> str:
    """Return the version printed by a server, or ""."""
    if not server.version:
        return ""
    printed = subprocess.run(server.version, capture_output=True, text=True, cwd=ROOT, check=True)
    return (printed.stdout + printed.stderr).strip().rpartition("/")[2]


@contextmanager
def on_processors(*, first: bool) -> Iterator[None]:
    """
    Start processes on the first CPU, or on all others, so that the load does not disturb the measured server. Without
    Linux or a second CPU, it does nothing.
    """
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(processors) < 2:
        yield
        return
    os.sched_setaffinity(0, {min(processors)} if first else processors - {min(processors)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


@contextmanager
def running(server: Server, log: IO[bytes] | int, upstream: int = 0, ready: float = READY) -> Iterator[Target]:
    """Run a server on a free port while the context lasts; `ready` is how many seconds it may take to start."""
    port = free_port()
    with tempfile.TemporaryDirectory() as here:

        def filled(text: str) -> str:
            return text.format(port=port, upstream=upstream, here=here)

        for name, text in server.files.items():
            Path(here, name).write_text(filled(text), encoding="utf-8")
        environment = {key: value for key, value in os.environ.items() if not key.upper().startswith(FOREIGN)}
        environment |= {} if server.peer else {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [filled(word) for word in server.command],
            env=environment | {key: filled(value) for key, value in server.environment.items()},
            cwd=here,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _await_port(server.name, process, port, ready)
            yield Target(server, port, process.pid)
        finally:
            _end(process)


def _await_port(name: str, process: subprocess.Popen[bytes], port: int, ready: float) -> None:
    until = time.monotonic() + ready
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{name} does not listen")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
