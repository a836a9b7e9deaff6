"""Compares old and new settings at a reload, and reports each process's result."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from app.settings import Settings
from app.settings.loading import PREFIX

RELOADABLE = frozenset(
    name
    for name in Settings.model_fields
    if name.startswith(("backend", "limit_", "log_", "max_input_", "max_output_", "max_stored_"))
    and name != "limit_store_url"
) - {"background_runs", "background_lease", "background_log_ttl"} | {"api_keys", "keys", "prices", "prompts", "config"}


class SettingsChange(NamedTuple):
    settings: Settings  # the current settings with all applicable changes
    applied: list[str]  # fields
    restart: list[str]  # changed variables that need a restart


def compare_settings(old: Settings, new: Settings) -> SettingsChange:
    changed = [name for name in Settings.model_fields if getattr(old, name) != getattr(new, name)]
    reloadable = RELOADABLE
    if not new.has_keys:  # without keys, a middleware added at start rejects pages from other origins
        reloadable -= {"api_keys", "keys"}
    applied = [name for name in changed if name in reloadable]
    restart = [f"{PREFIX}{name.upper()}" for name in changed if name not in reloadable]
    restart.sort()
    return SettingsChange(old.model_copy(update={name: getattr(new, name) for name in applied}), applied, restart)


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """A process's reload result."""

    pid: int
    begun: int  # `time.monotonic_ns()`, shared by the processes on a machine
    applied: Sequence[str] = ()  # fields
    restart: Sequence[str] = ()  # changed variables that need a restart
    backends: Sequence[str] = ()
    problems: Sequence[str] = ()
    workers: Sequence[int] = ()  # the parent process's workers, which reload instead

    def write(self, directory: Path) -> None:
        """Write the report, replacing this process's last report; raises `OSError`."""
        new = directory / f"{self.pid}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(new, directory / f"{self.pid}.json")

    @classmethod
    def read_all(cls, directory: Path) -> dict[int, ReloadReport]:
        """Each process's last report, by process id."""
        reports = {}
        for path in directory.glob("*.json"):
            with suppress(FileNotFoundError):  # the server ends
                report = cls(**json.loads(path.read_text(encoding="utf-8")))
                reports[report.pid] = report
        return reports
