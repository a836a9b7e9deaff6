"""
The command line.

    antiphon serve --backend-url http://localhost:8000/v1
    antiphon check
    antiphon probe http://localhost:8000/v1
    antiphon settings > .env
    antiphon codex -- exec "Mend the tests."
    antiphon version

An option is a variable by another name: it is put into the environment, where the workers find it too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Annotated, Any, NoReturn

import httpx
import typer
import uvicorn
from uvicorn.supervisors.multiprocess import Multiprocess

from app import __version__
from app.cli import codex as configure
from app.core.redaction import without_password
from app.errors import APIError
from app.observability import logging as logs
from app.settings import (
    PREFIX,
    Settings,
    SettingsError,
    env_example,
    load_settings,
    unknown_variables,
)
from app.settings.validation import environment

logger = logging.getLogger(__name__)

# Where the workers' metrics are, for the library that makes them; it is not loaded here, but with each worker.
_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

cli = typer.Typer(
    name="antiphon",
    help="The Open Responses API, answered by any Chat Completions backend.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Clients keep a connection for a while and use it again. Ours must not be the shorter patience: a request that meets
# the end of its connection is lost. Load balancers wait for 60 seconds as a rule.
KEEP_ALIVE = 75
CHECK_TIMEOUT = 15  # seconds that `check` waits for each thing


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    backend: Annotated[str | None, typer.Option(help="demo, openai, or an import path.")] = None,
    backend_url: Annotated[str | None, typer.Option(help="Base URL of a Chat Completions server.")] = None,
    backend_api_key: Annotated[str | None, typer.Option(help="Sent upstream; or passthrough.")] = None,
    backend_profile: Annotated[str | None, typer.Option(help="How the server differs, such as vllm.")] = None,
    store_url: Annotated[str | None, typer.Option(help="memory://, sqlite:///file.db, redis://host.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes to run.")] = None,
    config: Annotated[str | None, typer.Option(help="A TOML file of settings.")] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL|COMMAND", help="An MCP server whose tools models may call; may be repeated."),
    ] = None,
    mcp_approval: Annotated[str | None, typer.Option(help="Are its calls to be approved? always, or never.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when a file changes; to develop.")] = False,
) -> None:
    """Serve. Every option wins over its variable, ANTIPHON_HOST and so on; see `antiphon settings` for all of them."""
    given = {name: value for name, value in locals().items() if name not in ("reload", "mcp") and value is not None}
    if mcp:
        given["mcp"] = _mcp_servers(mcp)
    os.environ.update({f"{PREFIX}{name.upper()}": str(value) for name, value in given.items()})
    settings = _settings(status=2)
    _try_to_build(settings)
    logs.configure(settings)
    if settings.workers > 1 and not settings.secret_key:
        # Made here and not by each worker for itself, or they could not read what the others encrypted.
        os.environ[f"{PREFIX}SECRET_KEY"] = secrets.token_urlsafe(32)
        logger.warning(
            "ANTIPHON_SECRET_KEY is not set: encrypted_content can be read only by this process and its workers, "
            "until it ends"
        )
    for problem in unknown_variables():
        logger.warning("%s", problem)
    _greet(settings)
    with _counting_together(settings):
        _run(settings, reload)


def _mcp_servers(options: list[str]) -> str:
    """Return what `--mcp` declares, as its variable has it: with the servers that stand there already."""
    servers: dict[str, str] = {}
    with suppress(ValueError):  # what is wrong with the variable is told when the settings are read
        servers |= json.loads(environment().get(f"{PREFIX}MCP", "{}"))
    for option in options:
        name, separator, place = (part.strip() for part in option.partition("="))
        if not (name and separator and place):
            _refuse("--mcp: should be NAME=URL or NAME=COMMAND, such as time='uvx mcp-server-time'", status=2)
        servers[name] = place
    return json.dumps(servers)


@contextmanager
def _counting_together(settings: Settings) -> Iterator[None]:
    """Give several workers a place where each can see what the others have counted."""
    if settings.workers == 1 or environment().get(_MULTIPROCESS):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="antiphon-metrics-") as directory:
        os.environ[_MULTIPROCESS] = directory
        yield


def _run(settings: Settings, reload: bool) -> None:
    # uvicorn stops in good order, and then dies of the signal as if it had not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options: dict[str, Any] = {
        "app": "app.main:app_factory",
        "factory": True,
        "host": settings.host,
        "port": settings.port,
        "workers": settings.workers,
        "reload": reload,
        "reload_dirs": [os.path.dirname(os.path.dirname(__file__))] if reload else None,
        "log_config": logs.config(settings),
        "log_level": None,  # it stands in the configuration
        "access_log": False,
        "server_header": False,
        "proxy_headers": True,
        "http": "app.api.uvicorn.http:Http",
        "ws": "app.api.uvicorn.websocket:Socket",
        "ws_max_size": settings.max_body_bytes,
        "ws_per_message_deflate": False,  # many small messages: it costs more than it saves
        "timeout_keep_alive": KEEP_ALIVE,
        "timeout_graceful_shutdown": math.ceil(settings.shutdown_grace),
    }
    if settings.workers == 1 or reload:
        uvicorn.run(**options)
    else:
        config = uvicorn.Config(**options)
        _Workers(config, [config.bind_socket()]).run()


class _Workers(Multiprocess):
    """Processes that share a port."""

    def terminate_all(self) -> None:
        """Let them come to their end. This process lets go of the port, or who connects now would wait for nobody."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def handle_hup(self) -> None:
        """Pass it on, in place of new workers: each takes the new backends by itself, and its streams go on."""
        for worker in self.processes:
            if worker.pid is not None and worker.exitcode is None:
                os.kill(worker.pid, signal.SIGHUP)


@cli.command()
def check(config: Annotated[str | None, typer.Option(help="A TOML file of settings.")] = None) -> None:
    """Read the settings, reach the backend and the store, and say what works; exit 1 if something does not."""
    if config is not None:
        os.environ[f"{PREFIX}CONFIG"] = config
    settings = _settings(status=1)
    keys = f"{len(settings.api_keys)} caller keys" if settings.api_keys else "open, no caller keys"
    typer.echo(f"ok    settings  {_address(settings)}, {keys}")
    for problem in unknown_variables():
        typer.echo(f"note  settings  {problem}")
    logs.configure(settings.model_copy(update={"log_level": "error"}))  # what is wrong is said here
    if not asyncio.run(_reach(settings)):
        raise typer.Exit(1)


@cli.command("probe")
def probe_backend(
    url: Annotated[str, typer.Argument(help="Base URL of a Chat Completions server.")],
    model: Annotated[str | None, typer.Option(help="Which of its models to ask; the first, if left out.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar=f"{PREFIX}BACKEND_API_KEY", help="The key to send.")] = None,
    name: Annotated[str, typer.Option(help="What to call the backend in the settings.")] = "local",
    seconds: Annotated[float, typer.Option(help="When to stop asking.")] = 180,
) -> None:
    """Ask a server some sixty small questions, say what it does, and which settings fit."""
    from app.cli.probe import probe

    try:
        report = asyncio.run(probe(url, api_key, model, seconds=seconds))
    except APIError as error:
        typer.echo(logs.printable(f"fail  {without_password(url)}: {error.message}"), err=True)
        raise typer.Exit(1) from None
    typer.echo(logs.printable(f"{report.table()}\n\n# For the file of settings:\n{report.settings(name)}", keep="\n"))
    typer.echo(f"\n# The same, as variables:\n{report.variables()}")


@cli.command("settings")
def show_settings() -> None:
    """Print every setting, what it means and its default, in the form of a `.env` file."""
    typer.echo(env_example(), nl=False)


@cli.command("codex", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run_codex(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="What Codex is given.")] = None,
    url: Annotated[str | None, typer.Option(help="Base URL of an Antiphon; that of the settings if left out.")] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the lines for Codex's config.toml instead.")] = False,
) -> None:
    """Run Codex with this server, without changing its configuration: `antiphon codex -- exec "Mend the tests."`."""
    settings = _settings(status=2)
    own = url is None  # then its keys are ours to give
    base = (url or f"{_address(settings, reachable=True)}/v1").rstrip("/")
    keys = [key.get_secret_value() for key in settings.api_keys] if own else []
    key = environment().get(configure.KEY) or next(iter(keys), None)
    program = shutil.which("codex")
    if program is None and not show:
        _refuse("Codex is not installed: npm install --global @openai/codex", status=127)
    model = (settings.default_model if own else None) or _first_model(base, key, proxied=not own)
    if show:
        typer.echo(
            configure.toml(configure.codex_settings(base, model=model or "YOUR_MODEL", keyed=bool(key))), nl=False
        )
        return
    if model is None:
        _refuse(f"There is no model at {base}. If nothing is there at all: antiphon serve", status=1)
    options = configure.options(configure.codex_settings(base, model=model, keyed=bool(key)))
    _become([str(program), *options, *(arguments or [])], {configure.KEY: key} if key else {})


def _first_model(url: str, key: str | None, *, proxied: bool) -> str | None:
    """Ask a server for the first of its models; None if there is none, or no server."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        listed = httpx.get(f"{url}/models", headers=headers, timeout=CHECK_TIMEOUT, trust_env=proxied)
        return str(listed.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError):
        return None


def _become(command: list[str], variables: dict[str, str]) -> NoReturn:
    """Go on as another program, which has the terminal and its signals to itself; where that cannot be, await it."""
    variables = {**os.environ, **variables}
    if os.name == "posix":
        os.execve(command[0], command, variables)
    raise typer.Exit(subprocess.run(command, env=variables, check=False).returncode)


def _refuse(problem: str, *, status: int) -> NoReturn:
    typer.echo(problem, err=True)
    raise typer.Exit(status)


@cli.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"antiphon {__version__} (Python {platform.python_version()}, {platform.system()})")


def _settings(*, status: int) -> Settings:
    try:
        return load_settings()
    except SettingsError as error:
        for problem in error.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(status) from None


def _try_to_build(settings: Settings) -> None:
    """Build what the server will, so that what is wrong with an address is said here and not in a traceback."""
    # Here and not above: it loads the whole server, which the small commands do without.
    from app.main import build_limits, build_store

    try:
        socket.getaddrinfo(settings.host, settings.port)
    except OSError as error:
        _refuse(f"{PREFIX}HOST: should be an address or a name of this machine: {error.strerror}", status=2)
    for variable, build in (("STORE_URL", build_store), ("LIMIT_STORE_URL", partial(build_limits, metrics=None))):
        try:
            build(settings)
        except ValueError as error:
            _refuse(f"{PREFIX}{variable}: {error}", status=2)


def _address(settings: Settings, *, reachable: bool = False) -> str:
    """Return where the server listens; if it is to be `reachable`, where a program on this machine finds it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host) if reachable else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings.port}"


def _backends(settings: Settings) -> str:
    served = settings.served().items()
    return ", ".join(
        f"{name} ({', '.join(without_password(one.url) or one.backend for one in backend.each())})"
        for name, backend in served
    )


def _greet(settings: Settings) -> None:
    """Say where the server is and how to try it: to eyes on stderr, to machines as one more line of the log."""
    parts = {
        "address": _address(settings),
        "backend": _backends(settings),
        "store": without_password(settings.store_url),
    }
    if settings.log_format == "json":
        logger.info("serving", extra={"version": __version__, **parts})
        return
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    demo = any(backend.backend == "demo" for backend in settings.served().values())
    model = settings.default_model or ("demo" if demo else "YOUR_MODEL")
    typer.echo(
        f"Antiphon {__version__} on {parts['address']}, backend {parts['backend']}, store {parts['store']}. Try:\n"
        f"  curl {parts['address']}/v1/responses{key} -H 'Content-Type: application/json' "
        f'-d \'{{"model": "{model}", "input": "Hello!"}}\'',
        err=True,
    )


async def _reach(settings: Settings) -> bool:
    """Use every backend and the store once, say how it went, and return whether all of them work."""
    from app.main import build_backend, build_store

    async def ask(settings: Settings) -> str:
        async with aclosing(build_backend(settings)) as backend:
            await backend.check()
            models = [str(model["id"]) for model in await backend.models()]
        return f"{len(models)} models{': ' * bool(models)}{', '.join(models[:5])}{', ...' * (len(models) > 5)}"

    async def remember() -> str:
        async with aclosing(build_store(settings)) as store:
            await store.check()
            await store.put("check", "record", b"1")
            await store.delete("check", "record")
        return "reads and writes"

    works = []
    for name, backend in settings.served().items():
        for one in backend.each():
            alone = settings.model_copy(update={"backend": "auto", "backend_url": "", "backends": {name: one}})
            works.append(await _try("backend", f"{name} {without_password(one.url) or one.backend}", ask(alone)))
    works.append(await _try("store", without_password(settings.store_url), remember()))
    return all(works)


async def _try(part: str, name: str, attempt: Awaitable[str]) -> bool:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            works, said = True, await attempt
    except TimeoutError:
        works, said = False, f"no answer within {CHECK_TIMEOUT} seconds"
    except APIError as error:
        works, said = False, f"{error.message} ({error.detail})" if error.detail else error.message
    except (OSError, ValueError, ImportError) as error:
        works, said = False, str(error) or type(error).__name__
    typer.echo(logs.printable(f"{'ok' if works else 'fail':5} {part:9} {name}: {said}"))
    return works


def main() -> None:
    """Run the command line: the console script `antiphon`."""
    cli()
