"""One model list for OpenAI's SDKs and for Codex."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.routes.models import catalog, context_window, input_modalities

MODEL = {"id": "qwen3", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 32768}

# Required fields of an entry for Codex 0.169.
REQUIRED = {
    "slug",
    "display_name",
    "supported_reasoning_levels",
    "shell_type",
    "visibility",
    "supported_in_api",
    "priority",
    "support_verbosity",
    "truncation_policy",
    "experimental_supported_tools",
    "base_instructions",
}


def test_models_are_listed_as_the_backend_gave_them() -> None:
    document = catalog([MODEL])
    assert (document["object"], document["data"]) == ("list", [MODEL])


def test_models_in_the_codex_catalog_have_all_its_fields() -> None:
    first, second = catalog([MODEL, {"id": "other"}])["models"]
    assert set(first) >= REQUIRED and set(second) >= REQUIRED
    assert (first["slug"], first["priority"], first["context_window"]) == ("qwen3", 0, 32768)
    assert (second["slug"], second["priority"], second.get("context_window")) == ("other", 1, None)
    assert first["apply_patch_tool_type"] == "freeform"


@pytest.mark.parametrize(
    "model, tokens",
    [
        ({"max_model_len": 4096}, 4096),
        ({"context_length": 8192, "top_provider": {"context_length": 4096}}, 8192),
        ({"top_provider": {"context_length": 4096}}, 4096),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 131072}}, 2048),
        ({"meta": {"n_ctx_train": 131072}}, 131072),
        ({"loaded_context_length": 4096, "max_context_length": 32768}, 4096),
        ({"context_window": 131072}, 131072),
        ({"meta": None, "context_length": "8192", "context_window": 0, "max_model_len": True}, None),
        ({}, None),
    ],
)
def test_context_window_is_read_where_servers_list_it(model: dict[str, Any], tokens: int | None) -> None:
    assert context_window({"id": "m", **model}) == tokens


@pytest.mark.parametrize(
    "model, modalities",
    [
        ({"architecture": {"input_modalities": ["text", "image"]}}, ["text", "image"]),
        ({"architecture": {"input_modalities": ["text"]}}, ["text"]),
        ({"input_modalities": ["text"], "capabilities": {"vision": True}}, ["text"]),
        ({"capabilities": {"vision": False, "function_calling": True}}, ["text"]),
        ({"capabilities": {"image_input": {"supported": True}}}, ["text", "image"]),
        ({"capabilities": ["completion", "vision"]}, ["text", "image"]),
        ({"capabilities": ["completion", "multimodal"]}, ["text", "image"]),
        ({"supports_image_in": False}, ["text"]),
        ({"type": "vlm"}, ["text", "image"]),
        ({"type": "llm"}, ["text"]),
        ({"type": "model"}, None),
        ({"capabilities": {"tools": True}}, None),
        ({}, None),
    ],
)
def test_input_modalities_are_read_where_servers_list_them(model: dict[str, Any], modalities: list[str] | None) -> None:
    assert input_modalities({"id": "m", **model}) == modalities


def test_codex_catalog_has_the_modalities_unless_images_are_described() -> None:
    model = {"id": "m", "input_modalities": ["text"]}
    assert catalog([model])["models"][0]["input_modalities"] == ["text"]
    assert "input_modalities" not in catalog([model], describes_images=True)["models"][0]
    assert "input_modalities" not in catalog([{"id": "m"}])["models"][0]
