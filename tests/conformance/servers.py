"""Servers to verify, and how to run them, with settings from their documentation."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace

from tests.bench.gateways import AGENTIC_API, CODEX_RELAY, SMG
from tests.bench.servers import FOREIGN, LITELLM, PEERS, ROOT, Server, peer_version
from tests.conformance.upstream import MODEL

__all__ = ["FOREIGN", "KEYS", "ROOT", "SUBJECTS", "UPSTREAM", "Subject"]

KEYS = ("sk-one", "sk-two")
# The tiny model, and servers outside PyPI: see `tests/real/README.md`.
TINY = os.environ.get("ANTIPHON_TINY_MODEL", "")
TINY_GGUF = os.environ.get("ANTIPHON_TINY_GGUF", "")
LLAMA_SERVER = os.environ.get("ANTIPHON_LLAMA_SERVER", "llama-server")

UPSTREAM = Server(
    "upstream",
    "the scripted Chat Completions server",
    (sys.executable, "-m", "tests.conformance.upstream", "--port", "{port}"),
    api="chat",
)

# The Responses server for gateways in front of one.
RESPONSES_UPSTREAM = Server(
    "responses upstream",
    "an Antiphon in front of the scripted server",
    (sys.executable, "-m", "app", "serve", "--port", "{port}"),
    environment={
        "ANTIPHON_BACKEND_URL": "http://127.0.0.1:{upstream}/v1",
        "ANTIPHON_LOG_LEVEL": "warning",
        "ANTIPHON_CONFIG": "{here}/antiphon.toml",
    },
    files={"antiphon.toml": ""},
)

AGENT = """
from agents import Agent, OpenAIChatCompletionsModel, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url="http://127.0.0.1:{upstream}/v1", api_key="unused")
agent = Agent(name="assistant", model=OpenAIChatCompletionsModel("demo", client))
"""

# OGX's starter distribution, reduced to APIs and providers for responses.
OGX = """
version: 2
distro_name: starter
apis: [responses, inference, files, file_processors, tool_runtime, vector_io]
providers:
  inference:
    - provider_id: vllm
      provider_type: remote::vllm
      config: {{base_url: "http://127.0.0.1:{upstream}/v1", api_token: fake, max_tokens: 4096}}
  files:
    - provider_id: localfs
      provider_type: inline::localfs
      config:
        storage_dir: "{here}/files"
        metadata_store: {{table_name: files_metadata, backend: sql_default}}
  file_processors: []
  tool_runtime: []
  vector_io: []
  responses:
    - provider_id: builtin
      provider_type: inline::builtin
      config:
        persistence:
          responses: {{table_name: responses, backend: sql_default, max_write_queue_size: 10000, num_writers: 4}}
storage:
  backends:
    kv_default: {{type: kv_sqlite, db_path: "{here}/kv.db"}}
    sql_default: {{type: sql_sqlite, db_path: "{here}/sql.db"}}
  stores:
    metadata: {{namespace: registry, backend: kv_default}}
    inference: {{table_name: inference_store, backend: sql_default, max_write_queue_size: 10000, num_writers: 4}}
    conversations: {{table_name: openai_conversations, backend: sql_default}}
    prompts: {{table_name: prompts, backend: sql_default}}
    connectors: {{table_name: connectors, backend: sql_default}}
registered_resources:
  models: []
  vector_stores: []
server:
  port: {port}
"""


@dataclass(frozen=True)
class Subject:
    """A server to verify; `settings` are the relevant ones, as in its documentation."""

    server: Server
    settings: str
    model: str = MODEL
    keys: tuple[str, ...] = ()
    path: str = "/v1"
    ready: str = "/models"  # a path that answers when the server is ready
    behind: bool = True  # whether it runs in front of the scripted server
    over_responses: bool = False  # whether it stands in front of an Antiphon before the scripted server
    store: str = ""  # Antiphon's store server
    needs: tuple[str, ...] = field(default=())  # required paths; an empty path: it cannot run here

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def runs_here(self) -> bool:
        return all(self.needs) and self.server.installed


def _antiphon(store: str, url: str) -> Subject:
    server = Server(
        f"Antiphon, {store}",
        "this server",
        (sys.executable, "-m", "app", "serve", "--port", "{port}"),
        environment={
            "ANTIPHON_BACKEND_URL": "http://127.0.0.1:{upstream}/v1",
            "ANTIPHON_LOG_LEVEL": "warning",
            "ANTIPHON_CONFIG": "{here}/antiphon.toml",
            "ANTIPHON_API_KEYS": ",".join(KEYS),
            "ANTIPHON_SECRET_KEY": "a-key-of-the-conformance-run-only",
            "ANTIPHON_STORE_URL": url,
        },
        files={"antiphon.toml": ""},
        version=(sys.executable, "-c", "from app import __version__; print(__version__)"),
    )
    return Subject(server, f"`ANTIPHON_STORE_URL={store}`, two API keys", keys=KEYS, store=store)


SUBJECTS = (
    _antiphon("memory", "memory://"),
    _antiphon("sqlite", "sqlite:///{here}/responses.db"),
    _antiphon("redis", ""),
    _antiphon("postgresql", ""),
    Subject(
        Server(
            "LiteLLM",
            "LiteLLM's proxy",
            (
                f"{PEERS}/litellm/bin/litellm",
                *("--config", "{here}/config.yaml", "--host", "127.0.0.1", "--port", "{port}", "--telemetry", "False"),
            ),
            environment={
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
                "LITELLM_LOCAL_MODEL_COST_MAP": "true",
                "LITELLM_LOG": "ERROR",
                "LITELLM_MODE": "PRODUCTION",
            },
            files={"config.yaml": LITELLM},
            version=peer_version("litellm"),
            peer=True,
        ),
        "proxy with `use_chat_completions_api: true`, no database, no key (its WebSocket needs one)",
    ),
    Subject(
        Server(
            "open-responses-server",
            "open-responses-server",
            (f"{PEERS}/open-responses-server/bin/otc", "start"),
            environment={
                "OPENAI_BASE_URL_INTERNAL": "http://127.0.0.1:{upstream}",
                "API_ADAPTER_HOST": "127.0.0.1",
                "API_ADAPTER_PORT": "{port}",
            },
            version=peer_version("open-responses-server"),
            peer=True,
        ),
        "`OPENAI_BASE_URL_INTERNAL`, otherwise its defaults",
        path="",
        ready="/health",
    ),
    Subject(
        Server(
            "OGX",
            "OGX (Llama Stack)",
            (f"{PEERS}/ogx/bin/ogx", "run", "{here}/ogx.yaml", "--port", "{port}", "--insecure"),
            environment={"OGX_CONFIG_DIR": "{here}", "HOME": "{here}"},
            files={"ogx.yaml": OGX},
            version=peer_version("ogx"),
            peer=True,
        ),
        "the responses, conversations and files APIs of the starter distribution, `remote::vllm`, SQLite",
        model=f"vllm/{MODEL}",
    ),
    Subject(
        replace(SMG, about="SMG (Rust)"),
        "`--backend openai --history-backend memory`, in front of Antiphon's `/v1/responses`",
        over_responses=True,
        ready="/responses/resp_none",
    ),
    Subject(
        replace(AGENTIC_API, about="agentic-api (Rust)"),
        "SQLite, in front of Antiphon's `/v1/responses`",
        over_responses=True,
    ),
    Subject(
        Server(
            "vllm-router",
            "vllm-router (Rust)",
            (
                f"{PEERS}/vllm-router/bin/vllm-router",
                *("--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "http://127.0.0.1:{upstream}"),
            ),
            version=peer_version("vllm-router"),
            peer=True,
        ),
        "its defaults, in front of Antiphon's `/v1/responses`, which it passes through",
        over_responses=True,
    ),
    Subject(
        replace(CODEX_RELAY, about="codex-relay (Rust)"),
        "its defaults, in front of the Chat Completions server",
    ),
    Subject(
        Server(
            "fastresponses",
            "fastresponses",
            (
                f"{PEERS}/fastresponses/bin/fastresponses",
                *("serve", "{here}/agent.py:agent", "--host", "127.0.0.1", "--port", "{port}"),
            ),
            files={"agent.py": AGENT},
            version=peer_version("fastresponses"),
            peer=True,
        ),
        "an agent of OpenAI's Agents SDK, in front of the Chat Completions server",
        ready="/responses/resp_none",
    ),
    Subject(
        Server(
            "llama.cpp",
            "llama-server",
            (
                LLAMA_SERVER,
                *("-m", TINY_GGUF, "--alias", "tiny", "--host", "127.0.0.1", "--port", "{port}"),
                *("-c", "16384", "-np", "4", "-t", "2", "--jinja", "--temp", "0"),
            ),
            version=(LLAMA_SERVER, "--version"),
            peer=True,
        ),
        "its own `/v1/responses`, `--jinja`, with the tiny model",
        model="tiny",
        behind=False,
        needs=(TINY_GGUF, shutil.which(LLAMA_SERVER) or ""),
    ),
    Subject(
        Server(
            "transformers",
            "transformers serve",
            (
                f"{PEERS}/transformers/bin/transformers",
                *("serve", TINY, "--port", "{port}", "--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32"),
            ),
            environment={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_CACHE": "{here}"},
            version=peer_version("transformers"),
            peer=True,
        ),
        "its own `/v1/responses`, with the tiny model on a CPU",
        model=TINY,
        behind=False,
        needs=(TINY,),
    ),
    Subject(
        Server(
            "vLLM",
            "vLLM",
            (
                f"{PEERS}/vllm/bin/vllm",
                *("serve", TINY, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "{port}"),
                *("--dtype", "float32", "--max-model-len", "4096", "--enforce-eager", "--max-num-seqs", "4"),
                *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
            ),
            environment={
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_ENABLE_RESPONSES_API_STORE": "1",
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_OFFLINE": "1",
            },
            version=peer_version("vllm", "vllm-cpu"),
            peer=True,
        ),
        "its own `/v1/responses`, `VLLM_ENABLE_RESPONSES_API_STORE=1`, `--enable-auto-tool-choice`, "
        "`--reasoning-parser`, with the tiny model on a CPU",
        model="tiny",
        behind=False,
        needs=(TINY,),
    ),
)
