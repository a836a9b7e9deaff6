"""
How a client is told of this server: so far Codex, in the settings of its `config.toml`.

    settings = codex("http://127.0.0.1:8080/v1", model="qwen3")
    toml(settings)       # the lines
    options(settings)    # the same on its command line, for once
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

KEY = "CODEX_ANTIPHON_KEY"  # the variable in which Codex finds the caller's key


def codex_settings(url: str, *, model: str | None, keyed: bool, web_search: bool = False) -> dict[str, Any]:
    """
    Return Codex's settings for a server with this base URL, which ends in `/v1`.

    `web_search` says whether the server can search: a model should not be offered what is not there. A server that is
    not `keyed` takes any key. Codex has to have one all the same, or it does not read the catalog of
    models, and offers fewer tools.
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
    """Return settings as lines of TOML: what is at the top, then a table for each provider."""
    lines = [f"{name} = {_literal(value)}" for name, value in settings.items() if not isinstance(value, Mapping)]
    for name, provider in settings["model_providers"].items():
        lines += ["", f"[model_providers.{name}]", *(f"{key} = {_literal(value)}" for key, value in provider.items())]
    return "\n".join(lines) + "\n"


def options(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as options of Codex, which win over those of its file."""
    return [word for name, value in _flat(settings) for word in ("--config", f"{name}={_literal(value)}")]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _literal(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # as TOML has it, too
