"""Requests to `/v1/antiphon/keys`, and tables for `antiphon key` and `antiphon usage`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.cli.client import ServerClient
from app.cli.options import CommandError, safe
from app.core.types import JSONObject

_ID = re.compile(r"key_[0-9a-f]{24}|settings:.*")
_SAME = (
    "owner",
    "models",
    "tools",
    "requests_per_minute",
    "tokens_per_minute",
    "max_concurrent",
    "max_stored_bytes",
    "admin",
)
_LIMITS = {"requests_per_minute": "requests/min", "tokens_per_minute": "tokens/min", "max_concurrent": "concurrent"}
_COUNTS = {
    "requests": "requests",
    "input_tokens": "input",
    "cached_input_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
    "cost": "cost",
}


def changed_fields(options: Mapping[str, Any]) -> dict[str, object]:
    """API fields for options; raises `CommandError` for invalid text."""
    fields: dict[str, object] = {name: options[name] for name in _SAME if options[name] not in (None, ())}
    if options["budgets"]:
        fields["budgets"] = dict(map(_budget, options["budgets"]))
    if options["expires"] is not None:
        fields["expires_at"] = _time(options["expires"])
    return fields


def _budget(text: str) -> tuple[str, int | float]:
    name, _, amount = text.partition("=")
    try:
        return name, int(amount) if amount.isdigit() else float(amount)
    except ValueError:
        raise CommandError(f"--budget: must be NAME=AMOUNT, such as tokens_per_day=100000, not {text!r}", 2) from None


def _time(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"--expires: must be a day or a time, such as 2027-01-31, not {text!r}", 2) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


def all_keys(client: ServerClient, *, revoked: bool = False) -> list[JSONObject]:
    """Raises `CommandError`."""
    found: list[JSONObject] = []
    query = {"limit": "100", "revoked": "true" if revoked else "false"}
    while True:
        page: dict[str, Any] = client.get(f"antiphon/keys?{urlencode(query)}")
        found += page["data"]
        if not page["has_more"]:
            return found
        query["after"] = str(page["last_id"])


def id_of(client: ServerClient, key: str) -> str:
    """The id of a key by name or id, encoded for a path; raises `CommandError`."""
    if _ID.fullmatch(key):
        return quote(key, safe=":")
    for found in all_keys(client):
        if found["name"] == key:
            return quote(str(found["id"]), safe=":")
    raise CommandError(f"The server has no key named '{key}'. See: antiphon key list")


def print_secret(key: JSONObject, *, as_json: bool) -> None:
    """Only the secret goes to standard output, for pipes."""
    if as_json:
        Console().print_json(data=key)
        return
    click.echo(f"The key of {safe(key['name'])}, which is not shown again:\n", err=True)
    click.echo(key["secret"])


def print_keys(keys: Sequence[JSONObject], *, as_json: bool) -> None:
    console = Console()
    if as_json:
        console.print_json(data=keys)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "owner", "models", "limits", "budgets", "expires", "last used", "state"):
        table.add_column(heading, overflow="fold")
    for key in keys:
        table.add_row(*map(safe, _row(key)))
    _print_table(console, table)


def _row(key: Mapping[str, Any]) -> list[object]:
    limits = [f"{key[name]} {label}" for name, label in _LIMITS.items() if key[name] is not None]
    states = {
        "admin": key["admin"],
        "revoked": key["revoked"],
        "in the settings": key["source"] == "settings",
        "rotated": key["previous_secret_expires_at"],
    }
    return [
        key["name"],
        key["owner"],
        ", ".join(key["models"]) or "none",
        ", ".join(limits),
        ", ".join(f"{name}={amount}" for name, amount in key["budgets"].items()),
        _shown(key["expires_at"]),
        _shown(key["last_used_at"]),
        ", ".join(name for name, applies in states.items() if applies),
    ]


def _shown(time: int | None) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M") if time else ""


def _print_table(console: Console, table: Table) -> None:
    if not console.is_terminal:  # do not truncate lines in a file
        console.width = max(console.width, 200)
    console.print(table)


def show_usage(client: ServerClient, console: Console, query: Mapping[str, str | None], *, as_json: bool) -> None:
    """Raises `CommandError`."""
    parameters = {name: value for name, value in query.items() if value}
    listed = client.get(f"antiphon/usage?{urlencode(parameters)}")
    if as_json:
        console.print_json(data=listed)
        return
    groups = [name.strip() for name in (query.get("group") or "").split(",") if name.strip()]
    table = Table(title=f"{listed['from']} to {listed['to']} (UTC)", show_footer=True, box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(groups):
        table.add_column(name, footer="" if number else "total", no_wrap=True)
    for name, heading in _COUNTS.items():
        table.add_column(heading, footer=_number(listed["total"][name]), justify="right", no_wrap=True)
    for entry in listed["data"]:
        table.add_row(*(safe(entry[name]) for name in groups), *(_number(entry[name]) for name in _COUNTS))
    _print_table(console, table)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6f}"
