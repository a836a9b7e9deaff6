"""Make API keys for `[keys.NAME]`: `antiphon key new NAME`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

keys_cli = typer.Typer(name="key", help="Make API keys with names.", no_args_is_help=True, rich_markup_mode=None)


@keys_cli.callback()
def _root() -> None:
    """Make API keys with names."""


def _instructions(name: str) -> str:
    from app.settings import SettingsError, load_settings

    with suppress(SettingsError):
        if name in load_settings().keys:
            return (
                f"[keys.{name}] is there already. Replace its `hash` by this one, or make it a list of both while the "
                "old key is to work. `antiphon reload` takes it over:"
            )
    return "Its table for the settings (ANTIPHON_CONFIG); `antiphon reload` applies it:"


@keys_cli.command("new")
def make_key(
    name: Annotated[str, typer.Argument(help="What to call the key, in settings, logs and usage.")],
    owner: Annotated[str | None, typer.Option(help="Whose objects it reaches; the name if left out.")] = None,
    existing: Annotated[
        bool, typer.Option("--existing", help="Read a key that is in use from standard input in place of making one.")
    ] = False,
) -> None:
    """
    Make a key, and print the table for the TOML file, which has its hash alone.

    The key itself is shown once, on standard error, so that `antiphon key new NAME >> antiphon.toml` adds the table.
    """
    import getpass
    import secrets

    from app.core.access import digest_of, hash_of
    from app.settings.keys import KEY_PREFIX, check_key_name, key_table

    try:
        check_key_name(name)
    except ValueError as error:
        typer.echo(f"NAME: {error}", err=True)
        raise typer.Exit(2) from None
    if existing:
        key = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
        key = key.strip()
        if not (key and key.isascii() and key.isprintable()):
            typer.echo("The key should be printable ASCII: a header cannot hold anything else.", err=True)
            raise typer.Exit(2)
        owner = owner or digest_of(key)[:32]  # the owner of the objects that it has stored so far
    else:
        key = f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"
        typer.echo(f"The key of {name}, which is not shown again:\n\n  {key}\n", err=True)
        typer.echo(f"{_instructions(name)}\n", err=True)
    fields = {"owner": owner} if owner else {}
    typer.echo(key_table(name, hash_of(key), **fields), nl=False)
