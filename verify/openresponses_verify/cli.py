"""The command line: `openresponses-verify URL`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from openresponses_verify.report import Terminal, VerifyProgress, as_json, as_junit, print_report
from openresponses_verify.runner import NothingToVerify, chosen_checks, verify_server
from openresponses_verify.server import ServerAccess, read_headers


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Check that a server follows the Open Responses specification.",
        epilog="Exit status: 0: no check failed; 1: a check failed; 2: nothing could be tried; 130: interrupted.",
    )
    add = parser.add_argument
    add("url", help="base URL of the server, such as http://localhost:8080/v1")
    add("--model", help="model to use; by default the first one listed")
    add("--api-key", default=os.environ.get("OPENAI_API_KEY"), help="the key to send; also OPENAI_API_KEY")
    add("--second-api-key", help="the key of another user, to check isolation")
    add("--only", action="append", default=[], metavar="GLOB", help="checks to run; may be repeated")
    add("--skip", action="append", default=[], metavar="GLOB", help="checks to leave out; may be repeated")
    add("--json", type=Path, metavar="FILE", help="write the results as JSON")
    add("--junit", type=Path, metavar="FILE", help="write the results as JUnit's XML")
    add("--timeout", type=float, default=60, metavar="SECONDS", help="time to wait for an answer (%(default)s)")
    add("--concurrency", type=int, default=4, metavar="N", help="requests to send at a time (%(default)s)")
    add("--header", action="append", default=[], metavar="NAME:VALUE", help="a header to send; may be repeated")
    return parser


def main(arguments: Sequence[str] | None = None, program: str = "openresponses-verify") -> int:
    """Check a server, print the report, and return the exit status (see `--help`)."""
    parser = _parser(program)
    options = parser.parse_args(arguments)
    if options.concurrency < 1:
        parser.error("Invalid --concurrency: must be at least 1.")
    try:
        headers = read_headers(options.header)
    except ValueError as error:
        parser.error(f"Invalid --header: {error}.")
    access = ServerAccess(
        options.url,
        options.model,
        options.api_key,
        options.second_api_key,
        options.timeout,
        options.concurrency,
        headers,
    )
    terminal = Terminal(sys.stdout)
    try:
        checks = chosen_checks(options.only, options.skip)
        with VerifyProgress(terminal) as progress:
            report = asyncio.run(verify_server(access, checks, progress.ended))
    except NothingToVerify as error:
        print(f"{program.partition(' ')[0]}: {error}", file=sys.stderr)
        return 2
    for path, write in ((options.json, as_json), (options.junit, as_junit)):
        if path:
            path.write_text(write(report), encoding="utf-8")
    print_report(report, terminal)
    if report.interrupted:
        return 130
    return 1 if report.summary["fail"] else 0
