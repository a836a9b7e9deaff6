"""Which settings a running server can take over, and which need a restart."""

from __future__ import annotations

from typing import NamedTuple

from app.settings import PREFIX, Settings

# The settings that take effect at once, by name.
RELOADABLE = frozenset(
    name
    for name in Settings.model_fields
    if name.startswith(("backend", "limit_", "log_", "max_input_", "max_output_")) and name != "limit_store_url"
) - {"background_runs", "background_lease", "background_log_ttl"} | {"api_keys", "config"}


class SettingsChange(NamedTuple):
    """What is different in settings that were read again."""

    settings: Settings  # those to go on with: the old ones, with all that can be taken over
    applied: list[str]  # names of the settings that are taken over
    restart: list[str]  # names of those that need a restart, as variables


def compare_settings(old: Settings, new: Settings) -> SettingsChange:
    """Compare the settings that a server runs with to those that were read again."""
    changed = [name for name in Settings.model_fields if getattr(old, name) != getattr(new, name)]
    reloadable = RELOADABLE
    if not new.api_keys:  # pages of other origins are refused where no key is wanted, which is decided at start
        reloadable -= {"api_keys"}
    applied = [name for name in changed if name in reloadable]
    restart = [f"{PREFIX}{name.upper()}" for name in changed if name not in reloadable]
    restart.sort()
    return SettingsChange(old.model_copy(update={name: getattr(new, name) for name in applied}), applied, restart)
