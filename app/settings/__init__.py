"""
Everything that can be configured, read once: from the environment, `.env` and, for several backends, a TOML file.

    settings = load_settings()
    settings.served()   # {"default": BackendSettings(url="http://localhost:8000/v1", ...)}

The environment wins over `.env`, and `.env` over the TOML file. An empty variable counts as not set.
Nothing else in the program reads the environment.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.settings.validation import (
    ENV_FILE,
    AllowedOrigins,
    ApiKey,
    ApiKeys,
    BackendSettings,
    BackendURL,
    Lifetime,
    LimitStoreURL,
    Networks,
    Options,
    PageAccess,
    ProfileName,
    Seconds,
    Secrets,
    SingleBackendName,
    Size,
    StoreURL,
    decode_json,
    environment,
    merged_profile,
)
from app.tools import ToolLimits

__all__ = ["BackendSettings", "Settings", "SettingsError", "load_settings"]

PREFIX = "ANTIPHON_"


class SettingsError(Exception):
    """The settings cannot be used. Each of `problems` names a variable or TOML key and what would be right."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Settings(BaseSettings):
    """The settings of a server."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",  # `.env` may hold what is not ours; see unknown_variables
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    config: Path | None = None
    """A TOML file of settings. Its keys are the names below in lower case, without the prefix; its tables
    `[backends.NAME]` describe several backends (docs/backends.md), and are read again by `antiphon reload`."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs `ANTIPHON_API_KEYS` or `ANTIPHON_ALLOW_OPEN`."""
    port: int = Field(8080, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    workers: int = Field(1, ge=1)
    """Processes to run. More than one need a store that they share, so not `memory://`."""
    max_body_bytes: Size = Field(ByteSize(64 * 1024 * 1024), gt=0)
    """Largest request body, in bytes or with a unit, such as `64MiB`."""
    max_body_values: int = Field(100_000, gt=0)
    """Most JSON values (objects, arrays, strings, numbers) of a request body. Each costs time and memory."""
    trusted_proxies: Networks = ["127.0.0.1", "::1"]
    """Addresses or networks of the proxies in front, separated by commas: of these `X-Forwarded-For` and
    `X-Forwarded-Proto` are believed. `*` for any, where nobody else reaches the port."""
    pid_file: Path | None = None
    """File for the server's process id, which `antiphon reload` reads. Empty: one in a directory of the user's own,
    named by the port."""
    shutdown_grace: Seconds = 30
    """Seconds in which running responses may end when the server is told to stop, those in the background too."""
    websocket_lifetime: Seconds = Field(3600, gt=0)
    """Seconds after which a WebSocket connection has to be made anew. A turn that is running may end first."""
    websocket_queue: int = Field(16, ge=1)
    """Turns that a client may send over a WebSocket before the running one has ended."""
    websocket_memory: Size = ByteSize(16 * 1024 * 1024)
    """How much a WebSocket connection remembers of responses that are not stored, in bytes or with a unit."""
    cors_origins: AllowedOrigins = []
    """Origins of web pages that may call the server, separated by commas; `*` for any. Where no key is wanted, other
    pages than those of this machine are refused."""

    docs: PageAccess = "open"
    """Serve `/docs` and `/openapi.json`: `open`, to those who show a `key`, or `off`."""
    studio: bool = True
    """Serve the studio at `/studio`: a page to talk to a model and to see what happens. It uses the API with the
    caller's key."""

    backend: SingleBackendName = "auto"
    """Who answers: `demo`, `openai` (any Chat Completions server), or an import path `package.module:Class`. `auto` is
    `openai` where there is a URL, and `demo` where there is none."""
    backend_url: BackendURL = ""
    """Base URL of a Chat Completions server, such as `http://localhost:8000/v1`."""
    backend_api_key: ApiKey | None = None
    """Sent upstream as a bearer token. `passthrough` forwards the caller's."""
    backend_profile: ProfileName = "default"
    """Name of the built-in profile that says how the server differs from OpenAI's, such as `vllm` or `ollama`."""
    backend_overrides: Options = {}
    """Options of the profile to change: a JSON object by dotted name, such as `{"response.think_tags": "auto"}`."""
    backend_retries: int = Field(2, ge=0)
    """How often to ask again when the backend refuses before it answers."""
    backends: Annotated[dict[str, BackendSettings], NoDecode, BeforeValidator(decode_json)] = {}
    """Several backends by name: better written as tables `[backends.NAME]` in the TOML file; here a JSON object. The
    variables above are the backend named `default`, which is asked last. With replicas, fallbacks and limits: see
    docs/backends.md."""
    tools: Annotated[dict[str, Any], NoDecode, BeforeValidator(decode_json)] = {}
    """What the server does for a model by itself: tables `[tools.NAME]` in the TOML file; here a JSON object. A tool
    without a table is left out. `max_rounds`, `parallel`, `max_result_chars` and `max_call_seconds` are for all of
    them. See docs/tools.md."""
    mcp: Annotated[dict[str, str], NoDecode, BeforeValidator(decode_json)] = {}
    """MCP servers whose tools a model may call, beside the tables `[tools.mcp.servers.NAME]`: a JSON object of names,
    each with a URL or a command to run, such as `{"time": "uvx mcp-server-time"}`."""
    mcp_approval: Literal["always", "never"] | None = None
    """Whether callers have to approve each call of a tool of an MCP server that does not say so itself: `always`, which
    is the default, or `never`."""
    default_model: str | None = None
    """Model of a request that names none."""

    store_url: StoreURL = "memory://"
    """Where responses are kept: `memory://`, `sqlite:///antiphon.db`, `redis://localhost:6379/0`, `rediss://...`,
    `redis+cluster://...`, `postgresql://user@localhost/antiphon`, or an import path `package.module:Class`."""
    store_ttl: Lifetime = 2_592_000
    """Seconds for which a response is kept after its conversation was last used (30 days)."""

    background_runs: int = Field(1000, ge=1)
    """Background responses that one process may be making at once; beyond them it answers 429."""
    background_lease: Seconds = Field(20, gt=0)
    """Seconds after which a background response whose process has died is found. It ends as failed."""
    background_log_ttl: Lifetime = 3600
    """Seconds for which the events of a background response can be streamed again after the last of them; no longer
    than `ANTIPHON_STORE_TTL`."""

    api_keys: ApiKeys = []
    """Keys of the callers, separated by commas. Empty: open to everybody who reaches the port. What is stored
    belongs to the key that stored it."""
    allow_open: bool = False
    """Serve without keys although the address is not loopback."""
    secret_key: Secrets = []
    """Encrypts `encrypted_content`. Empty: made at start, so what was encrypted cannot be read after a restart.
    To rotate, put the new key in front of the old one, separated by a comma."""

    limit_requests_per_minute: int = Field(0, ge=0)
    """Responses that one key may ask for in a minute; 0 for any number, here and below. Where no keys are required,
    all callers are counted as one."""
    limit_tokens_per_minute: int = Field(0, ge=0)
    """Tokens that one key may use in a minute, input and output. A response that needs more is not cut off, but the key
    has to wait until the rest is paid back."""
    limit_streams_per_key: int = Field(0, ge=0)
    """Responses of one key that may be in the making at once, streamed or not."""
    limit_streams: int = Field(0, ge=0)
    """Responses of all keys that may be in the making at once."""
    limit_store_url: LimitStoreURL = ""
    """Where the limits are counted: a Redis or PostgreSQL, for all processes, or `memory://`, each process for itself.
    Empty: in that of `ANTIPHON_STORE_URL`, or in memory if that is none."""
    max_input_tokens: int = Field(0, ge=0)
    """Tokens, as estimated here, that a prompt may have, with the conversation that it continues; 0 for any number."""
    max_output_seconds: Seconds = 0
    """Seconds for which a backend may be answering; then the response ends as incomplete. 0 for any time."""

    strict: bool = False
    """Refuse what is otherwise left out with a warning: fields of a request that are not known, and tools that cannot
    be run. The error names the closest one that is right."""
    dialect: Literal["auto", "openresponses", "openai"] = "auto"
    """Names of the reasoning events and form of the heartbeats: `openresponses` (the specification's), `openai`, or
    `auto`, by the client."""
    reasoning: Literal["auto", "content", "summary", "both"] = "auto"
    """Where raw reasoning is shown: as `content`, as `summary` or as `both`. `auto`: as summary if the caller asked for
    one, else as content."""
    compaction_prompt: str = ""
    """What the model is told when it is to summarize a conversation (`/responses/compact`). Empty: a prompt of ours."""
    open_after: Seconds = 10
    """Seconds to hold a stream's status line for the backend's, so that a refusal stays an HTTP error."""
    heartbeat: Seconds = 15
    """Seconds of silence after which a stream sends a sign of life; 0 for never."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
    ] = "info"
    """What to log: `debug`, `info`, `warning` or `error`."""
    log_format: Literal["text", "json"] = "text"
    """One line for each event, as `text` or as `json`."""
    log_content: bool = False
    """Let prompts and answers into the log, at level `debug`."""

    metrics: PageAccess = "open"
    """Answer `GET /metrics`, for Prometheus: `open` to whoever reaches the port, to those who show a `key` of
    ANTIPHON_API_KEYS, or `off`."""
    otel: bool = False
    """Send traces and metrics by OpenTelemetry; needs `pip install 'antiphon[otel]'`. Where to is said by
    OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT."""

    @field_validator("port", mode="before")
    @classmethod
    def _is_port(cls, port: object) -> object:
        if isinstance(port, str) and "://" in port:
            # https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
            raise ValueError(
                "should be a number. Kubernetes sets this variable for a service that is named antiphon: "
                "name the service otherwise, or set `enableServiceLinks: false` for the pod"
            )
        return port

    @field_validator("backend_url")
    @classmethod
    def _has_url(cls, url: str, info: ValidationInfo) -> str:
        if not url and info.data.get("backend") == "openai":
            raise ValueError("should be the base URL of a Chat Completions server, such as http://localhost:8000/v1")
        return url

    @field_validator("otel")
    @classmethod
    def _is_installed(cls, otel: bool) -> bool:
        if otel and not (find_spec("opentelemetry") and find_spec("opentelemetry.sdk")):
            raise ValueError("needs more packages: pip install 'antiphon[otel]'")
        return otel

    @field_validator("backend_overrides")
    @classmethod
    def _fit(cls, overrides: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "backend_profile" in info.data:
            merged_profile(info.data["backend_profile"], overrides)
        return overrides

    @field_validator("tools")
    @classmethod
    def _are_tables(cls, tools: dict[str, Any]) -> dict[str, Any]:
        limits = {limit.name for limit in fields(ToolLimits)}
        for name, value in tools.items():
            if name in limits:
                if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                    raise ValueError(f"{name} should be a number above 0")
                if isinstance(value, float) and name != "max_call_seconds":
                    raise ValueError(f"{name} should be a whole number")
            elif not isinstance(value, dict):
                raise ValueError(f"{name} is not known{_hint(name, limits)}; a tool is a table, [tools.NAME]")
        return tools

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        if not (self.api_keys or self.allow_open or _loopback(self.host)):
            raise ValueError(
                f"ANTIPHON_API_KEYS: should hold at least one key, since ANTIPHON_HOST={self.host} can be reached from "
                "other machines. To serve everybody set ANTIPHON_ALLOW_OPEN=true; to serve this machine only, "
                "ANTIPHON_HOST=127.0.0.1"
            )
        for name in ("metrics", "docs"):
            if getattr(self, name) == "key" and not self.api_keys:
                raise ValueError(f"ANTIPHON_{name.upper()}: `key` needs a key, in ANTIPHON_API_KEYS")
        if self.workers > 1 and self.store_url.startswith("memory:"):
            raise ValueError(
                f"ANTIPHON_STORE_URL: should be a store that {self.workers} workers can share, such as "
                "sqlite:///antiphon.db or redis://localhost:6379/0; or set ANTIPHON_WORKERS=1"
            )
        if self.workers > 1 and "code_interpreter" in self.tools:
            raise ValueError("tools.code_interpreter: containers live in one process, so set ANTIPHON_WORKERS=1")
        for name, backend in self.backends.items():
            for other in backend.fallbacks or ():
                if other not in self.backends and other != "default":
                    raise ValueError(f"backends.{name}.fallbacks: there is no backend {other!r}")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources, the strongest first."""
        path = environment().get(f"{PREFIX}CONFIG")
        toml = InitSettingsSource(settings_cls, read_toml(Path(path)) if path else {})
        return init_settings, env_settings, dotenv_settings, toml

    def tool_limits(self) -> ToolLimits:
        """Return what holds for all hosted tools."""
        return ToolLimits(**{name: value for name, value in self.tools.items() if not isinstance(value, dict)})

    def tool_tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables `[tools.NAME]`, those of MCP with what the variables say of it."""
        tables = {name: table for name, table in self.tools.items() if isinstance(table, dict)}
        mcp = tables.get("mcp", {})
        if self.mcp:
            mcp = {**mcp, "servers": {**mcp.get("servers", {}), **self.mcp}}
        if self.mcp_approval:
            mcp = {**mcp, "require_approval": self.mcp_approval}
        return {**tables, "mcp": mcp} if mcp else tables

    def tool_secrets(self) -> list[str]:
        """Return the keys, tokens and headers that the tables of tools hold, or name the variables of."""
        return list(_secrets_in(self.tool_tables(), environment()))

    def served(self) -> dict[str, BackendSettings]:
        """
        Return every backend by name, in the order in which they are asked whether they serve a model.

        `default` is made of the single-backend variables and wins over a table `[backends.default]`. It is last, since
        it takes every model, and it is there only if a variable asks for it or there is no other: then it is the demo.
        """
        if self.backend == "auto" and not self.backend_url and self.backends:
            return self.backends
        name = self.backend
        if name == "auto":
            name = "openai" if self.backend_url else "demo"
        single = BackendSettings(
            backend=name,
            url=self.backend_url,
            api_key=self.backend_api_key,
            profile=self.backend_profile,
            overrides=self.backend_overrides,
            retries=self.backend_retries,
        )
        others = {name: backend for name, backend in self.backends.items() if name != "default"}
        return {**others, "default": single}


_SECRET_KEYS = ("api_key", "headers", "env", "password", "token")


def _secrets_in(table: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in table.items():
        values = list(value.values()) if isinstance(value, dict) else [value]
        texts = [text for text in values if isinstance(text, str)]
        if name.endswith("_env"):
            yield from (variables[text] for text in texts if text in variables)
        elif name in _SECRET_KEYS:
            yield from texts
        elif isinstance(value, dict):
            yield from _secrets_in(value, variables)


def load_settings(**values: Any) -> Settings:
    """
    Read the settings; `values`, by field name, win over every source.

    Raises `SettingsError`, whose text is fit to be shown: it never contains a value.
    """
    try:
        return Settings(**values)
    except UnicodeDecodeError as error:
        raise SettingsError([f"{ENV_FILE}: should be UTF-8; {error.reason} at byte {error.start}"]) from None
    except ValidationError as error:
        raise SettingsError(list(dict.fromkeys(map(_problem, error.errors(include_url=False))))) from None


def _problem(detail: Any) -> str:
    """Say what is wrong, and where, in the words of whoever wrote it: a variable or a TOML key."""
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not detail["loc"]:
        return str(message)  # a rule about several settings, which names them itself
    first, *rest = map(str, detail["loc"])
    if detail["type"] == "extra_forbidden":
        message = f"unknown key{_hint(rest[-1], set(BackendSettings.model_fields))}"
    variables, variable = environment(), f"{PREFIX}{first.upper()}"
    path = variables.get(f"{PREFIX}CONFIG")
    in_toml = variable not in variables and path and first in read_toml(Path(path))
    return f"{'.'.join([first if in_toml else variable, *rest])}: {message}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read the TOML file of settings; raises `SettingsError` if it cannot be read or has a key that we do not know."""
    try:
        table = tomllib.loads(path.expanduser().read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError([f"{PREFIX}CONFIG: cannot read {str(path)!r}: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: {error}"]) from None
    known = set(Settings.model_fields) - {"config"}
    if unknown := [f"{name}: unknown key in {path}{_hint(name, known)}" for name in table if name not in known]:
        raise SettingsError(unknown)
    return table


def unknown_variables() -> list[str]:
    """Return a sentence for each variable that has our prefix but means nothing: most often a slip of the pen."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    unknown = [name for name in environment() if name.startswith(PREFIX) and name.upper() not in known]
    return [f"{name}: unknown setting, ignored{_hint(name, known)}" for name in unknown]


def _hint(name: str, known: set[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_HEADINGS = {
    "config": "Several settings in one file",
    "host": "The server",
    "backend": "Who answers",
    "store_url": "Who remembers",
    "api_keys": "Who may ask",
    "limit_requests_per_minute": "How much they may ask for",
    "strict": "How it answers",
    "log_level": "What it logs",
    "metrics": "What it lets others measure",
}


def env_example() -> str:
    """Return the text of `.env.example`: every setting, what it means and its default, commented out."""
    lines = ["# Antiphon's settings and their defaults. Copy to `.env`, and take the `#` from the lines you change."]
    for name, field in Settings.model_fields.items():
        if name in _HEADINGS:
            heading = _HEADINGS[name]
            lines += ["", "", f"### {heading}"]
        comment = (field.description or "").splitlines()
        lines += ["", *(f"# {line}" for line in comment), f"#{PREFIX}{name.upper()}={_written(field.default)}"]
    return "\n".join(lines) + "\n"


def _written(default: object) -> str:
    """Write a default as a variable would hold it."""
    match default:
        case None | []:
            return ""
        case list():
            return ",".join(map(str, default))
        case bool() | dict():
            return json.dumps(default)
        case _:
            return str(default)
