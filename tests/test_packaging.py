"""What goes with the code agrees with it: the locked dependencies, the image, the compose file, the README."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from app import __version__
from app.settings import Settings

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "docker" / "requirements.txt").read_text(), re.MULTILINE))
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
DOCUMENTS = ["README.md", "SECURITY.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
VARIABLE = re.compile(r"\bANTIPHON_(?!TEST_)[A-Z_]+\b")


def test_the_version_is_one() -> None:
    assert PROJECT["version"] == __version__


@pytest.mark.parametrize("dependency", PROJECT["dependencies"])
def test_the_image_has_every_dependency_in_a_version_that_fits(dependency: str) -> None:
    wanted = Requirement(dependency)
    assert wanted.specifier.contains(LOCKED[wanted.name]), "write docker/requirements.txt anew with `make lock`"


SPEAKING = ["Dockerfile", "Makefile", "docker/compose.yaml", "docker/ollama.env", *DOCUMENTS]


@pytest.mark.parametrize("path", SPEAKING)
def test_every_variable_that_is_spoken_of_exists(path: str) -> None:
    known = {f"ANTIPHON_{name.upper()}" for name in Settings.model_fields}
    assert set(VARIABLE.findall((ROOT / path).read_text())) <= known


def test_compose_publishes_an_open_server_to_this_machine_only() -> None:
    antiphon = COMPOSE["services"]["antiphon"]
    assert antiphon["environment"]["ANTIPHON_ALLOW_OPEN"] == "true"
    assert [port.split(":")[0] for port in antiphon["ports"]] == ["127.0.0.1"]


def test_compose_waits_for_what_it_has_a_health_check_for() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for name, wait in service.get("depends_on", {}).items():
            assert wait == {"condition": "service_healthy"}
            assert "healthcheck" in services[name]


def test_compose_declares_the_volumes_that_it_uses() -> None:
    used = {volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service.get("volumes", ())}
    assert used == COMPOSE["volumes"].keys()


def test_compose_has_the_files_that_it_configures_with() -> None:
    for config in COMPOSE["configs"].values():
        assert (ROOT / "docker" / config["file"]).is_file()
    used = {use["source"] for service in COMPOSE["services"].values() for use in service.get("configs", ())}
    assert used == COMPOSE["configs"].keys()


def test_everything_that_compose_publishes_is_for_this_machine_only() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert {port.split(":")[0] for port in published} == {"127.0.0.1"}


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_lead_somewhere(path: str) -> None:
    document = ROOT / path
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        file, _, heading = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}, link
