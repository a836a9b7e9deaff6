"""
The model list. OpenAI's SDKs read `data`; Codex reads `models` as its model catalog.

Codex offers fewer tools to models outside its catalog, for example no `apply_patch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from app.backends import Backend
from app.errors import NotFound
from app.responses import Caller

# The configured size takes precedence over the trained size.
_CONTEXT_FIELDS = (
    ("max_model_len",),  # vLLM, SGLang
    ("meta", "n_ctx"),  # llama.cpp
    ("loaded_context_length",),  # LM Studio
    ("context_length",),  # OpenRouter, Together, Fireworks
    ("context_window",),  # Groq
    ("max_context_length",),  # LM Studio, Mistral
    ("max_input_tokens",),  # LiteLLM
    ("inputTokenLimit",),  # Gemini
    ("top_provider", "context_length"),
    ("meta", "n_ctx_train"),
)

# A list with or without "image" (or a synonym), a boolean for images, or a model type.
_MODALITY_FIELDS = (
    ("input_modalities",),  # xAI
    ("architecture", "input_modalities"),  # OpenRouter
    ("capabilities", "vision"),  # Mistral
    ("capabilities", "supports", "vision"),  # Copilot
    ("capabilities", "image_input", "supported"),  # Anthropic
    ("supports_image_in",),  # Moonshot
    ("supports_vision",),  # LiteLLM
    ("capabilities",),  # llama.cpp, Ollama
    ("type",),  # LM Studio
)
_SEEING = frozenset({"image", "images", "vision", "multimodal", "vlm"})
_BLIND = frozenset({"llm"})

_OPENAI_FIELDS = ("object", "created", "owned_by")
_LAST_SECOND = 253402300799

_INSTRUCTIONS = """\
You are a coding agent. You work on the user's computer, in the user's project, with the tools that you are given.

- Investigate before you act: read the relevant files, and search for names instead of guessing where they are.
- Do everything that was asked, and nothing else. Leave unrelated code alone.
- Follow the style of the surrounding code.
- If there is a tool for changing files, use it, as its description says.
- Never revert changes that you did not make. Do not commit unless you are asked to.
- After a change, check that it works, for example with the project's tests, and fix what fails.
- If a command fails, read its output before you try again. If you cannot continue, explain why.

Continue until the task is done. Then summarize briefly what you did and what you could not check.
"""

# If a field is missing, Codex rejects the entry or the catalog.
_ENTRY: dict[str, object] = {
    "supported_reasoning_levels": [],
    "shell_type": "unified_exec",
    "apply_patch_tool_type": "freeform",
    "visibility": "list",
    "supported_in_api": True,
    "supports_parallel_tool_calls": True,
    "support_verbosity": False,
    "truncation_policy": {"mode": "bytes", "limit": 10_000},
    "experimental_supported_tools": [],
    "base_instructions": _INSTRUCTIONS,
}


def catalog(models: Sequence[Mapping[str, object]], *, describes_images: bool = False) -> dict[str, object]:
    """
    Models for OpenAI's SDKs and Codex. `describes_images`: images are described for text-only models, so Codex can send
    them.
    """
    return {
        "object": "list",
        "data": [*models],
        "models": [_entry(model, priority, describes_images) for priority, model in enumerate(models)],
    }


def messages_catalog(models: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Models in Anthropic's format, on a single page."""
    data = [messages_model(model) for model in models]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def messages_model(model: Mapping[str, object]) -> dict[str, object]:
    created = model.get("created")
    seconds = created if isinstance(created, int) and 0 <= created < _LAST_SECOND else 0
    known: dict[str, object] = {
        "type": "model",
        "display_name": model["id"],
        "created_at": datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",  # required by SDKs since 2.14
        **({"max_input_tokens": context} if (context := context_window(model)) else {}),
    }
    return {**known, **{name: value for name, value in model.items() if name not in _OPENAI_FIELDS}}


def _entry(model: Mapping[str, object], priority: int, describes_images: bool) -> dict[str, object]:
    entry = {"slug": model["id"], "display_name": model["id"], "priority": priority, **_ENTRY}
    if context := context_window(model):
        entry["context_window"] = context
    if (modalities := input_modalities(model)) and not describes_images:
        entry["input_modalities"] = modalities  # if missing, Codex also sends images
    return entry


def context_window(model: Mapping[str, object]) -> int | None:
    """In tokens; None if not reported."""
    for path in _CONTEXT_FIELDS:
        value = _value_at(model, path)
        if isinstance(value, int) and value > 0 and value is not True:
            return value
    return None


def input_modalities(model: Mapping[str, object]) -> list[str] | None:
    """None if not reported."""
    for path in _MODALITY_FIELDS:
        value = _value_at(model, path)
        if isinstance(value, str):
            value = True if value in _SEEING else False if value in _BLIND else None
        elif isinstance(value, list):
            value = any(isinstance(name, str) and name.lower() in _SEEING for name in value)
        if isinstance(value, bool):
            return ["text", "image"] if value else ["text"]
    return None


def _value_at(model: Mapping[str, object], path: Sequence[str]) -> object:
    value: object = model
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


async def allowed_models(backend: Backend, caller: Caller) -> list[dict[str, object]]:
    """`input_modalities` comes from the profile, an earlier rejection of images, or the server's own fields."""
    models = []
    for model in await backend.models(caller.key):
        if not caller.access.allows_model(str(model["id"])):
            continue
        if backend.refuses_images(str(model["id"])):
            model = {**model, "input_modalities": ["text"]}
        elif known := input_modalities(model):
            model = {"input_modalities": known, **model}
        models.append(model)
    return models


async def find_model(backend: Backend, name: str, caller: Caller) -> dict[str, object]:
    """Raises `NotFound`."""
    for model in await allowed_models(backend, caller):
        if model["id"] == name:
            return model
    raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")
