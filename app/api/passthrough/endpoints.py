"""Backend endpoints that are passed through."""

from __future__ import annotations

from typing import NamedTuple


class PassedEndpoint(NamedTuple):
    path: str  # as Starlette writes paths
    # The body is JSON with a prompt: the default model applies, and unreported output tokens are estimated.
    prompts: bool = False
    free: bool = False  # only counts tokens
    anthropic: bool = False  # belongs to Anthropic's API
    responses: bool = False  # clients also send `/responses` bodies
    client: str = ""  # client API endpoint for backends without this API
    of_deployments: bool = False  # exists below Azure deployments, which name the model


ENDPOINTS = (
    PassedEndpoint("/chat/completions", prompts=True, responses=True, client="/chat/completions", of_deployments=True),
    PassedEndpoint("/completions", prompts=True, of_deployments=True),
    PassedEndpoint("/messages", prompts=True, anthropic=True, client="/messages"),
    PassedEndpoint("/messages/count_tokens", prompts=True, free=True, anthropic=True, client="/messages"),
    PassedEndpoint("/embeddings", of_deployments=True),
    PassedEndpoint("/rerank"),
    PassedEndpoint("/moderations"),
    PassedEndpoint("/images/generations", of_deployments=True),
    PassedEndpoint("/images/edits", of_deployments=True),
    PassedEndpoint("/images"),
    PassedEndpoint("/images/{rest:path}"),
    PassedEndpoint("/audio/speech", of_deployments=True),
    PassedEndpoint("/audio/transcriptions", of_deployments=True),
    PassedEndpoint("/audio/translations", of_deployments=True),
    PassedEndpoint("/audio"),
    PassedEndpoint("/audio/{rest:path}"),
)
