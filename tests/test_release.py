"""`.ci/release.py`: version check and release notes."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import __version__

ROOT = Path(__file__).parent.parent
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "release.py"))
main: Callable[..., None] = RELEASE["main"]
FILES = list(RELEASE["versions"](ROOT))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with the version files, and a changelog with sections for this version and an older version."""
    for path in FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    sections = [
        "# Changelog",
        "## [Unreleased]",
        f"## [{__version__}] - 2026-01-02",
        "- New.",
        "## [0.0.1] - 2025-01-02",
        "- Old.",
    ]
    (tmp_path / "CHANGELOG.md").write_text("\n\n".join(sections))
    return tmp_path


def test_release_check_with_equal_versions_passes(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("check", f"v{__version__}", clone)
    assert capsys.readouterr().out == f"v{__version__}: all versions agree\n"


@pytest.mark.parametrize("path", FILES)
def test_release_check_with_another_version_in_a_file_names_the_file(clone: Path, path: str) -> None:
    text = (clone / path).read_text()
    (clone / path).write_text(text.replace(__version__, "9.9.9"))
    with pytest.raises(SystemExit, match=rf"^{path}: must be {__version__}, not '9.9.9'$"):
        main("check", f"v{__version__}", clone)


def test_release_check_with_another_tag_names_every_file(clone: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        main("check", "v9.9.9", clone)
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == FILES


@pytest.mark.parametrize("tag", ["0.2.0", "v0.2", "v0.2.0rc1", "v0.2.0; true"])
def test_release_check_with_an_invalid_tag_fails(clone: Path, tag: str) -> None:
    with pytest.raises(SystemExit, match="must be vX"):
        main("check", tag, clone)


def test_release_notes_are_the_section_of_the_version(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("notes", f"v{__version__}", clone)
    assert capsys.readouterr().out == "- New.\n"


def test_release_notes_without_a_section_fail(clone: Path) -> None:
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no section for 9\.9\.9"):
        main("notes", "v9.9.9", clone)
