"""`docs/conformance.md`, made of the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openresponses_verify.checks import ALL_CHECKS, CHECK_GROUPS

Results = dict[str, dict[str, Any]]

_INTRODUCTION = """# Who keeps the specification

`make conformance` holds the servers below against the {count} checks of [`antiphon verify`](verify.md) and writes this
page. LiteLLM, open-responses-server, OGX, codex-relay and fastresponses run, as Antiphon does, in front of one Chat
Completions server that answers by rules (`tests/conformance/upstream.py`). SMG, agentic-api and vllm-router need a
Responses server: they run in front of an Antiphon before that server. llama.cpp, transformers and vLLM, where they are
installed, run their own `/v1/responses` with the tiny model of [backends.md](backends.md). Each has the version and the
settings named here.

The column *official suite* counts the 17 tests of the specification's compliance suite, as this program repeats them.
`antiphon verify` is stricter than OpenAI's own service in two points: it requires `data: [DONE]` at the end of a stream
and the specification's event names.

A check that does not pass is one of three things. **Failed**: the server does otherwise than the sentence of the check
says. *Unsupported*: it says plainly that it does not have this (a 404, or an error that names the field), which is no
failure. *Unclear*: the model did not do as it was told, or another failure is in the way. One fault of a server may
fail several checks, and no check says how much its subject matters to you. Some sentences are OpenAI's, or those of a
client: `antiphon verify` prints the source of each.
"""


def totals(results: Results) -> str:
    """Return the totals of all servers, in a line."""
    parts = []
    for name, result in results.items():
        counts = " and ".join(str(_count(result, verdict)) for verdict in ("pass", "fail"))
        parts.append(f"{name.replace(',', ' over')} {counts}")
    return f"Checks passed and failed: {'; '.join(parts)}."


def page(results: Results) -> str:
    """Return the page."""
    parts = [_INTRODUCTION.format(count=len(ALL_CHECKS)), *_servers(results), *_groups(results), *_checks(results)]
    return "\n".join([*parts, *_failures(results)]) + "\n"


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
    yield "## By group\n\nPassed, and in brackets what failed; `-` where nothing of the group is supported.\n"
    yield f"| group | {' | '.join(results)} |"
    yield f"|---|{'---|' * len(results)}"
    for group in CHECK_GROUPS:
        cells = []
        for result in results.values():
            failed = [
                id.partition(".")[2]
                for id, status in result["statuses"].items()
                if status == "fail" and id.startswith(f"{group}.")
            ]
            passed = _count(result, "pass", group)
            cells.append(f"{passed} ({len(failed)}: {', '.join(failed)})" if failed else str(passed or "-"))
        yield f"| {group} | {' | '.join(cells)} |"
    yield ""


_MARKS = {"pass": "\u2713", "fail": "**failed**", "unsupported": "-", "unclear": "?"}


def _checks(results: Results) -> Iterator[str]:
    yield "## By check\n\n\u2713 passed, - unsupported, ? unclear.\n"
    yield f"| check | {' | '.join(results)} |"
    yield f"|---|{':-:|' * len(results)}"
    for check in ALL_CHECKS:
        marks = [_MARKS.get(result["statuses"].get(check.id, ""), "") for result in results.values()]
        yield f"| `{check.id}` {check.title} | {' | '.join(marks)} |"
    yield ""


def _failures(results: Results) -> Iterator[str]:
    yield "## What failed"
    for name, result in results.items():
        if result["details"]:
            yield f"\n### {name} {result['version']}\n"
        for id, detail in result["details"].items():
            yield f"- `{id}`: {_escaped(detail)}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
