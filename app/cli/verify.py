"""`antiphon verify`: checks any Responses server, prints what was found, and writes it to files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from app.verify.report import VerifyProgress, as_json, as_junit, print_report
from app.verify.runner import NothingToVerify, chosen_checks, verify_server
from app.verify.server import ServerAccess


def run_checks(
    access: ServerAccess, only: Sequence[str], skip: Sequence[str], files: tuple[Path | None, Path | None]
) -> int:
    """
    Check a server, print the report, and return the exit status.

    1 if a check failed, 2 if nothing could be tried, 130 if Ctrl-C ended the checks early. `files` are those for the
    report as JSON and as JUnit's XML.
    """
    console = Console()
    try:
        checks = chosen_checks(only, skip)
        with VerifyProgress(console) as progress:
            report = asyncio.run(verify_server(access, checks, progress.ended))
    except NothingToVerify as error:
        typer.echo(f"antiphon: {error}", err=True)
        return 2
    for path, write in zip(files, (as_json, as_junit), strict=True):
        if path:
            path.write_text(write(report), encoding="utf-8")
    print_report(report, console)
    if report.interrupted:
        return 130
    return 1 if report.summary["fail"] else 0
