"""GitHub workflows run existing `make` targets, and pin actions by commit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.name: path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _steps(name: str) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(WORKFLOWS[name])["jobs"].values() for step in job["steps"]]


def test_workflows_are_ci_and_release() -> None:
    assert list(WORKFLOWS) == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_steps_run_make_targets_that_exist(name: str) -> None:
    commands = [re.sub(r"\$\{\{.*?\}\}", "VALUE", step["run"]) for step in _steps(name) if "run" in step]
    made = [words for words in map(str.split, commands) if words[0] == "make"]
    assert len(made) >= 7
    targets = {word for words in made for word in words[1:] if "=" not in word}
    assert targets <= TARGETS
    others = [command for command in commands if not command.startswith("make ")]
    assert len(others) <= 1 and all("helm registry login" in command for command in others)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_actions_are_pinned_by_commit(name: str) -> None:
    used = re.findall(r"uses: (.+)", WORKFLOWS[name])
    assert len(used) >= 5
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_rights_are_read_only_unless_a_job_widens_them(name: str) -> None:
    workflow = yaml.safe_load(WORKFLOWS[name])
    assert workflow["permissions"] == {"contents": "read"}
    wider = {job for job, body in workflow["jobs"].items() if "write" in body.get("permissions", {}).values()}
    assert wider == ({"package", "image", "chart", "release"} if name == "release.yml" else set())


def test_release_publishes_only_after_the_check() -> None:
    jobs = yaml.safe_load(WORKFLOWS["release.yml"])["jobs"]
    needs = {
        name: [job.get("needs", [])] if isinstance(job.get("needs"), str) else job.get("needs", [])
        for name, job in jobs.items()
    }

    def before(name: str) -> set[str]:
        return {name}.union(*(before(other) for other in needs[name]))

    published = {"package", "image", "chart", "release"}
    assert published < jobs.keys()
    for name in published:
        assert {"check", "dist"} < before(name)
