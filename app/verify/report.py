"""What is told of the results: on a terminal, as JSON, and as JUnit's XML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import TracebackType
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.verify.rows import CheckResult
from app.verify.runner import VERDICTS, VerifyReport

_STYLES = {"pass": "green", "fail": "bold red", "unsupported": "yellow", "unclear": "cyan"}
# What a server answers could manipulate the terminal; and XML has no place for some characters at all.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def _plain(text: str) -> str:
    return _CONTROLS.sub("\ufffd", text)


class VerifyProgress:
    """Shows the checks as they end: a bar on a terminal, a line for each elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("checking", total=None)

    def __enter__(self) -> VerifyProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def ended(self, result: CheckResult, total: int) -> None:
        """Show that a check has ended."""
        if self._bar:
            self._bar.update(self._task, total=total, advance=1, description=result.check.id)
        else:
            self._console.print(f"{result.verdict:11} {result.check.id}", highlight=False, markup=False)


def print_report(report: VerifyReport, console: Console) -> None:
    """Print the failures, then the other results that are no pass, then the summary by group."""
    failed = [result for result in report.results if result.verdict == "fail"]
    for result in failed:
        _print_failure(result, console)
    for verdict in ("unsupported", "unclear"):
        others = [result for result in report.results if result.verdict == verdict]
        if others:
            console.print(f"\n[{_STYLES[verdict]}]{verdict}[/]")
        for result in others:
            first = _plain(result.detail).partition("\n")[0]
            console.print(f"  {result.check.id}  [dim]{escape(first[:160])}[/]", highlight=False, soft_wrap=True)
    console.print()
    if report.interrupted:
        console.print("Interrupted: these are the results so far.\n")
    console.print(_table(report))
    for path in report.not_deleted[:5]:
        console.print(f"not deleted: {escape(_plain(path))}", highlight=False)
    if len(report.not_deleted) > 5:
        console.print(f"... and {len(report.not_deleted) - 5} more: the server does not delete.")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.summary.items())
    console.print(
        f"\n{escape(_plain(report.url))}, model {escape(_plain(report.model))}: {counts} "
        f"({report.requests} requests, {report.seconds:.1f} s)",
        highlight=False,
        soft_wrap=True,
    )


def _print_failure(result: CheckResult, console: Console) -> None:
    check = result.check
    console.print(f"\n[{_STYLES['fail']}]fail[/] [bold]{check.id}[/]  {escape(check.title)}", highlight=False)
    lines = [("law", check.law), ("source", check.source), ("found", result.detail), ("request", result.request)]
    for name, text in lines:
        for at, line in enumerate(_plain(text).splitlines()):
            console.print(f"  [dim]{name if not at else '':8}[/]{escape(line)}", highlight=False, soft_wrap=True)


def _table(report: VerifyReport) -> Table:
    table = Table("group", *VERDICTS, box=None, pad_edge=False)
    groups = dict.fromkeys(result.check.group for result in report.results)
    for group in groups:
        counts = [sum(r.check.group == group and r.verdict == verdict for r in report.results) for verdict in VERDICTS]
        cells = (f"[{_STYLES[v]}]{n}[/]" if n else "" for v, n in zip(VERDICTS, counts, strict=True))
        table.add_row(group, *cells)
    return table


def as_json(report: VerifyReport) -> str:
    """Return the report as a JSON document."""
    document = {
        "server": report.url,
        "model": report.model,
        "started_at": report.started_at,
        "seconds": report.seconds,
        "summary": report.summary,
        "checks": [_row(result) for result in report.results],
    }
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _row(result: CheckResult) -> dict[str, object]:
    check = result.check
    return {
        "id": check.id,
        "group": check.group,
        "title": check.title,
        "status": result.verdict,
        "law": check.law,
        "source": check.source,
        "request": result.request or None,
        "detail": result.detail or None,
        "seconds": result.seconds,
    }


def as_junit(report: VerifyReport) -> str:
    """Return the report as JUnit's XML: a suite for each group; what is unsupported or unclear is skipped."""
    root = ElementTree.Element("testsuites", {"name": "antiphon verify", **_counts(report.results)})
    for group in dict.fromkeys(result.check.group for result in report.results):
        results = [result for result in report.results if result.check.group == group]
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": group, "timestamp": report.started_at, **_counts(results)}
        )
        for result in results:
            suite.append(_case(result))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(results: list[CheckResult]) -> dict[str, str]:
    skipped = sum(result.verdict in ("unsupported", "unclear") for result in results)
    failed = sum(result.verdict == "fail" for result in results)
    seconds = sum(result.seconds for result in results)
    return {
        "tests": str(len(results)),
        "failures": str(failed),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{seconds:.3f}",
    }


def _case(result: CheckResult) -> ElementTree.Element:
    check = result.check
    case = ElementTree.Element(
        "testcase", {"classname": f"verify.{check.group}", "name": check.id, "time": f"{result.seconds:.3f}"}
    )
    if result.verdict == "fail":
        failure = ElementTree.SubElement(case, "failure", {"message": check.title, "type": "fail"})
        failure.text = "\n".join(_plain(line) for line in _told(result))
    elif result.verdict != "pass":
        first = result.detail.partition("\n")[0]
        ElementTree.SubElement(case, "skipped", {"message": _plain(f"{result.verdict}: {first}")})
    return case


def _told(result: CheckResult) -> Iterator[str]:
    yield f"{result.check.law} ({result.check.source})"
    yield from (result.detail, result.request)
