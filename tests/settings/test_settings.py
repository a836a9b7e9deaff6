"""Sources of settings, and errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from app.backends.apis import APIS
from app.settings import BackendSettings, Settings, SettingsError, load_settings, unknown_variables
from app.settings.example import env_example, field_docstrings
from app.settings.keys import KeySettings
from app.settings.loading import variable
from app.settings.webhooks import WebhookSettings

ENV_EXAMPLE = Path(__file__).parents[2] / ".env.example"


class Workspace:
    """An empty directory to start in, and an environment with nothing of ours in it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._monkeypatch = monkeypatch

    def variables(self, **values: str) -> None:
        for name, value in values.items():
            self._monkeypatch.setenv(name, value)

    def dotenv(self, text: str) -> None:
        (self._path / ".env").write_text(text)

    def toml(self, text: str) -> None:
        (self._path / "antiphon.toml").write_text(text)
        self.variables(ANTIPHON_CONFIG="antiphon.toml")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    for name in [name for name in os.environ if name.upper().startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path, monkeypatch)


def problems() -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings()
    return caught.value.problems


def test_settings_without_any_serve_the_demo_on_loopback_from_memory(workspace: Workspace) -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8080, 1)
    assert settings.store_url == "memory://"
    assert settings.store_ttl == 30 * 24 * 3600
    assert settings.max_body_bytes == 64 * 1024 * 1024
    assert settings.served() == {"default": BackendSettings(backend="demo")}


def test_settings_are_all_in_the_example_with_their_defaults() -> None:
    text = ENV_EXAMPLE.read_text()
    written = dict(re.findall(r"^#(ANTIPHON_\w+)=(.*)$", text, re.MULTILINE))
    assert written.keys() == {f"ANTIPHON_{name.upper()}" for name in Settings.model_fields}
    assert (written["ANTIPHON_PORT"], written["ANTIPHON_STORE_URL"]) == ("8080", "memory://")
    assert text == env_example(), "write it anew with `make env-example`"


def test_settings_of_the_example_are_the_defaults(workspace: Workspace) -> None:
    workspace.dotenv(re.sub(r"^#(?=ANTIPHON_)", "", ENV_EXAMPLE.read_text(), flags=re.MULTILINE))
    assert load_settings() == Settings()
    assert unknown_variables() == []


def test_settings_have_descriptions() -> None:
    for table in (Settings, BackendSettings, KeySettings, WebhookSettings):
        assert field_docstrings(table).keys() == table.model_fields.keys()


def test_environment_overrides_dotenv_and_dotenv_toml(workspace: Workspace) -> None:
    workspace.toml('port = 1001\nlog_level = "error"\ndialect = "openai"')
    workspace.dotenv("ANTIPHON_PORT=1002\nANTIPHON_LOG_LEVEL=warning\n")
    workspace.variables(ANTIPHON_PORT="1003")
    settings = load_settings()
    assert (settings.port, settings.log_level, settings.dialect) == (1003, "warning", "openai")
    assert load_settings(port=1004).port == 1004


def test_empty_variable_is_as_if_unset(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_PORT="", ANTIPHON_API_KEYS="", ANTIPHON_BACKEND_URL="", ANTIPHON_CONFIG="")
    settings = load_settings()
    assert (settings.port, settings.api_keys, settings.config) == (8080, [], None)


def test_empty_variable_does_not_hide_dotenv(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_PORT="", MY_KEY="")
    workspace.dotenv("ANTIPHON_PORT=9\nMY_KEY=from-dotenv\n")
    assert load_settings().port == 9
    assert variable("MY_KEY") == "from-dotenv"


def test_variables_are_read_in_any_case(workspace: Workspace) -> None:
    workspace.variables(antiphon_port="9")
    workspace.dotenv("ANTIPHON_PORT=8\nantiphon_log_level=error\n")
    assert (load_settings().port, load_settings().log_level) == (9, "error")


def test_settings_file_may_be_named_in_dotenv(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("port = 9")
    workspace.dotenv("ANTIPHON_CONFIG=other.toml")
    assert load_settings().port == 9


def test_lists_are_separated_by_commas_and_objects_are_json(workspace: Workspace) -> None:
    workspace.variables(
        ANTIPHON_API_KEYS="sk-one, sk-two,",
        ANTIPHON_SECRET_KEY="new,old",
        ANTIPHON_CORS_ORIGINS="https://a.example,https://b.example",
        ANTIPHON_BACKEND_OVERRIDES='{"response.think_tags": "auto"}',
        ANTIPHON_MAX_BODY_BYTES="1MiB",
    )
    settings = load_settings()
    assert [key.get_secret_value() for key in settings.api_keys] == ["sk-one", "sk-two"]
    assert [key.get_secret_value() for key in settings.secret_key] == ["new", "old"]
    assert settings.cors_origins == ["https://a.example", "https://b.example"]
    assert settings.backend_overrides == {"response.think_tags": "auto"}
    assert settings.max_body_bytes == 1024 * 1024


def test_mcp_servers_of_a_variable_are_added_to_those_of_the_file(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "tools.toml").write_text(
        '[tools.mcp.servers.lab]\nurl = "http://lab/mcp"\nheaders_env = { Authorization = "LAB_TOKEN" }'
    )
    workspace.variables(
        ANTIPHON_CONFIG="tools.toml",
        ANTIPHON_MCP='{"time": "uvx mcp-server-time"}',
        ANTIPHON_MCP_APPROVAL="never",
        LAB_TOKEN="of-the-lab",
    )
    settings = load_settings()
    mcp = settings.tool_tables()["mcp"]
    assert set(mcp["servers"]) == {"lab", "time"}
    assert (mcp["servers"]["time"], mcp["require_approval"]) == ("uvx mcp-server-time", "never")
    assert settings.tool_secrets() == ["of-the-lab"]


def test_backend_url_makes_a_backend_named_default(workspace: Workspace) -> None:
    workspace.variables(
        ANTIPHON_BACKEND_URL="http://localhost:8000/v1/",
        ANTIPHON_BACKEND_API_KEY="sk-upstream",
        ANTIPHON_BACKEND_PROFILE="vllm",
        ANTIPHON_BACKEND_OVERRIDES='{"response.think_tags": "auto"}',
        ANTIPHON_BACKEND_RETRIES="0",
    )
    (name, backend), *others = load_settings().served().items()
    assert (name, others) == ("default", [])
    assert (backend.backend, backend.url, backend.models, backend.retries) == (
        "openai",
        "http://localhost:8000/v1",
        ["*"],
        0,
    )
    profile = backend.options()
    assert (profile.name, profile.response.think_tags) == ("vllm", "auto")
    assert (profile.transport.base_url, profile.transport.api_key) == ("http://localhost:8000/v1", "sk-upstream")


def test_passthrough_is_not_sent_as_a_key(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_BACKEND_URL="http://localhost/v1", ANTIPHON_BACKEND_API_KEY="passthrough")
    backend = load_settings().served()["default"]
    assert backend.key and backend.key.get_secret_value() == "passthrough"
    assert backend.options().transport.api_key is None


def test_demo_can_be_selected_beside_a_url(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_BACKEND="demo", ANTIPHON_BACKEND_URL="http://localhost/v1")
    assert load_settings().served()["default"].backend == "demo"


SEVERAL = """
[backends.local]
url = "http://localhost:8000/v1"
api_key_env = "LOCAL_KEY"
models = ["qwen*", "llama*"]
aliases = { "gpt-4o" = "qwen3" }
profile = "vllm"
overrides = { "response.think_tags" = "auto" }
max_concurrency = 8

[backends.cloud]
url = "https://api.example/v1"
api_key = "sk-cloud"
"""


def test_backends_of_the_file_keep_their_order(workspace: Workspace) -> None:
    workspace.toml(SEVERAL)
    workspace.dotenv("LOCAL_KEY=sk-local\n")
    backends = load_settings().served()
    assert list(backends) == ["local", "cloud"]
    local, cloud = backends.values()
    assert (local.models, local.aliases, local.max_concurrency) == (["qwen*", "llama*"], {"gpt-4o": "qwen3"}, 8)
    assert local.options().response.think_tags == "auto"
    assert (local.options().transport.api_key, cloud.options().transport.api_key) == ("sk-local", "sk-cloud")


def test_backend_of_the_variables_follows_those_of_the_file(workspace: Workspace) -> None:
    workspace.toml(SEVERAL)
    workspace.variables(LOCAL_KEY="sk-local", ANTIPHON_BACKEND_URL="http://localhost:1/v1")
    assert list(load_settings().served()) == ["local", "cloud", "default"]


def test_backend_of_the_variables_overrides_a_table_named_default(workspace: Workspace) -> None:
    workspace.toml('[backends.default]\nurl = "http://file/v1"')
    assert load_settings().served()["default"].url == "http://file/v1"
    workspace.variables(ANTIPHON_BACKEND_URL="http://variable/v1")
    assert load_settings().served()["default"].url == "http://variable/v1"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("PORT", "http", "must be an integer"),
        ("PORT", "65536", "must be at most 65535"),
        ("WORKERS", "0", "must be at least 1"),
        ("DIALECT", "openrouter", "must be 'auto', 'openresponses', 'openai' or 'openai-comments'"),
        ("OPEN_AFTER", "-1", "must be at least 0"),
        ("STORE_TTL", "0", "must be at least 1"),
        ("STORE_TTL", "10000000000000000", "must be at most 1000000000000"),
        ("BACKGROUND_LOG_TTL", "10000000000000000", "must be at most 1000000000000"),
        ("MAX_BODY_BYTES", "0", "must be more than 0"),
        ("MAX_BODY_BYTES", "-1", "must be a number of bytes, or one with a unit, such as 64MiB"),
        ("WEBSOCKET_MEMORY", "16 lines", "must be a number of bytes, or one with a unit, such as 64MiB"),
        ("BACKEND", "ollama", "must be one of auto, demo, openai, or an import path, `package.module:Class`"),
        ("BACKEND", "nowhere:Backend", "cannot import 'nowhere:Backend': No module named 'nowhere'"),
        ("STORE_URL", "app.errors:APIError", "must be the import path of a class with a `from_url` method"),
        ("BACKEND_URL", "localhost:8000", "must be an http or https URL, such as http://localhost:8000/v1"),
        ("BACKEND_URL", "http://localhost:80000", "must be an http or https URL, such as http://localhost:8000/v1"),
        ("BACKEND_URL", "http://[::1:8000/v1", "must be an http or https URL, such as http://localhost:8000/v1"),
        *(
            (
                "BACKEND_URL",
                f"http://localhost/v1{api.path}",
                "must be the base URL, such as http://localhost:8000/v1, without the endpoint's own path",
            )
            for api in APIS.values()
        ),
        (
            "STORE_URL",
            "mysql://localhost",
            "must begin with memory://, sqlite://, redis://, rediss://, redis+cluster://, rediss+cluster://, "
            "postgresql://, postgres://, "
            "or be an import path",
        ),
        *(
            (
                "STORE_URL",
                slip,
                "must begin with memory://, sqlite://, redis://, rediss://, redis+cluster://, rediss+cluster://, "
                "postgresql://, postgres://, "
                "or be an import path",
            )
            for slip in ("memory:", "sqlite:/antiphon.db", "redis:localhost:6379")
        ),
        ("BACKEND_OVERRIDES", "think", "must be a JSON object; Expecting value: line 1 column 1 (char 0)"),
        ("BACKEND_OVERRIDES", "[1]", "must be a JSON object"),
        (
            "BACKEND_OVERRIDES",
            '{"response.think": 1}',
            "response.think: unknown option; did you mean response.think_tags?",
        ),
        ("BACKEND_OVERRIDES", '{"zzz": 1}', "zzz: unknown option"),
        (
            "BACKEND_OVERRIDES",
            '{"transport.api": "grpc"}',
            f"transport.api: must be {', '.join(map(repr, APIS))} or 'auto'",
        ),
    ],
)
def test_setting_that_is_invalid_in_a_variable_is_named_with_what_would_be_right(
    workspace: Workspace, name: str, value: str, problem: str
) -> None:
    workspace.variables(**{f"ANTIPHON_{name}": value})
    assert problems() == [f"ANTIPHON_{name}: {problem}"]


@pytest.mark.parametrize("origin", ["https://chat.example/", "https://chat.example/page", "chat.example", "https://"])
def test_origin_has_the_form_that_browsers_send(workspace: Workspace, origin: str) -> None:
    fit = "https://chat.example:8443, http://[::1]:3000, app://obsidian.md, null, *"
    workspace.variables(ANTIPHON_CORS_ORIGINS=fit)
    assert load_settings().cors_origins == fit.split(", ")
    workspace.variables(ANTIPHON_CORS_ORIGINS=f"https://other.example, {origin}")
    problem = "must be an origin without a slash or a path after it, such as https://chat.example; or *"
    assert problems() == [f"ANTIPHON_CORS_ORIGINS.1: {problem}"]


def test_profile_that_is_unknown_is_refused_with_those_there_are(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_BACKEND_PROFILE="vlm")
    (problem,) = problems()
    assert problem.startswith("ANTIPHON_BACKEND_PROFILE: profile 'vlm' not found; available: default, ")
    assert "vllm" in problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("port = 0x10000", "port: must be at most 65535"),
        ("prot = 1", "prot: unknown key in antiphon.toml; did you mean port?"),
        ("port = ", "antiphon.toml: Invalid value (at end of document)"),
        (
            "[backends.local]\nmodels = ['*']",
            "backends.local.url: must be the base URL of a model server, such as http://localhost:8000/v1",
        ),
        (
            "[backends.local]\nurl = 'localhost'",
            "backends.local.url: must be an http or https URL, such as http://localhost:8000/v1",
        ),
        (
            "[backends.local]\nurl = 'http://a/v1'\nmodel = 'x'",
            "backends.local.model: unknown key; did you mean models?",
        ),
        ("[backends.local]\nurl = 'http://a/v1'\nmodels = 'x'", "backends.local.models: must be a list"),
        (
            "[backends.local]\nurl = 'http://a/v1'\napi_key_env = 'NO_SUCH_KEY'",
            "backends.local.api_key_env: the environment variable NO_SUCH_KEY is not set",
        ),
        (
            "[backends.local]\nurl = 'http://a/v1'\noverrides = { 'request.strict' = 'no' }",
            "backends.local.overrides: request.strict: must be 'send', 'drop' or 'force'",
        ),
    ],
)
def test_setting_that_is_invalid_in_the_file_is_named_by_its_key(workspace: Workspace, text: str, problem: str) -> None:
    workspace.toml(text)
    assert problems() == [problem]


def test_setting_that_overrides_the_file_is_named_by_its_variable(workspace: Workspace) -> None:
    workspace.toml("port = 8000")
    workspace.variables(ANTIPHON_PORT="http")
    assert problems()[0].startswith("ANTIPHON_PORT: ")


def test_settings_file_that_is_missing_is_an_error(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_CONFIG="nowhere.toml")
    assert problems() == ["ANTIPHON_CONFIG: cannot read 'nowhere.toml': No such file or directory"]


def test_settings_files_may_begin_with_a_byte_order_mark(workspace: Workspace) -> None:
    workspace.toml("\ufeffport = 8001")
    workspace.dotenv("\ufeffANTIPHON_WORKERS=2\nANTIPHON_STORE_URL=sqlite:///antiphon.db\n")
    settings = load_settings()
    assert (settings.port, settings.workers) == (8001, 2)


def test_dotenv_file_that_is_not_utf_8_is_an_error(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes("ANTIPHON_API_KEYS=schlüssel".encode("latin-1"))
    (problem,) = problems()
    assert problem.startswith(".env: must be UTF-8; ")


def test_variable_that_kubernetes_sets_is_recognized(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_PORT="tcp://10.0.0.1:8080")
    (problem,) = problems()
    assert "Kubernetes" in problem


def test_errors_show_no_value(workspace: Workspace) -> None:
    workspace.toml("[backends.local]\nurl = 'ftp://user:hush@localhost'\napi_key = ['hush']\noverrides = 'hush'")
    workspace.variables(
        ANTIPHON_BACKEND_URL="ftp://user:hush@localhost",
        ANTIPHON_STORE_URL="reddis://:hush@localhost",
        ANTIPHON_BACKEND_OVERRIDES='"hush"',
        ANTIPHON_PORT="hush",
    )
    found = problems()
    assert len(found) == 7
    assert "hush" not in "\n".join(found)


def test_open_server_beyond_loopback_is_refused(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_HOST="0.0.0.0")
    (problem,) = problems()
    assert problem.startswith("ANTIPHON_API_KEYS: must contain at least one key, because ANTIPHON_HOST=0.0.0.0 is")
    assert "ANTIPHON_ALLOW_OPEN=true" in problem


@pytest.mark.parametrize(
    "variables",
    [
        {"ANTIPHON_HOST": "0.0.0.0", "ANTIPHON_API_KEYS": "sk-caller"},
        {"ANTIPHON_HOST": "0.0.0.0", "ANTIPHON_ALLOW_OPEN": "true"},
        {"ANTIPHON_HOST": "::1"},
        {"ANTIPHON_HOST": "127.0.0.2"},
        {"ANTIPHON_HOST": "localhost"},
    ],
)
def test_server_that_is_closed_allowed_or_on_loopback_starts(workspace: Workspace, variables: dict[str, str]) -> None:
    workspace.variables(**variables)
    assert load_settings().host == variables["ANTIPHON_HOST"]


def test_workers_with_a_memory_store_are_refused(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_WORKERS="2")
    (problem,) = problems()
    assert problem.startswith("ANTIPHON_STORE_URL: must be a store that 2 workers can share")
    workspace.variables(ANTIPHON_STORE_URL="sqlite:///antiphon.db")
    assert load_settings().workers == 2


def test_variable_that_is_misspelt_is_a_warning(workspace: Workspace) -> None:
    workspace.variables(ANTIPHON_BAKEND_URL="http://localhost/v1")
    assert unknown_variables() == ["ANTIPHON_BAKEND_URL: unknown setting, ignored; did you mean ANTIPHON_BACKEND_URL?"]


def test_secrets_are_not_shown(workspace: Workspace) -> None:
    settings = load_settings(api_keys=["hush"], secret_key=["hush"], backend_api_key="hush")
    assert "hush" not in f"{settings!r} {settings} {settings.served()}"


def test_key_from_a_variable_is_read_once_with_the_settings(workspace: Workspace) -> None:
    workspace.dotenv("LOCAL_KEY=sk-one")
    workspace.toml('[backends.local]\nurl = "http://a/v1"\nreplicas = ["http://b/v1"]\napi_key_env = "LOCAL_KEY"\n')
    first = load_settings().served()["local"]
    workspace.dotenv("OTHER=1")
    keys = [one.key.get_secret_value() for one in (first, *first.each()) if one.key]
    assert (keys, first.forwards_caller_key) == (["sk-one"] * 3, False)
    workspace.dotenv("LOCAL_KEY=sk-two")
    second = load_settings().served()["local"]
    assert second.key and second.key.get_secret_value() == "sk-two"
    assert first != second == load_settings().served()["local"]
    assert "sk-two" not in repr(second) + second.model_dump_json()
