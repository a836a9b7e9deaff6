"""Reads the folder with prompt templates (`ANTIPHON_PROMPTS`)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pydantic import ValidationError

from app.core.prompt_template import PROMPT_ID, Prompts, PromptTemplate
from app.loading import describe
from app.settings.loading import SettingsError, suggestion
from app.tools import SettingsTable

SUFFIXES = (".md", ".txt", ".toml")
MAX_TEMPLATE_BYTES = 1_000_000


class _TemplateFile(SettingsTable):
    instructions: str
    variables: dict[str, str] = {}
    model: str | None = None


def read_prompts(folder: Path | None) -> Prompts:
    """Raises `SettingsError` with every invalid file."""
    if folder is None:
        return {}
    folder = folder.expanduser()
    if not folder.is_dir():
        raise SettingsError([f"ANTIPHON_PROMPTS: folder {folder} not found"])
    templates: dict[str, list[PromptTemplate]] = {}
    problems: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        try:
            prompt_id = path.name if path.is_dir() else path.stem
            files = sorted(path.iterdir(), key=_order) if path.is_dir() else [path]
            for file in files:
                if file.suffix in SUFFIXES and not file.name.startswith("."):
                    if prompt_id in templates and not path.is_dir():
                        raise ValueError("must not have the name of another prompt")
                    templates.setdefault(prompt_id, []).append(
                        _read(file, prompt_id, file.stem if path.is_dir() else None)
                    )
        except (ValueError, OSError) as error:
            problems.append(f"ANTIPHON_PROMPTS: {path.name}: {error}")
    if problems:
        raise SettingsError(problems)
    return templates


def _order(path: Path) -> list[tuple[bool, int, str]]:
    """Sort versions: `2` before `10`, `1.9` before `1.10`."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", path.stem) if part
    ]


def _read(path: Path, prompt_id: str, version: str | None) -> PromptTemplate:
    if not PROMPT_ID.fullmatch(prompt_id):
        raise ValueError("a prompt's name must be letters, digits and any of _ . -")
    if path.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_TEMPLATE_BYTES} bytes")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} must be text in UTF-8: invalid byte at offset {error.start}") from None
    if path.suffix != ".toml":
        return PromptTemplate(prompt_id, version, text.strip())
    try:
        table = _TemplateFile.model_validate(tomllib.loads(text))
    except ValidationError as error:
        # Report unknown keys first: one can be a misspelt required key.
        detail = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
        field = ".".join(map(str, detail["loc"]))
        message = describe(detail)
        if detail["type"] == "extra_forbidden":
            message = f"unknown key{suggestion(field, _TemplateFile.model_fields)}"
        raise ValueError(f"{field}: {message}") from None
    template = PromptTemplate(prompt_id, version, table.instructions.strip(), table.variables, table.model)
    if unused := set(table.variables) - set(template.variables):
        raise ValueError(f"variables: {', '.join(sorted(unused))} must occur in the instructions")
    return template
