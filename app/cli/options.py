"""Options, settings, clients and errors shared by several commands, and their groups."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from app.settings import Settings

_Command = TypeVar("_Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


class OrderedGroup(click.Group):
    """Lists its commands as defined; click sorts them by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]


class CommandError(click.ClickException):
    """Ends a command with an exit status; the message explains the remedy."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.exit_code = status  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(safe(self.message), err=True)


# Control characters and bidirectional marks, with which model output could manipulate the terminal.
_CONTROLS = {*range(32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)}
_REMOVED = dict.fromkeys(_CONTROLS - {ord("\n"), ord("\t")})


def safe(text: object) -> str:
    """Remove control characters except newlines and tabs."""
    return str(text).translate(_REMOVED)


def combined(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Combine options, in the order of `--help`."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _use_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is not None:
        os.environ["ANTIPHON_CONFIG"] = path


def valid_settings(*, status: int) -> Settings:
    """Invalid settings end the command with an exit status."""
    from app.settings import SettingsError, load_settings

    try:
        return load_settings()
    except SettingsError as error:
        raise CommandError(str(error), status) from None


def find_server(url: str | None, key: str | None = None) -> tuple[str, str | None, Settings | None]:
    """A server's base URL, the key to send, and the settings if they describe this server."""
    from app.cli.codex import KEY
    from app.cli.serve import address_of
    from app.settings.loading import environment

    settings = valid_settings(status=2)
    base = (url or f"{address_of(settings, reachable=True)}/v1").rstrip("/")
    keys = [key.get_secret_value() for key in settings.api_keys] if url is None else []
    key = key or environment().get(KEY) or next(iter(keys), None)
    return base, key, settings if url is None else None


def _with_client(api_key: Callable[[Any], Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options for a server and `--json`; the command gets a `ServerClient` as its first argument."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(url: str | None, api_key: str | None, **values: object) -> None:
            from app.cli.client import ServerClient

            base, key, own = find_server(url, api_key)
            with ServerClient(base, key, proxied=own is None) as client:
                command(client, **values)

        as_json = click.option("--json", "as_json", is_flag=True, help="Print the JSON.")
        return combined(_url, api_key, as_json)(run)

    return add


config_file = click.option("--config", expose_value=False, callback=_use_config, help="A TOML settings file.")
_url = click.option("--url", help="An Antiphon's base URL, with /v1; by default from the settings.")
_key = click.option("--api-key", help="The server's key; by default from the settings.")
server = combined(_url, _key)
server_client = _with_client(_key)
admin_client = _with_client(click.option("--api-key", help="An admin key; by default CODEX_ANTIPHON_KEY."))
