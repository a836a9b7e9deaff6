"""Options and errors shared by several commands, and their groups."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


class OrderedGroup(click.Group):
    """Lists its commands as defined; click sorts them by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]


def exit_with(problem: str, *, status: int) -> NoReturn:
    click.echo(problem, err=True)
    sys.exit(status)


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
