"""Install commands, and rules from validation errors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from app.loading import as_rule

ROOT = Path(__file__).parents[1]
PIP = f"{sys.executable} -m pip install"
COMMIT = "0" * 40


def installed(directory: Path, direct_url: object = None) -> Path:
    """Return a directory of packages with Antiphon in it, as pip installs it from `direct_url`."""
    packages = directory / "site-packages"
    information = packages / "antiphon-0.1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: antiphon\nVersion: 0.1.0\n")
    if direct_url:
        (information / "direct_url.json").write_text(json.dumps(direct_url))
    (packages / "app").mkdir()
    for name in ("__init__.py", "loading.py"):
        shutil.copy(ROOT / "app" / name, packages / "app" / name)
    return packages


def printed(packages: Path, directory: Path, path: str = "/nowhere") -> str:
    """Return the command for two extras from a Python in `directory` with `packages`."""
    program = "from app.loading import install_command; print(install_command('files', 'mcp'))"
    environment = {"PYTHONPATH": str(packages), "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize(
    ("direct_url", "requirement"),
    [
        (None, "antiphon[files,mcp]"),
        (
            {"url": "file:///srv/antiphon-0.1.0-py3-none-any.whl", "archive_info": {}},
            "antiphon[files,mcp] @ file:///srv/antiphon-0.1.0-py3-none-any.whl",
        ),
        ({"url": "file:///srv/antiphon", "dir_info": {}}, "antiphon[files,mcp] @ file:///srv/antiphon"),
        (
            {"url": "https://git.example/antiphon", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"antiphon[files,mcp] @ git+https://git.example/antiphon@{COMMIT}",
        ),
    ],
    ids=["index", "wheel", "directory", "repository"],
)
def test_install_command_installed_package_names_its_origin(
    tmp_path: Path, direct_url: object, requirement: str
) -> None:
    assert printed(installed(tmp_path, direct_url), tmp_path) == f"{PIP} '{requirement}'"


def test_install_command_in_a_clone_installs_the_clone(tmp_path: Path) -> None:
    assert printed(ROOT, ROOT).endswith(" install -e '.[files,mcp]'")
    assert printed(ROOT, tmp_path) == f"{PIP} -e '{ROOT}[files,mcp]'"


def test_install_command_with_this_environment_activated_is_short(tmp_path: Path) -> None:
    assert printed(ROOT, ROOT, path=str(Path(sys.executable).parent)) == "pip install -e '.[files,mcp]'"


def test_install_command_in_an_environment_of_uv_installs_by_uv(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    program = "from app.loading import install_command; print(install_command('mcp'))"
    ran = subprocess.run(
        [python, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed(tmp_path)), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "uv pip install --python environment/bin/python 'antiphon[mcp]'"


def test_install_commands_are_written_in_one_place() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("app/**/*.py"), ROOT / ".env.example"]
    assert [str(path) for path in texts if re.search(r"install '?antiphon", path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("value", "rule"), [("x", "must be a valid integer"), (5, "must be less than or equal to 3")])
def test_rule_of_an_invalid_value_has_no_parser_details(value: object, rule: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Annotated[int, Field(le=3)]).validate_python(value)
    assert as_rule(refused.value.errors()[0]["msg"]) == rule
