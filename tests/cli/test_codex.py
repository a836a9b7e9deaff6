"""Readable output for clients."""

from __future__ import annotations

import asyncio
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from app.cli import codex
from tests.support import fork_server
from tests.support.serving import antiphon

ROOT = Path(__file__).parents[2]

URL = "http://127.0.0.1:8080/v1"


@pytest.mark.parametrize(
    ("keyed", "key"), [(True, {"env_key": codex.KEY}), (False, {"experimental_bearer_token": "unused"})]
)
def test_codex_gets_the_server_its_models_and_its_key(keyed: bool, key: dict[str, str]) -> None:
    settings = codex.codex_settings(URL, model='a "model" \\ ü', keyed=keyed)
    assert tomllib.loads(codex.toml(settings)) == {
        "model": 'a "model" \\ ü',
        "model_provider": "antiphon",
        "web_search": "disabled",
        "model_providers": {
            "antiphon": {
                "name": "Antiphon",
                "base_url": URL,
                "wire_api": "responses",
                "model_catalog_url": f"{URL}/models",
                **key,
            }
        },
    }


def test_codex_at_a_server_with_web_search_has_it() -> None:
    assert codex.codex_settings(URL, model="m", keyed=True, web_search=True)["web_search"] == "live"


@pytest.mark.parametrize(
    ("tools", "shown"), [({}, "disabled"), ({"web_search": {"url": "http://127.0.0.1:9"}}, "live")]
)
async def test_codex_asks_a_remote_server_for_web_search(tools: dict[str, Any], shown: str, tmp_path: Path) -> None:
    async with antiphon(tools=tools, api_keys="right") as url:
        for key, expected in (("right", shown), ("wrong", "disabled")):
            command = ("codex", "--url", f"{url}/v1", "--print")
            variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), codex.KEY: key}
            printed = await asyncio.to_thread(fork_server.run, *command, cwd=tmp_path, env=variables)
            assert tomllib.loads(printed.stdout)["web_search"] == expected


def test_codex_options_equal_the_printed_lines() -> None:
    settings = codex.codex_settings(URL, model="qwen3:0.6b", keyed=True)
    words = codex.options(settings)
    assert words[::2] == ["--config"] * (len(words) // 2)
    assert tomllib.loads("\n".join(words[1::2])) == tomllib.loads(codex.toml(settings))
