"""
Codex settings for this server.

    settings = codex_settings("http://127.0.0.1:8080/v1", model="qwen3", keyed=False)
    toml(settings)       # lines for its `config.toml`
    options(settings)    # command line options
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

KEY = "CODEX_ANTIPHON_KEY"  # Codex reads the API key from this variable


def codex_settings(url: str, *, model: str | None, keyed: bool, web_search: bool = False) -> dict[str, object]:
    """
    `url` is the server's base URL (`.../v1`).

    If the server is not `keyed`, Codex gets an arbitrary key: without a key it does not read the model catalog, and
    offers fewer tools.
    """
    provider = {
        "name": "Antiphon",
        "base_url": url,
        "wire_api": "responses",
        "model_catalog_url": f"{url}/models",
        **({"env_key": KEY} if keyed else {"experimental_bearer_token": "unused"}),
    }
    return {
        **({"model": model} if model else {}),
        "model_provider": "antiphon",
        "web_search": "live" if web_search else "disabled",
        "model_providers": {"antiphon": provider},
    }


def toml(settings: Mapping[str, Any]) -> str:
    lines = [f"{name} = {_literal(value)}" for name, value in settings.items() if not isinstance(value, Mapping)]
    for name, provider in settings["model_providers"].items():
        lines += ["", f"[model_providers.{name}]", *(f"{key} = {_literal(value)}" for key, value in provider.items())]
    return "\n".join(lines) + "\n"


def options(settings: Mapping[str, object]) -> list[str]:
    """Command line options, which override Codex's configuration file."""
    return [word for name, value in _flat(settings) for word in ("--config", f"{name}={_literal(value)}")]


def _flat(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _literal(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # also valid TOML
