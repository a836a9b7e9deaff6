"""The table in README: this server beside others. Cells are results of the checks, or facts with their source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from openresponses_verify.checks import ALL_CHECKS

Results = dict[str, dict[str, Any]]

# The columns, and of which results each is. The last two do not run where this page is made: they are written in Go.
_COLUMNS = {"Antiphon": "Antiphon, postgresql", "LiteLLM": "LiteLLM", "OGX": "OGX", "vLLM": "vLLM"}
_OTHERS = ("Ollama", "openresponses-gw")
_NOT_RUN = "not run"


class _Fact(NamedTuple):
    """A row of facts; a cell for each column."""

    about: str
    cells: tuple[str, str, str, str, str, str]
    source: str


class _Group(NamedTuple):
    """A row of results: a group of checks, and what is known of those that were not run, or not in that way."""

    about: str
    group: str
    others: tuple[str, str]
    known: Mapping[str, str] = {}


_ROWS: tuple[_Fact | _Group, ...] = (
    _Fact(
        "answers through",
        (
            "any server of Chat Completions, Responses or Messages",
            "100+ providers, in their own APIs",
            "some 30 providers",
            "its own models",
            "its own models",
            "one Chat Completions or Responses server",
        ),
        "[backends](docs/backends.md)",
    ),
    _Group("streams", "stream", (_NOT_RUN, _NOT_RUN)),
    _Group("stored responses, `previous_response_id`", "state", ("no", "yes")),
    _Group("conversations", "conversations", ("no", "yes")),
    _Group("in the background, resumed", "background", ("no", "no")),
    _Group("WebSocket", "websocket", ("no", "no"), {"LiteLLM": "5 of 13 (6 failed), with a key and `custom_openai/`"}),
    _Group("compaction", "compaction", ("no", "no")),
    _Group("functions and custom tools", "tools", (_NOT_RUN, _NOT_RUN)),
    _Fact(
        "stores",
        (
            "memory, SQLite, Redis, PostgreSQL",
            "PostgreSQL",
            "SQLite, PostgreSQL",
            "memory",
            "none",
            "memory, SQLite, PostgreSQL",
        ),
        "[settings](docs/settings.md#stores)",
    ),
    _Fact(
        "tools that the server runs",
        (
            "MCP, web, files, code, shell, images",
            "MCP, web, files",
            "MCP, web, files",
            "MCP, web, code, by tool servers",
            "web, in its cloud",
            "MCP, web, files",
        ),
        "[tools](docs/tools.md)",
    ),
    _Fact(
        "to be had as",
        ("a clone", "package, image", "package, image", "package, image", "program, image", "source"),
        "[state](#state-of-the-project)",
    ),
)


def comparison(results: Results) -> str:
    """Return the table; a column without results is empty."""
    totals = [_totals(results.get(name)) for name in _COLUMNS.values()]
    first = [
        f"checks passed, failed (of {len(ALL_CHECKS)})",
        *totals,
        *(_NOT_RUN for _ in _OTHERS),
        "[all](docs/conformance.md)",
    ]
    rows = [
        _line(["", *_COLUMNS, *_OTHERS, "shown by"]),
        f"|---|{'---|' * (len(_COLUMNS) + len(_OTHERS) + 1)}",
        _line(first),
    ]
    for row in _ROWS:
        if isinstance(row, _Fact):
            rows.append(_line([row.about, *row.cells, row.source]))
        else:
            cells = [row.known.get(name) or _passed(results.get(name), row.group) for name in _COLUMNS.values()]
            rows.append(_line([row.about, *cells, *row.others, f"checks `{row.group}`"]))
    return "\n".join(rows)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _totals(result: dict[str, Any] | None) -> str:
    statuses = [*result["statuses"].values()] if result else []
    return f"{statuses.count('pass')}, {statuses.count('fail')}" if result else _NOT_RUN


def _passed(result: dict[str, Any] | None, group: str) -> str:
    """Return how much of a group passes: all that could be judged, none of it, or how many."""
    if not result:
        return _NOT_RUN
    statuses = [status for id, status in result["statuses"].items() if id.startswith(f"{group}.")]
    passed, failed = statuses.count("pass"), statuses.count("fail")
    if not passed:
        return f"no ({failed} failed)" if failed else "no"
    if passed + statuses.count("unclear") == len(statuses):
        return "yes"
    return f"{passed} of {len(statuses)}" + (f" ({failed} failed)" if failed else "")
