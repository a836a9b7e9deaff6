"""
The server's settings, read once from the environment, `.env` and a TOML file.

    settings = load_settings()
    settings.served()   # {"default": BackendSettings(url="http://localhost:8000/v1", ...)}

The environment overrides `.env`, and `.env` overrides the TOML file. An empty variable counts as unset. No other module
reads the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from app.core.access import digest_of
from app.core.http import is_loopback
from app.core.prices import Price, PriceList
from app.core.types import JSONObject
from app.loading import describe, require_packages
from app.settings.auth import AuthSettings, JWTSettings, ProxySettings
from app.settings.backend import BackendSettings, merged_profile, with_default_url
from app.settings.keys import BudgetSettings, KeyName, KeySettings, PriceSettings
from app.settings.loading import ENV_FILE, PREFIX, SettingsError, environment, read_toml, suggestion
from app.settings.validation import (
    AllowedOrigins,
    ApiKey,
    ApiKeys,
    BackendURL,
    Bytes,
    CommandLine,
    HostNames,
    Lifetime,
    LimitStoreURL,
    Networks,
    Options,
    PageAccess,
    ProfileName,
    Seconds,
    Secrets,
    SingleBackendName,
    StoreURL,
    decode_json,
)
from app.settings.webhooks import HookSettings, WebhookSettings
from app.tools import SettingsTable, ToolLimits

__all__ = ["BackendSettings", "Settings", "SettingsError", "load_settings"]


class VisionSettings(SettingsTable):
    """The table `[vision]`: the model that describes images for text-only models."""

    backend: str = "default"
    """Backend for image descriptions."""
    model: str
    """Model for image descriptions."""
    max_images: int = Field(20, ge=1)
    """Maximum number of described images per response; a note replaces others."""
    max_output_tokens: int = Field(1000, ge=1)
    """Maximum length of a description."""
    timeout: float = Field(60, gt=0)
    """Timeout for a description, in seconds."""


class Settings(BaseModel):
    """The server's settings."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True, validate_default=True)

    config: Path | None = None
    """Settings as a TOML file. Its keys are the names below, in lower case and without the prefix. Tables
    `[backends.NAME]` configure several backends (docs/backends.md). `antiphon reload` reads the file again."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address except loopback needs `ANTIPHON_API_KEYS` or `ANTIPHON_ALLOW_OPEN`."""
    port: int = Field(8080, ge=0, le=65535)
    """Port to listen on; 0 for any free port."""
    workers: int = Field(1, ge=1)
    """Number of worker processes. Several workers need a shared store, not `memory://`."""
    max_body_bytes: Bytes = Field(ByteSize(64 * 1024 * 1024), gt=0)
    """Maximum size of a request body, in bytes or with a unit: `64MiB`."""
    max_body_values: int = Field(100_000, gt=0)
    """Maximum number of JSON values (objects, arrays, strings, numbers) in a request body."""
    trusted_proxies: Networks = ["127.0.0.1", "::1"]
    """Addresses or networks of reverse proxies, comma-separated: their `X-Forwarded-For` and `X-Forwarded-Proto` are
    trusted. `*` for any, if only proxies can reach the port."""
    pid_file: Path | None = None
    """File for the server's process id, used by `antiphon reload`. Empty: a file in a directory of the user, named
    after the port."""
    shutdown_grace: Seconds = 30
    """Seconds at shutdown for responses in progress to finish, including background responses."""
    websocket_lifetime: Seconds = Field(3600, gt=0)
    """Maximum age of a WebSocket connection, in seconds; the client must then reconnect. The current turn can finish
    first."""
    websocket_queue: int = Field(16, ge=1)
    """Maximum number of further turns that a WebSocket client can send while a turn is in progress. Turns are queued,
    or run concurrently if their `stream_id` differs."""
    websocket_memory: Bytes = ByteSize(16 * 1024 * 1024)
    """Memory per WebSocket connection for responses that are not stored, in bytes or with a unit."""
    cors_origins: AllowedOrigins = []
    """Origins of web pages that can call the server, comma-separated; `*` for any. Without API keys, requests from
    other origins are rejected, except pages on this machine."""
    allowed_hosts: HostNames = []
    """Host names of a server without API keys, comma-separated: `chat.example`, `*.example` for subdomains, `*` for
    any. IP addresses, `localhost` and `ANTIPHON_HOST` are always accepted. Requests with another `Host` are rejected
    (403), since a web page could resolve its own name to this server."""

    docs: PageAccess = "open"
    """Serve `/docs` and `/openapi.json`: `open`, only with an API `key`, or `off`."""
    studio: bool = True
    """Serve the studio at `/studio`: a page to chat with a model and inspect its requests and events. It calls the API
    with the caller's key."""

    passthrough: bool = True
    """Also serve the backend's other endpoints: chat completions, completions, Anthropic's messages, embeddings,
    rerank, moderations, images and audio, byte for byte, with the same keys and limits. See docs/passthrough.md. With
    `false`, or if the backend lacks the endpoint, chat completions and messages are translated instead."""

    backend: SingleBackendName = "auto"
    """Backend kind: `demo`, `openai` (any model server; its profile names the API), or an import path
    `package.module:Class`. `auto` is `openai` if a URL is set, else `demo`."""
    backend_url: BackendURL = ""
    """Base URL of a model server: `http://localhost:8000/v1`. Empty: the profile's URL, if it has one (`gemini`)."""
    backend_api_key: ApiKey | None = None
    """Sent to the backend as a bearer token. `passthrough` forwards the caller's key."""
    backend_api_key_file: Path | None = None
    """File with an expiring key, for example an access token; instead of `ANTIPHON_BACKEND_API_KEY`."""
    backend_api_key_command: CommandLine = []
    """Command that prints an expiring key (`gcloud auth print-access-token`); instead of `ANTIPHON_BACKEND_API_KEY`. It
    runs without a shell."""
    backend_api_key_lifetime: Seconds = Field(180, gt=0)
    """Seconds between reads of the key file or runs of the key command. A 401 from the backend also renews the key."""
    backend_profile: ProfileName = "default"
    """Built-in profile with the backend's differences from OpenAI's API: `vllm`, `ollama`, ..."""
    backend_overrides: Options = {}
    """Profile options to override, as a JSON object by dotted name: `{"response.think_tags": "auto"}`."""
    backend_retries: int = Field(2, ge=0)
    """Number of retries if the backend fails before its answer starts."""
    backends: Annotated[dict[str, BackendSettings], BeforeValidator(decode_json)] = {}
    """Several backends by name, as a JSON object; easier to write as tables `[backends.NAME]` in the TOML file. The
    variables above define the backend `default`, which is last. See docs/backends.md for replicas, fallbacks and
    limits."""
    tools: Annotated[JSONObject, BeforeValidator(decode_json)] = {}
    """Tools run by the server: tables `[tools.NAME]` in the TOML file, here a JSON object. A tool without a table is
    off. `max_rounds`, `parallel`, `max_result_chars` and `max_call_seconds` apply to all tools. See docs/tools.md."""
    mcp: Annotated[dict[str, str], BeforeValidator(decode_json)] = {}
    """MCP servers for all models, in addition to tables `[tools.mcp.servers.NAME]`: a JSON object of names, each with a
    URL or a command: `{"time": "uvx mcp-server-time"}`."""
    mcp_approval: Literal["always", "never"] | None = None
    """Whether callers must approve each MCP tool call: `always` (the default) or `never`. An MCP server's own setting
    takes precedence."""
    default_model: str | None = None
    """Model for requests without `model`."""
    vision: Annotated[VisionSettings | None, BeforeValidator(decode_json)] = None
    """The model that describes images for text-only models, as a JSON object; easier to write as a table `[vision]` in
    the TOML file, with `backend` and `model`. Unset: a note replaces such images. See docs/backends.md."""
    prompts: Path | None = None
    """Folder with prompt templates, which requests name by `prompt`: text, or TOML with variables. See docs/prompts.md.
    `antiphon reload` reads it again."""

    store_url: StoreURL = "memory://"
    """Storage for responses: `memory://`, `sqlite:///antiphon.db`, `redis://localhost:6379/0`, `rediss://...`,
    `redis+cluster://...`, `postgresql://user@localhost/antiphon`, or an import path `package.module:Class`."""
    store_ttl: Lifetime = 2_592_000
    """Seconds until a response expires, counted from the last use of its conversation (30 days)."""
    idempotency_ttl: Lifetime = 86_400
    """Seconds until a request's `Idempotency-Key` expires (one day); at most `ANTIPHON_STORE_TTL`."""

    history_cache: Bytes = ByteSize(64 * 1024 * 1024)
    """Memory per process to cache recently continued conversations, in bytes or with a unit; `0` for none. Long
    conversations continue faster with it. The store confirms each use."""

    background_runs: int = Field(1000, ge=1)
    """Maximum number of concurrent background responses per process; further requests get a 429."""
    background_lease: Seconds = Field(20, gt=0)
    """Seconds until a background response ends as failed after its process died."""
    batch_concurrency: int = Field(4, ge=0)
    """Maximum number of concurrent batch requests (`/v1/batches`), in all processes; 0 turns batches off."""
    webhooks: Annotated[dict[str, WebhookSettings], BeforeValidator(decode_json)] = {}
    """Servers that receive an event when a background response or batch ends, by name, as a JSON object; easier to
    write as tables `[webhooks.NAME]` in the TOML file, with `url`, `secret_env` and `events`. See docs/operation.md."""
    background_log_ttl: Lifetime = 3600
    """Seconds after the end of a background response in which its events can be streamed again; at most
    `ANTIPHON_STORE_TTL`."""

    api_keys: ApiKeys = []
    """API keys for callers, comma-separated. Empty: anyone who can reach the port can call the API. Stored objects
    belong to the key that created them."""
    keys: Annotated[dict[KeyName, KeySettings], BeforeValidator(decode_json)] = {}
    """API keys with names, rights, limits and an owner, as a JSON object; easier to write as tables `[keys.NAME]` in
    the TOML file, with the key's hash, which `antiphon key new NAME` prints. See docs/keys.md."""
    auth: Annotated[AuthSettings | None, BeforeValidator(decode_json)] = None
    """Callers without a key, as a JSON object; easier to write as tables in the TOML file: `[auth.jwt]` verifies tokens
    from an identity provider, `[auth.proxy]` trusts a reverse proxy's header. See docs/keys.md."""
    hooks: Annotated[HookSettings | None, BeforeValidator(decode_json)] = None
    """A policy service that allows, rejects or replaces input and output, as a JSON object; easier to write as the
    table `[hooks]` in the TOML file. See docs/hooks.md."""
    prices: Annotated[dict[str, PriceSettings], BeforeValidator(decode_json)] = {}
    """Model prices by glob, as a JSON object; easier to write as tables `[prices."GLOB"]` in the TOML file, with
    `input`, `output` and optionally `cached_input` and `cache_write` per million tokens. The first matching glob
    applies."""
    reported_costs: bool | None = None
    """Use the cost reported by a backend, in US dollars (OpenRouter, LiteLLM, xAI and others), instead of the price.
    Default: `true`, or `false` if `ANTIPHON_CURRENCY` is set, but not to `$` or `USD`."""
    currency: str = Field("", max_length=8)
    """Currency sign or code for prices: `$`, `€`, `CHF`. The studio shows it with each cost."""
    usage_days: int = Field(400, ge=32)
    """Days to store the usage per key and model; at least 32, for monthly budgets."""
    usage_journal: Path | Literal["auto", "off"] = "auto"
    """Directory for usage not yet in the store. Without it, a killed process (`kill -9`) loses this usage; with it, the
    next process to start stores it. Replicas on one machine can share the directory. `auto`: next to the SQLite file
    (`antiphon.db-usage`), or for other stores except memory, in the directory for temporary files. `off`: no files."""
    allow_open: bool = False
    """Serve without API keys on addresses other than loopback."""
    secret_key: Secrets = []
    """Key that encrypts `encrypted_content`. Empty: generated at start, so content cannot be decrypted after a restart.
    To rotate it, put the new key before the old key, separated by a comma."""

    revoked_responses: Literal["finish", "cancel"] = "finish"
    """Responses in progress when their key is revoked or removed `finish`, or end as failed (`cancel`)."""

    limit_requests_per_minute: int = Field(0, ge=0)
    """Requests per minute and key that query a backend, run a tool or store something; 0 for no limit, here and below.
    Without API keys, all callers share a single limit."""
    limit_tokens_per_minute: int = Field(0, ge=0)
    """Input and output tokens per minute and key. An answer above the limit is not cut off; further requests, and
    further rounds with hosted tools, are rejected until the bucket has refilled."""
    limit_streams_per_key: int = Field(0, ge=0)
    """Concurrent responses per key, streamed or not."""
    limit_streams: int = Field(0, ge=0)
    """Concurrent responses for all keys."""
    limit_store_url: LimitStoreURL = ""
    """Storage for limit counters: Redis or PostgreSQL for all processes, or `memory://` for each process alone. Empty:
    the same as `ANTIPHON_STORE_URL` if that is Redis or PostgreSQL, else memory."""
    max_stored_bytes: Bytes = ByteSize(0)
    """Bytes per owner for responses and conversations, or with a unit: `1GiB`; 0 for no limit. Further requests that
    store something get a 429."""
    max_input_tokens: int = Field(0, ge=0)
    """Maximum number of tokens in a prompt with its conversation, as estimated by this server; 0 for no limit."""
    max_output_seconds: Seconds = 0
    """Seconds until a response in progress ends as incomplete; 0 for no limit."""

    strict: bool = False
    """Reject unknown request fields, unsupported tools and calls without output. Otherwise they are dropped or
    completed, with a warning. The error suggests the closest valid name."""
    dialect: Literal["auto", "openresponses", "openai", "openai-comments"] = "auto"
    """Reasoning event names and heartbeat form: `openresponses` (the specification's), `openai` (heartbeats are
    events), `openai-comments` (heartbeats are comments), or `auto`, by the client's headers."""
    reasoning: Literal["auto", "content", "summary", "both"] = "auto"
    """Form of raw reasoning in responses: `content`, `summary` or `both`. `auto`: as summary if the request asks for a
    summary, else as content."""
    compaction_prompt: str = ""
    """Prompt for the model to summarize a conversation (`/responses/compact`). Empty: a built-in prompt."""
    compact_threshold: Annotated[int, Field(gt=0)] = 100_000
    """Prompt tokens above which a conversation is compacted, for requests with `context_management` but without
    `compact_threshold`."""
    open_after: Seconds = 10
    """Seconds to wait for the backend's first event before a stream's response headers are sent. Until then, a
    rejection is an HTTP error."""
    heartbeat: Seconds = 15
    """Seconds of silence before a stream sends a heartbeat; 0 for never."""
    json_heartbeat: Seconds = 0
    """Seconds between white space sent before a JSON answer from `POST /v1/responses` or a translated request; 0 for
    none. After the first white space the status is 200, and a failure is a response with `status: failed`, or the error
    object of the client's API."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
    ] = "info"
    """Lowest level to log: `debug`, `info`, `warning` or `error`."""
    log_format: Literal["text", "json"] = "text"
    """Log format, with one line per entry: `text` or `json`."""
    log_content: bool = False
    """Log prompts and answers, at level `debug`."""

    metrics: PageAccess = "open"
    """Serve `GET /metrics`, for Prometheus: `open`, only with a `key` (a named key needs `admin = true`), or `off`."""
    otel: bool = False
    """Export traces and metrics by OpenTelemetry; needs the extra `otel`. OpenTelemetry's own variables set the
    destination: OTEL_EXPORTER_OTLP_ENDPOINT, ..."""

    otel_content: bool = False
    """Add prompts and answers to spans, as `gen_ai.input.messages` and `gen_ai.output.messages`; never for responses
    with `store: false` or passthrough requests."""

    @model_validator(mode="before")
    @classmethod
    def _with_url(cls, fields: Any) -> Any:
        return with_default_url(fields, "backend_")

    @field_validator("port", mode="before")
    @classmethod
    def _is_port(cls, port: object) -> object:
        if isinstance(port, str) and "://" in port:
            # https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
            raise ValueError(
                "must be a number. Kubernetes sets this variable for a service named antiphon: "
                "name the service otherwise, or set `enableServiceLinks: false` for the pod"
            )
        return port

    @field_validator("usage_journal")
    @classmethod
    def _can_lock(cls, directory: Path | str) -> Path | str:
        if isinstance(directory, Path) and find_spec("fcntl") is None:
            raise ValueError("must be off on a system without Unix file locks")
        return directory

    @field_validator("otel")
    @classmethod
    def _is_installed(cls, otel: bool) -> bool:
        if otel:
            require_packages(["opentelemetry.sdk"], "otel")
        return otel

    @field_validator("backend_overrides")
    @classmethod
    def _override_profile(cls, overrides: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        if "backend_profile" in info.data:
            merged_profile(info.data["backend_profile"], overrides)
        return overrides

    @field_validator("tools")
    @classmethod
    def _are_tool_tables(cls, tools: dict[str, object]) -> dict[str, object]:
        limits = {limit.name for limit in fields(ToolLimits)}
        for name, value in tools.items():
            if name in limits:
                if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                    raise ValueError(f"{name} must be a number above 0")
                if isinstance(value, float) and name != "max_call_seconds":
                    raise ValueError(f"{name} must be an integer")
            elif not isinstance(value, dict):
                raise ValueError(f"{name} must be a table, [tools.NAME]{suggestion(name, limits)}")
        return tools

    @model_validator(mode="after")
    def _are_consistent(self) -> Settings:
        if not (self.has_keys or self.allow_open or self.is_local):
            raise ValueError(
                f"ANTIPHON_API_KEYS: must contain at least one key, because ANTIPHON_HOST={self.host} is reachable "
                "from other machines. To serve everybody set ANTIPHON_ALLOW_OPEN=true; to serve this machine only, "
                "ANTIPHON_HOST=127.0.0.1"
            )
        for name in ("metrics", "docs"):
            if getattr(self, name) == "key" and not self.has_keys:
                raise ValueError(
                    f"ANTIPHON_{name.upper()}: `key` requires an API key, in ANTIPHON_API_KEYS or [keys.NAME]"
                )
        if self.workers > 1 and self.store_url.startswith("memory:"):
            raise ValueError(
                f"ANTIPHON_STORE_URL: must be a store that {self.workers} workers can share, such as "
                "sqlite:///antiphon.db or redis://localhost:6379/0; or set ANTIPHON_WORKERS=1"
            )
        for name, backend in self.backends.items():
            for other in backend.fallbacks or ():
                if other not in self.backends and other != "default":
                    raise ValueError(f"backends.{name}.fallbacks: backend {other!r} not found")
        for glob, price in self.prices.items():
            if unknown := price.backends.keys() - self.served().keys():
                raise ValueError(f'prices."{glob}".backends: backend {min(unknown)!r} not found')
        if self.vision and self.vision.backend not in self.served():
            raise ValueError(f"vision.backend: backend {self.vision.backend!r} not found")
        names = ("backend_api_key", "backend_api_key_file", "backend_api_key_command")
        given = [f"{PREFIX}{name.upper()}" for name in names if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{given[1]}: must be left out if {given[0]} is set")
        owners = {digest_of(key.get_secret_value()): "ANTIPHON_API_KEYS" for key in self.api_keys}
        for name, key in self.keys.items():
            for digest in key.digests:
                if (other := owners.setdefault(digest, f"keys.{name}")) != f"keys.{name}":
                    raise ValueError(f"keys.{name}: must not contain a key from {other}")
        for name in sorted(self.auth.tables - self.keys.keys()) if self.auth else ():
            raise ValueError(f"auth: table [keys.{name}] not found")
        for name, key in self.keys.items():
            if not (key.digests or self.auth):
                raise ValueError(f"keys.{name}: must have `hash` or `env`; `antiphon key new NAME` prints a table")
            if key.budget.needs_prices and not self.prices:
                raise ValueError(f'keys.{name}.budget: money requires prices, in tables [prices."GLOB"]')
        return self

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def uses_reported_costs(self) -> bool:
        """Whether a backend's reported costs in US dollars replace prices."""
        if self.reported_costs is None:
            return self.currency.upper() in ("", "$", "US$", "USD")
        return self.reported_costs

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.keys or self.auth)

    def price_list(self) -> PriceList:
        by_backend: dict[str, dict[str, Price]] = {}
        for glob, price in self.prices.items():
            for backend, own in price.backends.items():
                by_backend.setdefault(backend, {})[glob] = own.price()
        return PriceList({glob: price.price() for glob, price in self.prices.items()}, by_backend)

    def tool_limits(self) -> ToolLimits:
        return ToolLimits(**{name: value for name, value in self.tools.items() if not isinstance(value, dict)})

    def tool_tables(self) -> dict[str, dict[str, object]]:
        """Tables `[tools.NAME]` by name; `mcp` includes the servers and approval from the variables."""
        tables = {name: table for name, table in self.tools.items() if isinstance(table, dict)}
        mcp = tables.get("mcp", {})
        if self.mcp:
            mcp = {**mcp, "servers": {**mcp.get("servers", {}), **self.mcp}}
        if self.mcp_approval:
            mcp = {**mcp, "require_approval": self.mcp_approval}
        return {**tables, "mcp": mcp} if mcp else tables

    def tool_secrets(self) -> list[str]:
        """All secrets for tools: keys, tokens and headers in the tables, and the variables they name."""
        return list(_secrets_in(self.tool_tables(), environment()))

    def served(self) -> dict[str, BackendSettings]:
        """All backends by name; the first match serves a model."""
        if self.backend == "auto" and not self.backend_url and self.backends:
            return self.backends
        name = self.backend
        if name == "auto":
            name = "openai" if self.backend_url else "demo"
        single = BackendSettings(
            backend=name,
            url=self.backend_url,
            api_key=self.backend_api_key,
            api_key_file=self.backend_api_key_file,
            api_key_command=self.backend_api_key_command,
            api_key_lifetime=self.backend_api_key_lifetime,
            profile=self.backend_profile,
            overrides=self.backend_overrides,
            retries=self.backend_retries,
        )
        others = {name: backend for name, backend in self.backends.items() if name != "default"}
        return {**others, "default": single}


_SECRET_KEYS = ("api_key", "headers", "env", "password", "token")


def _secrets_in(table: Mapping[str, object], variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in table.items():
        values = list(value.values()) if isinstance(value, dict) else [value]
        texts = [text for text in values if isinstance(text, str)]
        if name.endswith("_env"):
            texts = [variables[text] for text in texts if text in variables]
            yield from texts
        if "store_url" in name:
            with suppress(ValueError):
                passwords = [urlsplit(text).password for text in texts]
                yield from filter(None, passwords)
        if name in _SECRET_KEYS:
            yield from texts
        elif isinstance(value, dict):
            yield from _secrets_in(value, variables)


def load_settings(**values: Any) -> Settings:
    """Read the settings; `values`, by field name, override all sources."""
    try:
        return Settings(**{**_configured(), **values})
    except UnicodeDecodeError as error:
        raise SettingsError([f"{ENV_FILE}: must be UTF-8; {error.reason} at byte {error.start}"]) from None
    except ValidationError as error:
        raise SettingsError(list(dict.fromkeys(map(_problem, error.errors(include_url=False))))) from None


def _configured() -> dict[str, object]:
    """The TOML file's settings, overridden by variables, with names in any case."""
    variables = {name.upper(): value for name, value in environment().items()}
    path = variables.get(f"{PREFIX}CONFIG")
    table = read_toml(Path(path), _toml_keys()) if path else {}
    names = {name: f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    return {**table, **{name: variables[variable] for name, variable in names.items() if variable in variables}}


_TABLES: dict[str, type[SettingsTable]] = {
    "auth": AuthSettings,
    "auth.jwt": JWTSettings,
    "auth.proxy": ProxySettings,
    "backends": BackendSettings,
    "hooks": HookSettings,
    "keys": KeySettings,
    "keys.budget": BudgetSettings,
    "prices": PriceSettings,
    "vision": VisionSettings,
    "webhooks": WebhookSettings,
}


def _problem(detail: Any) -> str:
    """Describe a pydantic error by variable or TOML key."""
    if not detail["loc"]:
        return describe(detail)  # names several settings itself
    first, *rest = map(str, detail["loc"])
    variables, variable = environment(), f"{PREFIX}{first.upper()}"
    path = variables.get(f"{PREFIX}CONFIG")
    in_toml = variable not in variables and path and first in read_toml(Path(path), _toml_keys())
    message = describe(detail, "table" if in_toml else "JSON object")
    if detail["type"] == "extra_forbidden":
        inner = rest[0] if first == "auth" else "".join(rest[1:2])  # other tables are by name
        table = _TABLES.get(f"{first}.{inner}", _TABLES[first])
        message = f"unknown key{suggestion(rest[-1], table.model_fields)}"
    return f"{'.'.join([first if in_toml else variable, *rest])}: {message}"


def _toml_keys() -> set[str]:
    return set(Settings.model_fields) - {"config"}


def unknown_variables() -> list[str]:
    """A warning for each unknown variable with our prefix, usually a typo."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    unknown = [name for name in environment() if name.startswith(PREFIX) and name.upper() not in known]
    return [f"{name}: unknown setting, ignored{suggestion(name, known)}" for name in unknown]
