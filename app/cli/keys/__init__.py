"""`antiphon key new NAME` creates a key for the settings; the other commands manage a running server's keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from app.cli import options

if TYPE_CHECKING:
    from app.cli.client import ServerClient


@click.group("key", cls=options.OrderedGroup, no_args_is_help=True)
def keys_cli() -> None:
    """Create and manage API keys."""


_key = click.argument("key", metavar="KEY", help="The key's name or id.")


_fields = options.combined(
    click.option("--owner", help="Owner of its stored objects; by default the name."),
    click.option("--model", "models", multiple=True, help="Glob for permitted models; repeatable."),
    click.option("--tool", "tools", multiple=True, help="Glob for permitted hosted tools, or mcp:LABEL; repeatable."),
    click.option("--requests-per-minute", type=int, help="0 for no limit."),
    click.option("--tokens-per-minute", type=int, help="0 for no limit."),
    click.option("--max-concurrent", type=int, help="Concurrent responses; 0 for no limit."),
    click.option(
        "--budget",
        "budgets",
        multiple=True,
        metavar="NAME=AMOUNT",
        help="For example tokens_per_day=100000; repeatable.",
    ),
    click.option("--max-stored-bytes", type=int, help="Bytes for responses and conversations; 0 for no limit."),
    click.option("--expires", help="Day or time (UTC): 2027-01-31, or a Unix time."),
    click.option("--admin/--no-admin", default=None, help="Whether it manages keys."),
)


def _instructions(name: str) -> str:
    from app.settings import SettingsError, load_settings

    with suppress(SettingsError):
        if name in load_settings().keys:
            return (
                f"[keys.{name}] already exists. Replace its `hash` with this one, or list both while the old key must "
                "still work. `antiphon reload` applies the change:"
            )
    return "Its table for the settings (ANTIPHON_CONFIG); `antiphon reload` applies it:"


@keys_cli.command("new")
@click.argument("name", help="The key's name in settings, logs and usage.")
@click.option("--owner", help="Owner of its stored objects; by default the name.")
@click.option(
    "--existing", is_flag=True, help="Read an existing key from standard input instead of creating a new key."
)
def make_key(name: str, owner: str | None, existing: bool) -> None:
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
        raise options.CommandError(f"NAME: {error}", 2) from None
    if existing:
        key = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
        key = key.strip()
        if not (key and key.isascii() and key.isprintable()):
            raise options.CommandError("The key must be printable ASCII: a header cannot contain anything else.", 2)
        owner = owner or digest_of(key)[:32]  # keeps the owner of the objects already stored with this key
    else:
        key = generate_key()
        click.echo(f"The key of {name}, which is not shown again:\n\n  {key}\n", err=True)
        click.echo(f"{_instructions(name)}\n", err=True)
    fields = {"owner": owner} if owner else {}
    click.echo(key_table(name, hash_of(key), **fields), nl=False)


@keys_cli.command("create")
@click.argument("name", help="The key's name in logs and usage.")
@_fields
@options.admin_client
def create_key(client: ServerClient, name: str, as_json: bool, **fields: Any) -> None:
    """Create a key on a running server, and print it once."""
    from app.cli.keys.managed import changed_fields, print_secret

    body = {"name": name, **changed_fields(fields)}
    created, _ = client.send("POST", "antiphon/keys", body)
    print_secret(created, as_json=as_json)


@keys_cli.command("list")
@click.option("--revoked", is_flag=True, help="List the revoked keys instead.")
@options.admin_client
def list_keys(client: ServerClient, revoked: bool, as_json: bool) -> None:
    """List a running server's keys, with limits and last use."""
    from app.cli.keys.managed import all_keys, print_keys

    print_keys(all_keys(client, revoked=revoked), as_json=as_json)


@keys_cli.command("update")
@_key
@_fields
@click.option("--reset", multiple=True, metavar="FIELD", help="Reset a field, for example models; repeatable.")
@options.admin_client
def update_key(client: ServerClient, key: str, reset: Sequence[str], as_json: bool, **fields: Any) -> None:
    """Change fields of a running server's key."""
    from app.cli.keys.managed import changed_fields, id_of, print_keys

    body = {**dict.fromkeys(reset), **changed_fields(fields)}
    changed, _ = client.send("PATCH", f"antiphon/keys/{id_of(client, key)}", body)
    print_keys([changed], as_json=as_json)


@keys_cli.command("revoke")
@_key
@options.admin_client
def revoke_key(client: ServerClient, key: str, as_json: bool) -> None:
    """Revoke a running server's key permanently."""
    from app.cli.keys.managed import id_of, print_keys

    revoked, _ = client.send("DELETE", f"antiphon/keys/{id_of(client, key)}")
    print_keys([revoked], as_json=as_json)


@keys_cli.command("rotate")
@_key
@click.option("--grace-period", default=86_400, show_default=True, help="Seconds until the current secret expires.")
@options.admin_client
def rotate_key(client: ServerClient, key: str, grace_period: int, as_json: bool) -> None:
    """Give a running server's key a new secret, and print it once."""
    from app.cli.keys.managed import id_of, print_secret

    path = f"antiphon/keys/{id_of(client, key)}/rotate"
    rotated, _ = client.send("POST", path, {"grace_period": grace_period})
    print_secret(rotated, as_json=as_json)
