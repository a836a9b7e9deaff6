"""Backend endpoints that are passed through."""

from __future__ import annotations

from typing import NamedTuple


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
