"""Codex as a script runs it, and its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.clients.program import Ended, installed, run


class Codex(NamedTuple):
    """Codex with a new home and repository."""

    server: str
    home: Path
    repository: Path

    async def exec(self, prompt: str, *settings: str, key: str = "lab", **choices: Any) -> Ended:
        """Run a task without interaction; each output line is an event. See `command` for the choices."""
        return await run(*self.command(prompt, *settings, **choices), env=self.variables(key), cwd=self.repository)

    def command(
        self, prompt: str, *settings: str, model: str = "m", provider: str = "lab", arguments: Sequence[str] = ()
    ) -> list[str]:
        """
        Return the command line for a task.

        Codex adds its own tools for known models. The provider `lab` is Antiphon with custom settings; `openai` is the
        built-in provider, redirected. `arguments` precede the prompt.
        """
        options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        for setting in (f'model_provider="{provider}"', *settings):
            options += ["--config", setting]
        program = installed("@openai/codex") / "bin" / "codex.js"
        return ["node", str(program), "exec", "--model", model, *options, *arguments, prompt]

    def variables(self, key: str = "lab") -> dict[str, str]:
        return {"CODEX_HOME": str(self.home), "CODEX_API_KEY": key, "LAB_API_KEY": key}

    @property
    def catalog(self) -> str:
        """The setting for Antiphon's model list as the catalog."""
        return f'model_providers.lab.model_catalog_url="{self.server}/models"'


def agent_messages(ended: Ended) -> list[str]:
    """The agent's messages to its user."""
    assert ended.code == 0, ended.err
    return shown(ended, "agent_message")


def shown(ended: Ended, type: str) -> list[str]:
    """The shown texts of items with this type."""
    items = [event["item"] for event in ended.lines if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == type]


def troubles(ended: Ended) -> list[str]:
    """The failures reported to the user, in order."""
    return [event["message"] for event in ended.lines if event["type"] == "error"]
