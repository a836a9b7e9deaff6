"""The table in README: this server beside others. Cells are results of the checks, or facts with their source."""

from __future__ import annotations

from typing import Any, NamedTuple

from openresponses_verify.checks import ALL_CHECKS

Results = dict[str, dict[str, Any]]

# The columns, and the results for each.
_COLUMNS = {
    "Antiphon": "Antiphon, postgresql",
    "LiteLLM": "LiteLLM",
    "OGX": "OGX",
    "SMG": "SMG",
    "agentic-api": "agentic-api",
    "vLLM": "vLLM",
}
_NOT_RUN = "not run"


class _Fact(NamedTuple):
    """A row with facts, a cell per column."""

    about: str
    cells: tuple[str, str, str, str, str, str]
    source: str


class _Group(NamedTuple):
    """A group of checks: a row in the results."""

    about: str
    group: str


_ROWS: tuple[_Fact | _Group, ...] = (
    _Group("streams", "stream"),
    _Group("stored responses, `previous_response_id`", "state"),
    _Group("conversations", "conversations"),
    _Group("background responses, resumed streams", "background"),
    _Group("WebSocket", "websocket"),
    _Group("compaction", "compaction"),
    _Group("functions and custom tools", "tools"),
    _Fact(
        "stores",
        (
            "memory, SQLite, Redis, PostgreSQL",
            "PostgreSQL",
            "SQLite, PostgreSQL",
            "memory, Redis, PostgreSQL, Oracle",
            "SQLite, PostgreSQL",
            "memory",
        ),
        "[settings](docs/settings.md#stores)",
    ),
    _Fact(
        "hosted tools",
        (
            "MCP, web, files, code, shell, images",
            "MCP, web, files",
            "MCP, web, files",
            "MCP",
            "MCP, web, files, code",
            "MCP, web, code, by tool servers",
        ),
        "[tools](docs/tools.md)",
    ),
)


def comparison(results: Results) -> str:
    """Return the table; a column without results is empty."""
    totals = [_totals(results.get(name)) for name in _COLUMNS.values()]
    first = [f"checks passed, failed (of {len(ALL_CHECKS)})", *totals, "[all](docs/conformance.md)"]
    rows = [_line(["", *_COLUMNS, "source"]), f"|---|{'---|' * (len(_COLUMNS) + 1)}", _line(first)]
    for row in _ROWS:
        if isinstance(row, _Fact):
            rows.append(_line([row.about, *row.cells, row.source]))
        else:
            cells = [_passed(results.get(name), row.group) for name in _COLUMNS.values()]
            rows.append(_line([row.about, *cells, f"checks `{row.group}`"]))
    return "\n".join(rows)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _totals(result: dict[str, Any] | None) -> str:
    statuses = [*result["statuses"].values()] if result else []
    return f"{statuses.count('pass')}, {statuses.count('fail')}" if result else _NOT_RUN


def _passed(result: dict[str, Any] | None, group: str) -> str:
    """Return how many conclusive checks in a group pass: all, none, or a number."""
    if not result:
        return _NOT_RUN
    statuses = [status for id, status in result["statuses"].items() if id.startswith(f"{group}.")]
    passed, failed = statuses.count("pass"), statuses.count("fail")
    if not passed:
        return f"no ({failed} failed)" if failed else "no"
    if passed + statuses.count("unclear") == len(statuses):
        return "yes"
    return f"{passed} of {len(statuses)}" + (f" ({failed} failed)" if failed else "")
