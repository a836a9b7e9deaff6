"""
The command line.

    antiphon serve --backend-url http://localhost:8000/v1
    antiphon check
    antiphon probe http://localhost:8000/v1
    antiphon verify http://localhost:8080/v1
    antiphon settings > .env
    antiphon reload
    antiphon chat --model qwen3
    antiphon show resp_...
    antiphon replay resp_... --model qwen3
    antiphon codex -- exec "Mend the tests."
    antiphon key new alice >> antiphon.toml
    antiphon key create alice --model "qwen*"
    antiphon usage --group key,model
    antiphon backup antiphon-backup.db
    antiphon version

Options become environment variables, which worker processes read, too. Commands import their modules when they run, to
keep other commands and `--help` fast.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from app import __version__
from app.cli.keys import keys_cli

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from app.cli.client import ServerClient
    from app.settings import Settings

cli = typer.Typer(
    name="antiphon",
    help="The Open Responses API, answered by any model server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its rendering would dominate the time of `--help`
    context_settings={"help_option_names": ["-h", "--help"]},
)

cli.add_typer(keys_cli)

ServerURL = Annotated[str | None, typer.Option(help="An Antiphon's base URL, with /v1; by default from the settings.")]
ServerKey = Annotated[str | None, typer.Option(help="The server's key; by default from the settings.")]
ResponseId = Annotated[str, typer.Argument(metavar="ID", help="A stored response's id.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print the JSON.")]
ConfigFile = Annotated[str | None, typer.Option(help="A TOML settings file.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The Open Responses API, answered by any model server."""


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free port.")] = None,
    backend: Annotated[str | None, typer.Option(help="demo, openai, or an import path.")] = None,
    backend_url: Annotated[str | None, typer.Option(help="Base URL of a model server.")] = None,
    backend_api_key: Annotated[str | None, typer.Option(help="Key for the backend; or passthrough.")] = None,
    backend_profile: Annotated[str | None, typer.Option(help="The backend's profile, for example vllm.")] = None,
    store_url: Annotated[
        str | None, typer.Option(help="memory://, sqlite:///file.db, redis:// or postgresql://.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of processes.")] = None,
    config: ConfigFile = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL|COMMAND", help="An MCP server for models; repeatable."),
    ] = None,
    mcp_approval: Annotated[str | None, typer.Option(help="Caller approval for MCP calls: always or never.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a file changes, for development.")] = False,
) -> None:
    """Start the server. Options override the variables (ANTIPHON_HOST etc.); `antiphon settings` prints all of them."""
    options = {name: value for name, value in locals().items() if name not in ("reload", "mcp") and value is not None}
    import logging
    import secrets

    from app.runtime.process import gc_paused

    with gc_paused():
        from app.cli.serve import print_banner, run_server
        from app.observability import logging as logs
        from app.settings import unknown_variables

        if mcp:
            options["mcp"] = _mcp_servers(mcp)
        os.environ.update({f"ANTIPHON_{name.upper()}": str(value) for name, value in options.items()})
        settings = _settings(status=2)
        warnings = _try_to_build(settings)
    sockets = _listen(settings)
    settings = settings.model_copy(update={"port": sockets[0].getsockname()[1]})
    logs.configure(settings)
    logger = logging.getLogger(__name__)
    if settings.workers > 1 and not settings.secret_key:
        # Workers must decrypt each other's content.
        os.environ["ANTIPHON_SECRET_KEY"] = secrets.token_urlsafe(32)
        logger.warning(
            "ANTIPHON_SECRET_KEY not set: encrypted_content is readable only by these workers, until they exit"
        )
    for problem in (*unknown_variables(), *warnings):
        logger.warning("%s", problem)
    print_banner(settings)
    run_server(settings, sockets, watch_files=reload)


def _mcp_servers(options: list[str]) -> str:
    """Add the servers from `--mcp` to ANTIPHON_MCP."""
    import json

    from app.settings.loading import environment

    servers: dict[str, str] = {}
    with suppress(ValueError):  # an invalid variable is reported with the settings
        servers |= json.loads(environment().get("ANTIPHON_MCP", "{}"))
    for option in options:
        name, separator, target = (part.strip() for part in option.partition("="))
        if not (name and separator and target):
            _refuse("--mcp: must be NAME=URL or NAME=COMMAND, such as time='uvx mcp-server-time'", status=2)
        servers[name] = target
    return json.dumps(servers)


@cli.command("reload", short_help="Make the running server reload its settings.")
def reload_settings(
    port: Annotated[int | None, typer.Option(help="The server's port; by default from the settings.")] = None,
) -> None:
    """Make the running server on this machine reload its settings, and print the result; exit 1 if they are invalid."""
    from app.cli.reload import ReloadError, reload_server, summary
    from app.observability.logging import printable

    try:
        reports = reload_server(_pid_file(port))
    except ReloadError as error:
        _refuse(str(error), status=1)
    refused = [report for report in reports if report.problems]
    if refused:
        problems = dict.fromkeys(problem for report in refused for problem in report.problems)
        processes = ", ".join(str(report.pid) for report in refused)
        text = f"The new settings are invalid; process {processes} continues with the old ones:\n" + "\n".join(problems)
        _refuse(printable(text, keep="\n"), status=1)
    typer.echo(printable(summary(reports), keep="\n"))


def _pid_file(port: int | None) -> Path:
    """The server's pid file, also if the settings are invalid."""
    from app.cli.listening import default_pid_file
    from app.settings import SettingsError, load_settings
    from app.settings.loading import environment

    try:
        settings = load_settings(**({} if port is None else {"port": port}))
    except SettingsError as error:
        variables = environment()
        if path := variables.get("ANTIPHON_PID_FILE"):
            return Path(path)
        if port is None and not (written := variables.get("ANTIPHON_PORT", "8080")).isdecimal():
            _refuse("\n".join(error.problems), status=1)
        return default_pid_file(int(written) if port is None else port)
    return settings.pid_file or default_pid_file(settings.port)


@cli.command(short_help="Check the settings, backends, store and tools.")
def check(config: ConfigFile = None) -> None:
    """Check the settings, backends, store and tools, and print the results; exit 1 if any of them fails."""
    import asyncio

    from app.cli.check import check_connectivity
    from app.cli.serve import address_of
    from app.observability import logging as logs
    from app.settings import SettingsError, unknown_variables
    from app.settings.prompts import read_prompts

    if config is not None:
        os.environ["ANTIPHON_CONFIG"] = config
    settings = _settings(status=1)
    try:
        read_prompts(settings.prompts)
    except SettingsError as error:
        _refuse("\n".join(error.problems), status=1)
    count = len(settings.api_keys) + len(settings.keys)
    keys = f"{count} caller keys" if count else "open, no caller keys"
    typer.echo(f"ok    settings  {address_of(settings)}, {keys}")
    for problem in unknown_variables():
        typer.echo(f"note  settings  {problem}")
    logs.configure(settings.model_copy(update={"log_level": "error"}))  # failures are printed below
    if not asyncio.run(check_connectivity(settings)):
        raise typer.Exit(1)


@cli.command("probe", short_help="Detect a server's features.")
def probe_backend(
    url: Annotated[str, typer.Argument(help="Base URL of a model server.")],
    model: Annotated[str | None, typer.Option(help="Model to use; by default the first listed.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="ANTIPHON_BACKEND_API_KEY", help="The key to send.")] = None,
    name: Annotated[str, typer.Option(help="The backend's name in the settings.")] = "local",
    seconds: Annotated[float, typer.Option(help="Seconds after which to stop.")] = 180,
) -> None:
    """Send a server about sixty small requests, and print its features and suitable settings."""
    import asyncio

    from app.cli.probe import probe
    from app.core.redaction import without_password
    from app.errors import APIError
    from app.observability import logging as logs
    from app.settings.validation import check_backend_url

    try:
        url = check_backend_url(url)
    except ValueError as error:
        _refuse(f"URL: {error}", status=2)
    try:
        report = asyncio.run(probe(url, api_key, model, seconds=seconds))
    except APIError as error:
        typer.echo(logs.printable(f"fail  {without_password(url)}: {error.message}"), err=True)
        raise typer.Exit(1) from None
    typer.echo(logs.printable(f"{report.table()}\n\n# For the file of settings:\n{report.settings(name)}", keep="\n"))
    typer.echo(f"\n# The same, as variables:\n{report.variables()}")


@cli.command("verify", short_help="Check a Responses server against the specification.")
def verify(
    url: Annotated[str, typer.Argument(help="Base URL of a Responses server.")],
    model: Annotated[str | None, typer.Option(help="Model to use; by default the first listed.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="The key to send.")] = None,
    second_api_key: Annotated[str | None, typer.Option(help="The key of another user, to check isolation.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Checks to run; repeatable.")] = None,
    skip: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Checks to skip; repeatable.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, as JSON.")] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Write the results to this file, as JUnit XML.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 60,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 4,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="A header to send; repeatable.")
    ] = None,
) -> None:
    """Check a Responses server against the specification; exit 1 if a check fails, 2 if no check could run."""
    from openresponses_verify.cli import Selection, run_checks
    from openresponses_verify.server import ServerAccess, read_headers

    try:
        headers = read_headers(header or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--header") from None
    access = ServerAccess(url, model, api_key, second_api_key, timeout, concurrency, headers)
    selection = Selection(only or (), skip or (), json_file, junit_file)
    raise typer.Exit(run_checks(access, selection, "antiphon"))


@cli.command("settings", short_help="Print all settings, as a `.env` file.")
def show_settings() -> None:
    """Print all settings with descriptions and defaults, as a `.env` file."""
    from app.settings.example import env_example

    typer.echo(env_example(), nl=False)


@cli.command(
    "codex",
    short_help="Run Codex with this server.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run_codex(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Arguments for Codex.")] = None,
    url: Annotated[str | None, typer.Option(help="An Antiphon's base URL; by default from the settings.")] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the lines for Codex's config.toml instead.")] = False,
) -> None:
    """Run Codex with this server, without changing its configuration: `antiphon codex -- exec "Mend the tests."`."""
    import shutil
    from functools import partial

    from app.cli import codex as configure
    from app.cli.client import ServerError, first_model, has_web_search, safe

    base, key, own = _server(url)
    program = shutil.which("codex")
    if program is None and not show:
        _refuse("Codex is not installed: npm install --global @openai/codex", status=127)
    try:
        model = (own.default_model if own else None) or first_model(base, key, proxied=own is None)
    except ServerError as error:
        if not show:
            _refuse(safe(error), status=1)
        model = None
    searches = "web_search" in own.tool_tables() if own else has_web_search(base, key)
    codex = partial(configure.codex_settings, base, keyed=bool(key), web_search=searches)
    if show:
        typer.echo(configure.toml(codex(model=model or "YOUR_MODEL")), nl=False)
        return
    options = configure.options(codex(model=model))
    _exec([str(program), *options, *(arguments or [])], {configure.KEY: key} if key else {})


@cli.command("chat", short_help="Chat with a running server's model.")
def run_chat(
    prompt: Annotated[str | None, typer.Argument(help="A message; by default, messages are read line by line.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model; by default the server's first.")
    ] = None,
    url: ServerURL = None,
    api_key: ServerKey = None,
    instructions: Annotated[str | None, typer.Option(help="Instructions for the model.")] = None,
    effort: Annotated[str | None, typer.Option(help="Reasoning effort, for example low or high.")] = None,
    tools: Annotated[Path | None, typer.Option(help="A JSON file with a list of tools.")] = None,
    store: Annotated[bool, typer.Option(help="Store the responses on the server; conversations need this.")] = True,
) -> None:
    """Chat with a running server's model; reasoning, calls and approvals are shown live."""
    from rich.console import Console

    from app.cli.chat import Chat
    from app.cli.client import first_model

    text = prompt if prompt is not None or sys.stdin.isatty() else sys.stdin.read()
    if text is not None and not text.strip():
        _refuse("No message. Pass one, as in `antiphon chat 'Hello!'`, or write it to standard input.", status=2)
    given = {"instructions": instructions, "reasoning": {"effort": effort} if effort else None}
    parameters: dict[str, object] = {"store": store, **{name: value for name, value in given.items() if value}}
    if tools:
        parameters["tools"] = _tools_of(tools)
    with connected_client(url, api_key) as (client, key, own):
        default = model or (own.default_model if own else None)
        parameters["model"] = default or first_model(client.url, key, proxied=own is None)
        chat = Chat(client, Console(), parameters)
        if text is None:
            chat.interact()
        else:
            chat.send(text)


@cli.command("show", short_help="Show a stored response and its conversation.")
def show_response(
    response_id: ResponseId,
    url: ServerURL = None,
    api_key: ServerKey = None,
    as_json: AsJSON = False,
) -> None:
    """Show a stored response: its conversation, its forks, and its backend request."""
    from rich.console import Console

    from app.cli.show import show

    with connected_client(url, api_key) as (client, *_):
        show(client, Console(), response_id, as_json=as_json)


@cli.command("replay", short_help="Repeat a stored response, and compare.")
def replay_response(
    response_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Ids of stored responses.", show_default=False)
    ] = None,
    last: Annotated[int | None, typer.Option("--last", min=1, max=100, help="The newest responses instead.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Another model; by default the same model.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if status, text or calls differ.")] = False,
    url: ServerURL = None,
    api_key: ServerKey = None,
    as_json: AsJSON = False,
) -> None:
    """
    Send the requests of stored responses again, and compare text, calls, tokens and cost; nothing is stored.

    One response is compared in detail; several are a table.
    """
    from rich.console import Console

    from app.cli.replay import newest, replay, replay_all

    if bool(response_ids) == bool(last):
        raise typer.BadParameter("must have response ids or --last, not both")
    with connected_client(url, api_key) as (client, *_):
        ids = response_ids or newest(client, last or 0)
        if response_ids and len(ids) == 1:
            same = replay(client, Console(), ids[0], model, as_json=as_json)
        else:
            same = replay_all(client, Console(), ids, model, as_json=as_json)
    if check and not same:
        raise typer.Exit(1)


@cli.command("usage", short_help="Show usage and cost per key.")
def usage(
    first: Annotated[
        str | None, typer.Option("--from", help="The first day; by default the first of the month.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last day; by default today.")] = None,
    key: Annotated[str | None, typer.Option(help="Glob for key names.")] = None,
    model: Annotated[str | None, typer.Option(help="Glob for models.")] = None,
    group: Annotated[str, typer.Option(help="Any of day, month, key, model, backend.")] = "day,key,model",
    url: ServerURL = None,
    api_key: ServerKey = None,
    as_json: AsJSON = False,
) -> None:
    """Show usage and cost per key: your own key, or all keys with an admin key."""
    from rich.console import Console

    from app.cli.usage import show_usage

    query = {"from": first, "to": last, "key": key, "model": model, "group": group}
    with connected_client(url, api_key) as (client, *_):
        show_usage(client, Console(), query, as_json=as_json)


@cli.command(short_help="Back up the configured SQLite files.")
def backup(
    file: Annotated[Path, typer.Argument(help="The copy to write; files and vector stores go to FILE-files.")],
    config: ConfigFile = None,
) -> None:
    """Back up the configured SQLite files, while the server runs. Other stores have their own tools."""
    from app.cli.backup import BackupError, back_up

    if config is not None:
        os.environ["ANTIPHON_CONFIG"] = config
    try:
        for path in back_up(_settings(status=2), file):
            typer.echo(f"{path}  {path.stat().st_size} bytes")
    except BackupError as error:
        _refuse(str(error), status=1)


@contextmanager
def connected_client(
    url: str | None, api_key: str | None
) -> Iterator[tuple[ServerClient, str | None, Settings | None]]:
    """Exits with the server's message on an error."""
    from app.cli.client import ServerClient, ServerError, safe

    base, key, own = _server(url, api_key)
    with ServerClient(base, key, proxied=own is None) as client:
        try:
            yield client, key, own
        except ServerError as error:
            _refuse(safe(error), status=1)


def _server(url: str | None, key: str | None = None) -> tuple[str, str | None, Settings | None]:
    """A server's base URL, the key to send, and the settings if they describe this server."""
    from app.cli.codex import KEY
    from app.cli.serve import address_of
    from app.settings.loading import environment

    settings = _settings(status=2)
    base = (url or f"{address_of(settings, reachable=True)}/v1").rstrip("/")
    keys = [key.get_secret_value() for key in settings.api_keys] if url is None else []
    key = key or environment().get(KEY) or next(iter(keys), None)
    return base, key, settings if url is None else None


def _tools_of(path: Path) -> list[object]:
    import json

    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _refuse(f"{path}: {error}", status=2)
    return tools if isinstance(tools, list) else [tools]


def _exec(command: list[str], variables: dict[str, str]) -> NoReturn:
    """
    Replace this process by another program, so that it receives the terminal's signals; on Windows, run and await it.
    """
    import subprocess

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
    import platform

    typer.echo(f"antiphon {__version__} (Python {platform.python_version()}, {platform.system()})")


def _settings(*, status: int) -> Settings:
    from app.settings import SettingsError, load_settings

    try:
        return load_settings()
    except SettingsError as error:
        for problem in error.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(status) from None


def _listen(settings: Settings) -> list[socket.socket]:
    import socket

    from app.cli.listening import listen
    from app.cli.serve import address_of

    try:
        return listen(settings.host, settings.port)
    except socket.gaierror as error:
        _refuse(f"ANTIPHON_HOST: must be an address or a name of this machine: {error.strerror}", status=2)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        _refuse(f"ANTIPHON_PORT: cannot listen on {address_of(settings)}: {reason}", status=1)


def _try_to_build(settings: Settings) -> list[str]:
    """Build prompts, tools, store and limits once, to report invalid settings; return warnings."""
    import asyncio
    from functools import partial

    from app.assembly.parts import build_limits, build_store
    from app.assembly.tools import prepare_tools
    from app.settings import SettingsError
    from app.settings.prompts import read_prompts

    try:
        read_prompts(settings.prompts)
        warnings = asyncio.run(prepare_tools(settings))
    except SettingsError as error:
        _refuse("\n".join(error.problems), status=2)
    for variable, build in (("STORE_URL", build_store), ("LIMIT_STORE_URL", partial(build_limits, metrics=None))):
        try:
            build(settings)
        except ValueError as error:
            _refuse(f"ANTIPHON_{variable}: {error}", status=2)
    return warnings


def main() -> None:
    cli()
