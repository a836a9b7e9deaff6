"""
Prompt templates: instructions with placeholders, referenced by `prompt: {id, version, variables}`.

    template = PromptTemplate("greeting", "1", "Greet {{name}} in {{language}}.", {"language": "English"})
    template.render({"name": "Ada"})  # "Greet Ada in English."
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from app.errors import InvalidRequest, NotFound, did_you_mean

PROMPT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_-]{0,63})\s*\}\}")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """`defaults` are for optional variables."""

    id: str
    version: str | None  # None: not versioned
    text: str
    defaults: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None  # for requests without a model

    @property
    def variables(self) -> list[str]:
        return list(dict.fromkeys(VARIABLE.findall(self.text)))

    def render(self, values: Mapping[str, object]) -> str:
        """Raises `InvalidRequest` for a missing or unknown variable."""
        names = self.variables
        for name in values:
            if name not in names:
                known = f" Its variables: {', '.join(names)}." if names else " It does not have variables."
                message = f"Variable '{name[:64]}' of prompt '{self.id}' not found.{did_you_mean(name, names) or known}"
                raise InvalidRequest(message, param=f"prompt.variables.{name[:64]}", code="unknown_variable")
        texts = {**self.defaults, **{name: _text(name, value) for name, value in values.items()}}
        for name in names:
            if name not in texts:
                message = (
                    f"Invalid 'prompt.variables': must have a value for '{name}', a variable of the prompt '{self.id}'."
                )
                raise InvalidRequest(message, param=f"prompt.variables.{name}", code="missing_required_parameter")
        return VARIABLE.sub(lambda match: texts[match[1]], self.text)  # placeholders in values are not replaced


def _text(name: str, value: object) -> str:
    if isinstance(value, Mapping) and value.get("type") == "input_text":
        value = value.get("text")
    if not isinstance(value, str):
        message = f"Invalid 'prompt.variables.{name}': must be a string or an `input_text` part."
        raise InvalidRequest(message, param=f"prompt.variables.{name}", code="invalid_type")
    return value


Prompts: TypeAlias = Mapping[str, list[PromptTemplate]]  # by id; versions from old to new


def find_prompt(prompts: Prompts, prompt_id: str, version: str | None) -> PromptTemplate:
    """By default the newest version; raises `NotFound`."""
    if not (versions := prompts.get(prompt_id)):
        hint = did_you_mean(prompt_id, prompts) if prompts else " This server has no prompts: set ANTIPHON_PROMPTS."
        raise NotFound(f"Prompt '{prompt_id[:128]}' not found.{hint}", param="prompt.id", code="prompt_not_found")
    for template in reversed(versions):
        if version in (None, template.version):
            return template
    known = ", ".join(template.version for template in versions if template.version) or "none"
    message = f"Version '{version}' of prompt '{prompt_id}' not found. Available versions: {known}."
    raise NotFound(message, param="prompt.version", code="prompt_not_found")
