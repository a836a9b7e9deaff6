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
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from app import __version__
from app.cli import options
from app.cli.keys import keys_cli
from app.cli.options import CommandError, find_server, valid_settings

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from app.cli.client import ServerClient
    from app.settings import Settings


_VERSION = f"antiphon {__version__} (Python {platform.python_version()}, {platform.system()})"


@click.group(cls=options.OrderedGroup, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message=_VERSION, help="Print the version.")
def cli() -> None:
    """The Open Responses API, answered by any model server."""


_model = click.option("--model", help="Model to use; by default the first listed.")


@cli.command()
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 for any free port.")
@click.option("--backend", help="demo, openai, or an import path.")
@click.option("--backend-url", help="Base URL of a model server.")
@click.option("--backend-api-key", help="Key for the backend; or passthrough.")
@click.option("--backend-profile", help="The backend's profile, for example vllm.")
@click.option("--store-url", help="memory://, sqlite:///file.db, redis:// or postgresql://.")
@click.option("--workers", type=int, help="Number of processes.")
@options.config_file
@click.option("--mcp", multiple=True, metavar="NAME=URL|COMMAND", help="An MCP server for models; repeatable.")
@click.option("--mcp-approval", help="Caller approval for MCP calls: always or never.")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option("--log-format", help="text or json.")
@click.option("--reload", is_flag=True, help="Restart when a file changes, for development.")
def serve(reload: bool, mcp: Sequence[str], **values: object) -> None:
    """Start the server. Options override the variables (ANTIPHON_HOST etc.); `antiphon settings` prints all of them."""
    import logging
    import secrets

    from app.runtime.process import gc_paused

    with gc_paused():
        from app.cli.serve import print_banner, run_server
        from app.observability import logging as logs
        from app.settings import unknown_variables

        if mcp:
            values["mcp"] = _mcp_servers(mcp)
        given = {f"ANTIPHON_{name.upper()}": str(value) for name, value in values.items() if value is not None}
        os.environ.update(given)
        settings = valid_settings(status=2)
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


def _mcp_servers(pairs: Sequence[str]) -> str:
    """Add the servers from `--mcp` to ANTIPHON_MCP."""
    import json

    from app.settings.loading import environment

    variable = environment().get("ANTIPHON_MCP", "{}")
    try:
        servers: dict[str, str] = {**json.loads(variable)}
    except (ValueError, TypeError):
        return variable  # reported with the settings
    for pair in pairs:
        name, separator, target = (part.strip() for part in pair.partition("="))
        if not (name and separator and target):
            raise CommandError("--mcp: must be NAME=URL or NAME=COMMAND, such as time='uvx mcp-server-time'", 2)
        servers[name] = target
    return json.dumps(servers)


@cli.command("reload", short_help="Make the running server reload its settings.")
@click.option("--port", type=int, help="The server's port; by default from the settings.")
def reload_settings(port: int | None) -> None:
    """Make the running server on this machine reload its settings, and print the result; exit 1 if they are invalid."""
    from app.cli.reload import reload_server, summary
    from app.observability.logging import printable

    reports = reload_server(_pid_file(port))
    refused = [report for report in reports if report.problems]
    if refused:
        problems = dict.fromkeys(problem for report in refused for problem in report.problems)
        processes = ", ".join(str(report.pid) for report in refused)
        text = f"The new settings are invalid; process {processes} continues with the old ones:\n" + "\n".join(problems)
        raise CommandError(printable(text, keep="\n"))
    click.echo(printable(summary(reports), keep="\n"))


def _pid_file(port: int | None) -> Path:
    """The server's pid file, also if the settings are invalid."""
    from app.cli.reload import default_pid_file
    from app.settings import SettingsError, load_settings
    from app.settings.loading import environment

    try:
        settings = load_settings(**({} if port is None else {"port": port}))
    except SettingsError as error:
        variables = environment()
        if path := variables.get("ANTIPHON_PID_FILE"):
            return Path(path)
        if port is None and not (written := variables.get("ANTIPHON_PORT", "8080")).isdecimal():
            raise CommandError(str(error)) from None
        return default_pid_file(int(written) if port is None else port)
    return settings.pid_file or default_pid_file(settings.port)


@cli.command(short_help="Check the settings, backends, store and tools.")
@options.config_file
def check() -> None:
    """Check the settings, backends, store and tools, and print the results; exit 1 if any of them fails."""
    import asyncio

    from app.cli.check import check_connectivity
    from app.cli.serve import address_of
    from app.observability import logging as logs
    from app.settings import SettingsError, unknown_variables
    from app.settings.prompts import read_prompts

    settings = valid_settings(status=1)
    try:
        read_prompts(settings.prompts)
    except SettingsError as error:
        raise CommandError(str(error)) from None
    count = len(settings.api_keys) + len(settings.keys)
    keys = f"{count} caller keys" if count else "open, no caller keys"
    click.echo(f"ok    settings  {address_of(settings)}, {keys}")
    for problem in unknown_variables():
        click.echo(f"note  settings  {problem}")
    logs.configure(settings.model_copy(update={"log_level": "error"}))  # failures are printed below
    if not asyncio.run(check_connectivity(settings)):
        sys.exit(1)


@cli.command("probe", short_help="Detect a server's features.")
@click.argument("url", help="Base URL of a model server.")
@_model
@click.option("--api-key", envvar="ANTIPHON_BACKEND_API_KEY", show_envvar=True, help="The key to send.")
@click.option("--name", default="local", show_default=True, help="The backend's name in the settings.")
@click.option("--seconds", type=float, default=180, show_default=True, help="Seconds after which to stop.")
def probe_backend(url: str, model: str | None, api_key: str | None, name: str, seconds: float) -> None:
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
        raise CommandError(f"URL: {error}", 2) from None
    try:
        report = asyncio.run(probe(url, api_key, model, seconds=seconds))
    except APIError as error:
        click.echo(logs.printable(f"fail  {without_password(url)}: {error.message}"), err=True)
        sys.exit(1)
    click.echo(logs.printable(f"{report.table()}\n\n# Settings file:\n{report.settings(name)}", keep="\n"))
    click.echo(f"\n# The same, as variables:\n{report.variables()}")


@cli.command(
    "verify",
    short_help="Check a Responses server against the specification.",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def verify(arguments: Sequence[str]) -> None:
    """Check a Responses server against the specification; exit 1 if a check fails, 2 if no check could run."""
    from openresponses_verify.cli import main as run_checks

    sys.exit(run_checks(arguments, "antiphon verify"))


@cli.command("settings", short_help="Print all settings, as a `.env` file.")
def show_settings() -> None:
    """Print all settings with descriptions and defaults, as a `.env` file."""
    from app.settings.example import env_example

    click.echo(env_example(), nl=False)


@cli.command(
    "codex",
    short_help="Run Codex with this server.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]...", help="Arguments for Codex.")
@click.option("--url", help="An Antiphon's base URL; by default from the settings.")
@click.option("--print", "show", is_flag=True, help="Print the lines for Codex's config.toml instead.")
def run_codex(arguments: Sequence[str], url: str | None, show: bool) -> None:
    """Run Codex with this server, without changing its configuration: `antiphon codex -- exec "Mend the tests."`."""
    import shutil
    from functools import partial

    from app.cli import codex as configure
    from app.cli.client import first_model, has_web_search

    base, key, own = find_server(url)
    program = shutil.which("codex")
    if program is None and not show:
        raise CommandError("Codex is not installed: npm install --global @openai/codex", 127)
    model = own.default_model if own else None
    try:
        model = model or first_model(base, key, proxied=own is None)
    except CommandError:
        if not show:
            raise
    searches = "web_search" in own.tool_tables() if own else has_web_search(base, key)
    codex = partial(configure.codex_settings, base, keyed=bool(key), web_search=searches)
    if show:
        click.echo(configure.toml(codex(model=model or "YOUR_MODEL")), nl=False)
        return
    options = configure.options(codex(model=model))
    _exec([str(program), *options, *arguments], {configure.KEY: key} if key else {})


@cli.command("chat", short_help="Chat with a running server's model.")
@click.argument("prompt", required=False, help="A message; by default, messages are read line by line.")
@click.option("--model", "-m", help="The model; by default the server's first.")
@options.server
@click.option("--instructions", help="Instructions for the model.")
@click.option("--effort", help="Reasoning effort, for example low or high.")
@click.option("--tools", type=options.PATH, help="A JSON file with a list of tools.")
@click.option(
    "--store/--no-store",
    default=True,
    show_default=True,
    help="Store the responses on the server; conversations need this.",
)
def run_chat(
    prompt: str | None,
    model: str | None,
    url: str | None,
    api_key: str | None,
    instructions: str | None,
    effort: str | None,
    tools: Path | None,
    store: bool,
) -> None:
    """Chat with a running server's model; reasoning, calls and approvals are shown live."""
    from rich.console import Console

    from app.cli.chat import Chat
    from app.cli.client import ServerClient, first_model

    text = prompt if prompt is not None or sys.stdin.isatty() else sys.stdin.read()
    if text is not None and not text.strip():
        raise CommandError("No message. Pass one, as in `antiphon chat 'Hello!'`, or write it to standard input.", 2)
    given = {"instructions": instructions, "reasoning": {"effort": effort} if effort else None}
    parameters: dict[str, object] = {"store": store, **{name: value for name, value in given.items() if value}}
    if tools:
        parameters["tools"] = _tools_of(tools)
    base, key, own = find_server(url, api_key)
    default = own.default_model if own else None
    parameters["model"] = model or default or first_model(base, key, proxied=own is None)
    with ServerClient(base, key, proxied=own is None) as client:
        chat = Chat(client, Console(), parameters)
        if text is None:
            chat.interact()
        else:
            chat.send(text)


@cli.command("show", short_help="Show a stored response and its conversation.")
@click.argument("response_id", metavar="ID", help="A stored response's id.")
@options.server_client
def show_response(client: ServerClient, response_id: str, as_json: bool) -> None:
    """Show a stored response: its conversation, its forks, and its backend request."""
    from rich.console import Console

    from app.cli.chat import show

    show(client, Console(), response_id, as_json=as_json)


@cli.command("replay", short_help="Repeat a stored response, and compare.")
@click.argument("response_ids", nargs=-1, metavar="[ID...]", help="Ids of stored responses.")
@click.option("--last", type=click.IntRange(1, 100), help="The newest responses instead.")
@click.option("--model", "-m", help="Another model; by default the same model.")
@click.option("--check", is_flag=True, help="Exit 1 if status, text or calls differ.")
@options.server_client
def replay_response(
    client: ServerClient, response_ids: Sequence[str], last: int | None, model: str | None, check: bool, as_json: bool
) -> None:
    """
    Send the requests of stored responses again, and compare text, calls, tokens and cost; nothing is stored.

    One response is compared in detail; several are a table.
    """
    from rich.console import Console

    from app.cli.replay import newest, replay, replay_all

    if bool(response_ids) == bool(last):
        raise click.BadParameter("must have response ids or --last, not both")
    ids = response_ids or newest(client, last or 0)
    if response_ids and len(ids) == 1:
        same = replay(client, Console(), ids[0], model, as_json=as_json)
    else:
        same = replay_all(client, Console(), ids, model, as_json=as_json)
    if check and not same:
        sys.exit(1)


@cli.command("usage", short_help="Show usage and cost per key.")
@click.option("--from", help="The first day; by default the first of the month.")
@click.option("--to", help="The last day; by default today.")
@click.option("--key", help="Glob for key names.")
@click.option("--model", help="Glob for models.")
@click.option("--group", default="day,key,model", show_default=True, help="Any of day, month, key, model, backend.")
@options.server_client
def usage(client: ServerClient, as_json: bool, **query: str | None) -> None:
    """Show usage and cost per key: your own key, or all keys with an admin key."""
    from rich.console import Console

    from app.cli.keys.managed import show_usage

    show_usage(client, Console(), query, as_json=as_json)


@cli.command(short_help="Back up the configured SQLite files.")
@click.argument("file", type=options.PATH, help="The copy to write; files and vector stores go to FILE-files.")
@options.config_file
def backup(file: Path) -> None:
    """Back up the configured SQLite files, while the server runs. Other stores have their own tools."""
    from app.cli.backup import back_up

    for path in back_up(valid_settings(status=2), file):
        click.echo(f"{path}  {path.stat().st_size} bytes")


def _tools_of(path: Path) -> list[object]:
    import json

    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: {error}", 2) from None
    return tools if isinstance(tools, list) else [tools]


def _exec(command: list[str], variables: dict[str, str]) -> NoReturn:
    """
    Replace this process by another program, so that it receives the terminal's signals; on Windows, run and await it.
    """
    import subprocess

    variables = {**os.environ, **variables}
    if os.name == "posix":
        os.execve(command[0], command, variables)
    sys.exit(subprocess.run(command, env=variables, check=False).returncode)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(_VERSION)


def _listen(settings: Settings) -> list[socket.socket]:
    import socket

    from app.cli.serve import address_of, listen

    try:
        return listen(settings.host, settings.port)
    except socket.gaierror as error:
        raise CommandError(
            f"ANTIPHON_HOST: must be an address or a name of this machine: {error.strerror}", 2
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"ANTIPHON_PORT: cannot listen on {address_of(settings)}: {reason}") from None


def _try_to_build(settings: Settings) -> list[str]:
    """Build prompts, tools, store and limits once, to report invalid settings; return warnings."""
    import asyncio
    from functools import partial

    from app.assembly.parts import build_limits, build_store, prepare_tools
    from app.settings import SettingsError
    from app.settings.prompts import read_prompts

    try:
        read_prompts(settings.prompts)
        warnings = asyncio.run(prepare_tools(settings))
    except SettingsError as error:
        raise CommandError(str(error), 2) from None
    for variable, build in (("STORE_URL", build_store), ("LIMIT_STORE_URL", partial(build_limits, metrics=None))):
        try:
            build(settings)
        except ValueError as error:
            raise CommandError(f"ANTIPHON_{variable}: {error}", 2) from None
    return warnings


cli.add_command(keys_cli)


def main() -> None:
    cli()
