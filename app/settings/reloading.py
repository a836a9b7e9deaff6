"""Which changed settings a running server can apply, which need a restart, and what a process reports about it."""

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

# The settings that take effect at once, by name.
RELOADABLE = frozenset(
    name
    for name in Settings.model_fields
    if name.startswith(("backend", "limit_", "log_", "max_input_", "max_output_", "max_stored_"))
    and name != "limit_store_url"
) - {"background_runs", "background_lease", "background_log_ttl"} | {"api_keys", "keys", "prices", "prompts", "config"}


class SettingsChange(NamedTuple):
    """The differences between the current settings and those that were read again."""

    settings: Settings  # to apply: the current ones with all changes that need no restart
    applied: list[str]  # fields that changed and are applied
    restart: list[str]  # variables that changed and need a restart


def compare_settings(old: Settings, new: Settings) -> SettingsChange:
    """Compare the current settings of a server to those that were read again."""
    changed = [name for name in Settings.model_fields if getattr(old, name) != getattr(new, name)]
    reloadable = RELOADABLE
    if not new.has_keys:  # a server without keys refuses pages of other origins, by a middleware that is added at start
        reloadable -= {"api_keys", "keys"}
    applied = [name for name in changed if name in reloadable]
    restart = [f"{PREFIX}{name.upper()}" for name in changed if name not in reloadable]
    restart.sort()
    return SettingsChange(old.model_copy(update={name: getattr(new, name) for name in applied}), applied, restart)


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """What one process of a server did when it was told to read its settings again."""

    pid: int
    begun: int  # `time.monotonic_ns()`, which the processes of a machine share
    applied: Sequence[str] = ()  # fields that changed and are applied
    restart: Sequence[str] = ()  # variables that changed and need a restart
    backends: Sequence[str] = ()
    problems: Sequence[str] = ()  # why the new settings were refused
    workers: Sequence[int] = ()  # the processes that it told to do so in its place

    def write(self, directory: Path) -> None:
        """Write the report in place of the last one of this process; raises `OSError`."""
        new = directory / f"{self.pid}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(new, directory / f"{self.pid}.json")

    @classmethod
    def read_all(cls, directory: Path) -> dict[int, ReloadReport]:
        """Return the last report of each process, by its id."""
        reports = {}
        for path in directory.glob("*.json"):
            with suppress(FileNotFoundError):  # the server ends
                report = cls(**json.loads(path.read_text(encoding="utf-8")))
                reports[report.pid] = report
        return reports
