"""Codex with a test's server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients.codex.program import Codex

MCP_SERVER = Path(__file__).parent / "mcp_server.py"


@pytest.fixture
def codex(server: str, tmp_path: Path) -> Codex:
    """Codex with Antiphon and an MCP server, without network access."""
    home, repository = tmp_path / "home", tmp_path / "repository"
    home.mkdir()
    repository.mkdir()
    config = f"""
        web_search = "disabled"
        check_for_update_on_startup = false
        openai_base_url = "{server}"
        features.plugins = false

        [model_providers.lab]
        name = "Lab"
        base_url = "{server}"
        wire_api = "responses"
        env_key = "LAB_API_KEY"

        [mcp_servers.lab]
        command = "{sys.executable}"
        args = ["{MCP_SERVER}"]
    """
    (home / "config.toml").write_text(config)
    return Codex(server, home, repository)
