"""Gateways written in Rust, as `make bench` and `make conformance` run them."""

from __future__ import annotations

from tests.bench.servers import PEERS, TRANSLATED, Server, peer_version

SMG = Server(
    "SMG",
    "SMG (Rust), over `/v1/responses` of the upstream",
    (
        f"{PEERS}/smg/bin/smg",
        *("launch", "--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "http://127.0.0.1:{upstream}"),
        *("--backend", "openai", "--history-backend", "memory", "--prometheus-host", "127.0.0.1"),
    ),
    version=peer_version("smg"),
    peer=True,
    scenarios=TRANSLATED,
)

AGENTIC_API = Server(
    "agentic-api",
    "agentic-api (Rust), over `/v1/responses` of the upstream, with SQLite",
    (
        f"{PEERS}/agentic-api/bin/agentic-server",
        *("--llm-api-base", "http://127.0.0.1:{upstream}", "--gateway-host", "127.0.0.1"),
        *("--gateway-port", "{port}", "--skip-llm-ready-check", "--db-url", "sqlite://{here}/agentic.db"),
    ),
    environment={"HOME": "{here}"},
    version=peer_version("agentic-api"),
    peer=True,
    scenarios=TRANSLATED,
)

CODEX_RELAY = Server(
    "codex-relay",
    "codex-relay (Rust), translating to Chat Completions",
    (
        f"{PEERS}/codex-relay/bin/codex-relay",
        *("--port", "{port}", "--upstream", "http://127.0.0.1:{upstream}/v1", "--api-key", "unused"),
    ),
    version=peer_version("codex-relay"),
    peer=True,
    scenarios=TRANSLATED,
)
