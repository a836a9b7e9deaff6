"""Packaging matches the code: locked dependencies, the image, the Compose file, and README."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement

from app import __version__
from app.settings import Settings
from app.tools.validation import read_table
from app.tools.web_search.providers import WebSearchSettings

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "docker" / "requirements.txt").read_text(), re.MULTILINE))
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
DOCUMENTS = ["README.md", "SECURITY.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
VARIABLE = re.compile(r"\bANTIPHON_(?!TEST_)[A-Z_]+\b")


VERIFY = tomllib.loads((ROOT / "verify" / "pyproject.toml").read_text())["project"]


def test_version_is_one() -> None:
    assert PROJECT["version"] == VERIFY["version"] == __version__


def test_server_has_the_dependencies_and_the_command_of_verify() -> None:
    """The server's wheel has the package, which can also be installed alone."""
    assert VERIFY["dependencies"] and set(VERIFY["dependencies"]) <= set(PROJECT["dependencies"])
    assert VERIFY["scripts"].items() <= PROJECT["scripts"].items()
    assert (ROOT / "verify" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


EXTRAS = [
    name for name in PROJECT["optional-dependencies"] if name not in ("test", "dev", "tools")
]  # all runtime extras


@pytest.mark.parametrize(
    "dependency",
    [*PROJECT["dependencies"], *(one for name in EXTRAS for one in PROJECT["optional-dependencies"][name])],
)
def test_image_has_every_dependency_in_a_version_that_fits(dependency: str) -> None:
    wanted = Requirement(dependency)
    assert wanted.specifier.contains(LOCKED[wanted.name]), "write docker/requirements.txt anew with `make lock`"


def _needed(requirements: list[str]) -> set[str]:
    """Return all installed distributions required, directly or not."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [(Requirement(one), "") for one in requirements]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                with contextlib.suppress(metadata.PackageNotFoundError):
                    pending += [(Requirement(one), extra) for one in metadata.requires(name) or ()]
        found.add(name)
    return found


_WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in set(sys.argv[1:]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
import app.cli
from app.main import create_app
from app.settings import Settings
assert create_app(Settings()).routes
"""


def test_server_without_the_packages_of_the_extras_starts() -> None:
    """As after `make serve` in a clone, or `pip install antiphon`."""
    needed = _needed(PROJECT["dependencies"])
    extra = [
        package
        for package, names in metadata.packages_distributions().items()
        if package != "app" and not any(re.sub(r"[-_.]+", "-", name).lower() in needed for name in names)
    ]
    assert "pypdf" in extra
    assert "fastapi" not in extra
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    started = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *extra], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr


def test_image_has_what_its_dependencies_need() -> None:
    """As installed here, and on Linux: the lock file is complete, with a hash for each version."""
    there = {name.lower().replace("_", "-"): version for name, version in LOCKED.items()}
    for name in there.keys() - {"python-dateutil"}:  # moto, of the tests, requires an earlier version
        with contextlib.suppress(metadata.PackageNotFoundError):
            for needed in map(Requirement, metadata.requires(name) or ()):
                if needed.marker is None or needed.marker.evaluate({"extra": "", "python_version": "3.13"}):
                    assert needed.name.lower().replace("_", "-") in there, f"{name} needs {needed}"
    locked = (ROOT / "docker" / "requirements.txt").read_text()
    assert all("--hash=sha256:" in pinned for pinned in re.split(r"^(?=[\w.-]+==)", locked, flags=re.MULTILINE)[1:])


SPEAKING = ["Dockerfile", "Makefile", "docker/compose.yaml", "docker/ollama.env", "docker/search.env", *DOCUMENTS]


@pytest.mark.parametrize("path", SPEAKING)
def test_variables_in_documents_exist(path: str) -> None:
    known = {f"ANTIPHON_{name.upper()}" for name in Settings.model_fields}
    assert set(VARIABLE.findall((ROOT / path).read_text())) <= known


def test_compose_publishes_an_open_server_to_this_machine_only() -> None:
    antiphon = COMPOSE["services"]["antiphon"]
    assert antiphon["environment"]["ANTIPHON_ALLOW_OPEN"] == "true"
    assert [port.split(":")[0] for port in antiphon["ports"]] == ["127.0.0.1"]


def test_compose_server_accepts_the_host_that_prometheus_scrapes() -> None:
    hosts = COMPOSE["services"]["antiphon"]["environment"]["ANTIPHON_ALLOWED_HOSTS"]
    (scraped,) = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = scraped["static_configs"][0]["targets"]
    assert target.partition(":")[0] in re.fullmatch(r"\$\{ANTIPHON_ALLOWED_HOSTS:-(.*)\}", hosts)[1].split(",")  # type: ignore[index]


def test_compose_services_wait_for_healthy_dependencies() -> None:
    services = COMPOSE["services"]
    healthy = {"condition": "service_healthy"}
    optional = {**healthy, "required": False}
    waits = {name: service["depends_on"] for name, service in services.items() if "depends_on" in service}
    assert waits == {
        "antiphon": {"redis": optional, "postgres": optional},  # only in a profile
        "model": {"ollama": healthy},
    }
    dependencies = {name for wait in waits.values() for name in wait}
    assert {name for name, service in services.items() if "healthcheck" in service} == dependencies


def test_compose_without_a_profile_starts_the_server_alone_with_a_stored_file() -> None:
    assert [name for name, service in COMPOSE["services"].items() if "profiles" not in service] == ["antiphon"]
    server = COMPOSE["services"]["antiphon"]
    store = re.fullmatch(r"\$\{ANTIPHON_STORE_URL:-(.+)\}", server["environment"]["ANTIPHON_STORE_URL"])
    assert store and store[1].startswith("sqlite:////data/") and "data:/data" in server["volumes"]
    assert server["env_file"] == [{"path": ".env", "required": False}]


def test_compose_images_have_a_version() -> None:
    images = [service["image"] for name, service in COMPOSE["services"].items() if name != "antiphon"]
    assert len(images) == 7
    for image in images:
        assert re.search(r":v?\d+\.\d+", image), image


def test_compose_declares_the_volumes_that_it_uses() -> None:
    mounts = [volume for service in COMPOSE["services"].values() for volume in service.get("volumes", ())]
    used = {volume.split(":")[0] for volume in mounts if not volume.startswith("${")}  # files on the host
    assert used == COMPOSE["volumes"].keys()


def test_compose_mounts_the_settings_file_where_the_server_reads_it() -> None:
    antiphon = COMPOSE["services"]["antiphon"]
    (mount,) = [volume for volume in antiphon["volumes"] if "SETTINGS_FILE" in volume]
    path = re.fullmatch(r"\$\{SETTINGS_FILE:-/dev/null\}:(.+):ro", mount)
    assert path and antiphon["environment"]["ANTIPHON_CONFIG"] == f"${{SETTINGS_FILE:+{path[1]}}}"


def test_image_without_a_target_is_the_server_without_the_sandbox() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    names = [re.match(r"\S+(?: AS (\S+))?", stage)[1] for stage in stages]  # type: ignore[index]
    assert names == ["build", "runtime", "sandbox", "server"]
    assert ["bubblewrap" in stage for stage in stages] == [False, False, True, False]


def test_image_builds_from_a_pinned_base_with_a_locked_build_backend() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert [base.partition("@")[0] for base in bases] == ["python:3.13-slim"] * 2 + ["runtime"] * 2
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases[:2])
    assert "pip install --require-hashes --requirement build-requirements.txt" in dockerfile
    assert "--no-build-isolation" in dockerfile
    locked = (ROOT / "docker" / "build-requirements.txt").read_text()
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for wanted in map(Requirement, backend):
        (version,) = re.findall(rf"^{wanted.name}==([\w.]+)", locked, re.MULTILINE)
        assert wanted.specifier.contains(version)


def test_image_runs_as_a_numbered_user_without_privileges() -> None:
    users: dict[str, str] = {}
    for stage in re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]:
        base, name = re.match(r"(\S+) AS (\S+)", stage).groups()  # type: ignore[union-attr]
        declared = re.findall(r"^USER (.*)$", stage, re.MULTILINE)
        users[name] = declared[-1] if declared else users.get(base, "root")
    assert users == {"build": "root", "runtime": "10001:10001", "sandbox": "10001:10001", "server": "10001:10001"}


def test_compose_has_the_files_that_it_configures_with() -> None:
    for config in COMPOSE["configs"].values():
        assert (ROOT / "docker" / config["file"]).is_file()
    used = {use["source"] for service in COMPOSE["services"].values() for use in service.get("configs", ())}
    assert used == COMPOSE["configs"].keys()


def test_compose_search_profile_has_a_searxng_that_answers_in_json() -> None:
    lines = (ROOT / "docker" / "search.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    tools = json.loads(variables["ANTIPHON_TOOLS"].strip("'"))
    settings = read_table(WebSearchSettings, tools["web_search"])
    service = urlsplit(settings.url or "").hostname

    assert COMPOSE["services"][service]["profiles"] == [variables["COMPOSE_PROFILES"]]
    assert "ports" not in COMPOSE["services"][service]
    (config,) = COMPOSE["services"][service]["configs"]
    file = ROOT / "docker" / COMPOSE["configs"][config["source"]]["file"]
    assert "json" in yaml.safe_load(file.read_text())["search"]["formats"]


def test_compose_gives_the_server_the_time_that_it_takes_to_stop() -> None:
    seconds = int(COMPOSE["services"]["antiphon"]["stop_grace_period"].removesuffix("s"))
    assert seconds >= Settings.model_fields["shutdown_grace"].default + 25


def test_prometheus_scrapes_the_port_on_which_the_service_listens() -> None:
    jobs = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
    [port] = re.findall(r"ANTIPHON_PORT=(\d+)", (ROOT / "Dockerfile").read_text())
    assert targets == [f"antiphon:{port}"]
    assert {"metrics_path", "scheme"}.isdisjoint(*jobs)  # which are /metrics and http, if left out
    datasources = yaml.safe_load((ROOT / "docker" / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert [urlsplit(source["url"]).hostname in COMPOSE["services"] for source in datasources] == [True]


def test_compose_publishes_everything_for_this_machine_only() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert {port.split(":")[0] for port in published} == {"127.0.0.1"}


def test_index_of_the_docs_has_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


WITHOUT_LINKS = {"docs/prompts.md"}


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_lead_somewhere(path: str) -> None:
    document = ROOT / path
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    assert links or path in WITHOUT_LINKS
    for link in links:
        file, _, heading = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}, link
