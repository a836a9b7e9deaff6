"""Settings from a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import SettingsError, load_settings


def refusal_of(toml: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the problems of an invalid file; fails if it is valid."""
    path = folder / "antiphon.toml"
    path.write_text(toml)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ANTIPHON_CONFIG", str(path))
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    return str(refusal.value)
