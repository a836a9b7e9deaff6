"""Reports on a terminal, as JSON, and as JUnit XML."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TextIO
from xml.etree import ElementTree

from openresponses_verify.rows import CheckResult, Verdict
from openresponses_verify.runner import VERDICTS, VerifyReport

_STYLES = {"pass": "32", "fail": "1;31", "unsupported": "33", "unclear": "36"}
_BOLD, _DIM = "1", "2"
_BAR = 40  # columns
# Control characters could manipulate the terminal; some are invalid in XML.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def _plain(text: str) -> str:
    return _CONTROLS.sub("\ufffd", text)


class Terminal:
    """Writes lines, colored on a terminal unless `NO_COLOR` is set."""

    def __init__(self, stream: TextIO, interactive: bool | None = None) -> None:
        self.interactive = stream.isatty() if interactive is None else interactive
        self._stream = stream
        self._colors = self.interactive and not os.environ.get("NO_COLOR")

    def style(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._colors and text.strip() else text

    def line(self, text: str = "") -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def replace_line(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()


class VerifyProgress:
    """Shows progress: a bar on a terminal, otherwise a line per check."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._ended = 0
        self._began = time.monotonic()

    def __enter__(self) -> VerifyProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._terminal.interactive:
            self._terminal.replace_line("")

    def ended(self, result: CheckResult, total: int) -> None:
        if not self._terminal.interactive:
            self._terminal.line(f"{result.verdict:11} {result.check.id}")
            return
        self._ended += 1
        bar = "#" * (_BAR * self._ended // total)
        seconds = int(time.monotonic() - self._began)
        clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        self._terminal.replace_line(f"[{bar:{_BAR}}] {self._ended}/{total} {clock} {result.check.id}")


def print_report(report: VerifyReport, terminal: Terminal) -> None:
    for result in report.results:
        if result.verdict == "fail":
            _print_failure(result, terminal)
    for verdict in ("unsupported", "unclear"):
        others = [result for result in report.results if result.verdict == verdict]
        if others:
            terminal.line(f"\n{terminal.style(verdict, _STYLES[verdict])}")
        for result in others:
            first = _plain(result.detail).partition("\n")[0]
            terminal.line(f"  {result.check.id}  {terminal.style(first[:160], _DIM)}")
    terminal.line()
    if report.interrupted:
        terminal.line("Interrupted: these are the results so far.\n")
    for line in _table(report, terminal):
        terminal.line(line)
    for path in report.not_deleted[:5]:
        terminal.line(f"not deleted: {_plain(path)}")
    if len(report.not_deleted) > 5:
        terminal.line(f"... and {len(report.not_deleted) - 5} more: the server does not delete.")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.summary.items())
    terminal.line(
        f"\n{_plain(report.url)}, model {_plain(report.model)}: {counts} "
        f"({report.requests} requests, {report.seconds:.1f} s)"
    )


def _print_failure(result: CheckResult, terminal: Terminal) -> None:
    check = result.check
    terminal.line(f"\n{terminal.style('fail', _STYLES['fail'])} {terminal.style(check.id, _BOLD)}  {check.title}")
    lines = [("law", check.law), ("source", check.source), ("found", result.detail), ("request", result.request)]
    for name, text in lines:
        for at, line in enumerate(_plain(text).splitlines()):
            label = terminal.style(f"{name if not at else '':8}", _DIM)
            terminal.line(f"  {label}{line}")


def _table(report: VerifyReport, terminal: Terminal) -> Iterator[str]:
    """Yield a table: a row per group, a column per verdict."""
    groups = list(dict.fromkeys(result.check.group for result in report.results))
    width = max(len(name) for name in ("group", *groups))
    yield terminal.style(f"{'group':{width}}  {'  '.join(VERDICTS)}", _BOLD)
    for group in groups:
        counts = [_count(report.results, group, verdict) for verdict in VERDICTS]
        cells = [f"{count or '':<{len(verdict)}}" for count, verdict in zip(counts, VERDICTS, strict=True)]
        styled = [terminal.style(cell, _STYLES[verdict]) for cell, verdict in zip(cells, VERDICTS, strict=True)]
        yield f"{group:{width}}  {'  '.join(styled)}"


def _count(results: Sequence[CheckResult], group: str, verdict: Verdict) -> int:
    return sum(result.check.group == group and result.verdict == verdict for result in results)


def as_json(report: VerifyReport) -> str:
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
    """Return JUnit XML with a suite per group. Unsupported and unclear checks are skipped."""
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
        failure.text = "\n".join(_plain(line) for line in _detail_lines(result))
    elif result.verdict != "pass":
        first = result.detail.partition("\n")[0]
        ElementTree.SubElement(case, "skipped", {"message": _plain(f"{result.verdict}: {first}")})
    return case


def _detail_lines(result: CheckResult) -> Iterator[str]:
    yield f"{result.check.law} ({result.check.source})"
    yield from (result.detail, result.request)
