"""Helm as a library. It runs in its own processes, which keeps the Go runtime out of pytest's."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

AVAILABLE = importlib.util.find_spec("helm_python") is not None

_RENDER = """
import json, sys
from helm_python import Chart
from helm_python.chart import lint
from helm_python.errors import HelmError
given = json.load(sys.stdin)
try:
    with Chart.load(given["folder"]) as chart:
        made = chart.render(given["values"], name="answers", namespace="default")
    report = lint(given["folder"], given["values"], strict=True)
except HelmError as error:
    sys.exit(str(error))
problems = [message["error"] for message in report["messages"] if message["severity"] > 1]
json.dump({"made": made, "lint": problems}, sys.stdout)
"""


class HelmFailed(Exception):
    """Helm refused the values, or a template called `fail`. The message is Helm's."""


@functools.cache
def _rendered(given: str) -> str:
    result = subprocess.run([sys.executable, "-c", _RENDER], input=given, capture_output=True, text=True)
    if result.returncode:
        raise HelmFailed(result.stderr.strip())
    return result.stdout


def render(folder: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    """
    Return the documents of a chart in the release `answers`, namespace `default`; raises `HelmFailed`.

    Fails if `helm lint --strict` finds a problem with these values.
    """
    result = json.loads(_rendered(json.dumps({"folder": str(folder), "values": values})))
    assert result["lint"] == []
    texts = [text for path, text in result["made"].items() if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]
