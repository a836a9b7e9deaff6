"""
The list of models. OpenAI's SDKs read its `data`; Codex reads `models` as its model catalog.

Codex offers fewer tools to models that are not in its catalog: no `apply_patch`, for example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.backends import Backend
from app.errors import NotFound
from app.responses import Caller

# Fields in which servers report a context window; the configured size takes precedence over the trained one.
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

_INSTRUCTIONS = """\
You are a coding agent. You work on the user's computer, in their project, with the tools that you are given.

- Find out before you act: read the files that matter, search for names instead of guessing where they are.
- Do what was asked, all of it, and no more. Keep to the style of the code around, and leave unrelated code alone.
- Change files with the tool for it if there is one; its description says what it takes.
- Never undo changes that are not yours, and do not commit unless you were asked to.
- When you have changed something, run what shows that it works, such as the project's tests, and mend what fails.
- If a command fails, read what it says before you try again. If you cannot go on, say why.

Keep going until the task is done. Then say briefly what you did, and what you could not check.
"""

# Fields that are the same for every model. Codex rejects an entry, or the whole catalog, if one of them is missing.
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


def catalog(models: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the list of `models`, which are OpenAI's model objects, with additional fields of their servers."""
    return {
        "object": "list",
        "data": [*models],
        "models": [_entry(model, priority) for priority, model in enumerate(models)],
    }


def _entry(model: Mapping[str, object], priority: int) -> dict[str, object]:
    entry = {"slug": model["id"], "display_name": model["id"], "priority": priority, **_ENTRY}
    context = context_window(model)
    return entry | {"context_window": context} if context else entry


def context_window(model: Mapping[str, object]) -> int | None:
    """Return the context window of a model in tokens; None if its server does not report it."""
    for path in _CONTEXT_FIELDS:
        value: object = model
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, int) and value > 0 and value is not True:
            return value
    return None


async def allowed_models(backend: Backend, caller: Caller) -> list[dict[str, object]]:
    """Return the models of the backend's list that the caller's key may use."""
    models = await backend.models(caller.key)
    return [model for model in models if caller.access.allows_model(str(model["id"]))]


async def find_model(backend: Backend, name: str, caller: Caller) -> dict[str, object]:
    """Return a model of the backend's list; raises `NotFound`."""
    for model in await allowed_models(backend, caller):
        if model["id"] == name:
            return model
    raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")
