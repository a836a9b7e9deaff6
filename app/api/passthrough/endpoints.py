"""The endpoints of backends that are passed through: one row for each."""

from __future__ import annotations

from typing import NamedTuple


class PassedEndpoint(NamedTuple):
    """An endpoint of backends, below their base URL."""

    path: str  # as Starlette writes paths
    # Whether its body is JSON with a prompt: without a model it has `ANTIPHON_DEFAULT_MODEL`, and the tokens of its
    # answer are estimated if the backend does not report them.
    prompts: bool = False
    free: bool = False  # whether it only counts, so that nothing is charged
    anthropic: bool = False  # whether it is of Anthropic's API
    responses: bool = False  # whether clients send it the bodies of `/responses`, too, which are answered as such
    client: str = ""  # the endpoint of its client API, whose requests are translated for other backends
    of_deployments: bool = False  # whether it is also an endpoint of Azure's deployments, whose name is the model


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
