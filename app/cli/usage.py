"""`antiphon usage`: prints usage per key."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.cli.client import ServerClient, safe

_COUNTS = {
    "requests": "requests",
    "input_tokens": "input",
    "cached_input_tokens": "cached",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
    "cost": "cost",
}


def show_usage(client: ServerClient, console: Console, query: Mapping[str, str | None], *, as_json: bool) -> None:
    """Raises `ServerError`."""
    parameters = {name: value for name, value in query.items() if value}
    listed = client.get(f"antiphon/usage?{urlencode(parameters)}")
    if as_json:
        console.print_json(data=listed)
        return
    groups = (query.get("group") or "").split(",")
    table = Table(title=f"{listed['from']} to {listed['to']} (UTC)", show_footer=True, box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(groups):
        table.add_column(name, footer="" if number else "total", no_wrap=True)
    for name, heading in _COUNTS.items():
        table.add_column(heading, footer=_number(listed["total"][name]), justify="right", no_wrap=True)
    for entry in listed["data"]:
        table.add_row(*(safe(entry[name]) for name in groups), *(_number(entry[name]) for name in _COUNTS))
    if not console.is_terminal:  # do not truncate lines in a file
        console.width = max(console.width, 200)
    console.print(table)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6f}"
