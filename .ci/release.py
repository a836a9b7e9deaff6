"""
Check a release's versions, or print its changelog section.

    python .ci/release.py check v1.2.3
    python .ci/release.py notes v1.2.3
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def versions(root: Path) -> dict[str, str]:
    """Map each file to its version; empty if not found."""

    def search(path: str, pattern: str) -> str:
        found = re.search(pattern, (root / path).read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else ""

    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
        "verify/pyproject.toml": search("verify/pyproject.toml", r'^version = "(.+)"'),
        "app/__init__.py": search("app/__init__.py", r'^__version__ = "(.+)"'),
        "docker/helm/antiphon/Chart.yaml": search("docker/helm/antiphon/Chart.yaml", r'^appVersion: "(.+?)"'),
        "CHANGELOG.md": search("CHANGELOG.md", r"^## \[(\d.+?)\] - \d{4}-\d\d-\d\d$"),
    }


def notes(root: Path, version: str) -> str:
    """Return the changelog's section for a version; raises `SystemExit` if it is missing or empty."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|^\[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not found or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section for {version}")
    return found[1].strip() + "\n"


def main(command: str, tag: str, root: Path = ROOT) -> None:
    """Run a command for a tag `vX.Y.Z`; raises `SystemExit` with the reason if the release is not consistent."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        raise SystemExit(f"Invalid tag {tag!r}: must be vX.Y.Z")
    version = tag[1:]
    if command == "notes":
        sys.stdout.write(notes(root, version))
        return
    different = {path: found for path, found in versions(root).items() if found != version}
    if different:
        raise SystemExit("\n".join(f"{path}: must be {version}, not {found!r}" for path, found in different.items()))
    notes(root, version)
    print(f"{tag}: all versions agree")


if __name__ == "__main__":
    main(*sys.argv[1:])
