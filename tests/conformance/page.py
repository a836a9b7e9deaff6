"""`docs/conformance.md`, generated from the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openresponses_verify.checks import ALL_CHECKS, CHECK_GROUPS

Results = dict[str, dict[str, Any]]
_SHOWN = 120  # characters of a failure

_INTRODUCTION = """# Conformance

`make conformance` runs the {count} checks of [`antiphon verify`](verify.md) on these servers and writes this page.

- Antiphon, LiteLLM, open-responses-server, OGX, codex-relay and fastresponses use a scripted Chat Completions server
  (`tests/conformance/upstream.py`) as their backend.
- SMG, agentic-api and vllm-router need a backend with the Responses API: Antiphon, in front of the same server.
- llama.cpp, transformers and vLLM answer by their own `/v1/responses`, with [a tiny model](../tests/real/README.md).

The column *official suite* counts the 17 tests of the specification's compliance suite. OpenAI's own service fails two
rules of `antiphon verify`: `data: [DONE]` at the end of a stream, and the specification's event names. The results of a
check:

- *failed*: the server breaks the rule. A single fault can fail several checks.
- *unsupported*: the server reports a missing feature (a 404, or an error that names the field). This is not a failure.
- *unclear*: the model did not cooperate, or another failure hides the result.
"""


def totals(results: Results) -> str:
    """Return all servers' totals in a line."""
    parts = []
    for name, result in _with_one_antiphon(results).items():
        counts = " and ".join(str(_count(result, verdict)) for verdict in ("pass", "fail"))
        parts.append(f"{name} {counts}")
    return f"Checks passed and failed: {'; '.join(parts)}."


def page(results: Results) -> str:
    """Return the page."""
    columns = _with_one_antiphon(results)
    parts = [_INTRODUCTION.format(count=len(ALL_CHECKS)), *_servers(results), *_groups(columns), *_checks(columns)]
    return "\n".join([*parts, *_failures(results)]) + "\n"


def _with_one_antiphon(results: Results) -> Results:
    """Merge the results of Antiphon's stores if they are equal."""
    stores = [result for name, result in results.items() if name.startswith("Antiphon, ")]
    if not stores or any(result["statuses"] != stores[0]["statuses"] for result in stores):
        return results
    return {"Antiphon": stores[0], **{name: result for name, result in results.items() if result not in stores}}


def _count(result: dict[str, Any], verdict: str, group: str = "") -> int:
    prefix = f"{group}." if group else ""
    return sum(status == verdict and id.startswith(prefix) for id, status in result["statuses"].items())


def _servers(results: Results) -> Iterator[str]:
    yield "| server | version | date | settings | passed | failed | unsupported | unclear | official suite |"
    yield "|---|---|---|---|--:|--:|--:|--:|--:|"
    for name, result in results.items():
        counts = " | ".join(str(_count(result, verdict)) for verdict in ("pass", "fail", "unsupported", "unclear"))
        suite = f"{_count(result, 'pass', 'suite')} of {sum(check.id.startswith('suite.') for check in ALL_CHECKS)}"
        yield f"| {name} | {result['version']} | {result['date']} | {result['settings']} | {counts} | {suite} |"
    yield ""


def _groups(results: Results) -> Iterator[str]:
    yield "## By group\n\nPassed checks, and failed checks in brackets; `-` if the group is not supported.\n"
    yield f"| group | {' | '.join(results)} |"
    yield f"|---|{'---|' * len(results)}"
    for group in CHECK_GROUPS:
        cells = []
        for result in results.values():
            passed, failed = (_count(result, verdict, group) for verdict in ("pass", "fail"))
            cells.append(f"{passed} ({failed})" if failed else str(passed or "-"))
        yield f"| {group} | {' | '.join(cells)} |"
    yield ""


_MARKS = {"pass": "\u2713", "fail": "\u2717", "unsupported": "-", "unclear": "?"}


def _checks(results: Results) -> Iterator[str]:
    differing = [
        check
        for check in ALL_CHECKS
        if {result["statuses"].get(check.id) for result in results.values()} - {"pass", "unclear"}
    ]
    yield "## By check\n\n\u2713 passed, \u2717 failed, - unsupported, ? unclear. The other checks, "
    yield f"{len(ALL_CHECKS) - len(differing)} of {len(ALL_CHECKS)}, failed on no server and are not listed.\n"
    yield f"| check | {' | '.join(results)} |"
    yield f"|---|{':-:|' * len(results)}"
    for check in differing:
        marks = [_MARKS.get(result["statuses"].get(check.id, ""), "") for result in results.values()]
        title = "" if check.id.endswith(f".{check.title}") else f" {check.title}"
        yield f"| `{check.id}`{title} | {' | '.join(marks)} |"
    yield ""


def _failures(results: Results) -> Iterator[str]:
    yield "## What failed\n\nLong messages are cut; `tests/conformance/results.json` has more of them."
    for name, result in results.items():
        if result["details"]:
            yield f"\n### {name} {result['version']}\n"
        checks: dict[str, list[str]] = {}
        for id, detail in result["details"].items():
            checks.setdefault(detail, []).append(f"`{id}`")
        for detail, ids in checks.items():
            yield f"- {', '.join(ids)}: {_escaped(detail)}"


def _escaped(text: str) -> str:
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
