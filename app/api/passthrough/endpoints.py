"""Backend endpoints that are passed through, and their entries in `/openapi.json`; only backends know their fields."""

from __future__ import annotations

from typing import NamedTuple

from app.api.client_apis import CLIENT_APIS
from app.api.openapi import ANTHROPIC_ERRORS, ERRORS
from app.core.types import JSONObject


class ForwardedEndpoint(NamedTuple):
    path: str  # as Starlette writes paths
    # JSON with a prompt: the default model applies, and unreported output tokens are estimated.
    prompts: bool = False
    free: bool = False  # only counts tokens, and is not charged
    anthropic: bool = False  # belongs to Anthropic's API
    responses: bool = False  # clients also send `/responses` bodies
    client: str = ""  # client API endpoint for backends without this API
    of_deployments: bool = False  # exists below Azure deployments, which name the model


ENDPOINTS = (
    ForwardedEndpoint(
        "/chat/completions", prompts=True, responses=True, client="/chat/completions", of_deployments=True
    ),
    ForwardedEndpoint("/completions", prompts=True, of_deployments=True),
    ForwardedEndpoint("/messages", prompts=True, anthropic=True, client="/messages"),
    ForwardedEndpoint("/messages/count_tokens", prompts=True, free=True, anthropic=True, client="/messages"),
    ForwardedEndpoint("/embeddings", of_deployments=True),
    ForwardedEndpoint("/rerank"),
    ForwardedEndpoint("/moderations"),
    ForwardedEndpoint("/images/generations", of_deployments=True),
    ForwardedEndpoint("/images/edits", of_deployments=True),
    ForwardedEndpoint("/images"),
    ForwardedEndpoint("/images/{rest:path}"),
    ForwardedEndpoint("/audio/speech", of_deployments=True),
    ForwardedEndpoint("/audio/transcriptions", of_deployments=True),
    ForwardedEndpoint("/audio/translations", of_deployments=True),
    ForwardedEndpoint("/audio"),
    ForwardedEndpoint("/audio/{rest:path}"),
)

_JSON, _FORM = "application/json", "multipart/form-data"
_HI = [{"role": "user", "content": "Hello!"}]

# By path: summary, body type, and example without the model.
_OPERATIONS: dict[str, tuple[str, str, dict[str, object]]] = {
    "/chat/completions": ("Create a chat completion", _JSON, {"messages": _HI}),
    "/completions": ("Create a completion", _JSON, {"prompt": "Once upon a time"}),
    "/messages": ("Create a message, by Anthropic's API", _JSON, {"max_tokens": 1000, "messages": _HI}),
    "/messages/count_tokens": ("Count the tokens of a message, by Anthropic's API", _JSON, {"messages": _HI}),
    "/embeddings": ("Create embeddings", _JSON, {"input": "Hello!"}),
    "/rerank": ("Rank documents", _JSON, {"query": "cats", "documents": ["A dog.", "A cat."]}),
    "/moderations": ("Classify an input", _JSON, {"input": "Hello!"}),
    "/images/generations": ("Generate images", _JSON, {"prompt": "A cat"}),
    "/images/edits": ("Edit images", _FORM, {"image": "file", "prompt": "A cat with a hat"}),
    "/images/variations": ("Create variations of an image", _FORM, {"image": "file"}),
    "/audio/speech": ("Generate speech", _JSON, {"input": "Hello!", "voice": "alloy"}),
    "/audio/transcriptions": ("Transcribe speech", _FORM, {"file": "file"}),
    "/audio/translations": ("Translate speech", _FORM, {"file": "file"}),
}
_ANTHROPIC = {endpoint.path for endpoint in ENDPOINTS if endpoint.anthropic}
_TRANSLATED = {endpoint.path for endpoint in ENDPOINTS if endpoint.client in CLIENT_APIS}
_ANSWER = {"200": {"description": "The backend's answer, byte for byte", "content": {"*/*": {"schema": {}}}}}


def passthrough_operations(prefix: str, *, translated_only: bool = False) -> dict[str, dict[str, object]]:
    paths = [path for path in _OPERATIONS if not translated_only or path in _TRANSLATED]
    return {f"{prefix}{path}": {"post": _operation(path)} for path in paths}


def _operation(path: str) -> JSONObject:
    summary, media_type, example = _OPERATIONS[path]
    fields = {name: {"type": "string", "format": "binary"} for name, value in example.items() if value == "file"}
    schema = {
        "type": "object",
        "properties": {"model": {"type": "string", "description": "selects the backend"}, **fields},
        "required": ["model"],
        "additionalProperties": True,
    }
    content: dict[str, object] = {"schema": schema}
    if media_type == _JSON:
        content["example"] = {"model": "demo", **example}
    return {
        "tags": ["passed through"],
        "summary": summary,
        "description": "Passed through to the backend of the model; other fields are the backend's."
        + (" Translated for backends without this API." if path in _TRANSLATED else ""),
        "operationId": f"pass_through{path.replace('/', '_')}",
        "requestBody": {"required": True, "content": {media_type: content}},
        "responses": {**_ANSWER, **(ANTHROPIC_ERRORS if path in _ANTHROPIC else ERRORS)},
    }
