"""`antiphon key new NAME` creates a key for the settings; the other commands manage a running server's keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer

keys_cli = typer.Typer(name="key", help="Create and manage API keys.", no_args_is_help=True, rich_markup_mode=None)

_URL = Annotated[str | None, typer.Option(help="An Antiphon's base URL, with /v1; by default from the settings.")]
_AdminKey = Annotated[str | None, typer.Option(help="An admin key; by default CODEX_ANTIPHON_KEY.")]
_AsJSON = Annotated[bool, typer.Option("--json", help="Print the JSON.")]
_Key = Annotated[str, typer.Argument(metavar="KEY", help="The key's name or id.")]
_Owner = Annotated[str | None, typer.Option(help="Owner of its stored objects; by default the name.")]
_Models = Annotated[list[str] | None, typer.Option("--model", help="Glob for permitted models; repeatable.")]
_Tools = Annotated[
    list[str] | None, typer.Option("--tool", help="Glob for permitted hosted tools, or mcp:LABEL; repeatable.")
]
_Requests = Annotated[int | None, typer.Option(help="0 for no limit.")]
_Tokens = Annotated[int | None, typer.Option(help="0 for no limit.")]
_Concurrent = Annotated[int | None, typer.Option(help="Concurrent responses; 0 for no limit.")]
_Budgets = Annotated[
    list[str] | None,
    typer.Option("--budget", metavar="NAME=AMOUNT", help="For example tokens_per_day=100000; repeatable."),
]
_StoredBytes = Annotated[int | None, typer.Option(help="Bytes for responses and conversations; 0 for no limit.")]
_Expires = Annotated[str | None, typer.Option(help="Day or time (UTC): 2027-01-31, or a Unix time.")]
_Admin = Annotated[bool | None, typer.Option("--admin/--no-admin", help="Whether it manages keys.")]


@keys_cli.callback()
def _root() -> None:
    """Create and manage API keys."""


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
    name: Annotated[str, typer.Argument(help="The key's name in settings, logs and usage.")],
    owner: Annotated[str | None, typer.Option(help="Owner of its stored objects; by default the name.")] = None,
    existing: Annotated[
        bool, typer.Option("--existing", help="Read an existing key from standard input instead of creating a new key.")
    ] = False,
) -> None:
    """
    Create a key, and print its table for the TOML file, which contains only the hash.

    The key itself is printed once, on standard error: `antiphon key new NAME >> antiphon.toml` adds the table.
    """
    import getpass

    from app.core.access import digest_of, hash_of
    from app.settings.keys import check_key_name, generate_key, key_table

    try:
        check_key_name(name)
    except ValueError as error:
        typer.echo(f"NAME: {error}", err=True)
        raise typer.Exit(2) from None
    if existing:
        key = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
        key = key.strip()
        if not (key and key.isascii() and key.isprintable()):
            typer.echo("The key must be printable ASCII: a header cannot contain anything else.", err=True)
            raise typer.Exit(2)
        owner = owner or digest_of(key)[:32]  # keeps the owner of the objects already stored with this key
    else:
        key = generate_key()
        typer.echo(f"The key of {name}, which is not shown again:\n\n  {key}\n", err=True)
        typer.echo(f"{_instructions(name)}\n", err=True)
    fields = {"owner": owner} if owner else {}
    typer.echo(key_table(name, hash_of(key), **fields), nl=False)


@keys_cli.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="The key's name in logs and usage.")],
    owner: _Owner = None,
    models: _Models = None,
    tools: _Tools = None,
    requests_per_minute: _Requests = None,
    tokens_per_minute: _Tokens = None,
    max_concurrent: _Concurrent = None,
    budgets: _Budgets = None,
    max_stored_bytes: _StoredBytes = None,
    expires: _Expires = None,
    admin: _Admin = None,
    url: _URL = None,
    api_key: _AdminKey = None,
    as_json: _AsJSON = False,
) -> None:
    """Create a key on a running server, and print it once."""
    options = dict(locals())
    from app.cli import connected_client
    from app.cli.keys.managed import changed_fields, print_secret

    fields = {"name": name, **_or_exit(changed_fields, options)}
    with connected_client(url, api_key) as (client, *_):
        print_secret(client.send("POST", "antiphon/keys", fields), as_json=as_json)


@keys_cli.command("list")
def list_keys(
    revoked: Annotated[bool, typer.Option("--revoked", help="List the revoked keys instead.")] = False,
    url: _URL = None,
    api_key: _AdminKey = None,
    as_json: _AsJSON = False,
) -> None:
    """List a running server's keys, with limits and last use."""
    from app.cli import connected_client
    from app.cli.keys.managed import all_keys, print_keys

    with connected_client(url, api_key) as (client, *_):
        print_keys(all_keys(client, revoked=revoked), as_json=as_json)


@keys_cli.command("update")
def update_key(
    key: _Key,
    owner: _Owner = None,
    models: _Models = None,
    tools: _Tools = None,
    requests_per_minute: _Requests = None,
    tokens_per_minute: _Tokens = None,
    max_concurrent: _Concurrent = None,
    budgets: _Budgets = None,
    max_stored_bytes: _StoredBytes = None,
    expires: _Expires = None,
    admin: _Admin = None,
    reset: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Reset a field, for example models; repeatable.")
    ] = None,
    url: _URL = None,
    api_key: _AdminKey = None,
    as_json: _AsJSON = False,
) -> None:
    """Change fields of a running server's key."""
    options = dict(locals())
    from app.cli import connected_client
    from app.cli.keys.managed import changed_fields, id_of, print_keys

    fields = {**dict.fromkeys(reset or ()), **_or_exit(changed_fields, options)}
    with connected_client(url, api_key) as (client, *_):
        changed = client.send("PATCH", f"antiphon/keys/{id_of(client, key)}", fields)
        print_keys([changed], as_json=as_json)


@keys_cli.command("revoke")
def revoke_key(key: _Key, url: _URL = None, api_key: _AdminKey = None, as_json: _AsJSON = False) -> None:
    """Revoke a running server's key permanently."""
    from app.cli import connected_client
    from app.cli.keys.managed import id_of, print_keys

    with connected_client(url, api_key) as (client, *_):
        print_keys([client.send("DELETE", f"antiphon/keys/{id_of(client, key)}")], as_json=as_json)


@keys_cli.command("rotate")
def rotate_key(
    key: _Key,
    grace_period: Annotated[int, typer.Option(help="Seconds until the current secret expires.")] = 86_400,
    url: _URL = None,
    api_key: _AdminKey = None,
    as_json: _AsJSON = False,
) -> None:
    """Give a running server's key a new secret, and print it once."""
    from app.cli import connected_client
    from app.cli.keys.managed import id_of, print_secret

    with connected_client(url, api_key) as (client, *_):
        path = f"antiphon/keys/{id_of(client, key)}/rotate"
        print_secret(client.send("POST", path, {"grace_period": grace_period}), as_json=as_json)


def _or_exit(read: Callable[[Mapping[str, Any]], dict[str, object]], options: Mapping[str, Any]) -> dict[str, object]:
    try:
        return read(options)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
