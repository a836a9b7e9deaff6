"""Options and errors shared by several commands, and their groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import click

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
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)))
_REMOVED = {code: None for code in _CONTROLS if chr(code) not in "\n\t"}


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


as_json = click.option("--json", "as_json", is_flag=True, help="Print the JSON.")
config_file = click.option("--config", help="A TOML settings file.")
_url = click.option("--url", help="An Antiphon's base URL, with /v1; by default from the settings.")
server = combined(_url, click.option("--api-key", help="The server's key; by default from the settings."))
admin = combined(_url, click.option("--api-key", help="An admin key; by default CODEX_ANTIPHON_KEY."), as_json)
