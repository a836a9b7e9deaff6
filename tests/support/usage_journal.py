"""The usage journal, as somebody finds it who looks into its directory."""

from __future__ import annotations

import contextlib
from pathlib import Path


def holds_usage(directory: Path) -> bool:
    """Tell whether a file in or below a directory has unstored usage. Files of idle processes are empty."""
    for path in directory.rglob("*.usage"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                return True
    return False
