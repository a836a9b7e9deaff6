"""Backend endpoints that are passed through, as rows."""

from __future__ import annotations

from typing import NamedTuple


class PassedEndpoint(NamedTuple):
    """A backend endpoint below the base URL."""

    path: str  # as Starlette writes paths
    # Whether its body is JSON with a prompt: without a model it gets `ANTIPHON_DEFAULT_MODEL`, and output tokens
    # are estimated if the backend does not report them.
    prompts: bool = False
    free: bool = False  # whether it only counts tokens and is not charged
    anthropic: bool = False  # whether it belongs to Anthropic's API
    responses: bool = False  # whether clients also send it `/responses` bodies
    client: str = ""  # its client API's endpoint: requests are translated for other backends
    of_deployments: bool = False  # whether Azure deployments have it, named after their model


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
