"""What clients are told: lines that they can read."""

from __future__ import annotations

import tomllib

import pytest

from app.cli import codex

URL = "http://127.0.0.1:8080/v1"


@pytest.mark.parametrize(
    ("keyed", "key"), [(True, {"env_key": codex.KEY}), (False, {"experimental_bearer_token": "unused"})]
)
def test_codex_is_told_of_the_server_its_models_and_its_key(keyed: bool, key: dict[str, str]) -> None:
    told = codex.codex_settings(URL, model='a "model" \\ ü', keyed=keyed)
    assert tomllib.loads(codex.toml(told)) == {
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


def test_codex_searches_the_web_where_the_server_can() -> None:
    assert codex.codex_settings(URL, model="m", keyed=True, web_search=True)["web_search"] == "live"


def test_the_options_say_the_same_as_the_lines() -> None:
    told = codex.codex_settings(URL, model="qwen3:0.6b", keyed=True)
    words = codex.options(told)
    assert words[::2] == ["--config"] * (len(words) // 2)
    assert tomllib.loads("\n".join(words[1::2])) == tomllib.loads(codex.toml(told))
