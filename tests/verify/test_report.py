"""Reports of results."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from starlette.types import Receive, Scope, Send

from app.backends.demo import DemoBackend
from app.main import create_app
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.report import Terminal, VerifyProgress, as_json, as_junit, print_report
from openresponses_verify.rows import Check, CheckResult, Failed, Inconclusive, Unsupported
from openresponses_verify.runner import VerifyReport
from tests.support import fork_server
from tests.support.serving import serving, settings
from tests.support.sockets import listening
from tests.verify.broken_server import BrokenServer, Fault, Reply, Sent


async def _nothing(server: object) -> None:
    """Check nothing."""


def _result(name: str, verdict: str, detail: str = "", request: str = "") -> CheckResult:
    check = Check(f"stream.{name}", f"Title of {name}", f"The law of {name}.", "Specification, Streaming", _nothing)
    return CheckResult(check, verdict, detail, request, 0.25)  # type: ignore[arg-type]


REPORT = VerifyReport(
    "http://127.0.0.1:9/v1",
    "m",
    "2026-11-23T12:00:00+00:00",
    1.5,
    7,
    [
        _result("good", "pass"),
        _result("bad", "fail", 'There is a gap.\n{"sequence_number": 4}\x1b[31m', "curl -sN http://127.0.0.1:9/v1 <&>"),
        _result("absent", "unsupported", "HTTP 404"),
        _result("odd", "unclear", "The model did not call."),
    ],
    ["/responses/resp_1"],
)


def test_json_report_has_the_documented_shape() -> None:
    document = json.loads(as_json(REPORT))
    assert list(document) == ["server", "model", "started_at", "seconds", "summary", "checks"]
    assert document["summary"] == {"pass": 1, "fail": 1, "unsupported": 1, "unclear": 1}
    names = ["id", "group", "title", "status", "law", "source", "request", "detail", "seconds"]
    assert [list(row) for row in document["checks"]] == [names] * 4
    assert document["checks"][1]["id"] == "stream.bad"
    assert document["checks"][1]["group"] == "stream"
    assert document["checks"][1]["detail"].startswith("There is a gap.")
    assert document["checks"][0]["request"] is None


def test_junit_report_is_xml_that_counts_failures_and_skips() -> None:
    root = ElementTree.fromstring(as_junit(REPORT))
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("4", "1", "2")
    (suite,) = root
    assert suite.get("name") == "stream"
    (failure,) = root.iter("failure")
    assert "There is a gap." in (failure.text or "") and "<&>" in (failure.text or "")
    assert [skipped.get("message") for skipped in root.iter("skipped")] == [
        "unsupported: HTTP 404",
        "unclear: The model did not call.",
    ]


def test_terminal_report_has_failures_first_with_sentence_place_finding_and_request() -> None:
    output = io.StringIO()
    print_report(REPORT, Terminal(output))
    text = output.getvalue()
    order = [
        "fail stream.bad",
        "The law of bad.",
        "Specification, Streaming",
        "There is a gap.",
        '"sequence_number": 4',
    ]
    order += [
        '"sequence_number": 4',
        "curl -sN",
        "stream.absent",
        "stream.odd",
        "group",
        "/responses/resp_1",
        "1 pass, 1 fail, 1 unsupported",
    ]
    at = [text.index(words) for words in order]
    assert at == sorted(at)
    assert "\x1b[31m" not in text


def test_progress_elsewhere_than_on_a_terminal_is_a_line_for_each_check() -> None:
    output = io.StringIO()
    with VerifyProgress(Terminal(output)) as progress:
        for result in REPORT.results:
            progress.ended(result, 4)
    assert output.getvalue().split() == [
        *("pass", "stream.good", "fail", "stream.bad"),
        *("unsupported", "stream.absent", "unclear", "stream.odd"),
    ]


def test_progress_on_a_terminal_is_a_bar() -> None:
    output = io.StringIO()
    with VerifyProgress(Terminal(output, interactive=True)) as progress:
        progress.ended(REPORT.results[0], 4)
    assert "stream.good" in output.getvalue() and "1/4" in output.getvalue()


def test_request_is_shown_as_curl_without_the_key() -> None:
    exchange = HTTPExchange("POST", "http://h/v1/responses", {"model": "m", "input": "it's"}, "API_KEY")
    assert exchange.curl() == (
        "curl -sN http://h/v1/responses -H \"Authorization: Bearer $API_KEY\" -H 'Content-Type: application/json' "
        '-d \'{"model": "m", "input": "it\'"\'"\'s"}\''
    )
    assert HTTPExchange("DELETE", "http://h/v1/responses/r").curl() == "curl -sN -X DELETE http://h/v1/responses/r"
    long = HTTPExchange("POST", "http://h", {"input": "x" * 100_000}).curl()
    assert len(long) < 2_200 and "characters)" in long


def test_check_end_gives_its_verdict() -> None:
    assert [ended("x").verdict for ended in (Failed, Unsupported, Inconclusive)] == ["fail", "unsupported", "unclear"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run("verify", *arguments)


async def test_command_with_all_checks_passed_exits_0_and_writes_both_files(tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "report.json"), "--junit", str(tmp_path / "report.xml"))
    async with listening(DemoBackend()) as url:
        done = await asyncio.to_thread(run, url, "--only", "stream.*", "--concurrency", "2", *files)
        assert done.returncode == 0, done.stdout + done.stderr
        failing = await asyncio.to_thread(run, url, "--model", "demo", "--only", "errors.path", "--timeout", "0.000001")
    assert json.loads((tmp_path / "report.json").read_text())["summary"]["fail"] == 0
    assert ElementTree.parse(tmp_path / "report.xml").getroot().get("failures") == "0"
    assert failing.returncode == 2


async def test_command_with_a_failed_check_exits_1() -> None:
    def without_request_id(answer: Reply, sent: Sent) -> None:
        answer.headers.pop("x-request-id", None)

    server = BrokenServer(
        create_app(settings(), backend=DemoBackend()), Fault("no request id", "", reply=without_request_id)
    )
    async with serving(server) as url:
        done = await asyncio.to_thread(run, url, "--only", "clients.request-id", "--only", "errors.path")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fail clients.request-id" in done.stdout and "1 pass, 1 fail" in done.stdout


def test_command_with_nothing_to_try_exits_2() -> None:
    done = run("http://127.0.0.1:9", "--only", "stream.*", "--only", "no.such")
    stderr = "antiphon: Invalid --only 'no.such': must match the id of a check, such as 'stream.*'.\n"
    assert (done.returncode, done.stderr) == (2, stderr)
    done = run("http://127.0.0.1:9", "--only", "stream.done", "--skip", "stream.*")
    assert (done.returncode, done.stderr) == (2, "antiphon: No check is left to run.\n")


@pytest.mark.parametrize("line", ["sk-secret", "a b: x", ": x", "x-y: a\nb", "x-y: sk-secret\u00e9"])
def test_command_with_an_invalid_header_names_the_form_but_not_the_value(line: str) -> None:
    done = run("http://127.0.0.1:9", "--header", line)
    assert done.returncode == 2
    assert "must be NAME:VALUE" in done.stderr and "sk-secret" not in done.stderr


async def test_command_sends_added_headers_and_prints_no_value(tmp_path: Path) -> None:
    seen: list[str | None] = []

    def note(answer: Reply, sent: Sent) -> None:
        seen.append(sent.headers.get("api-key"))
        answer.headers.pop("x-request-id", None)

    report = tmp_path / "report.json"
    server = BrokenServer(create_app(settings(), backend=DemoBackend()), Fault("", "", reply=note))
    async with serving(server) as url:
        arguments = ("--only", "clients.request-id", "--header", "api-key: sk-secret", "--json", str(report))
        done = await asyncio.to_thread(run, url, *arguments)
    assert len(seen) >= 2 and set(seen) == {"sk-secret"}
    assert "sk-secret" not in done.stdout + report.read_text()
    assert '-H "api-key: $API_KEY"' in done.stdout


async def test_json_report_has_the_request_of_passing_checks(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    groups = ("stream.*", "websocket.*", "errors.*", "state.*")
    async with listening(DemoBackend()) as url:
        await asyncio.to_thread(
            run, url, *(word for group in groups for word in ("--only", group)), "--json", str(report)
        )
    rows = [row for row in json.loads(report.read_text())["checks"] if row["status"] == "pass"]
    assert len(rows) > 80
    assert [row["id"] for row in rows if not str(row["request"]).startswith(("curl ", "websocat "))] == []
    requests = {row["id"]: row["request"] for row in rows}
    assert '"temperature": 17' in requests["errors.temperature-range"]
    assert '"stream": true' in requests["stream.answer"]


async def test_ctrl_c_prints_the_summary_so_far_and_deletes_what_was_stored(tmp_path: Path) -> None:
    app = create_app(settings(), backend=DemoBackend())
    held, deleted = asyncio.Event(), []

    async def holding(scope: Scope, receive: Receive, send: Send) -> None:
        """Never answer the second check."""
        if scope["type"] == "http" and scope["path"].endswith("/no/such/path/at/all"):
            held.set()
            await receive()
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if scope["type"] == "http" and scope["method"] == "DELETE":
            deleted.append(scope["path"])
        await app(scope, receive, send)

    report = tmp_path / "report.json"
    arguments = ("--only", "state.retrieve", "--only", "errors.path", "--concurrency", "1", "--json", str(report))
    async with serving(holding) as url:
        with (tmp_path / "out").open("w") as out:
            process = fork_server.start("verify", url, *arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            async with asyncio.timeout(120):
                await held.wait()
            process.send_signal(signal.SIGINT)
            status = await asyncio.to_thread(process.wait, 120)
    text = (tmp_path / "out").read_text()
    assert status == 130, text
    assert "Interrupted" in text and "1 pass, 0 fail" in text
    assert len(deleted) == 1
    assert [row["id"] for row in json.loads(report.read_text())["checks"]] == ["state.retrieve"]
