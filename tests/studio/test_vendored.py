"""The package includes the pages' libraries, as downloaded by `make vendor`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import app.studio

VENDOR = Path(app.studio.__path__[0]) / "vendor"


def test_vendored_libraries_are_those_named() -> None:
    listed = dict(reversed(line.split("  ")) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(VENDOR)): path for path in VENDOR.glob("*/*")}

    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == listed
    assert all((path.parent / "LICENSE").exists() for path in files.values())
